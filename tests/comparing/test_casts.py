"""Code that differs in its casts alone: the precision that no tolerance for the coarser dtype tells."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trueup.comparing.program_statements import cast_otherwise
from trueup.comparing.run import compare
from trueup.store.code import ProgramFunction
from trueup.types.codes import EvidenceCode, NoteCode, VerdictCode
from trueup.types.status import Outcome


def written(body: str) -> ProgramFunction:
    lines = "\n    ".join(body.split("; "))
    source = f"def forward(self, x):\n    {lines}\n"
    return cast(ProgramFunction, SimpleNamespace(source=source, name="forward", digest=source))


PLAIN = "h = F.linear(x.float(), self.w.float()); return h.type_as(x)"


@pytest.mark.parametrize(
    "other",
    [
        "h = F.linear(x, self.w).float(); return h.type_as(x)",
        "return F.linear(x, self.w)",
        "x = x.to(torch.float32); h = F.linear(x, self.w); return h.to(x.dtype)",
        "h = F.linear(x.double(), self.w.double()); return h.type_as(x)",
        "given = F.linear(x.astype(ms.float32), ops.cast(self.w, ms.float32)); return given",
    ],
)
def test_only_the_casts_differ(other: str) -> None:
    assert cast_otherwise(written(PLAIN), written(other))
    assert cast_otherwise(written(other), written(PLAIN))


@pytest.mark.parametrize(
    "other",
    [
        PLAIN,
        "given = F.linear(x.float(), self.w.float()); return given.type_as(x)",
        "h = F.linear(x, self.w) * 2; return h.type_as(x)",
        "h = F.linear(self.w, x); return h",
        "h = F.linear(x, self.w.to(x.device)); return h.type_as(x)",
        "h = F.linear(x, self.v); return h",
        "if x.ndim: h = F.linear(x, self.w); return h",
        "return fused_linear(x, self.w)",
    ],
)
def test_nothing_or_more_than_casts_differs(other: str) -> None:
    assert not cast_otherwise(written(PLAIN), written(other))


PROGRAM = """
import torch
from torch import nn


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(32, dtype={dtype}) + torch.randn(32).to({dtype}) / 8)

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)
        return {result}


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), Norm(), nn.Linear(32, 4)).to({dtype})
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(2):
    out = model(torch.randn(8, 16, dtype={dtype}))
    loss = nn.functional.smooth_l1_loss({loss})
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
RESULT = "(h * self.weight.float()).type_as(x)"
LOSS = "out.float(), torch.tanh(out.float())"


def captured(
    folder: Path, dtype: str = "torch.bfloat16", result: str = RESULT, loss: str = LOSS, threads: int = 1
) -> Path:
    program = folder.with_suffix(".py")
    threaded = f"import torch; torch.set_num_threads({threads})\n"
    program.write_text(threaded + PROGRAM.format(dtype=dtype, result=result, loss=loss), encoding="utf-8")
    command = ["-m", "trueup", "capture", "-o", str(folder), "--", sys.executable, str(program)]
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captured(tmp_path_factory.mktemp("casts") / "reference")


@pytest.mark.torch
def test_casts_that_made_the_first_other_bits(tmp_path: Path, reference: Path) -> None:
    """The product with the weight in bfloat16: one rounding more, as a norm of another model family does."""
    verdict = compare(captured(tmp_path / "target", result="h.type_as(x) * self.weight"), reference).verdict
    assert (verdict.outcome, verdict.headline.code) == (Outcome.DIFFER, VerdictCode.CASTS_DIFFER)
    assert (verdict.headline.place("function"), verdict.headline.place("dtype")) == (
        "Norm.forward",
        "bfloat16",
    )
    assert (verdict.owner, verdict.evidence[0].code) == ("1", EvidenceCode.CODE_CASTS)


@pytest.mark.torch
def test_casts_in_a_loss_made_the_first_other_bits(tmp_path: Path, reference: Path) -> None:
    """Its target in bfloat16: outside the model, where a loss is made."""
    target = captured(tmp_path / "target", loss="out.float(), torch.tanh(out).float()")
    verdict = compare(target, reference).verdict
    assert (verdict.outcome, verdict.headline.code) == (Outcome.DIFFER, VerdictCode.CASTS_DIFFER)
    assert (verdict.phase, verdict.evidence[0].code) == ("loss", EvidenceCode.CODE_CASTS)


@pytest.mark.torch
@pytest.mark.parametrize(
    "loss",
    [
        "out.float(), out.tanh().float()",  # another call makes the target of the loss, in bfloat16
        "out.float() * 1.0001, torch.tanh(out.float())",
        "out.float() * (1.0001 if step else 1.0), torch.tanh(out.float())",  # from the second step on
    ],
)
def test_another_loss_of_the_same_results_stays_open(loss: str, tmp_path: Path, reference: Path) -> None:
    """A loss in float32 that is another by far more than float32 rounds, and by less than bfloat16."""
    verdict = compare(captured(tmp_path / "target", loss=loss), reference).verdict
    assert (verdict.outcome, verdict.headline.code) == (Outcome.UNDECIDED, VerdictCode.LOSS_CODE_DIFFERS)
    assert (verdict.phase, verdict.evidence[0].code) == ("loss", EvidenceCode.CODE_DIFFERS)


@pytest.mark.torch
def test_another_form_of_the_same_loss_agrees(tmp_path: Path, reference: Path) -> None:
    loss = "out.float() * 3.0 / 3.0, torch.tanh(out.float()) * 3.0 / 3.0"
    assert compare(captured(tmp_path / "target", loss=loss), reference).verdict.outcome is Outcome.AGREE


@pytest.mark.torch
@pytest.mark.parametrize(
    "changed",
    [
        {"result": "(h.float() * self.weight.float()).to(torch.bfloat16)"},  # the same bits
        {"result": "(self.weight * h).type_as(x) + 0"},  # the same bits, other code
        {"result": "torch.mul(h.type_as(x), self.weight)"},  # another call: as a fused norm rounds
        {"loss": "out.to(torch.float32), torch.tanh(out.to(torch.float32))"},  # the same bits
        {"loss": "out.float() + 0, torch.tanh(out.float())"},  # the same bits of a loss, other code
        {"result": "h.type_as(x) * self.weight", "threads": 2},  # other kernels may have made other bits
    ],
)
def test_other_bits_that_casts_alone_did_not_make(
    changed: dict[str, Any], tmp_path: Path, reference: Path
) -> None:
    comparison = compare(captured(tmp_path / "target", **changed), reference)
    assert comparison.verdict.outcome is Outcome.AGREE
    assert any(note.code is NoteCode.CODE_DIFFERS for note in comparison.content.notes) or (
        comparison.verdict.headline.code is VerdictCode.CAPTURED_IS_EQUAL
    )
