"""The whole of ``trueup mismatch``: files in, measures, parts, layers and verdict out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trueup.errors import ConfigError
from trueup.mismatch.judging import MismatchJudgement, judge
from trueup.mismatch.layers import LayerError, layer_errors
from trueup.mismatch.measuring import TokenMeasures, measure, verl_metrics
from trueup.mismatch.parts import TokenPart, by_class, by_length, by_position, by_step
from trueup.mismatch.reading import TokenFile, files_of, read
from trueup.mismatch.tokens import Tokens, joined


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """What is known of training against inference."""

    paths: tuple[Path, ...]
    tokens: Tokens
    measures: TokenMeasures
    of_steps: Mapping[int, TokenMeasures]
    verl: Mapping[int, Mapping[str, float]]
    """step -> the metrics that verl logs of it"""
    positions: tuple[TokenPart, ...]
    lengths: tuple[TokenPart, ...]
    classes: tuple[TokenPart, ...]
    steps: tuple[TokenPart, ...]
    layers: tuple[LayerError, ...]
    judgement: MismatchJudgement


def analyse(
    paths: Sequence[Path],
    *,
    exact: bool = False,
    bounds: Mapping[str, float] | None = None,
    tokenizer: Path | None = None,
    first: int | None = None,
    last: int | None = None,
) -> Mismatch:
    """Read token files and measure, divide and judge the difference.

    Args:
        paths: token files, folders of some, or traces.
        exact: nothing but bit-identity agrees.
        bounds: field of ``TokenMeasures`` -> the most that is accepted.
        tokenizer: folder of a tokenizer, for classes of tokens.
        first: first step, None from the beginning.
        last: last step.

    Raises:
        ConfigError: a file or option that cannot be used.
    """
    files = [read(path) for path in files_of(paths)]
    kept = [file for file in files if _within(file, first, last)]
    if not kept:
        steps = sorted({step for file in files for step in file.tokens.steps})
        raise ConfigError(f"--steps leaves no token: the files hold the steps {steps[0]} to {steps[-1]}")
    tokens = joined([file.tokens for file in kept])
    if first is not None or last is not None:
        low, high = tokens.steps[0] if first is None else first, tokens.steps[-1] if last is None else last
        tokens = tokens.where((tokens.step >= low) & (tokens.step <= high))
    measures, layers = measure(tokens), layer_errors(kept)
    each = {step: tokens.of_step(step) for step in tokens.steps}
    return Mismatch(
        paths=tuple(paths),
        tokens=tokens,
        measures=measures,
        of_steps={step: measure(part) for step, part in each.items()},
        verl={step: verl_metrics(part) for step, part in each.items()},
        positions=tuple(by_position(tokens)),
        lengths=tuple(by_length(tokens)),
        classes=tuple(by_class(tokens, tokenizer)),
        steps=tuple(by_step(tokens)),
        layers=tuple(layers),
        judgement=judge(tokens, measures, layers, exact=exact, bounds=bounds),
    )


def _within(file: TokenFile, first: int | None, last: int | None) -> bool:
    steps = file.tokens.steps
    return (first is None or steps[-1] >= first) and (last is None or steps[0] <= last)
