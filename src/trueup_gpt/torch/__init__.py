"""The trainer on PyTorch: the model, the parts of parameters and what acts on them."""
