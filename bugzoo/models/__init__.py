"""Models faults are planted in."""
