"""What a loop prints by itself: ``iter 5: loss 3.2`` as nanoGPT does, ``step 5 loss 3.2`` and its like."""

from __future__ import annotations

from trueup.curves.columns import GRAD_NORM, LOSS, STEP
from trueup.curves.readers.lines import LineFormat
from trueup.curves.readers.scanning import Key

_KEYS = {
    LOSS: (
        *(Key(" loss "), Key(" loss: "), Key(" loss="), Key(",loss=")),
        *(Key(" train_loss "), Key(" train_loss: "), Key(" train_loss=")),
    ),
    "learning_rate": (Key(" lr "), Key(" lr: "), Key(" lr=")),
    GRAD_NORM: (
        Key(" norm "),
        Key(" norm: "),
        Key(" grad_norm "),
        Key(" grad_norm: "),
        Key(" grad_norm="),
        Key(" gnorm "),
    ),
}
NANOGPT = LineFormat(name="nanogpt", title="nanoGPT", marker="iter ", keys={STEP: (Key("iter "),), **_KEYS})
"""its lines of evaluation, ``step 0: train loss 3.2``, have no marker"""
STEPS = LineFormat(
    name="loop",
    title="a loop that prints its step and loss",
    marker="step",
    keys={STEP: (Key("step "), Key("step: "), Key("step=")), **_KEYS},
)
