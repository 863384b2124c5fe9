"""Constants of a monitor's rules that no setting changes; what a person can choose is in ``settings.py``."""

from __future__ import annotations

from trueup.types.threshold import chosen

LEAST_DEVIATION = chosen(
    "monitoring.least_deviation",
    1e-3,
    "of the window's mean",
    "a loss that hardly moves has no spikes the size of rounding: six deviations are 0.6 %",
)
ENOUGH = chosen(
    "monitoring.enough", 16, "steps", "before them nothing is called unusual: a deviation known to 18 %"
)
SPIKE_AGAIN = chosen("monitoring.spike_again", 8, "steps without a spike", "the next spike is another one")
NEW_LEVEL = chosen(
    "monitoring.new_level", 32, "spikes in a row", "a loss that stays up is not a spike but another level"
)
LEARNING_STEPS = chosen(
    "monitoring.learning_steps", 64, "steps", "means of a noisy loss are known eight times better than it"
)
