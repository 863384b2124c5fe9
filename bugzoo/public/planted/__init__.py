"""What is planted, a module and a YAML file an area."""
