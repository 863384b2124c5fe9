"""What one run computes in another dtype leads the verdict where it explains what differs, not elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.adapters.torch.reading import capture
from tests.models.mixed_gpt import Program, train
from trueup.comparing import precision_gap
from trueup.comparing.result import Comparison
from trueup.comparing.rows import StepRows
from trueup.comparing.run import compare
from trueup.types.arrays import Bools
from trueup.types.codes import EvidenceCode, VerdictCode
from trueup.types.status import Outcome

pytestmark = pytest.mark.torch

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


def test_a_norm_in_float32_is_named_and_a_fault_beside_it_too(compared: Compared) -> None:
    """Both runs round to bfloat16. What a norm rounds of a row in it, its elements share."""
    kept = Program(dtype="bfloat16", norm="float32")
    verdict = compared(kept, Program(dtype="bfloat16")).verdict
    assert verdict.headline.code is VerdictCode.COMPUTES_IN
    assert (verdict.headline.place("target"), verdict.owner) == ("float32", "blocks.0.norm")
    verdict = compared(replace(kept, shift=3.0), Program(dtype="bfloat16")).verdict
    (beyond,) = [one for one in verdict.evidence if one.code is EvidenceCode.FIRST_BEYOND]
    assert "blocks.1" in beyond.place("site")
    assert compared(replace(kept, shift=3.0), kept).verdict.owner.startswith("blocks.1")


BENIGN = {
    "float32": BASE,
    **{f"small-{seed}": Program(rows=2, seed=seed) for seed in range(1, 6)},
    "long": Program(length=64, seed=2),
    "autocast": Program(autocast="bfloat16"),
    "autocast-long": Program(autocast="bfloat16", length=64, seed=3),
    "model": Program(dtype="bfloat16"),
}


@pytest.mark.parametrize("case", BENIGN)
def test_another_attention_kernel_is_no_difference(case: str, compared: Compared) -> None:
    """A fused query, key and value: the key's bias has no gradient in exact arithmetic, only rounding."""
    program = BENIGN[case]
    verdict = compared(replace(program, eager=True), program).verdict
    assert verdict.outcome is Outcome.AGREE, verdict


class ProductLinear(nn.Linear):
    """Multiplies as a GPU does in TF32 where ``bits`` are cut off its factors, after rounding to nearest."""

    bits = 0

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self._rounded(x), self._rounded(self.weight), self.bias)

    def _rounded(self, x: Tensor) -> Tensor:
        if not self.bits:
            return x
        whole = x.detach().contiguous().view(torch.int32)
        kept = (whole + (1 << (self.bits - 1))) & ~((1 << self.bits) - 1)
        return x + (kept.view(torch.float32) - x.detach())


class CastNorm(nn.GroupNorm):
    """Computes in the dtype of its weight; what is given is cast by who calls it, or by itself."""

    inside = True

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype)).to(x.dtype) if self.inside else super().forward(x)


class Net(nn.Module):
    def __init__(
        self, *, bits: int, norm: torch.dtype, inside: bool, scale: float, first: int | None
    ) -> None:
        super().__init__()
        self.up, self.norms = ProductLinear(12, 48), nn.ModuleList(CastNorm(4, 48) for _ in range(2))
        self.down, self.scale = ProductLinear(48, 12), scale
        self.up.bits, self.down.bits = bits if first is None else first, bits
        for one in self.norms.to(norm):
            one.inside = inside

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        for norm in self.norms:
            given = x if norm.inside else x.to(norm.weight.dtype)
            x = torch.tanh(norm(given).to(x.dtype))
        return self.down(x * self.scale)


def net(
    folder: Path,
    *,
    bits: int = 0,
    norm: torch.dtype = torch.float32,
    inside: bool = True,
    scale: float = 1.0,
    first: int | None = None,
    **manifest: object,
) -> Path:
    """A trace of modules alone; ``first``: bits of the first layer, if others; ``manifest``: facts of another
    machine."""

    def program() -> None:
        torch.manual_seed(3)
        model = Net(bits=bits, norm=norm, inside=inside, scale=scale, first=first)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(2):
            model(torch.randn(9, 12)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    capture(folder, program, level="L0")
    file = folder / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | manifest))
    return folder


