"""What a trace holds of the steps around the one where two curves part: batches as text, overflow, local
norms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from trueup.batches.recorded import RecordedBatches
from trueup.batches.source import TOKENS
from trueup.curves.commands import captured_step
from trueup.curves.comparison import CurveComparison
from trueup.diagnosing.stages.texts import open_tokenizer
from trueup.errors import ConfigError, TraceError
from trueup.store import Trace

_BESIDE = 1
"""steps shown before and after it"""
_ROWS, _LONGEST = 2, 240


class ShownText(TypedDict):
    """A row of a batch as a person reads it."""

    step: int
    where: str
    text: str


class Around(TypedDict, total=False):
    """What traces hold of the steps around the one where two curves part; empty where nothing."""

    step: int
    scalars: Mapping[str, Sequence[Mapping[str, object]]]
    said: Sequence[str]
    texts: Sequence[ShownText]


def around_step(
    target: Path, reference: Path | None, comparison: CurveComparison, *, tokenizer: Path | None = None
) -> Around:
    """Loss scale, skipped updates and local norm of both runs around the step of a judgement, and the
    target's
    rows there, as text where a tokenizer is given; empty where the traces hold none of it.

    Raises:
        ConfigError: the folder holds no tokenizer that can be read.
    """
    step = comparison.judgement.step
    if step is None:
        return Around()
    at = captured_step(comparison.target, step)
    wanted = range(max(0, at - _BESIDE), at + _BESIDE + 1)
    scalars = {"target": _lines(target, wanted)}
    if reference is not None:
        shift = (
            comparison.alignments[0].offset
            if comparison.target.trace and comparison.references[0].trace
            else 0
        )
        scalars["reference"] = _lines(reference, [s - shift for s in wanted])
    texts = _texts(target, wanted, tokenizer)
    lines_of_text = [line for side, lines in scalars.items() for line in _in_words(side, lines)]
    if not lines_of_text and not texts:
        return Around()
    return {"step": at, "scalars": scalars, "said": lines_of_text, "texts": texts}


def _lines(path: Path, wanted: Sequence[int]) -> list[dict[str, object]]:
    try:
        lines = Trace(path).scalars(0)
    except TraceError:
        return []
    names = ("step", "loss", "grad_norm", "local_norm", "loss_scale", "skipped", "batch_digest")
    return [{n: line.get(n) for n in names} for line in lines if line.get("step") in wanted]


def _in_words(side: str, lines: list[dict[str, object]]) -> list[str]:
    found = []
    for line in lines:
        parts = [f"loss {line['loss']:.6g}"] if isinstance(line.get("loss"), float) else []
        for name, word in (
            ("local_norm", "local norm"),
            ("grad_norm", "gradient norm"),
            ("loss_scale", "loss scale"),
        ):
            if isinstance(line.get(name), (int, float)):
                parts.append(f"{word} {line[name]:.4g}")
        if line.get("skipped"):
            parts.append("update left out: overflow")
        if parts:
            found.append(f"{side}, step {line['step']}: {', '.join(parts)}")
    return found


def _texts(path: Path, wanted: Sequence[int], tokenizer: Path | None) -> list[ShownText]:
    """The first rows of the batches of these steps; ids where there is no tokenizer."""
    try:
        batches = RecordedBatches.open(path)
    except (TraceError, ConfigError):
        return []
    coder = None if tokenizer is None else open_tokenizer(tokenizer)
    shown: list[ShownText] = []
    for step in wanted:
        if step not in batches.steps:
            continue
        for batch in batches.read(step=step, rank=batches.steps[step][0])[:1]:
            for row, ids in enumerate(batch[TOKENS][:_ROWS].tolist()):
                text = " ".join(map(str, ids[:24])) + (" ..." if len(ids) > 24 else "")
                if coder is not None:
                    text = coder.decode(ids)[:_LONGEST]
                shown.append({"step": step, "where": f"step {step}, row {row}", "text": text})
    return shown
