"""Are modules and API outputs of two implementations paired without a map, and none wrongly?

Models written apart, in PyTorch and in MindSpore, dense and with a mixture of experts, loaded with the same
weights, are captured and matched; the pairs are counted against ones written by hand.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from processes import ROOT, TRUEUP
from results import Results, Row, heading, parser
from tests.matching.implementations.capture import PAIRS, matched
from tests.matching.implementations.sizes import ALL_SIZES, SIZES
from tests.matching.implementations.truth import Score, scored

METHOD = (
    "Random Llamas of 2 or 3 layers with grouped-query attention: Hugging Face (separate projections, batch "
    "first, attention step by step), Megatron-style (grouped linear_qkv, gate and up fused, sequence first), "
    "torchtitan-style (other names, rotary over interleaved pairs, fused attention); MindSpore (names of its "
    "own, qkv and gate and up fused, weights transposed), in PyNative mode and as MindSpore's own dump of "
    "graph mode; mixtures of experts (PyTorch: each expert a module; MindSpore: stacked weights, dense or "
    "with sorted tokens). Two steps of each are captured at level mix; `trueup match` gets no map. Counted "
    "against hand-written pairs: modules that both sides have, outputs of API calls that are the same tensor "
    "on both sides (the smaller number of places), and pairs that are in neither list."
)
MINDSPORE = ROOT / ".venv-mindspore" / "bin" / "python"
DUMP, DUMP_NAME = "mindspore_graph", "graph-mode dump"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Two implementations, and a fault in the target: pairs may go missing, none may be wrong."""

    bar: int
    target: str
    reference: str
    size: str
    change: str | None = None
    outputs: float = 0.90
    """share of API outputs that is asked for"""

    def title(self) -> str:
        """For the table."""
        names = [DUMP_NAME if name == DUMP else name for name in (self.target, self.reference)]
        return f"({self.bar}) {' - '.join(names)}, {self.size}{f', {self.change}' if self.change else ''}"


def cases(sizes: list[str], *, with_mindspore: bool) -> Iterator[Case]:
    """All of them, by bar."""
    dense = [
        (1, "mindspore", other, size, 0.90) for size in sizes for other in ("torchtitan", "megatron", "hf")
    ]
    sparse = [(2, mine, "torch_moe", "experts", 0.90) for mine in ("mindspore_moe", "mindspore_sorted_moe")]
    dumps = [(5, DUMP, other, size, 0.80) for size in sizes for other in ("torchtitan", "megatron", "hf")]
    for bar, mine, theirs, size, outputs in (*dense, *sparse) if with_mindspore else ():
        for target, reference in ((mine, theirs), (theirs, mine)):
            yield Case(bar=bar, target=target, reference=reference, size=size, outputs=outputs)
        for change in ("norm_eps", "attention_scale" if bar == 1 else "one_expert_fewer"):
            yield Case(bar=bar, target=mine, reference=theirs, size=size, change=change)
    for size in sizes:
        for target, reference in PAIRS:
            bar = 4 if "torchtitan" in (target, reference) else 3
            for change in (None, "norm_eps", "weight") if reference == "hf" else (None,):
                yield Case(bar=bar, target=target, reference=reference, size=size, change=change)
    for bar, mine, theirs, size, outputs in dumps if with_mindspore else ():
        for target, reference in ((mine, theirs), (theirs, mine)):
            yield Case(bar=bar, target=target, reference=reference, size=size, outputs=outputs)
        yield Case(bar=bar, target=mine, reference=theirs, size=size, change="norm_eps")


def main() -> None:
    """Measure and write ``results/matching.json``."""
    given = parser(__doc__).parse_args()
    sizes = ["plain"] if given.quick else list(SIZES)
    results = Results(
        name="matching", title="Matching implementations", method=METHOD, settings={"sizes": sizes}
    )
    if not MINDSPORE.exists():
        print("no MindSpore: bars 1, 2 and 5 are left out; try: make mindspore")
    print(heading())
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(sizes, with_mindspore=MINDSPORE.exists()):
            _add(results, case, _measured(Path(folder), case))
    results.save(quick=given.quick)


def _measured(folder: Path, case: Case) -> list[Score]:
    sgd = DUMP in (case.target, case.reference)
    sides = [
        _captured(folder, name, case.size, change, sgd=sgd)
        for name, change in ((case.target, case.change), (case.reference, None))
    ]
    return [scored(match, case.target, case.reference, ALL_SIZES[case.size]) for match in matched(*sides)]


def _captured(folder: Path, name: str, size: str, change: str | None, *, sgd: bool) -> Path:
    path = folder / f"{name}_{size}_{change}{'_sgd' * sgd}"
    if path.exists():
        return path
    flags = ["--sizes", size, *(["--change", change] if change else [])]
    module = "tests.matching.implementations.train"
    if name == DUMP:
        config = path.with_suffix(".json")
        wanted = ["--kind", "full", "--path", str(path), "--device-target", "CPU", "--iteration", "0|1"]
        _run([*TRUEUP, "dump-config", *wanted, "-o", str(config)])
        program = [str(MINDSPORE), "-m", f"{module}_mindspore", "mindspore", "--graph", *flags]
        _run(program, MINDSPORE_DUMP_CONFIG=str(config))
        return path
    options = ["capture", "--level", "mix", "--task", "tensor", "--steps", "0-1", "-o", str(path), "--"]
    if name.startswith("mindspore"):
        python = str(MINDSPORE)
        _run([python, "-m", "trueup", *options, python, "-m", f"{module}_mindspore", name, *flags])
    else:
        flags += ["--sgd"] if sgd else []
        _run([*TRUEUP, *options, sys.executable, "-m", module, name, *flags])
    return path


def _run(command: list[str], **environment: str) -> None:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    subprocess.run(
        command,
        cwd=ROOT,
        check=True,
        capture_output=True,
        env=os.environ | {"PYTHONPATH": paths} | environment,
    )


def _add(results: Results, case: Case, scores: list[Score]) -> None:
    modules = sum(s.modules for s in scores), sum(s.modules_expected for s in scores)
    outputs = sum(s.outputs for s in scores), sum(s.outputs_expected for s in scores)
    wrong = sum(len(s.wrong) for s in scores)
    for name, (found, existing), bar in (("modules", modules, 0.98), ("API outputs", outputs, case.outputs)):
        row = Row(
            what=f"{case.title()}: {name}",
            bar=f">= {bar:.0%}" if case.change is None else "",
            trueup=f"{found / existing:.1%}",
            met=found >= bar * existing if case.change is None else None,
            note=f"{found} of {existing}",
        )
        results.add(row)
    results.add(Row(what=f"{case.title()}: wrong pairs", bar="0", trueup=str(wrong), met=wrong == 0))


if __name__ == "__main__":
    main()
