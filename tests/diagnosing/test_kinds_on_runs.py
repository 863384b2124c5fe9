"""Faults planted in a small GPT, captured and looked at where they were made: each is of its kind."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from bugzoo.models.gpt import GPT, GPTConfig, batch, loss_of
from torch import Tensor

from tests.diagnosing.cases import best, rank, tells, told
from tests.diagnosing.runs import SMALL, capture, evidence_at
from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.kinds import name_kinds
from trueup.store import Trace
from trueup.types.codes import Code
from trueup.types.codes.kinds import DivisorCode, FactorCode, KindReason, OrderCode, SettingReason

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[2]
WEIGHT = "layers.0.mlp.up.weight"
DROPPING = GPTConfig(vocab_size=64, num_layers=2, hidden_size=32, num_heads=4, seq_length=16, dropout=0.1)

Runs = Callable[..., Trace]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Captured runs, each made once."""
    made: dict[str, Trace] = {}
    folder = tmp_path_factory.mktemp("runs")

    def get(**program: Any) -> Trace:
        key = repr(sorted((k, getattr(v, "__qualname__", repr(v))) for k, v in program.items()))
        if key not in made:
            made[key] = capture(folder / f"run{len(made)}", **program)
        return made[key]

    return get


def at(name: str, phase: str = "forward", slot: str = "output.0", **more: Any) -> dict[str, Any]:
    """A site."""
    return {"name": name, "phase": phase, "slot": slot, **more}


def evidence(runs: Runs, site: dict[str, Any], fault: dict[str, Any], **shared: Any) -> Evidence:
    """Evidence about a site of a run with a fault beside one without."""
    site = dict(site)
    target, reference = runs(**shared, **fault), runs(**shared)
    return evidence_at(target, reference, site.pop("name"), site.pop("phase"), site.pop("slot"), **site)


# -- faults ------------------------------------------


def eps(model: GPT) -> None:
    model.layers[1].ln1.eps = 1e-6


def mask_off_by_one(model: GPT) -> None:
    model.layers[0].attn.mask_offset = 2


def attention_scale(model: GPT) -> None:
    model.layers[0].attn.scale = 0.25


def tanh_gelu(model: GPT) -> None:
    model.layers[0].mlp.act.approximate = "tanh"


def rope_in_bfloat16(model: GPT) -> None:
    model.layers[0].attn.rotary.compute_dtype = torch.bfloat16


def no_bias(model: GPT) -> None:
    model.layers[0].mlp.up.register_parameter("bias", None)


def linear_in_bfloat16(model: GPT) -> None:
    up = model.layers[1].mlp.up

    def forward(x: Tensor) -> Tensor:
        return F.linear(x.bfloat16(), up.weight.bfloat16(), up.bias.bfloat16()).float()

    up.forward = forward


def no_residual(model: GPT) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))

    model.layers[0].forward = types.MethodType(forward, model.layers[0])


def heads_interleaved(model: GPT) -> None:
    """Takes q, k and v head by head out of the fused projection."""

    def forward(self: Any, x: Tensor) -> Tensor:
        size, length, hidden = x.shape
        qkv = self.qkv(x).view(size, length, self.num_heads, 3, self.head_dim)
        q, k, v = (t.transpose(1, 2) for t in qkv.unbind(3))
        q, k = self.rotary(q), self.rotary(k)
        scores = torch.matmul(q, k.transpose(-2, -1)) * self.scale
        hidden_part = torch.ones(length, length, dtype=torch.bool).triu(1)
        probabilities = F.softmax(scores.masked_fill(hidden_part, float("-inf")), dim=-1)
        return self.proj(torch.matmul(probabilities, v).transpose(1, 2).reshape(size, length, hidden))

    model.layers[0].attn.forward = types.MethodType(forward, model.layers[0].attn)


def rotary(*, theta: float = 10000.0, offset: int = 0, pairs: bool = False) -> Callable[[GPT], None]:
    """Another rotary embedding."""

    def forward(self: Any, x: Tensor) -> Tensor:
        half = self.head_dim // 2
        frequency = theta ** (-torch.arange(half, dtype=torch.float32) / half)
        angle = torch.outer(torch.arange(x.shape[-2], dtype=torch.float32) + offset, frequency)
        cos, sin = angle.cos(), angle.sin()
        a, b = (x[..., 0::2], x[..., 1::2]) if pairs else (x[..., :half], x[..., half:])
        turned = (a * cos - b * sin, a * sin + b * cos)
        return torch.stack(turned, -1).flatten(-2) if pairs else torch.cat(turned, -1)

    def change(model: GPT) -> None:
        model.layers[0].attn.rotary.forward = types.MethodType(forward, model.layers[0].attn.rotary)

    change.__qualname__ = f"rotary{theta}{offset}{pairs}"
    return change


