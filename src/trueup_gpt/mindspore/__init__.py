"""The trainer on MindSpore's dynamic graph: files are named as those of the PyTorch half."""
