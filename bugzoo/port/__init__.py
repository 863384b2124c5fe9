"""Mistakes of a port: the example's GPT for MindSpore with one of them, beside its PyTorch original."""
