"""Recorded batches: read from a trace, a folder or Megatron's files, written, and given to a program."""
