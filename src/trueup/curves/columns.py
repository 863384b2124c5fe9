"""The columns of a curve, and the names programs log them under."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import polars as pl

from trueup.errors import ConfigError

STEP = "step"
LOSS = "loss"
GRAD_NORM = "grad_norm"
LEARNING_RATE = "learning_rate"
LOSS_SCALE = "loss_scale"
THROUGHPUT = "throughput"
TOKENS = "tokens"
SAMPLES = "samples"
STEP_SECONDS = "step_seconds"
SKIPPED = "skipped"
"""whether (or how often since the line before) the optimizer step was left out because of overflow"""

BALANCING_LOSS = "load_balancing_loss"
Z_LOSS = "z_loss"
MTP_LOSS = "mtp_loss"
PART_LOSSES = (BALANCING_LOSS, Z_LOSS, MTP_LOSS)
"""parts of the loss, or beside it, that are logged by themselves"""

MEASURES = (
    *(LOSS, GRAD_NORM, LEARNING_RATE, LOSS_SCALE, THROUGHPUT, TOKENS, SAMPLES, STEP_SECONDS, SKIPPED),
    *PART_LOSSES,
)
SCHEMA: dict[str, type[pl.DataType]] = {STEP: pl.Int64, **dict.fromkeys(MEASURES, pl.Float64)}

TOKENS_PER_SECOND = "tokens/s"
FLOPS_PER_DEVICE = "TFLOP/s/device"
SAMPLES_PER_SECOND = "samples/s"


@dataclass(frozen=True, slots=True)
class Alias:
    """A name a program logs a column under."""

    name: str
    scale: float = 1.0
    """what the logged number is multiplied with"""
    unit: str = ""


_TPS = TOKENS_PER_SECOND
_ALIASES: dict[str, tuple[Alias, ...]] = {
    STEP: tuple(
        map(
            Alias,
            [
                "step",
                "global_step",
                "_step",
                "train/global_step",
                "trainer/global_step",
                "training/iteration",
                "iteration",
                "current_steps",
                "iter",
                "steps",
                "training/global_step",
            ],
        )
    ),
    LOSS: tuple(
        map(
            Alias,
            [
                "loss",
                "train/loss",
                "train_loss",
                "lm_loss",
                "lm_loss/train",
                "training/loss",
                "loss_metrics/global_avg_loss",
                "training_loss",
                "loss/train",
                "actor/loss",
                "actor/pg_loss",
                "train/lm_loss",
                "reduced_train_loss",
                "train_loss_step",
                "train/loss_step",
                "loss_step",
            ],
        )
    ),
    GRAD_NORM: tuple(
        map(
            Alias,
            [
                "grad_norm",
                "train/grad_norm",
                "global_norm",
                "actor/grad_norm",
                "gradient_norm",
                "total_norm",
                "train/gradient_norm",
                "training/grad_norm",
                "global_grad_norm",
            ],
        )
    ),
    LEARNING_RATE: (
        *map(
            Alias,
            ["learning_rate", "lr", "train/learning_rate", "train/lr", "actor/lr", "training/learning_rate"],
        ),
        Alias("train/lr(1e_3)", scale=1e-3),
        Alias("lr_adamw/pg1"),
    ),
    LOSS_SCALE: tuple(map(Alias, ["loss_scale", "train/loss_scale", "loss_scaler"])),
    THROUGHPUT: (
        Alias("throughput(tps)", unit=_TPS),
        Alias("tps", unit=_TPS),
        Alias("tokens_per_sec", unit=_TPS),
        Alias("tokens_per_second", unit=_TPS),
        Alias("train_tokens_per_second", unit=_TPS),
        Alias("perf/throughput", unit=_TPS),
        Alias("train/tokens_per_second", unit=_TPS),
        Alias("throughput"),
        Alias("model_flops_throughput_per_npu", unit=FLOPS_PER_DEVICE),
        Alias("samples/sec", unit=SAMPLES_PER_SECOND),
    ),
    TOKENS: tuple(
        map(
            Alias,
            [
                "tokens",
                "consumed_tokens",
                "num_input_tokens_seen",
                "train/num_input_tokens_seen",
                "total_tokens",
                "tokens_seen",
                "perf/total_num_tokens",
            ],
        )
    ),
    SAMPLES: tuple(map(Alias, ["samples", "consumed_samples", "consumed_train_samples", "samples_vs_steps"])),
    STEP_SECONDS: (
        Alias("step_seconds"),
        Alias("step_time"),
        Alias("iteration_time"),
        Alias("time_metrics/end_to_end(s)"),
        Alias("perf/time_per_step"),
        Alias("timing_s/step"),
        Alias("elapsed_time_per_iteration_ms", scale=1e-3),
    ),
    SKIPPED: tuple(map(Alias, ["skipped", "overflow", "skipped_iterations"])),
    BALANCING_LOSS: tuple(
        map(
            Alias,
            [
                *("load_balancing_loss", "seq_load_balancing_loss", "global_load_balancing_loss"),
                *("load_balancing_loss/train", "aux_loss", "train/aux_loss", "router_aux_loss"),
                *("moe/load_balancing_loss", "moe/aux_loss", "train/load_balancing_loss"),
            ],
        )
    ),
    Z_LOSS: tuple(map(Alias, ["z_loss", "train/z_loss", "router_z_loss", "moe/z_loss"])),
    MTP_LOSS: tuple(map(Alias, ["mtp_loss", "mtp_1_loss", "mtp_1 loss", "train/mtp_loss", "mtp-loss"])),
}
_OF_PANEL = re.compile(r"^.* - ")
"""what W&B puts before a column's name when a panel is exported: the run's name"""


def plain_name(name: str) -> str:
    """The name without case, spaces and hyphens, and without the run's name a W&B panel puts before it.

    Example:
        >>> plain_name("run-7 - train/Grad Norm")
        'train/grad_norm'
    """
    return re.sub(r"[\s-]+", "_", _OF_PANEL.sub("", name.strip())).lower()


def parse_choice(text: str) -> tuple[str, str]:
    """``loss=my/loss`` as a column and the name it has in the file.

    Raises:
        ConfigError: there is no such column.
    """
    column, found, name = text.partition("=")
    if not found or not name or column not in SCHEMA:
        raise ConfigError(f"--column {text!r}: expected COLUMN=NAME, COLUMN one of {', '.join(SCHEMA)}")
    return column, name


def find_columns(
    names: Iterable[str], chosen: Mapping[str, str] | None = None
) -> dict[str, tuple[str, Alias]]:
    """Column -> the name it has among ``names`` and what that name means.

    Args:
        names: those of a file.
        chosen: column -> name, as a person said; wins over what is known.
    """
    names = list(names)
    by_plain: dict[str, str] = {}
    for name in names:
        if not name.endswith(("__MIN", "__MAX")):
            by_plain.setdefault(plain_name(name), name)
    found: dict[str, tuple[str, Alias]] = {}
    for column, aliases in _ALIASES.items():
        given = (chosen or {}).get(column)
        if given is not None:
            if given in names:
                found[column] = given, Alias(given)
            continue
        for alias in aliases:
            if alias.name in by_plain:
                found[column] = by_plain[alias.name], alias
                break
    return found


def empty() -> pl.DataFrame:
    """A curve of no step."""
    return pl.DataFrame(schema=SCHEMA)
