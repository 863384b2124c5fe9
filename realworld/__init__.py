"""Programs that people really train with, each put through trueup's commands: ``python -m realworld.run``."""
