"""nanotron's line, numbers shortened to K, M, B."""

from __future__ import annotations

from trueup.curves.columns import GRAD_NORM, LOSS, STEP, THROUGHPUT, TOKENS_PER_SECOND
from trueup.curves.readers.lines import LineFormat
from trueup.curves.readers.scanning import Key

FORMAT = LineFormat(
    name="nanotron",
    title="nanotron",
    marker="iteration: ",
    keys={
        STEP: (Key("iteration: "),),
        "tokens": (Key("consumed_tokens: "),),
        "step_seconds": (Key("elapsed_time_per_iteration_ms: "), Key("time_per_iteration_ms: ")),
        THROUGHPUT: (Key("tokens_per_sec: "),),
        LOSS: (Key("lm_loss: "),),
        "learning_rate": (Key("| lr: "),),
        GRAD_NORM: (Key("grad_norm: "),),
    },
    scales={"step_seconds": 1e-3},
    units={THROUGHPUT: TOKENS_PER_SECOND},
)
