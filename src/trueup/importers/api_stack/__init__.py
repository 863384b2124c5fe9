"""``api_stack_dump.pkl`` and its kin, which ptdbg_ascend, msprobe's predecessor, wrote for PyTorch.

In spite of their name these files are text, one JSON list a line (learned from ptdbg_ascend's public source);
only that is read. A real pickle is refused: nothing is ever unpickled.
"""
