"""Realistic comparison results, made without training anything: a GPT with one fault planted in one layer.

The files are those of docs/result-format.md. ``write_result(folder, layers=2)`` is a small one a person can
read; ``rows_at_least=150_000`` repeats it over steps and ranks. The numbers follow what real runs show: bits
equal before the fault, an error that drifts on in forward and is all over backward, weights that inherit it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

TOLERANCE = 2.4e-6
STATISTICS = ["num_nan", "num_posinf", "num_neginf", "num_zero", "minimum", "maximum", "mean", "l2_norm"]
CATEGORIES = [
    "status",
    "evidence",
    "reason",
    "phase",
    "slot",
    "kind",
    "module",
    "name",
    "type",
    "mode",
    "match_pass",
    "target_dtype",
    "reference_dtype",
    "target_shape",
    "reference_shape",
]
COUNTED = ["equal", "within_noise", "different", "unmatched", "undecided"]


@dataclass(kw_only=True)
class Fault:
    """Where the planted error starts and how large it is there, relative."""

    layer: int = 2
    child: str = "ln1"
    size: float = 3.1e-3


@dataclass
class _Builder:
    layers: int
    hidden: int
    fault: Fault | None
    hostile: bool
    rng: np.random.Generator
    rows: list[dict[str, Any]] = field(default_factory=list)
    calls: int = 0
    started: bool = False
    error: float = 0.0

    def record(
        self, *, phase: str, slot: str, kind: str, module: str, name: str, type_: str | None, **more: Any
    ) -> None:
        shape = more.pop("shape", [4, 128, self.hidden])
        dtype = more.pop("dtype", "float32")
        error = more.pop("error", self.error)
        middle = f"{module or '(root)'}" + (
            "" if kind in ("module", "parameter") else f" · {name}[{more.get('ordinal', 0)}]"
        )
        middle = name if kind == "parameter" else middle
        numel = math.prod(shape)
        norm = float(np.sqrt(numel) * self.rng.lognormal(-0.2, 0.6)) * more.pop("unit", 1.0)
        mean = norm / math.sqrt(numel) * 0.01 * float(self.rng.normal())
        status = "equal" if error == 0 else "within_noise" if error <= TOLERANCE else "different"
        low, high = -4.1 * norm / math.sqrt(numel), 4.3 * norm / math.sqrt(numel)
        row: dict[str, Any] = {
            "order": len(self.rows),
            "status": status,
            "evidence": "digest" if error == 0 else "sketch",
            "reason": None,
            "phase": phase,
            "slot": slot,
            "kind": kind,
            "module": module,
            "name": name,
            "type": type_,
            "site": f"{middle} · {slot}",
            "microbatch": 0,
            "ordinal": 0,
            "mode": "train",
            "target_call": self.calls,
            "reference_call": self.calls,
            "reference_site": None,
            "match_pass": "site",
            "confidence": 1.0,
            "target_dtype": dtype,
            "reference_dtype": dtype,
            "target_shape": str(shape),
            "reference_shape": str(shape),
            "bits_equal": error == 0,
            "rel_l2": error,
            "max_abs_diff": error * high * 1.7,
            "cosine_similarity": 1.0 - error * error / 2,
            "scale": 1.0 + error * 0.1,
            "residual": error,
            "fraction_above": 0.0 if error == 0 else min(1.0, error * 40),
            "max_rel_diff": error * 3,
            "fraction_within_thousandth": 1.0 if error == 0 else max(0.0, 1 - error * 40),
            "fraction_within_five_thousandths": 1.0 if error == 0 else max(0.0, 1 - error * 8),
            "max_ulp_diff": None,
            "error_in": error / 2,
            "gain": 2.0,
            "floor": TOLERANCE / 10,
            "arbiter_target": None,
            "arbiter_reference": None,
            "tolerance": TOLERANCE,
            "score": error / TOLERANCE,
            "target_requires_grad": phase != "optimizer",
            "reference_requires_grad": phase != "optimizer",
            "target_stack": self.calls % 7,
            "reference_stack": self.calls % 7,
            "target_global_ordinal": 0,
            "reference_global_ordinal": 0,
        }
        for side, factor in (("target", 1.0 + error * 0.1), ("reference", 1.0)):
            row |= {f"{side}_{key}": 0 for key in STATISTICS[:4]}
            row |= {
                f"{side}_minimum": low * factor,
                f"{side}_maximum": high * factor,
                f"{side}_mean": mean * factor,
                f"{side}_l2_norm": norm * factor,
            }
        self.rows.append(row | more)

    def call(
        self, *, kind: str, module: str, name: str, type_: str | None, ordinal: int = 0, inputs: int = 1
    ) -> None:
        self.calls += 1
        before = self.error
        if (
            self.fault
            and not self.started
            and module == f"layers.{self.fault.layer}.{self.fault.child}"
            and kind == "api"
        ):
            self.started, self.error = True, self.fault.size
        elif self.started and kind == "module":
            self.error *= float(self.rng.lognormal(-0.02, 0.12))
        common = {
            "phase": "forward",
            "kind": kind,
            "module": module,
            "name": name,
            "type_": type_,
            "ordinal": ordinal,
        }
        for index in range(inputs):
            self.record(slot=f"input.{index}", error=before, **common)
        self.record(slot="output.0", **common)

    def backward(self, entry: tuple[str, str, str, str | None]) -> None:
        kind, module, name, type_ = entry
        self.calls += 1
        self.error *= float(self.rng.lognormal(0.01, 0.1))
        for slot in ("output.0", "input.0"):
            self.record(
                phase="backward", slot=slot, kind=kind, module=module, name=name, type_=type_, unit=1e-4
            )


def _forward(layers: int) -> Iterator[tuple[str, str, str, str | None, int]]:
    """Calls of one GPT forward in execution order: kind, module, name, class, number of inputs."""
    yield "api", "emb", "torch.nn.functional.embedding", None, 2
    yield "module", "emb", "emb", "Embedding", 1
    for index in range(layers):
        at = f"layers.{index}"
        yield "api", f"{at}.ln1", "torch.nn.functional.layer_norm", None, 1
        yield "module", f"{at}.ln1", f"{at}.ln1", "LayerNorm", 1
        yield "api", f"{at}.attn.qkv", "torch.nn.functional.linear", None, 2
        yield "module", f"{at}.attn.qkv", f"{at}.attn.qkv", "Linear", 1
        for name in (
            "torch.Tensor.split",
            "torch.Tensor.view",
            "torch.Tensor.transpose",
            "torch.cat",
            "torch.nn.functional.scaled_dot_product_attention",
            "torch.Tensor.reshape",
        ):
            yield "api", f"{at}.attn", name, None, 1
        yield "api", f"{at}.attn.proj", "torch.nn.functional.linear", None, 2
        yield "module", f"{at}.attn.proj", f"{at}.attn.proj", "Linear", 1
        yield "module", f"{at}.attn", f"{at}.attn", "Attention", 1
        yield "api", at, "torch.Tensor.__add__", None, 2
        yield "api", f"{at}.ln2", "torch.nn.functional.layer_norm", None, 1
        yield "module", f"{at}.ln2", f"{at}.ln2", "LayerNorm", 1
        yield "module", f"{at}.mlp.up", f"{at}.mlp.up", "Linear", 1
        yield "api", f"{at}.mlp", "torch.nn.functional.gelu", None, 1
        yield "module", f"{at}.mlp.down", f"{at}.mlp.down", "Linear", 1
        yield "module", f"{at}.mlp", f"{at}.mlp", "MLP", 1
        yield "api", at, "torch.Tensor.__add__", None, 2
        yield "module", at, at, "Block", 1
    yield "module", "ln_f", "ln_f", "LayerNorm", 1
    yield "module", "head", "head", "Linear", 1
    yield "module", "", "", "GPT", 1


def _weights(layers: int) -> list[tuple[str, str]]:
    names = [("emb", "emb.weight")]
    for index in range(layers):
        names += [
            (f"layers.{index}.{child}", f"layers.{index}.{child}.{leaf}")
            for child in ("ln1", "attn.qkv", "attn.proj", "ln2", "mlp.up", "mlp.down")
            for leaf in ("weight", "bias")
        ]
    return [*names, ("ln_f", "ln_f.weight"), ("head", "head.weight")]


def _one_step(layers: int, fault: Fault | None, *, hostile: bool, seed: int) -> pl.DataFrame:
    build = _Builder(layers, 256, fault, hostile, np.random.default_rng(seed))
    for module, fqn in _weights(layers):
        build.calls += 1
        build.record(
            phase="param",
            slot="value",
            kind="parameter",
            module=module,
            name=fqn,
            type_=None,
            shape=[256, 256],
        )
    entries = list(_forward(layers))
    for kind, module, name, type_, inputs in entries:
        build.call(kind=kind, module=module, name=name, type_=type_, inputs=inputs)
    build.record(phase="loss", slot="value", kind="loss", module="", name="loss", type_=None, shape=[])
    for kind, module, name, type_, _ in reversed(entries):
        build.backward((kind, module, name, type_))
    for module, fqn in _weights(layers):
        for phase, slot in (
            ("param_grad", "accumulated"),
            ("param_grad", "clipped"),
            ("optimizer", "param"),
            ("optimizer", "state.exp_avg"),
        ):
            error = build.error * (0.01 if slot == "param" else 1.0) * float(build.rng.lognormal(0, 0.8))
            build.record(
                phase=phase,
                slot=slot,
                kind="parameter",
                module=module,
                name=fqn,
                type_=None,
                shape=[256, 256],
                unit=1e-3,
                error=error,
            )
    if hostile:
        _make_hostile(build.rows)
    return pl.DataFrame(build.rows, infer_schema_length=None)


EVIL = "layers.0.<script>window.pwned=1</script>"


def _make_hostile(rows: list[dict[str, Any]]) -> None:
    """Names that are markup or formulas, NaN and infinities, dtype and shape mismatches, one-sided rows."""
    for key, value in (("module", EVIL), ("site", f"{EVIL} · output.0"), ("name", '=HYPERLINK("http://x")')):
        rows[20][key] = value
    rows[21] |= {"site": "=1+1 · output.0", "name": "</script><img src=x onerror=window.pwned=1>"}
    rows[19] |= {"site": "turned\u202exet · output.0", "name": "turned\u202exet"}
    rows[22] |= {
        "rel_l2": float("nan"),
        "score": float("nan"),
        "target_maximum": float("inf"),
        "target_num_nan": 12,
        "target_num_posinf": 3,
        "target_minimum": float("-inf"),
        "status": "different",
        "reason": "NaN in the target only",
        "max_abs_diff": float("inf"),
    }
    rows[23] |= {
        "status": "undecided",
        "evidence": "none",
        "reason": "shapes differ",
        "target_shape": "[4, 64]",
        "rel_l2": None,
        "score": None,
        "tolerance": None,
        "bits_equal": None,
        "cosine_similarity": None,
    }
    none = {
        "evidence": "none",
        "rel_l2": None,
        "score": None,
        "tolerance": None,
        "bits_equal": None,
        "match_pass": None,
        "cosine_similarity": None,
        "scale": None,
        "residual": None,
        "fraction_above": None,
        "confidence": None,
    }
    rows[24] |= (
        none
        | {
            "status": "unmatched",
            "reason": "no call of this name in the reference",
            "reference_call": None,
            "reference_dtype": None,
            "reference_shape": None,
            "reference_stack": None,
            "reference_requires_grad": None,
        }
        | {f"reference_{key}": None for key in STATISTICS}
    )
    rows[25] |= (
        none
        | {
            "status": "unmatched",
            "reason": "no call of this name in the target",
            "target_call": None,
            "target_dtype": None,
            "target_shape": None,
            "target_stack": None,
            "target_requires_grad": None,
        }
        | {f"target_{key}": None for key in STATISTICS}
    )


def _typed(frame: pl.DataFrame) -> pl.DataFrame:
    ints = (
        "step",
        "rank",
        "microbatch",
        "ordinal",
        "target_call",
        "reference_call",
        "target_stack",
        "reference_stack",
        "target_global_ordinal",
        "reference_global_ordinal",
    )
    floats = [
        "rel_l2",
        "max_abs_diff",
        "cosine_similarity",
        "scale",
        "residual",
        "fraction_above",
        "max_rel_diff",
        "fraction_within_thousandth",
        "fraction_within_five_thousandths",
        "max_ulp_diff",
        "error_in",
        "gain",
        "floor",
        "arbiter_target",
        "arbiter_reference",
        "tolerance",
        "score",
    ] + [f"{side}_{key}" for side in ("target", "reference") for key in STATISTICS[4:]]
    return frame.with_columns(
        *(pl.col(name).cast(pl.Int32) for name in ints),
        *(pl.col(name).cast(pl.Float64) for name in floats),
        *(pl.col(name).cast(pl.Categorical) for name in CATEGORIES),
        pl.col("order").cast(pl.Int64),
        pl.col("confidence").cast(pl.Float32),
        pl.col("reference_site").cast(pl.String),
    )


def _precision(layers: int, *, differing: bool) -> pl.DataFrame:
    roles = {
        "Embedding": "embedding",
        "LayerNorm": "norm",
        "Linear": "linear",
        "torch.nn.functional.layer_norm": "norm",
        "torch.Tensor.__add__": "residual",
        "torch.nn.functional.scaled_dot_product_attention": "softmax",
        "torch.cat": "rotary",
    }
    rows = []
    for order, (kind, module, name, type_, inputs) in enumerate(_forward(layers)):
        role = "head" if module == "head" else roles.get(type_ or name, "other")
        row: dict[str, Any] = {"order": order, "module": module, "name": name, "type": type_, "role": role}
        for side in ("target", "reference"):
            low = "bfloat16" if differing and side == "target" and role == "rotary" else "float32"
            row |= {
                f"{side}_input_dtypes": ",".join([low] * inputs),
                f"{side}_output_dtypes": low,
                f"{side}_weight_dtypes": "float32,float32"
                if kind == "module" and type_ in ("Linear", "LayerNorm")
                else "",
            }
        row["differs"] = row["target_input_dtypes"] != row["reference_input_dtypes"]
        row["note"] = (
            "rotary runs in bfloat16 in the target, in float32 in the reference" if row["differs"] else None
        )
        rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None)


def _manifest(*, seed: int, threads: int, version: str, command: list[str]) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "framework": "pytorch",
        "framework_version": version,
        "trueup_version": "0.1.0",
        "python_version": "3.11.7",
        "platform": "Linux-6.1-x86_64",
        "command": command,
        "created": "2026-11-20T11:02:44Z",
        "run_id": f"a{seed}",
        "world_size": 1,
        "level": "mix",
        "task": "statistics",
        "options": {"steps": [0, 1], "level": "mix", "digest": True, "sketch": True},
        "seed": seed,
        "deterministic": True,
        "environment": {"OMP_NUM_THREADS": str(threads)},
        "num_threads": threads,
        "devices": ["cpu"],
    }


def _modules(frame: pl.DataFrame, layers: int) -> list[dict[str, Any]]:
    worst = frame.group_by("module").agg(
        *(
            pl.col("score").filter(pl.col("phase").cast(pl.String).is_in(phases)).max().alias(name)
            for name, phases in (
                ("worst_forward", ["forward", "loss"]),
                ("worst_backward", ["backward"]),
                ("worst_grad", ["param_grad"]),
            )
        )
    )
    scores = {str(row["module"]): row for row in worst.to_dicts()}
    seen: dict[str, str | None] = {"": "GPT"}
    seen |= {module: type_ for kind, module, _, type_, _ in _forward(layers) if kind == "module"}
    tree = []
    for order, fqn in enumerate(seen):
        row = scores.get(fqn, {})
        values = {key: row.get(key) for key in ("worst_forward", "worst_backward", "worst_grad")}
        top = max((value for value in values.values() if value is not None and value == value), default=0.0)
        tree.append(
            {
                "fqn": fqn,
                "type": seen[fqn],
                "order": order,
                "depth": fqn.count(".") + bool(fqn),
                **values,
                "status": "different" if top > 1 else "within_noise" if top > 0 else "equal",
            }
        )
    return tree


def _json_safe(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _json_safe(item) for key, item in value.items()}
    return [_json_safe(item) for item in value] if isinstance(value, list) else value


def _first(frame: pl.DataFrame, phase: str) -> dict[str, Any] | None:
    hit = frame.filter(
        (pl.col("phase").cast(pl.String) == phase) & (pl.col("status").cast(pl.String) == "different")
    )
    return _json_safe(hit.sort("order").head(1).to_dicts()[0]) if hit.height else None


def _verdict(first: dict[str, Any] | None, compared: int) -> dict[str, Any]:
    if first is None:
        return {
            "outcome": "agree",
            "exit_code": 0,
            "headline": "The two runs agree at every compared site.",
            "where": None,
            "owner": None,
            "step": None,
            "rank": None,
            "phase": None,
            "confidence": 1.0,
            "evidence": [f"{compared:,} records compared, all bit for bit or within rounding"],
            "before": "",
            "next": "trueup compare TARGET REFERENCE --steps all",
        }
    return {
        "outcome": "differ",
        "exit_code": 1,
        "where": first["site"],
        "owner": first["module"],
        "step": first["step"],
        "rank": first["rank"],
        "phase": first["phase"],
        "confidence": 0.86,
        "headline": f"The runs part in {first['module']}, in the forward pass of step 0.",
        "evidence": [
            f"its output differs by {first['rel_l2']:.2e} relative (L2), {first['score']:,.0f} times "
            f"the tolerance of {first['tolerance']:.1e}",
            "every input of this call is bit-equal in both runs",
            "the error stays in every later layer and in 31 of 34 weight gradients",
        ],
        "before": "61 records ran before it in this step: 61 bit-equal, 0 within rounding.",
        "next": "trueup replay --reference runs/reference --module layers.2.ln1 -- python train.py",
    }


def _frames(side: str) -> list[list[str]]:
    names = [
        "F.layer_norm(x, (256,), self.weight, self.bias, self.eps)",
        "x = x + self.attn(self.ln1(x))",
        "q, k, v = qkv.split(C, dim=-1)",
        "y = F.scaled_dot_product_attention(q, k, v, is_causal=True)",
        "x = x + self.mlp(self.ln2(x))",
        "logits = self.head(self.ln_f(x))",
        "if a < b and c > d: print('<b>')",
    ]
    return [
        [
            f"/home/ann/{side}/model.py:{61 + 9 * index} forward | {line}",
            f"/home/ann/{side}/model.py:118 forward | x = block(x)",
            f"/home/ann/{side}/train.py:44 main | loss = model(idx, targets)",
        ]
        for index, line in enumerate(names)
    ]


def write_result(
    folder: Path,
    *,
    layers: int = 4,
    fault: Fault | None = None,
    agree: bool = False,
    hostile: bool = False,
    rows_at_least: int = 0,
    seed: int = 7,
) -> Path:
    """Write one result folder and return it; ``agree`` plants nothing."""
    planted = None if agree else (fault or Fault())
    one = _one_step(layers, planted, hostile=hostile, seed=seed)
    copies = max(2, -(-rows_at_least // one.height))
    ranks = 1 if copies <= 2 else 4
    copy = [
        one,
        *(_one_step(layers, planted, hostile=hostile, seed=seed + index) for index in range(1, copies)),
    ]
    parts = [
        part.with_columns(step=pl.lit(index // ranks), rank=pl.lit(index % ranks))
        for index, part in enumerate(copy)
    ]
    frame = _typed(pl.concat(parts, how="vertical_relaxed").select("step", "rank", *one.columns))
    counts = frame.group_by(pl.col("status").cast(pl.String)).len()
    tally = dict.fromkeys(COUNTED, 0) | dict(counts.iter_rows())
    by_phase: dict[str, dict[str, int]] = {}
    for phase, status, number in frame.group_by(pl.col("phase", "status").cast(pl.String)).len().iter_rows():
        by_phase.setdefault(phase, {})[status] = number
    phases = [
        phase
        for phase in ("param", "forward", "loss", "backward", "param_grad", "optimizer")
        if phase in by_phase
    ]
    firsts = {phase: _first(frame, phase) for phase in phases}
    outputs = frame.filter(
        (pl.col("step") == 0)
        & (pl.col("rank") == 0)
        & (pl.col("kind").cast(pl.String) == "module")
        & (pl.col("slot").cast(pl.String) == "output.0")
    )
    grads = frame.filter(
        (pl.col("step") == 0) & (pl.col("rank") == 0) & (pl.col("slot").cast(pl.String) == "accumulated")
    )
    steps = sorted(frame["step"].unique().to_list())[:24]
    scalars = []
    for step in steps:
        for name, value, gap in (
            ("loss", 6.93 * math.exp(-0.04 * step), 4e-4),
            ("grad_norm", 1.41 + 0.1 * math.sin(step), 2e-3),
            ("learning_rate", 1e-4 * (step + 1), 0.0),
        ):
            gap = 0.0 if agree else gap
            scalars.append(
                {
                    "step": step,
                    "name": name,
                    "target": value * (1 + gap),
                    "reference": value,
                    "abs_diff": value * gap,
                    "rel_diff": gap,
                    "beyond": gap > 0,
                }
            )
    first = next((firsts[phase] for phase in phases if firsts[phase]), None) if not agree else None
    if first is not None and hostile:
        first = firsts["backward"] or first
    summary = {
        "schema_version": 1,
        "target": {
            "path": "runs/target",
            "manifest": _manifest(
                seed=1234, threads=1, version="2.13.0", command=["python", "train.py", "--eps", "1e-3"]
            ),
        },
        "reference": {
            "path": "runs/reference",
            "manifest": _manifest(seed=1234, threads=2, version="2.13.0", command=["python", "train.py"]),
        },
        "options": {"steps": "all", "ranks": "all"},
        "verdict": _verdict(first, frame.height),
        "firsts": firsts,
        "counts": {"compared": frame.height - tally["unmatched"], **tally},
        "by_phase": by_phase,
        "num_groups": 0 if agree else 2,
        "unmatched": []
        if agree
        else [
            {
                "side": "target",
                "module": "layers.1.attn",
                "name": "torch.Tensor.contiguous",
                "count": 2,
                "reason": "no call of this name in the reference here",
            },
            {
                "side": "reference",
                "module": EVIL if hostile else "layers.3",
                "name": "torch.Tensor.float",
                "count": 1,
                "reason": "no call of this name in the target here",
            },
        ],
        "bracketed": True,
        "tolerance": {
            "formula": "rel_l2 <= c * eps(dtype) * sqrt(log2(numel))",
            "origin": "dtype bound",
            "constants": {"c": 4.0, "eps(float32)": 1.19e-7},
        },
        "scalars": scalars,
        "modules": _modules(frame, layers) + ([{"fqn": EVIL, "type": "<b>", "order": 3}] if hostile else []),
        "depth": _json_safe(
            outputs.select(
                "step",
                "rank",
                "order",
                pl.col("module", "type", "phase").cast(pl.String),
                "rel_l2",
                "tolerance",
            ).to_dicts()
        ),
        "local_norms": _json_safe(
            [
                {
                    "fqn": row["name"],
                    "target": row["target_l2_norm"],
                    "reference": row["reference_l2_norm"],
                    "rel_l2": row["rel_l2"],
                    "rel_diff": abs(row["target_l2_norm"] - row["reference_l2_norm"])
                    / row["reference_l2_norm"],
                }
                for row in grads.select(
                    pl.col("name").cast(pl.String), "target_l2_norm", "reference_l2_norm", "rel_l2"
                ).to_dicts()
            ]
        ),
        "stacks": {"target": _frames("target"), "reference": _frames("reference")},
        "notes": ["The reference was captured with 2 threads, the target with 1."],
    }
    folder.mkdir(parents=True, exist_ok=True)
    frame.write_parquet(folder / "result.parquet")
    _precision(layers, differing=not agree).write_parquet(folder / "precision.parquet")
    (folder / "result.json").write_text(json.dumps(summary), encoding="utf-8")
    return folder