def other_initialisation(model: GPT) -> None:
    torch.manual_seed(5)
    model.layers[0].mlp.up.reset_parameters()


def other_seed(model: GPT) -> None:
    torch.manual_seed(7)


def more_dropout(model: GPT) -> None:
    model.layers[0].mlp.drop.p = 0.3


def frozen(model: GPT) -> None:
    model.layers[0].mlp.up.weight.requires_grad_(False)


PROJECTED = at("layers.0.attn.proj", slot="input.0")
ROTATED = at("layers.0.attn.rotary")

Facts = dict[str, Any]
FORWARD: list[tuple[str, dict[str, Any], Callable[[GPT], None], KindReason | None, Facts]] = [
    ("constant_argument", at("layers.1.ln1"), eps, KindReason.NORM_EPS, {"target": 1e-6, "reference": 1e-5}),
    ("wrong_mask", PROJECTED, mask_off_by_one, None, {}),
    ("constant_argument", PROJECTED, attention_scale, None, {}),
    ("constant_argument", at("layers.0.mlp.act"), tanh_gelu, None, {}),
    ("dtype_or_rounding", ROTATED, rope_in_bfloat16, KindReason.ANGLES_ROUNDED, {"dtype": "bfloat16"}),
    ("missing_or_extra_term", at("layers.0.mlp.up"), no_bias, KindReason.TERM_MISSING, {"term": "bias"}),
    (
        "dtype_or_rounding",
        at("layers.1.mlp.up"),
        linear_in_bfloat16,
        KindReason.ON_A_GRID,
        {"dtype": "bfloat16"},
    ),
    (
        "missing_or_extra_term",
        at("layers.0.ln2", slot="input.0"),
        no_residual,
        KindReason.TERM_MISSING,
        {"term": "layers.0, input.0"},
    ),
    (
        "transposed_or_permuted",
        at("layers.0.attn.rotary", slot="input.0"),
        heads_interleaved,
        KindReason.OTHER_ELEMENTS,
        {},
    ),
    ("transposed_or_permuted", ROTATED, rotary(pairs=True), KindReason.ROTATED_PAIRS, {"target": "pairs"}),
    (
        "constant_argument",
        ROTATED,
        rotary(theta=5e5),
        KindReason.ROTARY_THETA,
        {"target": 5e5, "reference": 1e4},
    ),
    ("shifted_by_one", ROTATED, rotary(offset=1), KindReason.POSITIONS_SHIFTED, {"shift": 1}),
    ("randomness", at(WEIGHT, "param", "value"), other_initialisation, KindReason.ANOTHER_DRAW, {}),
]


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize(
    ("kind", "site", "change", "code", "facts"), FORWARD, ids=[f"{f[0]}-{f[2].__qualname__}" for f in FORWARD]
)
def test_a_fault_in_the_model(
    runs: Runs,
    level: str,
    kind: str,
    site: dict[str, Any],
    change: Callable[[GPT], None],
    code: KindReason | None,
    facts: Facts,
) -> None:
    kinds = name_kinds(evidence(runs, site, {"change": change}, level=level))
    assert best(kinds) == kind, told(kinds)
    assert tells(kinds[0].sentence, *(() if code is None else (code,)), **facts)


@pytest.mark.parametrize(
    ("kind", "site", "change"),
    [
        ("randomness", at("layers.0.attn.drop"), other_seed),
        ("constant_argument", at("layers.0.mlp.drop"), more_dropout),
    ],
)
def test_a_fault_in_dropout(
    runs: Runs, kind: str, site: dict[str, Any], change: Callable[[GPT], None]
) -> None:
    assert best(name_kinds(evidence(runs, site, {"change": change}, config=DROPPING))) == kind


# -- loss, data, gradients ------------------------------------------


