"""Are modules and API outputs of two implementations paired without a map, and none wrongly?

Llamas of Hugging Face, in the style of Megatron-core and in that of torchtitan, written apart and loaded with
the same weights, are captured and matched; the pairs are counted against ones written by hand.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from processes import ROOT, TRUEUP
from results import Results, Row, heading, parser
from tests.matching.implementations.capture import PAIRS, matched
from tests.matching.implementations.sizes import SIZES
from tests.matching.implementations.truth import Score, scored

METHOD = (
    "Random Llamas of 2 or 3 layers with grouped-query attention: Hugging Face (separate projections, batch "
    "first, attention step by step), Megatron-style (grouped linear_qkv, gate and up fused, sequence first), "
    "torchtitan-style (other names, rotary over interleaved pairs, fused attention). Two AdamW steps of each "
    "are captured at level mix; `trueup match` gets no map. Counted against hand-written pairs: modules that "
    "both sides have, outputs of API calls that are the same tensor on both sides (the smaller number of "
    "places), and pairs that are in neither list."
)
CHANGES = (None, "norm_eps", "weight")
"""the same with a fault in the target: pairs may go missing, none may be wrong"""


def main() -> None:
    """Measure and write ``results/matching.json``."""
    given = parser(__doc__).parse_args()
    sizes = ["plain"] if given.quick else list(SIZES)
    results = Results(
        name="matching", title="Matching implementations", method=METHOD, settings={"sizes": sizes}
    )
    print(heading())
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            for target, reference in PAIRS:
                for change in CHANGES if reference == "hf" else CHANGES[:1]:
                    scores = _measured(Path(folder), target, reference, size, change)
                    what = ", ".join([f"{target} - {reference}", size, *([change] if change else [])])
                    _add(results, what, scores, with_bar=change is None)
    results.save(quick=given.quick)


def _measured(folder: Path, target: str, reference: str, size: str, change: str | None) -> list[Score]:
    sides = _captured(folder, target, size, change), _captured(folder, reference, size, None)
    return [scored(match, target, reference, SIZES[size]) for match in matched(*sides)]


def _captured(folder: Path, name: str, size: str, change: str | None) -> Path:
    path = folder / f"{name}_{size}_{change}"
    if not path.exists():
        program = [sys.executable, "-m", "tests.matching.implementations.train", name, "--sizes", size]
        program += ["--change", change] if change else []
        options = ["--level", "mix", "--task", "tensor", "--steps", "0-1", "-o", str(path)]
        subprocess.run(
            [*TRUEUP, "capture", *options, "--", *program], cwd=ROOT, check=True, capture_output=True
        )
    return path


def _add(results: Results, what: str, scores: list[Score], *, with_bar: bool) -> None:
    modules = sum(s.modules for s in scores) / sum(s.modules_expected for s in scores)
    outputs = sum(s.outputs for s in scores) / sum(s.outputs_expected for s in scores)
    wrong = sum(len(s.wrong) for s in scores)
    for name, value, bar in (("modules", modules, 0.98), ("API outputs", outputs, 0.90)):
        count = sum(s.modules_expected if name == "modules" else s.outputs_expected for s in scores)
        row = Row(
            what=f"{what}: {name}",
            bar=f">= {bar:.0%}" if with_bar else "",
            trueup=f"{value:.1%}",
            met=value >= bar if with_bar else None,
            note=f"of {count}",
        )
        results.add(row)
    results.add(Row(what=f"{what}: wrong pairs", bar="0", trueup=str(wrong), met=wrong == 0))


if __name__ == "__main__":
    main()
