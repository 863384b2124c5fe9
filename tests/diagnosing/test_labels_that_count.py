"""How many labels count in a loss: said of any two sets of labels that are the same where both count."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.diagnosing.made_steps import facts_of, gradients, run, step
from trueup.diagnosing.stages.batch import StepBatch
from trueup.diagnosing.stages.data import _not_counted_alike
from trueup.store import step_view
from trueup.types.codes import BatchCode as Code
from trueup.types.reason import reason
from trueup.wording import text

RANDOM = np.random.default_rng(46)


def test_labels_that_one_run_alone_counts(tmp_path: Path) -> None:
    made = step({"w": gradients(1)}, inputs=[np.arange(8).reshape(2, 4)], loss=1.0)
    batch = StepBatch.of(step_view(run(tmp_path / "t", made), 0, 0))
    ignored, seen = batch.ignore_index, 0
    for _ in range(200):
        labels = RANDOM.integers(0, 5, (2, 6))
        sides = [
            np.where(RANDOM.random((2, 6)) < RANDOM.choice([0.0, 0.2, 1.0]), ignored, labels) for _ in "tr"
        ]
        if RANDOM.random() < 0.2:
            sides[1] = sides[1] + (sides[1] != ignored) * int(RANDOM.integers(0, 2))
        counts = [side != ignored for side in sides]
        both = counts[0] & counts[1]
        alike = bool(both.any()) and bool((sides[0] == sides[1])[both].all())
        found = _not_counted_alike(*sides, "labels", batch)
        assert (found is not None) is (alike and bool((counts[0] != counts[1]).any()))
        if found is not None:
            seen += 1
            numbers = [int(count.sum()) for count in counts]
            said = reason(
                Code.NUM_COUNTED,
                target=numbers[0],
                reference=numbers[1],
                target_share=numbers[0] / 12,
                reference_share=numbers[1] / 12,
            )
            assert facts_of(found.evidence, Code.NUM_COUNTED) == dict(said.facts)
            assert numbers[0] != numbers[1] or (counts[0] != counts[1]).any()
            assert f"{numbers[0]} ({numbers[0] / 12:.1%}) (target)" in text(said)
    assert seen > 20
