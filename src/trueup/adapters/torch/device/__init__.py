"""Summaries of tensors that are not on the CPU: by one Triton kernel, or by torch operations in chunks."""
