"""Of random pairs: what is called bit-identical is, its digests were compared, and no report says both.

A change keeps its statistics and its sketch where it only swaps two rows: without a digest nobody can see it.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.comparing.traces import network
from tests.reporting.screens import lines_of
from trueup.comparing.run import compare
from trueup.diagnosing.pipeline import diagnose
from trueup.numerics.summary import HAS_DIGEST, HAS_SKETCH, HAS_STATISTICS
from trueup.reporting.comparison.report import compare_report
from trueup.reporting.comparison.result import read_result
from trueup.reporting.diagnosis import diagnosis_report
from trueup.reporting.render import write
from trueup.types.codes import EvidenceCode, StagesCode, VerdictCode
from trueup.types.finding import Stage

SITES = (
    "param.0",
    "input",
    "in.1",
    "linear.1",
    "out.1",
    "out.2",
    "output",
    "loss",
    "gout.1",
    "gin.1",
    "grad.1",
    "new.1",
)
OF_STAGES = {
    Stage.FORWARD: {"input", "in.1", "linear.1", "out.1", "out.2", "output", "loss"},
    Stage.BACKWARD: {"gout.1", "gin.1"},
    Stage.REDUCTION: {"grad.1"},
    Stage.OPTIMIZER: {"new.1"},
}
CLAIM = re.compile(r"(?<!\b0 records )(?<!\b0 weights )(?<!\b0 )(?<!not )bit-identical", re.IGNORECASE)
"""of a tensor or more"""


def _changed(array: NDArray[np.float32], how: str) -> NDArray[np.float32]:
    out = array.copy()
    flat = out.reshape(-1)
    if how == "one rounding":
        flat[0] = np.nextafter(flat[0], np.float32(9))
    elif how == "two rows swapped" and out.ndim:
        out[[0, 1]] = out[[1, 0]]
    elif how == "a thousandth":
        out *= np.float32(1.001)
    elif how == "not a number":
        flat[0] = np.nan
    return out


changes = st.dictionaries(
    st.sampled_from(SITES),
    st.sampled_from(["one rounding", "two rows swapped", "a thousandth", "not a number"]),
    max_size=2,
)
wants = st.sampled_from([0, HAS_DIGEST, HAS_SKETCH, HAS_DIGEST | HAS_SKETCH])


@settings(max_examples=20, phases=[Phase.explicit, Phase.generate], derandomize=True)
@given(
    changed=changes,
    target=wants,
    reference=wants,
    values=st.sampled_from([(True, True), (True, False), (False, False)]),
)
def test_what_is_called_bit_identical_is(
    changed: Mapping[str, str], target: int, reference: int, values: tuple[bool, bool]
) -> None:
    real = set()

    def change(site: str, array: NDArray[np.float32]) -> NDArray[np.float32]:
        made = _changed(array, changed[site]) if site in changed else array
        dealt = (
            all(values) and changed.get(site) == "two rows swapped"
        )  # rows in another order are put back, and noted
        real.update({site} if made.tobytes() != array.tobytes() and not dealt else ())
        return made

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        network(change, want=HAS_STATISTICS | target).write(folder / "t", values=values[0])
        network(want=HAS_STATISTICS | reference).write(folder / "r", values=values[1])
        known = bool(target & reference & HAS_DIGEST) or all(values)
        found = compare(folder / "t", folder / "r", output=folder / "c")
        made = diagnose(folder / "t", folder / "r", output=folder / "d")
        table = found.frame()
        documents = compare_report(read_result(folder / "c")), diagnosis_report(made)
        pages = [
            write(document, folder / f"{number}.html").read_text(encoding="utf-8")
            for number, document in enumerate(documents)
        ]
    verdict = found.verdict
    screens = ["\n".join(lines_of(document)) for document in documents]
    if not known:  # then nobody compared a bit
        assert not any(map(CLAIM.search, screens)), screens
        drawn = [re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL) for page in pages]
        assert not any(map(CLAIM.search, drawn))
    if verdict.headline.code in (VerdictCode.BIT_IDENTICAL, VerdictCode.COMPARED_IS_BIT_IDENTICAL):
        assert known
        assert not real
        assert "within rounding" not in screens[0]
    for one in verdict.evidence:
        if one.code is EvidenceCode.INPUTS_BIT_IDENTICAL:
            assert known
    said = {outcome.stage: outcome.conclusion.code for outcome in made.stages}
    for stage, sites in OF_STAGES.items():
        if said.get(stage) in (StagesCode.EQUAL, StagesCode.COMPARED_EQUAL):
            assert known
            assert not real & sites
    equal = table.filter(table["bits_equal"])
    assert known or equal.is_empty()
    statuses = set(table["status"].cast(str))
    assert (verdict.headline.code is VerdictCode.BIT_IDENTICAL) <= (statuses == {"equal"})
