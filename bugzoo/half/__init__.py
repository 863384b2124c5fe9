"""Mistakes of the reference trainer's MindSpore half, beside its PyTorch half on the same file."""
