"""Constants that decide what is paired with what, beside ``across`` and ``weights``."""

from __future__ import annotations

from trueup.types.threshold import chosen, derived

SURE = chosen(
    "matching.sure",
    0.75,
    "confidence",
    "pairs by an equal name alone (0.7), by order (0.6) or for want of others (0.5) are shown as unsure",
)
LEAST_SHARE = chosen(
    "matching.least_share", 0.6, "of the names", "a family of models is known by more than half of its names"
)
ALMOST = chosen(
    "matching.almost", 0.8, "of the weights", "a norm fused into a projection is less than a fifth of it"
)
OPERANDS_ALIKE = chosen(
    "matching.operands_alike", 0.05, "relative difference", "of operands that are each other's, turned"
)
OPERANDS_CLEARLY = chosen(
    "matching.operands_clearly",
    100.0,
    "times as far unturned",
    "a fault of a few per cent in both operands never looks like an exchange",
)
KNOWN_BY_NAME = chosen(
    "matching.known_by_name",
    0.5,
    "of the names",
    "below a half of equal names two traces are of two implementations, or containers were renamed",
)
SAME_CLASSES = chosen(
    "matching.same_classes",
    0.9,
    "of the modules",
    "nine in ten of the same class and last name: one program with its containers renamed",
)
NAMES_FEWEST = derived(
    "matching.names_fewest", 4, "names", "a half of three names is one and a half: nothing is concluded"
)
