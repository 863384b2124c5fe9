"""What a verdict says under its headline: numbers of the records, and what to do next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.comparing.traces import EVERYTHING, Recorder, network
from tests.diagnosing.made_steps import codes_of, drawn, facts_of, gradients, run, step
from trueup.comparing.run import compare_sources
from trueup.numerics.summary import HAS_STATISTICS
from trueup.types.codes import EvidenceCode as Is
from trueup.types.codes import NextCode, VerdictCode
from trueup.types.reason import Reason
from trueup.types.verdict import Verdict

Array = NDArray[np.float32]
NOISE = drawn(9, 8, 8)


def verdict(folder: Path, target: Any, reference: Any) -> Verdict:
    """Of two runs, each a step, or steps and the arguments of ``run``."""
    traces = []
    for name, made in (("t", target), ("r", reference)):
        steps, more = made if isinstance(made, tuple) else ([made], {})
        traces.append(run(folder / name, *steps, **more))
    return compare_sources(*traces).verdict


def evidence(found: Verdict) -> list[Reason]:
    return [*found.evidence, *([] if found.before is None else [found.before])]


CHANGES: dict[str, tuple[Callable[[Array], Any], bool]] = {
    "a factor": (lambda x: 1.1 * x, True),
    "half": (lambda x: 0.5 * x, True),
    "a hundredth": (lambda x: 0.01 * x, True),
    "the other sign": (lambda x: -x, True),
    "a factor and a little": (lambda x: 1.1 * x + 1e-4 * NOISE[: len(x)], True),
    "something else": (lambda x: x + 0.1 * NOISE[: len(x)], False),
    "nearly nothing, unlike it": (lambda x: 0.03 * NOISE[: len(x)], False),
    "unrelated": (lambda x: NOISE[: len(x)], False),
}


@pytest.mark.parametrize("site", ["param.1", "out.1", "grad.1"])
@pytest.mark.parametrize("change", CHANGES)
def test_numbers_of_the_first_divergence(tmp_path: Path, site: str, change: str) -> None:
    apply, is_factor = CHANGES[change]
    sides: dict[str, Array] = {}

    def changed(name: str, array: Array) -> Array:
        if name == site:
            sides["r"], sides["t"] = array, np.asarray(apply(array), np.float32)
            return sides["t"]
        return array

    found = verdict(tmp_path, network(changed, loss=False), network(loss=False))
    t, r = (sides[side].astype(np.float64).ravel() for side in ("t", "r"))
    size = facts_of(found.evidence, Is.SIZE)
    assert size is not None
    assert size["rel_l2"] == pytest.approx(np.linalg.norm(t - r) / np.linalg.norm(r), rel=1e-5)
    assert size["score"] == pytest.approx(size["rel_l2"] / size["tolerance"], rel=1e-5)
    norms = {"target": np.linalg.norm(t), "reference": np.linalg.norm(r)}
    assert facts_of(found.evidence, Is.NORMS) == pytest.approx(norms, rel=1e-5)
    factor = facts_of(found.evidence, Is.COMMON_FACTOR)
    assert (factor is not None) is is_factor
    if factor is not None:
        along = float(t @ r / (r @ r))
        assert factor["factor"] == pytest.approx(along - 1, abs=1e-5)
        assert factor["residual"] == pytest.approx(
            np.linalg.norm(t - along * r) / np.linalg.norm(r), abs=1e-5
        )
    assert Is.NO_OTHER in codes_of(found.evidence)


@pytest.mark.parametrize("others", [0, 1, 2])
def test_other_records_that_differ_are_counted(tmp_path: Path, others: int) -> None:
    apart = ["out.0", "gout.1", "grad.2"][: 1 + others]

    def changed(name: str, array: Array) -> Array:
        return np.float32(1.1) * array if name in apart else array

    found = verdict(tmp_path, network(changed, loss=False), network(loss=False))
    counted = facts_of(found.evidence, Is.OTHERS)
    assert (counted is None) is (Is.NO_OTHER in codes_of(found.evidence)) is (others == 0)
    if counted is not None:
        assert (counted["differing"], counted["compared"]) == (1 + others, 26)


PLAIN = {"w": gradients(1)}
X = drawn(3, 4, 8)


def with_line(**line: Any) -> tuple[list[Recorder], dict[str, Any]]:
    return [step(PLAIN)], {"lines": [line]}


@pytest.mark.parametrize(
    ("target", "reference", "headline", "next_", "says"),
    [
        (
            with_line(grad_norm=1.2),
            with_line(grad_norm=1.0),
            VerdictCode.GRADIENT_NORM_DIFFERS,
            NextCode.CHECK_GRADIENT_NORM,
            {Is.SCALAR_DIFFERS, Is.ALL_AGREE},
        ),
        (
            with_line(learning_rate=[2.0]),
            with_line(learning_rate=[1.0]),
            VerdictCode.SETTINGS_DIFFER,
            NextCode.ALIGN_SETTINGS,
            {Is.SCALAR_DIFFERS, Is.ALL_AGREE},
        ),
        (
            with_line(grad_norm=1.0),
            with_line(grad_norm=1.0),
            VerdictCode.BIT_IDENTICAL,
            NextCode.NOTHING,
            {Is.COMPARED},
        ),
        (
            step(PLAIN, inputs=[X]),
            step(PLAIN, inputs=[X + 1]),
            VerdictCode.DATA_DIFFERS,
            NextCode.DIAGNOSE_DATA,
            {Is.SIZE, Is.NO_OTHER, Is.NORMS, Is.PRECEDING_BIT_IDENTICAL},
        ),
        (
            step({f"w{at}": gradients(at, 0.5) for at in range(4)}),
            step({f"w{at}": gradients(at) for at in range(4)}),
            VerdictCode.CLIPPED_OTHERWISE,
            NextCode.READ_REPORT,
            {
                Is.SIZE,
                Is.INPUTS_BIT_IDENTICAL,
                Is.OTHERS,
                Is.COMMON_FACTOR,
                Is.NORMS,
                Is.PRECEDING_BIT_IDENTICAL,
            },
        ),
        (
            network(lambda site, array: -array if site == "out.1" else array),
            network(),
            VerdictCode.AGREE_BUT_INSIDE,
            NextCode.NOTHING,
            {Is.WITHOUT_EFFECT, Is.COMPARED},
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, (VerdictCode, NextCode)) else "",
)
def test_headline_evidence_and_what_to_do(
    tmp_path: Path, target: Any, reference: Any, headline: VerdictCode, next_: NextCode, says: set[Is]
) -> None:
    found = verdict(tmp_path, target, reference)
    assert (found.headline.code, found.next and found.next.code) == (headline, next_)
    assert says <= codes_of(evidence(found))


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_modules_alone_ask_for_calls(tmp_path: Path, level: str) -> None:
    sides = [network(lambda site, x: -x if site == "out.1" else x, loss=False), network(loss=False)]
    found = verdict(tmp_path, *(([side], {"level": level}) for side in sides))
    assert found.next is not None
    assert (found.next.code is NextCode.CAPTURE_CALLS) is (level == "L0")


@pytest.mark.parametrize(
    ("want", "code"), [(HAS_STATISTICS, Is.INPUTS_AGREE), (EVERYTHING, Is.INPUTS_BIT_IDENTICAL)]
)
def test_statistics_alone_ask_for_values(tmp_path: Path, want: int, code: Is) -> None:
    """Without digests nothing is bit-identical."""
    sides = [network(lambda site, x: -x if site == "out.1" else x, want=want, loss=False)]
    sides.append(network(want=want, loss=False))
    traces = [side.write(tmp_path / str(at), values=want == EVERYTHING) for at, side in enumerate(sides)]
    found = compare_sources(*traces).verdict
    assert found.next is not None
    assert (found.next.code is NextCode.CAPTURE_VALUES) is (want == HAS_STATISTICS)
    assert codes_of(found.evidence) & {Is.INPUTS_AGREE, Is.INPUTS_BIT_IDENTICAL} == {code}
