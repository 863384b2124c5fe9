"""What one run computes in another dtype leads the verdict where it explains what differs, not elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from tests.adapters.torch.reading import capture  # noqa: E402
from trueup.comparing.result import Comparison  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.types.codes import EvidenceCode, VerdictCode  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402

pytestmark = pytest.mark.torch

STEPS = 2


@dataclass(frozen=True, kw_only=True)
class Program:
    """One way to write and run a small GPT; the default computes in float32."""

    dtype: str = "float32"
    autocast: str | None = None
    norm: str | None = None
    """dtype it computes in; None: that of its input"""
    embedding: str | None = None
    """dtype the embedding's output is rounded to"""
    loss: str | None = None
    eager: bool = False
    shift: float = 0.0
    """added to the eps of the last norm: a fault"""
    early: float = 1.0
    """factor on the first embedding: a fault before every cast"""
    seed: int = 0
    rows: int = 4
    length: int = 16


class Norm(nn.Module):
    def __init__(self, width: int, program: Program, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.dtype = None if program.norm is None else getattr(torch, program.norm)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        given = x.dtype
        if self.dtype is not None:
            x = x.to(self.dtype)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return x.to(given) * self.weight.to(given)


class Block(nn.Module):
    def __init__(self, width: int, program: Program, eps: float) -> None:
        super().__init__()
        self.norm, self.eager = Norm(width, program, eps), program.eager
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (y.view(b, t, 2, d // 2).transpose(1, 2) for y in self.qkv(self.norm(x)).split(d, -1))
        if self.eager:
            scores = (q @ k.transpose(-2, -1)) * (d // 2) ** -0.5
            scores = scores.masked_fill(torch.ones(t, t).triu(1).bool(), float("-inf"))
            y = F.softmax(scores.float(), -1).to(v.dtype) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(x)))


class Gpt(nn.Module):
    def __init__(self, program: Program, width: int = 32) -> None:
        super().__init__()
        self.program = program
        self.embed = nn.Embedding(64, width)
        self.blocks = nn.ModuleList(Block(width, program, 1e-6 + program.shift * at) for at in range(2))
        self.head = nn.Linear(width, 64, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) * self.program.early
        if self.program.embedding is not None:
            x = x.to(getattr(torch, self.program.embedding)).to(self.embed.weight.dtype)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits


def train(program: Program) -> None:
    torch.manual_seed(program.seed)
    model = Gpt(program).to(getattr(torch, program.dtype))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    draw = torch.Generator().manual_seed(1)
    mixed = (
        nullcontext() if program.autocast is None else torch.autocast("cpu", getattr(torch, program.autocast))
    )
    for _ in range(STEPS):
        ids = torch.randint(0, 64, (program.rows, program.length + 1), generator=draw)
        optimizer.zero_grad()
        with mixed:
            logits = model(ids[:, :-1]).flatten(0, 1)
            rounded = logits.float() if program.loss is None else logits.to(getattr(torch, program.loss))
            loss = F.cross_entropy(rounded, ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()


Compared = Callable[..., Comparison]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    @cache
    def captured(program: Program, level: str) -> Path:
        folder = tmp_path_factory.mktemp("run")
        capture(folder / "trace", lambda: train(program), level=level)
        return folder / "trace"

    def pair(target: Program, reference: Program, level: str = "mix") -> Comparison:
        return compare(captured(target, level), captured(reference, level))

    return pair


BASE = Program()
LOWER = {
    "autocast": (Program(autocast="bfloat16"), "bfloat16", "linear"),
    "autocast-float16": (Program(autocast="float16"), "float16", "linear"),
    "model": (Program(dtype="bfloat16"), "bfloat16", None),
    "norm": (Program(norm="bfloat16"), "bfloat16", "Norm"),
    "norm-float16": (Program(norm="float16"), "float16", "Norm"),
    "loss": (Program(loss="bfloat16"), "bfloat16", "cross_entropy"),
}


@pytest.mark.parametrize("side", ["target", "reference"])
@pytest.mark.parametrize("case", LOWER)
def test_the_dtype_is_the_first_thing_said(case: str, side: str, compared: Compared) -> None:
    lower, dtype, named = LOWER[case]
    pair = (lower, BASE) if side == "target" else (BASE, lower)
    verdict = compared(*pair).verdict
    assert verdict.outcome is Outcome.DIFFER
    assert verdict.headline.code is VerdictCode.COMPUTES_IN
    sides = {name: verdict.headline.place(name) for name in ("target", "reference")}
    assert sides.pop(side) == dtype
    assert list(sides.values()) == ["float32"]
    assert named is None or named in verdict.headline.place("functions")
    assert verdict.headline.place("autocast") == (side if case.startswith("autocast") else "")
    assert bool(verdict.headline.number("weights")) is (case == "model")
    codes = [one.code for one in verdict.evidence]
    assert EvidenceCode.NONE_BEYOND in codes


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("side", ["target", "reference"])
def test_a_cast_that_one_side_alone_has(dtype: str, side: str, compared: Compared) -> None:
    lower = Program(embedding=dtype)
    verdict = compared(*((lower, BASE) if side == "target" else (BASE, lower))).verdict
    assert verdict.headline.code is VerdictCode.CASTS_TO
    assert (verdict.headline.place("side"), verdict.headline.place(side)) == (side, dtype)
    assert verdict.owner == ""


@pytest.mark.parametrize("level", ["L0", "L1"])
def test_at_other_levels(level: str, compared: Compared) -> None:
    verdict = compared(Program(autocast="bfloat16"), BASE, level).verdict
    assert verdict.headline.code is VerdictCode.COMPUTES_IN
    assert {"Linear", "linear"} & set(verdict.headline.place("functions"))


def test_what_the_dtype_does_not_explain_is_named_beside_it(compared: Compared) -> None:
    verdict = compared(Program(autocast="bfloat16", shift=3.0), BASE).verdict
    assert verdict.headline.code is VerdictCode.COMPUTES_IN
    (beyond,) = [one for one in verdict.evidence if one.code is EvidenceCode.FIRST_BEYOND]
    assert "blocks.1.norm" in beyond.place("site")


def test_a_fault_before_the_first_cast_stays_the_first(compared: Compared) -> None:
    verdict = compared(Program(norm="bfloat16", early=1.01), BASE).verdict
    assert verdict.headline.code in (VerdictCode.FIRST_DIVERGENCE, VerdictCode.ARGUMENT_DIFFERS)
    assert verdict.owner == ""


def test_a_fault_beside_a_cast_of_no_effect_stays_the_first(compared: Compared) -> None:
    """Both runs round to bfloat16; that one of them keeps its norms in float32 changes no more than that."""
    lower = Program(dtype="bfloat16", norm="float32")
    verdict = compared(
        Program(dtype="bfloat16", norm="float32", shift=3.0), Program(dtype="bfloat16")
    ).verdict
    assert verdict.owner is not None
    assert verdict.owner.startswith("blocks.1")
    assert compared(lower, Program(dtype="bfloat16")).verdict.outcome is Outcome.AGREE


BENIGN = {
    "float32": BASE,
    "small": Program(rows=2, seed=1),
    "long": Program(length=64, seed=2),
    "autocast": Program(autocast="bfloat16"),
    "autocast-long": Program(autocast="bfloat16", length=64, seed=3),
    "model": Program(dtype="bfloat16"),
}


@pytest.mark.parametrize("case", BENIGN)
def test_another_attention_kernel_is_no_difference(case: str, compared: Compared) -> None:
    """A fused query, key and value: the key's bias has no gradient in exact arithmetic, only rounding."""
    from dataclasses import replace

    program = BENIGN[case]
    verdict = compared(replace(program, eager=True), program).verdict
    assert verdict.outcome is Outcome.AGREE, verdict
