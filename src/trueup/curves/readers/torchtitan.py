"""torchtitan's metrics line, coloured or not."""

from __future__ import annotations

from trueup.curves.columns import GRAD_NORM, LOSS, STEP, THROUGHPUT, TOKENS_PER_SECOND
from trueup.curves.readers.lines import LineFormat
from trueup.curves.readers.scanning import Key

FORMAT = LineFormat(
    name="torchtitan",
    title="torchtitan",
    marker="step: ",
    keys={
        STEP: (Key("step: "),),
        LOSS: (Key("loss: "),),
        GRAD_NORM: (Key("grad_norm: "),),
        "learning_rate": (Key("lr: "),),
        THROUGHPUT: (Key("tps: "),),
        "step_seconds": (Key("step_time: "), Key("elapsed_time_per_step: ")),
    },
    units={THROUGHPUT: TOKENS_PER_SECOND},
)
