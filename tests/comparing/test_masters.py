"""Master weights of an optimizer that the program wrote itself: what is no difference, and which is one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.comparing.result import Comparison  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.store import Trace  # noqa: E402
from trueup.types.codes import Code, VerdictCode  # noqa: E402
from trueup.types.codes import EvidenceCode as Evidence  # noqa: E402
from trueup.types.codes import StagesCode as Stages  # noqa: E402
from trueup.types.finding import Stage  # noqa: E402
from trueup.types.reason import reason  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402


@dataclass(frozen=True, kw_only=True)
class Program:
    """What one run does otherwise."""

    keeps: str = "list"
    """where the masters are: ``list``, ``dict``, ``module``, ``none``"""
    sums: torch.dtype = torch.float32
    formula: str = "plain"
    rate: float = 1e-3
    decays: Callable[[Tensor], bool] = lambda weight: weight.ndim > 1
    rounds: bool = False
    moments: torch.dtype = torch.float32
    limit: float = 1.0
    per_tensor: bool = False
    perturbed: float = 0.0
    num_microbatches: int = 4
    dtype: torch.dtype = torch.bfloat16


PLAIN = Program()
ONE_BATCH = replace(PLAIN, num_microbatches=1)
UPDATES: dict[tuple[Path, int], list[tuple[Tensor, Tensor]]] = {}
"""run and step -> masters before and after the update"""


def run(folder: Path, program: Program) -> Path:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.Tanh(), nn.Linear(32, 8)).to(program.dtype)
    weights = list(model.parameters())
    made = [w.detach().float().clone() for w in weights]
    named = dict(zip((name for name, _ in model.named_parameters()), made, strict=True))
    other = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.Tanh(), nn.Linear(32, 8))
    if program.keeps == "module":
        for own, master in zip(other.parameters(), made, strict=True):
            own.data = master
    held = {"list": made, "dict": named, "module": other, "none": None}[program.keeps]
    moments = [[torch.zeros_like(m, dtype=program.moments) for m in made] for _ in range(2)]
    with trueup.Tracer(folder, level="L0", steps="0-1", store_values_of=("module", "parameter")):
        for step in range(2):
            sums = [torch.zeros_like(m, dtype=program.sums) for m in made]
            for _ in range(program.num_microbatches):
                x = torch.randn(24, 16) * (1 + program.perturbed)
                (model(x.to(program.dtype)).float().square().mean() / 4).backward()
                for total, w in zip(sums, weights, strict=True):
                    assert w.grad is not None
                    total.add_(w.grad.to(program.sums))
                    w.grad = None
            before = [m.clone() for m in made]
            update(program, step + 1, weights, made, [g.float() for g in sums], moments)
            UPDATES[folder, step] = [(a, b.clone()) for a, b in zip(before, made, strict=True)]
    assert held is not weights
    return folder


@torch.no_grad()
def update(
    program: Program,
    time: int,
    weights: list[Tensor],
    masters: list[Tensor],
    gradients: list[Tensor],
    moments: list[list[Tensor]],
) -> None:
    norms = [g.norm() for g in gradients]
    whole = torch.stack(norms).norm()
    parts = zip(weights, masters, gradients, *moments, norms, strict=True)
    for w, m, g, a, b, own in parts:
        g.mul_((program.limit / ((own if program.per_tensor else whole) + 1e-6)).clamp(max=1.0))
        decay = program.rate * 0.1 if program.decays(m) else 0.0
        if program.formula == "fused":
            a.lerp_(g, 0.1)
            b.mul_(0.95).addcmul_(g, g, value=0.05)
            m.sub_(m, alpha=decay)
            root = b.sqrt().div_((1 - 0.95**time) ** 0.5).add_(1e-8)
            m.addcdiv_(a, root, value=-program.rate / (1 - 0.9**time))
        else:
            a.mul_(0.9).add_(g.to(a.dtype), alpha=0.1)
            b.mul_(0.95).add_((g * g).to(b.dtype), alpha=0.05)
            m.mul_(1 - decay)
            first, second = a.float() / (1 - 0.9**time), b.float() / (1 - 0.95**time)
            m.add_(first / (second.sqrt() + 1e-8), alpha=-program.rate)
        w.copy_(m)
        if program.rounds:
            m.copy_(w)


def compared(folder: Path, target: Program, reference: Program = PLAIN) -> Comparison:
    run(folder / "target", target)
    run(folder / "reference", reference)
    return compare(folder / "target", folder / "reference")


@pytest.mark.parametrize("keeps", ["list", "dict", "module"])
def test_masters_are_recorded_wherever_they_are_and_are_no_average(tmp_path: Path, keeps: str) -> None:
    trace = Trace(run(tmp_path / "run", replace(PLAIN, keeps=keeps)))
    facts = trace.rank_facts(0)
    assert [one["slot"] for one in facts["masters"]] == ["master.0"]
    assert facts["averages"] == []


def test_weights_in_the_dtype_of_their_masters_have_none(tmp_path: Path) -> None:
    facts = Trace(run(tmp_path / "run", replace(PLAIN, dtype=torch.float32))).rank_facts(0)
    assert "masters" not in facts


@pytest.mark.parametrize(
    "target",
    [replace(PLAIN, formula="fused"), replace(PLAIN, keeps="dict"), replace(PLAIN, perturbed=1e-3)],
)
def test_the_same_update_written_otherwise_and_other_rounding(tmp_path: Path, target: Program) -> None:
    assert compared(tmp_path, target).verdict.outcome is Outcome.AGREE


FAULTS: dict[VerdictCode, Program] = {
    VerdictCode.MASTERS_ROUNDED: replace(PLAIN, rounds=True),
    VerdictCode.MASTERS_DECAY: replace(PLAIN, decays=lambda weight: True),
    VerdictCode.MASTERS_SCALED: replace(PLAIN, rate=1.05e-3, decays=lambda weight: False),
    VerdictCode.MASTERS_DIFFER: replace(PLAIN, sums=torch.bfloat16),
}
REFERENCES = {VerdictCode.MASTERS_SCALED: replace(PLAIN, decays=lambda weight: False)}


@pytest.mark.parametrize("code", sorted(FAULTS))
def test_updates_that_coarse_weights_hide(tmp_path: Path, code: VerdictCode) -> None:
    verdict = compared(tmp_path, FAULTS[code], REFERENCES.get(code, PLAIN)).verdict
    assert (verdict.outcome, verdict.headline.code) == (Outcome.DIFFER, code)
    apart, gradients = verdict.evidence
    step = int(apart.number("step") or 0)
    assert (apart.code, gradients) == (Evidence.MASTERS_APART, reason(Evidence.GRADIENTS_THE_SAME, step=step))
    own, other = (UPDATES[tmp_path / side, step] for side in ("target", "reference"))
    names = ["0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"]
    shares = {
        name: float((a - b).norm() / (b - before).norm())
        for name, (_, a), (before, b) in zip(names, own, other, strict=True)
    }
    assert apart.number("num") == sum(share > (apart.number("tolerance") or 0) for share in shares.values())
    assert apart.number("share") == pytest.approx(shares[str(apart.place("name"))], rel=0.3)
    if code is VerdictCode.MASTERS_DECAY:
        assert verdict.headline.number("share") == pytest.approx(1e-4, rel=1e-2)
    if code is VerdictCode.MASTERS_SCALED:
        assert verdict.headline.number("factor") == pytest.approx(1.05, rel=1e-3)
    if code is VerdictCode.MASTERS_ROUNDED:
        assert verdict.headline.place("side") == "target"


def test_masters_that_rest_are_not_called_rounded(tmp_path: Path) -> None:
    verdict = compared(tmp_path, replace(PLAIN, rate=0.0)).verdict
    assert verdict.outcome is Outcome.DIFFER
    assert verdict.headline.code is not VerdictCode.MASTERS_ROUNDED


def test_clipping_each_by_its_own_norm_shows_after_the_second_update(tmp_path: Path) -> None:
    small = replace(PLAIN, limit=2e-2)
    verdict = compared(tmp_path, replace(small, per_tensor=True), small).verdict
    assert (verdict.outcome, verdict.headline.number("step")) == (Outcome.DIFFER, 1)


def test_a_diagnosis_puts_it_into_the_optimizer_stage(tmp_path: Path) -> None:
    run(tmp_path / "target", FAULTS[VerdictCode.MASTERS_ROUNDED])
    run(tmp_path / "reference", PLAIN)
    found = diagnose(tmp_path / "target", tmp_path / "reference", output=tmp_path / "out")
    (finding,) = found.findings
    assert finding.stage is Stage.OPTIMIZER
    codes: set[Code] = {finding.headline.code, *(part.code for part in finding.headline.parts)}
    assert VerdictCode.MASTERS_ROUNDED in codes
    assert [one.place("key") for one in finding.causes if one.code is Stages.MASTER_CAUSE] == ["rounded"]


@pytest.mark.parametrize(
    ("target", "reference", "code"),
    [
        (replace(ONE_BATCH, moments=torch.bfloat16), ONE_BATCH, Stages.OWN_STATE_ROUNDED),
        (ONE_BATCH, replace(ONE_BATCH, moments=torch.bfloat16), Stages.OWN_STATE_ROUNDED),
        (replace(ONE_BATCH, limit=1e-6, per_tensor=True), replace(ONE_BATCH, limit=1e-6), None),
    ],
)
def test_what_an_adam_of_the_programs_own_does_otherwise(
    tmp_path: Path, target: Program, reference: Program, code: Stages | None
) -> None:
    run(tmp_path / "target", target)
    run(tmp_path / "reference", reference)
    (finding,) = diagnose(tmp_path / "target", tmp_path / "reference", output=tmp_path / "out").findings
    if code is None:
        assert finding.headline.code is VerdictCode.MASTERS_DIFFER
        return
    coarse = ("reference", "target")[target.moments is torch.bfloat16]
    assert (finding.headline.code, finding.headline.place("side")) == (code, coarse)
    assert {one.code for one in finding.causes} == {Stages.OWN_STATE_COARSE}


def test_the_decay_of_an_adam_of_the_programs_own(tmp_path: Path) -> None:
    run(tmp_path / "target", replace(ONE_BATCH, decays=lambda weight: False))
    run(tmp_path / "reference", ONE_BATCH)
    (finding,) = diagnose(tmp_path / "target", tmp_path / "reference", output=tmp_path / "out").findings
    assert finding.headline.code is Stages.OWN_DECAY
    assert finding.headline.number("target") == 0.0
    assert finding.headline.number("reference") == pytest.approx(0.1, rel=1e-2)


@pytest.mark.parametrize(("order", "dropped"), [((3, 1, 0, 2), False), ((3, 1, 0), True)])
def test_microbatches_whose_gradients_are_taken_away(
    tmp_path: Path, order: tuple[int, ...], dropped: bool
) -> None:
    """Their order is no difference; one that is left out is."""
    for name, way in (("target", order), ("reference", (0, 1, 2, 3))):
        taken(tmp_path / name, [[at] for at in way])
    verdict = compare(tmp_path / "target", tmp_path / "reference").verdict
    assert (verdict.outcome is Outcome.AGREE) is not dropped


def test_microbatches_of_another_size_whose_gradients_are_taken_away(tmp_path: Path) -> None:
    taken(tmp_path / "target", [[0, 1], [2, 3]])
    taken(tmp_path / "reference", [[0], [1], [2], [3]])
    taken(tmp_path / "wrong", [[0, 1], [2, 2]])
    assert compare(tmp_path / "target", tmp_path / "reference").verdict.outcome is Outcome.AGREE
    assert compare(tmp_path / "wrong", tmp_path / "reference").verdict.outcome is not Outcome.AGREE


def taken(folder: Path, microbatches: list[list[int]]) -> None:
    """Sums gradients in buffers of its own; rows of token ids, so that they are found again."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Embedding(40, 16), nn.Linear(16, 40))
    weights = list(model.parameters())
    with trueup.Tracer(folder, level="L0", steps="0-1", task="tensor"):
        for _ in range(2):
            parts = torch.randint(0, 40, (4, 2, 9)).unbind(0)
            sums = [torch.zeros_like(w) for w in weights]
            for numbers in microbatches:
                ids = torch.cat([parts[number] for number in numbers])
                logits = model(ids[:, :-1])
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
                (loss * len(numbers) / 4).backward()
                for total, w in zip(sums, weights, strict=True):
                    total.add_(w.grad)
                    w.grad = None
            with torch.no_grad():
                for total, w in zip(sums, weights, strict=True):
                    w.sub_(total, alpha=0.5)
