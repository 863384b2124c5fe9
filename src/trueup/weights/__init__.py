"""Weights in files: read, written, converted and compared."""
