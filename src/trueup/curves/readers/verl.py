"""verl's console logger: ``step:5 - actor/pg_loss:0.012 - ...``."""

from __future__ import annotations

from trueup.curves.columns import GRAD_NORM, LOSS, STEP, THROUGHPUT, TOKENS_PER_SECOND
from trueup.curves.readers.lines import LineFormat
from trueup.curves.readers.scanning import Key

FORMAT = LineFormat(
    name="verl",
    title="verl",
    marker="step:",
    keys={
        STEP: (Key("step:"),),
        LOSS: (Key("- train/loss:"), Key("- actor/loss:"), Key("- actor/pg_loss:")),
        GRAD_NORM: (Key("- train/grad_norm:"), Key("- actor/grad_norm:")),
        "learning_rate": (Key("- actor/lr:"), Key("- train/lr:")),
        "tokens": (Key("- train/global_tokens:"), Key("- perf/total_num_tokens:")),
        "step_seconds": (Key("- timing_s/step:"), Key("- perf/time_per_step:")),
        THROUGHPUT: (Key("- perf/throughput:"),),
    },
    units={THROUGHPUT: TOKENS_PER_SECOND},
)
