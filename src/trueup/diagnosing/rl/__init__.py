"""Two runs of reinforcement learning: which part of the pipeline, prompts to update, is at fault."""
