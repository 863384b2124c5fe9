"""Frozen values every other package speaks in: no behaviour, no framework, no I/O."""