@pytest.mark.parametrize("inside", [True, False], ids=["cast inside", "cast between modules"])
@pytest.mark.parametrize("side", ["target", "reference"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_norms_alone_in_a_lower_dtype_where_modules_are_recorded(
    dtype: str, side: str, inside: bool, tmp_path: Path
) -> None:
    lower = net(tmp_path / "lower", norm=getattr(torch, dtype), inside=inside)
    base = net(tmp_path / "base", inside=inside)
    verdict = compare(*((lower, base) if side == "target" else (base, lower))).verdict
    assert verdict.outcome is Outcome.DIFFER
    assert verdict.headline.code is VerdictCode.COMPUTES_IN
    assert verdict.headline.place(side) == dtype
    assert verdict.headline.place("functions") == ("CastNorm",)
    assert verdict.headline.number("weights")
    assert not verdict.headline.number("whole")
    (by,) = [one for one in verdict.evidence if one.code is EvidenceCode.COMPUTED_BY]
    assert by.place("modules") == ("CastNorm (2)",)


GPU: dict[str, object] = {"devices": ["NVIDIA A100"], "allow_tf32": False}


@pytest.mark.parametrize(
    "setting",
    [{"allow_tf32": True}, {"environment": {"NVIDIA_TF32_OVERRIDE": "1"}}],
    ids=["flag", "override"],
)
@pytest.mark.parametrize("side", ["target", "reference"])
def test_tf32_of_one_side(setting: dict[str, object], side: str, tmp_path: Path) -> None:
    lower, base = net(tmp_path / "tf32", bits=13, **GPU | setting), net(tmp_path / "base", **GPU)
    verdict = compare(*((lower, base) if side == "target" else (base, lower))).verdict
    assert verdict.headline.code is VerdictCode.COMPUTES_IN
    assert verdict.headline.place(side) == "tf32"
    assert verdict.headline.place("functions") == ("ProductLinear",)
    assert EvidenceCode.NONE_BEYOND in [one.code for one in verdict.evidence]


def test_tf32_is_said_of_products_that_differ(tmp_path: Path) -> None:
    """A GPU may multiply small matrices otherwise."""
    lower = net(tmp_path / "tf32", bits=13, first=0, **GPU | {"allow_tf32": True})
    verdict = compare(lower, net(tmp_path / "base", **GPU)).verdict
    assert verdict.headline.code is VerdictCode.COMPUTES_IN
    (by,) = [one for one in verdict.evidence if one.code is EvidenceCode.COMPUTED_BY]
    assert by.place("modules") == ("ProductLinear (1)",)


def test_what_is_no_tf32(tmp_path: Path) -> None:
    """On a CPU, or allowed on both sides, it explains nothing; nor does it explain more than its rounding."""
    base, both = net(tmp_path / "base", **GPU), GPU | {"allow_tf32": True}
    for at, (one, other) in enumerate(
        (
            (net(tmp_path / "cpu", bits=13), net(tmp_path / "other")),
            (net(tmp_path / "both", bits=13, **both), net(tmp_path / "too", **both)),
            (net(tmp_path / "coarse", bits=18, **both), base),
            (net(tmp_path / "none", scale=1.01, **both), base),
        )
    ):
        assert compare(one, other).verdict.headline.code is VerdictCode.FIRST_DIVERGENCE, at
    assert compare(net(tmp_path / "same", **both), base).verdict.outcome is Outcome.AGREE


def test_a_fault_beyond_tf32_is_named_beside_it(tmp_path: Path) -> None:
    lower = net(tmp_path / "tf32", bits=13, scale=1.05, **GPU | {"allow_tf32": True})
    verdict = compare(lower, net(tmp_path / "base", **GPU)).verdict
    assert verdict.headline.code is VerdictCode.COMPUTES_IN
    (beyond,) = [one for one in verdict.evidence if one.code is EvidenceCode.FIRST_BEYOND]
    assert "down" in beyond.place("site")


class Adapter(nn.Module):
    """A projection in bfloat16 and a small one beside it, behind an identity that is given its dtype."""

    def __init__(self, dtype: torch.dtype, factor: float) -> None:
        super().__init__()
        self.base = nn.Linear(16, 16, bias=False).to(torch.bfloat16).requires_grad_(False)
        self.keep, self.down = nn.Identity(), nn.Linear(16, 4, bias=False)
        self.up, self.factor = nn.Linear(4, 16, bias=False), factor
        nn.init.zeros_(self.up.weight)
        self.down.to(dtype)
        self.up.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        given = self.keep(x.to(self.down.weight.dtype))
        out: Tensor = self.base(x) + self.factor * self.up(self.down(given))
        return out


def adapted(folder: Path, dtype: torch.dtype, factor: float = 1.0) -> Path:
    def run() -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 16), Adapter(dtype, factor))
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        with torch.autocast("cpu", torch.bfloat16):
            out = model(torch.randn(8, 16))
        out.float().square().mean().backward()
        optimizer.step()

    capture(folder / "trace", run, level="L0")
    return folder / "trace"


def test_a_cast_that_a_module_returns_makes_a_tensor_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gradient is that of one use, without the cast that of all uses: only there it is left out."""

    def watched(rows: StepRows, shown: Bools) -> Bools:
        found = left_out(rows, shown)
        words, calls = rows.match.words, rows.match.target
        for row in np.flatnonzero(found).tolist():
            name = words.name[calls.name[rows.target.call[row]]]
            places.add((name, words.phase[rows.phase[row]]))
        return found

    left_out, places = precision_gap._of_casts_returned, set[tuple[str, str]]()
    monkeypatch.setattr(precision_gap, "_of_casts_returned", watched)
    lower, whole = (adapted(tmp_path / name, dtype) for name, dtype in _DTYPES.items())
    headline = compare(lower, whole).verdict.headline
    assert headline.code in (VerdictCode.COMPUTES_IN, VerdictCode.WEIGHTS_IN)
    assert (headline.place("target"), headline.place("reference")) == ("bfloat16", "float32")
    assert places == {("1.keep", "backward")}


def test_a_factor_beside_such_a_cast_stays_a_difference(tmp_path: Path) -> None:
    target, reference = (adapted(tmp_path / str(factor), torch.float32, factor) for factor in (2.0, 1.0))
    assert compare(target, reference).verdict.headline.code not in (
        VerdictCode.COMPUTES_IN,
        VerdictCode.WEIGHTS_IN,
    )


_DTYPES = {"lower": torch.bfloat16, "whole": torch.float32}