def halved_loss(model: torch.nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    return loss_of(model, ids, labels) / 2


def labels_shifted(model: torch.nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    return loss_of(model, ids, labels.roll(-1, 1))


def the_first_batch_again(step: int) -> tuple[Tensor, Tensor]:
    return batch(SMALL, step=0, size=2)


def samples_reversed(step: int) -> tuple[Tensor, Tensor]:
    ids, labels = batch(SMALL, step=10 * step, size=2)
    return ids.flip(0), labels.flip(0)


def doubled(model: GPT, step: int) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.mul_(2)


def clipped(model: GPT, step: int) -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)


def one_bit(model: GPT, step: int) -> None:
    gradient = model.layers[0].mlp.up.weight.grad
    assert gradient is not None
    gradient.view(torch.int32).view(-1)[33] ^= 1 << 28


LOSS = at("loss", "loss", "value")
CLIPPED = at(WEIGHT, "param_grad", "clipped")
LABELS = at("torch.nn.functional.cross_entropy", slot="input.1")

STEPS: list[tuple[str, dict[str, Any], dict[str, Any], Code, Facts]] = [
    ("wrong_scale", LOSS, {"loss": halved_loss}, FactorCode.NUMBER, {"number": 2, "inverse": 1}),
    ("shifted_by_one", LABELS, {"loss": labels_shifted}, KindReason.SHIFTED, {"shift": -1}),
    (
        "wrong_data",
        at("", slot="input.0", step=1),
        {"data": the_first_batch_again},
        KindReason.BATCH_OF_REFERENCE_STEP,
        {"number": 0},
    ),
    ("wrong_data", at("", slot="input.0"), {"data": samples_reversed}, OrderCode.REVERSED, {}),
    ("wrong_scale", CLIPPED, {"before_step": doubled}, KindReason.SCALED, {"factor": 2}),
    ("wrong_scale", CLIPPED, {"before_step": clipped}, FactorCode.CLIPPING, {}),
    ("bit_flip", CLIPPED, {"before_step": one_bit}, KindReason.BIT_FLIPPED, {"bit": 28}),
    (
        "missing_zero_grad",
        at(WEIGHT, "param_grad", "accumulated", step=1),
        {"clear": False},
        KindReason.GRADIENT_NOT_CLEARED,
        {"earlier_step": 0},
    ),
    (
        "frozen_or_missing_gradient",
        at(WEIGHT, "param_grad", "local"),
        {"change": frozen},
        KindReason.NO_GRADIENT_NOT_TRAINABLE,
        {},
    ),
]


@pytest.mark.parametrize(("kind", "site", "fault", "code", "facts"), STEPS)
def test_a_fault_in_the_step(
    runs: Runs, kind: str, site: dict[str, Any], fault: dict[str, Any], code: Code, facts: Facts
) -> None:
    kinds = name_kinds(evidence(runs, site, fault))
    assert best(kinds) == kind, told(kinds)
    assert tells(kinds[0].sentence, *(() if code is None else (code,)), **facts)


def test_the_loss_of_a_microbatch_is_scaled_by_their_number(runs: Runs) -> None:
    def not_divided(model: torch.nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
        return 3 * loss_of(model, ids, labels)

    kinds = name_kinds(evidence(runs, LOSS, {"loss": not_divided}, microbatches=3))
    assert best(kinds) == "wrong_scale"
    divisors = [part.code for part in kinds[0].sentence.parts]
    assert divisors == [DivisorCode.COUNTED, DivisorCode.COUNTED_TIMES]


# -- optimizer ------------------------------------------


def adamw(**settings: Any) -> Callable[[GPT], torch.optim.Optimizer]:
    def make(model: GPT) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), **{"lr": 1e-2, **settings})

    make.__qualname__ = f"adamw{settings}"
    return make


def leaving_one_out(model: GPT) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for n, p in model.named_parameters() if n != WEIGHT], 1e-2)


class _Decaying(torch.optim.AdamW):
    """Decays once more than its settings say."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        before = [p.detach().clone() for g in self.param_groups for p in g["params"]]
        super().step()
        for p, b in zip((p for g in self.param_groups for p in g["params"]), before, strict=True):
            p.data.add_(b, alpha=-1e-3)


class _Uncorrected(torch.optim.Optimizer):
    """Adam without bias correction."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                m = state.setdefault("exp_avg", torch.zeros_like(p))
                v = state.setdefault("exp_avg_sq", torch.zeros_like(p))
                state["step"] = state.get("step", torch.tensor(0.0)) + 1
                p.mul_(1 - 1e-4)
                m.lerp_(p.grad, 0.1)
                v.mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
                p.addcdiv_(m, v.sqrt().add_(1e-8), value=-1e-2)


class _Idle(torch.optim.AdamW):
    """Steps without moving anything."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        return None


class _Forgetting(torch.optim.AdamW):
    """Begins every step with empty moments."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.state.clear()
        super().step()


def made(kind: type[torch.optim.Optimizer], *settings: Any) -> Callable[[GPT], torch.optim.Optimizer]:
    def make(model: GPT) -> torch.optim.Optimizer:
        return kind(model.parameters(), *settings)

    make.__qualname__ = kind.__name__
    return make


