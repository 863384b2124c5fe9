"""From a difference to its cause: measured noise, replay, kinds of fault, and the stages of a diagnosis."""
