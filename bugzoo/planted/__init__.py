"""What is planted: one module a part of training, its entries in the YAML file of the same name."""
