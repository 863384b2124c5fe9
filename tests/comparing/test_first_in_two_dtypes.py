"""What two bfloat16 programs hold in two dtypes first, below every tolerance, beside what rounds nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import trueup
from trueup.comparing.run import compare
from trueup.types.codes import EvidenceCode, VerdictCode
from trueup.types.status import Outcome
from trueup.types.verdict import Verdict

pytestmark = pytest.mark.torch

WIDTH, VOCAB, LENGTH = 32, 64, 16
COARSE, FINE = torch.bfloat16, torch.float32


@dataclass(frozen=True, kw_only=True)
class Program:
    """One way to write and run a small model whose weights are in bfloat16."""

    stream: torch.dtype = FINE
    """of the sum that blocks add to"""
    given: torch.dtype = COARSE
    """dtype that logits are handed on in"""
    loss: torch.dtype = FINE
    """that the criterion computes in"""
    cast: bool = False
    """the loss is handed on in float32"""
    gates: torch.dtype = FINE
    """of weights of their own"""
    wrapped: bool = False
    """one of them is another number: a draw in a coarse dtype may fall beyond the end"""
    places: torch.dtype | None = None
    """of positions that are handed to the blocks"""
    start: int = 250
    """of these"""
    scale: float = 1.0
    """of the second block: a fault"""
    sent: float = 1.0
    """what gradients are multiplied by before the update: a fault"""
    autocast: bool = False
    chunks: int = 1
    eager: bool = False
    checkpointed: bool = False
    threads: int = 1


class Block(nn.Module):
    def __init__(self, program: Program, scale: float) -> None:
        super().__init__()
        self.program, self.scale = program, scale
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(WIDTH, WIDTH),
        )

    def forward(self, x: Tensor, places: Tensor | None = None) -> Tensor:
        if places is not None:
            x = x + places.float().sin()[:, None].to(x.dtype)
        q, k, v = self.qkv(self.norm(x.to(self.norm.weight.dtype))).chunk(3, -1)
        if self.program.eager:
            scores = (q @ k.transpose(-1, -2)).float() * WIDTH**-0.5
            mixed = scores.softmax(-1).to(v.dtype) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v)
        return x + self.scale * self.out(mixed).to(x.dtype)


class Model(nn.Module):
    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block(program, program.scale if n else 1.0) for n in range(2))
        self.head = nn.Linear(WIDTH, VOCAB)
        if not program.autocast:
            self.to(COARSE)
        self.gates = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH).to(program.gates))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids).to(self.program.stream)
        if self.program.places is not None:
            places = (torch.arange(LENGTH) + self.program.start).to(self.program.places)
            for block in self.blocks:
                x = block(x, places)
            return self.head((x * self.gates).to(self.head.weight.dtype)).to(self.program.given)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.program.checkpointed else block(x)
        x = (x * self.gates).to(self.head.weight.dtype)
        return self.head(x).to(self.program.given)

    def criterion(self, logits: Tensor, labels: Tensor) -> Tensor:
        chunks = self.program.chunks
        pieces = zip(logits.flatten(0, 1).chunk(chunks), labels.flatten().chunk(chunks), strict=True)
        sums = [F.cross_entropy(a.to(self.program.loss), b, reduction="sum") for a, b in pieces]
        loss = torch.stack(sums).sum() / labels.numel()
        return loss.float() if self.program.cast else loss


def train(folder: Path, program: Program, **manifest: object) -> Path:
    torch.manual_seed(0)
    torch.set_num_threads(program.threads)
    model = Model(program)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    random = torch.Generator().manual_seed(1)
    kept = ["configuration", "module", "parameter"]
    with trueup.Tracer(folder, level="L0", steps="0-1", store_values_of=kept):
        for _ in range(2):
            ids, labels = torch.randint(VOCAB, (2, 4, LENGTH), generator=random)
            with torch.autocast("cpu", dtype=COARSE, enabled=program.autocast):
                logits = model(ids)
            model.criterion(logits, labels).backward()
            for parameter in model.parameters():
                if program.sent != 1.0 and parameter.grad is not None:
                    parameter.grad *= program.sent
            optimizer.step()
            optimizer.zero_grad()
    torch.set_num_threads(1)
    file = folder / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | manifest))
    return folder


Compared = Callable[[Program, Program], Verdict]


@pytest.fixture
def compared(tmp_path: Path) -> Compared:
    def verdict(target: Program, reference: Program) -> Verdict:
        return compare(train(tmp_path / "target", target), train(tmp_path / "reference", reference)).verdict

    return verdict


BASE = Program()
COARSER = {
    "residual stream": (replace(BASE, stream=COARSE), BASE, VerdictCode.RESULT_IN, "blocks.0"),
    "loss": (replace(BASE, loss=COARSE), BASE, VerdictCode.LOSS_IN, None),
    "loss, cast afterwards": (
        replace(BASE, loss=COARSE, cast=True),
        replace(BASE, given=FINE, cast=True),
        VerdictCode.LOSS_IN,
        "",
    ),
    "weights": (replace(BASE, gates=COARSE), BASE, VerdictCode.WEIGHTS_IN, ""),
}


@pytest.mark.parametrize("side", ["target", "reference"])
@pytest.mark.parametrize("case", COARSER)
def test_it_is_named(case: str, side: str, compared: Compared) -> None:
    lower, base, code, owner = COARSER[case]
    found = compared(*((lower, base) if side == "target" else (base, lower)))
    other = "reference" if side == "target" else "target"
    assert found.headline.code is code
    assert (found.headline.place(side), found.headline.place(other)) == ("bfloat16", "float32")
    assert found.owner == owner


def test_how_it_is_known(compared: Compared) -> None:
    found = compared(replace(BASE, stream=COARSE), BASE)
    (known,) = [one for one in found.evidence if one.code is EvidenceCode.FINER_EXCEEDED]
    assert known.number("least") < 1e-6 < known.number("rel_l2") < 2**-8
    (by,) = [one for one in found.evidence if one.code is EvidenceCode.COMPUTED_BY]
    assert by.place("modules") == ("Block (2)",)


def test_positions_that_a_coarse_dtype_does_not_hold(compared: Compared) -> None:
    """What is made of them differs by more than any rounding: they are other positions."""
    found = compared(replace(BASE, places=COARSE), replace(BASE, places=FINE))
    assert (found.headline.code, found.where) == (VerdictCode.RESULT_IN, "blocks.0 · input.1")
    (lost,) = [one for one in found.evidence if one.code is EvidenceCode.WHOLE_ROUNDED]
    assert (lost.number("number"), lost.number("becomes")) == (257, 256)
    assert (lost.number("num"), lost.number("total")) == (5, LENGTH)
    assert not any(one.code is EvidenceCode.NONE_BEYOND for one in found.evidence)


def test_what_hides_is_no_position(compared: Compared) -> None:
    """Masks are often written as -10,000, which bfloat16 does not hold either."""
    found = compared(replace(BASE, places=COARSE, start=-10_000), replace(BASE, places=FINE, start=-10_000))
    assert not any(one.code is EvidenceCode.WHOLE_ROUNDED for one in found.evidence)


BENIGN = {
    "positions that bfloat16 holds": (
        replace(BASE, places=COARSE, start=0),
        replace(BASE, places=FINE, start=0),
    ),
    "logits given in float32, cast by the loss in both": (replace(BASE, given=FINE), BASE),
    "chunks of a loss": (replace(BASE, chunks=4), BASE),
    "chunks of a loss of logits in another dtype": (replace(BASE, chunks=4, given=FINE), BASE),
    "written-out attention": (replace(BASE, eager=True), BASE),
    "checkpointing": (replace(BASE, checkpointed=True), BASE),
    "threads": (replace(BASE, threads=2), BASE),
    "written-out attention under autocast": (Program(autocast=True, eager=True), Program(autocast=True)),
    "written-out attention in a stream in bfloat16": (
        Program(stream=COARSE, eager=True, chunks=2),
        Program(stream=COARSE),
    ),
}


@pytest.mark.parametrize("case", BENIGN)
def test_what_rounds_nothing_or_has_one_dtype_is_no_difference(case: str, compared: Compared) -> None:
    assert compared(*BENIGN[case]).outcome is Outcome.AGREE


@pytest.mark.parametrize(
    "manifest", [{"framework_version": "2.4.0"}, {"devices": ["NVIDIA H100"]}], ids=["version", "device"]
)
def test_lists_of_autocast_are_each_platforms_own(manifest: dict[str, object], tmp_path: Path) -> None:
    target = train(tmp_path / "target", replace(BASE, stream=COARSE), **manifest)
    assert compare(target, train(tmp_path / "reference", BASE)).verdict.outcome is Outcome.AGREE


def test_a_larger_fault_is_told_first(compared: Compared) -> None:
    found = compared(replace(BASE, stream=COARSE, scale=1.5), BASE)
    assert found.outcome is Outcome.DIFFER
    assert found.headline.code is not VerdictCode.RESULT_IN
