"""Does `trueup check` see that two configurations are one training, and every single value that is not?

Configurations of Llama 2 and 3, Qwen 2 and 3, Mixtral and a small DeepSeek-V3, each in several dialects, are
checked pair by pair; then every value that both sides state is changed, one at a time, on either side.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from results import Results, Row, heading, parser
from tests.checklist.changing import changes, changes_nothing, found
from tests.checklist.pairs import pairs, side

from trueup.checklist import check
from trueup.checklist.check import compared
from trueup.checklist.configuration import configured
from trueup.checklist.judging import DemandStatus
from trueup.checklist.readers import read_side

METHOD = (
    "Files of tests/checklist/configurations: Megatron-LM (launch scripts, a log, YAML), MindFormers "
    "(static and pynative), Hugging Face with TrainingArguments, DeepSpeed or a command line, torchtitan. "
    "A false difference is a row `different`, `broken` or `not comparable` that is more than a note, or a "
    "computed learning rate that parts. Changes: integers doubled, floats times 1.5, truth values turned, "
    "dtypes and choices exchanged, list elements one by one; a change is found where a new row, or the "
    "computed learning rate, differs. Changes that leave the training as it is (sequence parallelism at "
    "tp 1, rounding up to another multiple with the same result, ...) are counted apart, by their reason."
)
_QUICK = 4


def main() -> None:
    """Measure and write ``results/checklist.json``."""
    given = parser(__doc__).parse_args()
    chosen = pairs()[:_QUICK] if given.quick else pairs()
    settings = {"pairs": [f"{target} - {reference}" for target, reference in chosen]}
    results = Results(name="checklist", title="Checking configurations", method=METHOD, settings=settings)
    print(heading())
    _same(results, chosen)
    _changed(results, chosen)
    results.save(quick=given.quick)


def _same(results: Results, chosen: list[tuple[str, str]]) -> None:
    wrong: list[str] = []
    agreed, seconds = 0, 0.0
    for target, reference in chosen:
        start = time.perf_counter()
        checklist = check([side(target)], [side(reference)])
        seconds += time.perf_counter() - start
        loud = (DemandStatus.DIFFERENT, DemandStatus.BROKEN, DemandStatus.NOT_COMPARABLE)
        rows = [row.key for row in checklist.rows if row.status in loud and row.severity != "note"]
        rows += [] if checklist.schedules.same else ["learning rate"]
        wrong += [f"{target} - {reference}: {key}" for key in rows]
        agreed += checklist.exit_code == 0
    results.raw["false_differences"] = wrong
    results.add(
        Row(
            what="False differences",
            bar="0 on 12 pairs",
            trueup=f"{len(wrong)} on {len(chosen)} pairs",
            met=not wrong,
            note=f"{agreed} of {len(chosen)} end with exit status 0",
        )
    )
    results.add(Row(what="Time of one check", trueup=f"{seconds / len(chosen) * 1000:.0f} ms"))


def _changed(results: Results, chosen: list[tuple[str, str]]) -> None:
    tried = missed = 0
    reasons: Counter[str] = Counter()
    fields: set[str] = set()
    examples: list[str] = []
    for first, second in chosen:
        for names in ((first, second), (second, first)):
            target, reference = (configured(read_side([side(name)])) for name in names)
            before = set(found(compared(target, reference)))
            for field, key, value, changed in changes(target, reference):
                new = set(found(compared(changed, reference))) - before
                if not new and (reason := changes_nothing(key, value, changed)):
                    reasons[reason] += 1
                    continue
                tried += 1
                fields.add(field)
                if not new:
                    missed += 1
                    examples.append(f"{names[0]}: {key} = {value}")
    results.raw |= {"missed": examples, "left_as_it_is": dict(reasons), "fields": sorted(fields)}
    share = 1 - missed / max(1, tried)
    results.add(
        Row(
            what="Single changes found",
            bar="100 %",
            trueup=f"{share:.1%} of {tried:,}",
            met=missed == 0,
            note=f"of {len(fields)} fields; {sum(reasons.values())} more changes leave the training as it is",
        )
    )


if __name__ == "__main__":
    main()
