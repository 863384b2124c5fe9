"""Training against inference: log-probs of the same sampled tokens from the rollout and from the trainer."""
