"""Compares two traces: metrics per record, tolerance with its origin, and a verdict that names the first
difference."""