UPDATED = at(WEIGHT, "optimizer", "param")
OPTIMIZERS: list[tuple[str, dict[str, Any], Callable[[GPT], torch.optim.Optimizer], Code | None, Facts]] = [
    (
        "wrong_optimizer_setting",
        UPDATED,
        adamw(lr=2e-2),
        KindReason.LEARNING_RATE,
        {"target": "0.02", "reference": "0.01"},
    ),
    (
        "wrong_optimizer_setting",
        UPDATED,
        adamw(weight_decay=0.1),
        SettingReason.VALUE,
        {"setting": "weight_decay", "target": "0.1"},
    ),
    ("wrong_optimizer_setting", UPDATED, adamw(eps=1e-3), SettingReason.VALUE, {"setting": "eps"}),
    (
        "wrong_optimizer_setting",
        at(WEIGHT, "optimizer", "state.exp_avg"),
        adamw(betas=(0.8, 0.999)),
        SettingReason.VALUE,
        {"setting": "betas"},
    ),
    (
        "wrong_optimizer_setting",
        UPDATED,
        made(_Decaying, 1e-2),
        SettingReason.SOLVED,
        {"setting": "weight_decay", "target": 0.11},
    ),
    ("wrong_optimizer_setting", UPDATED, made(_Uncorrected), SettingReason.BIAS_CORRECTION, {"corrected": 0}),
    (
        "wrong_optimizer_setting",
        at(WEIGHT, "optimizer", "state.exp_avg", step=1),
        made(_Forgetting, 1e-2),
        None,
        {},
    ),
    ("dropped_update", UPDATED, leaving_one_out, KindReason.NEVER_UPDATED, {"why": "cause.not_in_a_group"}),
    ("dropped_update", UPDATED, made(_Idle, 1e-2), KindReason.NOT_UPDATED, {}),
]


@pytest.mark.parametrize(
    ("kind", "site", "optimizer", "code", "facts"), OPTIMIZERS, ids=[o[2].__qualname__ for o in OPTIMIZERS]
)
def test_a_fault_in_the_optimizer(
    runs: Runs,
    kind: str,
    site: dict[str, Any],
    optimizer: Callable[[GPT], torch.optim.Optimizer],
    code: Code | None,
    facts: Facts,
) -> None:
    kinds = name_kinds(evidence(runs, site, {"optimizer": optimizer}, level="L0"))
    assert best(kinds) == kind, told(kinds)
    assert tells(kinds[0].sentence, *(() if code is None else (code,)), **facts)


# -- less kept, and nothing wrong ------------------------------------------


@pytest.mark.parametrize(
    ("kind", "site", "fault"),
    [
        ("wrong_scale", CLIPPED, {"before_step": doubled}),
        ("missing_zero_grad", at(WEIGHT, "param_grad", "accumulated", step=1), {"clear": False}),
        ("missing_or_extra_term", at("layers.0.ln2", slot="input.0"), {"change": no_residual}),
        ("dropped_update", UPDATED, {"optimizer": made(_Idle, 1e-2)}),
        ("wrong_optimizer_setting", UPDATED, {"optimizer": adamw(lr=2e-2)}),
        ("wrong_data", at("", slot="input.0", step=1), {"data": the_first_batch_again}),
        ("randomness", at(WEIGHT, "param", "value"), {"change": other_initialisation}),
        ("frozen_or_missing_gradient", at(WEIGHT, "param_grad", "local"), {"change": frozen}),
    ],
)
def test_statistics_and_sketches_alone_name_it_too(
    runs: Runs, kind: str, site: dict[str, Any], fault: dict[str, Any]
) -> None:
    about = evidence(runs, site, fault, task="statistics")
    assert about.target_values is None
    assert best(name_kinds(about)) == kind, name_kinds(about)
    full = name_kinds(evidence(runs, site, fault))
    assert rank(name_kinds(about), kind) >= rank(full, kind)


@pytest.mark.parametrize("site", [at("layers.1.ln1"), CLIPPED, UPDATED, LOSS, at("", slot="input.0")])
def test_equal_runs_are_of_no_kind(runs: Runs, site: dict[str, Any]) -> None:
    assert name_kinds(evidence(runs, site, {"microbatches": 1})) == ()


PROGRAM = """
import os, sys, torch, trueup
import torch.distributed as dist
from tests.diagnosing.runs import SMALL, GPT, batch, loss_of
kind, output, rank, meeting = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=2)
torch.manual_seed(0)
model = GPT(SMALL)
if kind == "reduced":
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
with trueup.Tracer(output, level="L0", task="tensor"):
    loss_of(model, *batch(SMALL, step=rank, size=2)).backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.distributed
def test_gradients_that_no_rank_reduced(tmp_path: Path) -> None:
    for kind in ("reduced", "bypassed"):
        command = [sys.executable, "-c", PROGRAM, kind, str(tmp_path / kind)]
        ranks = [
            subprocess.Popen([*command, str(rank), str(tmp_path / f"{kind}.meeting")], cwd=ROOT)
            for rank in range(2)
        ]
        assert [r.wait(120) for r in ranks] == [0, 0]
    traces = Trace(tmp_path / "bypassed"), Trace(tmp_path / "reduced")
    about = evidence_at(*traces, WEIGHT, "param_grad", "accumulated")
    kinds = name_kinds(about)
    assert best(kinds) == "missing_all_reduce", told(kinds)
    assert tells(kinds[0].sentence, KindReason.MEAN_OVER_RANKS, ranks=("0", "1"))
