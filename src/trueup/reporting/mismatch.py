"""The report of training against inference, and its JSON document."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np

from trueup.mismatch.analysis import Mismatch
from trueup.mismatch.layers import LayerError
from trueup.mismatch.measuring import QUANTILES, VERL_BOUND, TokenMeasures
from trueup.mismatch.parts import TokenPart
from trueup.mismatch.thresholds import DOUBT
from trueup.reporting.document import (
    Block,
    Column,
    Document,
    Fact,
    Facts,
    Mark,
    On,
    Plot,
    Plots,
    Row,
    Section,
    Series,
    Table,
    Tone,
    fact,
    facts,
    reason_text,
)
from trueup.reporting.formatting import count, number, plain
from trueup.types.reason import Json
from trueup.types.status import Outcome
from trueup.wording import advice, headline
from trueup.wording.phrase import percent

FILES = {"json": "mismatch.json", "html": "mismatch.html"}
_MARKS = {
    Outcome.AGREE: Mark("✓", "Rollout and training agree", Tone.GOOD),
    Outcome.DIFFER: Mark("✗", "Rollout and training differ", Tone.BAD),
    Outcome.UNDECIDED: Mark("?", "Undecided", Tone.WARN),
}
_SHOWN, _SHOWN_PARTS = 12, 8
"""rows of a table on a screen"""
_VERSION = 1


def mismatch_report(mismatch: Mismatch, *, written: Sequence[Path] = ()) -> Document:
    """Verdict, measures, layers, and where the difference is.

    Args:
        mismatch: the result.
        written: reports that a screen names.
    """
    judgement = mismatch.judgement
    return Document(
        title="Training against inference",
        mark=_MARKS[judgement.outcome],
        headline=plain(headline(judgement.reasons[0])),
        subject=tuple(map(str, mismatch.paths)),
        blocks=(
            _why(mismatch),
            Section(title="Measures", key="measures", nav="Measures", blocks=(_measures(mismatch.measures),)),
            _layers(mismatch.layers),
            *_parts(mismatch),
            _verl(mismatch),
            facts([fact("reports", ", ".join(map(str, written)))], on=On.SCREEN),
        ),
    )


def _why(mismatch: Mismatch) -> Facts:
    judgement = mismatch.judgement
    what_to_do = [*filter(None, map(advice, judgement.reasons)), *map(reason_text, judgement.advice)]
    return facts(
        [
            fact("evidence", *map(reason_text, judgement.reasons)),
            fact("also", *map(reason_text, judgement.remarks)),
            fact("next step", *map(plain, what_to_do)),
        ]
    )


def _measures(m: TokenMeasures) -> Facts:
    quantiles = ", ".join(
        f"{q:g} %: {number(value)}" for q, value in zip(QUANTILES, m.quantiles, strict=True)
    )
    high, low = (percent(share) for share in (m.share_high, m.share_low))
    high_sequence, low_sequence = (percent(share) for share in (m.share_high_sequence, m.share_low_sequence))
    sizes = f"maximum {number(m.max_abs_diff)}, mean {number(m.mean_abs_diff)}, RMS {number(m.rms_diff)}"
    return facts(
        [
            fact("tokens", f"{m.num_tokens:,} in {count(m.num_sequences, 'sequence')}"),
            fact("bit-identical", f"{m.num_equal:,} ({percent(m.num_equal / m.num_tokens)})"),
            fact("|Δ log-prob|", sizes, f"quantiles {quantiles}"),
            fact("|Δ prob|", f"maximum {number(m.max_prob_diff)}, mean {number(m.mean_prob_diff)}"),
            fact("Pearson", f"{m.pearson:.7f}", note="of probabilities"),
            fact("KL", f"k1 {number(m.k1)}, k3 {number(m.k3)}", note="rollout to training"),
            fact("chi-square", f"token {number(m.chi2_token)}, sequence {number(m.chi2_sequence)}"),
            _ratios("token ratio", m.mean_ratio, m.min_ratio, m.max_ratio, m.ess_token),
            _ratios(
                "sequence ratio",
                m.mean_ratio_sequence,
                m.min_ratio_sequence,
                m.max_ratio_sequence,
                m.ess_sequence,
            ),
            fact(
                f"above {VERL_BOUND:g}, below {1 / VERL_BOUND:g}",
                f"tokens {high}, {low}; sequences {high_sequence}, {low_sequence}",
                note="verl's default bound",
            ),
            fact("mean exp|Δ|", f"{m.mult_prob_error:.5g}", note="NeMo-RL: above 1.05 is suspect"),
        ]
    )


def _ratios(label: str, mean: float, least: float, most: float, ess: float) -> Fact:
    sizes = f"mean {mean:.5g}, {least:.4g} to {most:.4g}"
    return fact(label, f"{sizes}, effective sample size {percent(ess)}")


def _layers(layers: Sequence[LayerError]) -> Section:
    before, rows = 0.0, []
    for one in layers:
        bound = one.bound(before)
        bad = one.shape_differs or not one.rel_l2 <= bound
        before = max(before, 0.0 if math.isinf(one.rel_l2) else one.rel_l2)
        grave = one.shape_differs or not one.rel_l2 <= DOUBT * bound
        mark = Mark("≈", "explained", Tone.GOOD)
        if bad:
            mark = Mark("≠", "beyond", Tone.BAD) if grave else Mark("?", "in doubt", Tone.WARN)
        mark = Mark("=", "bit-identical", Tone.GOOD) if one.is_equal else mark
        cells = (plain(one.name), one.rel_l2, one.max_rel_l2, one.noise, bound, one.dtype, mark.words)
        rows.append(Row(cells=cells, mark=mark, loud=bad))
    columns = (
        Column(title="layer", fit=True, code=True),
        Column(title="rel. L2", show=percent),
        Column(title="largest", show=percent),
        Column(title="noise", show=percent, least=100),
        Column(title="explained", show=percent),
        Column(title="rounded to", least=100),
        Column(title="status"),
    )
    table = Table(columns=columns, rows=tuple(rows), limit=_SHOWN, more="the page lists every layer")
    return Section(title="Layers", key="layers", nav="Layers", blocks=(table,) if rows else ())


def _parts(mismatch: Mismatch) -> Iterator[Block]:
    for title, key, parts, on in (
        ("By position in the response", "position", mismatch.positions, On.ALL),
        ("By class of token", "class", mismatch.classes, On.ALL),
        ("By length of the sequence", "length", mismatch.lengths, On.FILES),
        ("Over steps", "step", mismatch.steps, On.ALL),
    ):
        if len(parts) < 2:
            continue
        plot = () if key == "class" else (_plot(key, parts),)
        columns = (
            Column(title=key),
            Column(title="tokens", show=_whole),
            Column(title="bit-identical", show=_whole, least=90),
            Column(title="RMS |Δ|", show=number),
            Column(title="max |Δ|", show=number),
            Column(title="mean Δ", show=number),
            Column(title="k3", show=number),
        )
        rows = tuple(
            Row(
                cells=(
                    one.name,
                    float(one.num_tokens),
                    float(one.num_equal),
                    one.rms_diff,
                    one.max_abs_diff,
                    one.mean_diff,
                    one.k3,
                )
            )
            for one in parts
        )
        table = Table(columns=columns, rows=rows, limit=_SHOWN_PARTS, more="the page lists all")
        yield Section(title=title, key=key, nav=key.capitalize(), blocks=(Plots(items=plot), table), on=on)


def _whole(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _plot(key: str, parts: Sequence[TokenPart]) -> Plot:
    x = np.array([one.first for one in parts], np.int64)
    lines = tuple(
        Series(name=name, role=role, x=x, y=np.nan_to_num(np.array(values, np.float64)))
        for name, role, values in (
            ("largest", "reference", [one.max_abs_diff for one in parts]),
            ("root mean square", "target", [one.rms_diff for one in parts]),
        )
    )
    return Plot(
        key=key,
        title=f"Difference of log-probs by {key}",
        y_title="|Δ log-prob|",
        x_title=key,
        lines=lines,
        zero=True,
    )


def _verl(mismatch: Mismatch) -> Section:
    steps = list(mismatch.verl)[-1:]
    rows = tuple(Row(cells=(name, value)) for step in steps for name, value in mismatch.verl[step].items())
    columns = (Column(title="metric", code=True), Column(title="value", show=partial(number, digits=6)))
    return Section(
        title="As verl logs it",
        key="verl",
        nav="verl",
        lead=f"Of step {steps[0]}; mismatch.json has every step. @token and @sequence: verl's "
        f"rollout_is of that level, "
        f"with its default threshold {VERL_BOUND:g}."
        if steps
        else "",
        blocks=(Table(columns=columns, rows=rows),),
        on=On.FILES,
    )


def mismatch_json(mismatch: Mismatch) -> dict[str, Json]:
    """The result as plain values; reasons with their text; numbers that are not finite are null."""
    judgement = mismatch.judgement
    return {
        "version": _VERSION,
        "exit_code": judgement.outcome.exit_code,
        "outcome": judgement.outcome.value,
        "headline": headline(judgement.reasons[0]),
        "headline_reason": judgement.reasons[0].to_json(),
        **{
            key: [{"text": reason_text(one), **one.to_json()} for one in reasons]
            for key, reasons in (
                ("evidence", judgement.reasons),
                ("remarks", judgement.remarks),
                ("advice", judgement.advice),
            )
        },
        "paths": [str(path) for path in mismatch.paths],
        "measures": _finite(asdict(mismatch.measures)),
        "steps": {
            str(step): {"measures": _finite(asdict(one)), "verl": _finite(dict(mismatch.verl[step]))}
            for step, one in mismatch.of_steps.items()
        },
        "by": {
            key: [_finite(asdict(part)) for part in parts]
            for key, parts in (
                ("position", mismatch.positions),
                ("length", mismatch.lengths),
                ("class", mismatch.classes),
                ("step", mismatch.steps),
            )
        },
        "layers": [_finite(asdict(one)) for one in mismatch.layers],
    }


def _finite(value: object) -> Json:
    if isinstance(value, Mapping):
        return {str(key): _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (str, int, float)) else str(value)
