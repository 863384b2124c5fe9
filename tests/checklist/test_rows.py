"""Every row of the guide has a rule, and every rule an aligned and a misaligned case."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.checklist.rows import BY_HAND, RECOMMENDED, REPRODUCTION, ROWS
from trueup.checklist import check
from trueup.checklist.check import Checklist
from trueup.checklist.expression import NOTHING, parsed
from trueup.checklist.fields import FieldSpec, fields
from trueup.checklist.judging import DemandStatus
from trueup.checklist.rules import Demand, rules

ALL_RULES = [rule for file in rules().values() for rule in file]
FIELD_RULES = [rule for rule in ALL_RULES if rule.field]
CONDITIONS = [rule for rule in ALL_RULES if rule.each]
CONTEXT: dict[str, Any] = {
    # under these every `when` of a field rule holds
    "num_experts": 8,
    "num_shared_experts": 1,
    "capacity_factor": 1.1,
    "experts_per_token": 2,
    "kv_lora_rank": 16,
    "position_embedding": "rope",
    "rope_scaling": "yarn",
    "num_mtp_layers": 1,
    "optimizer": "adamw",
    "weight_decay": 0.1,
    "weight_decay_schedule": "linear",
    "lr_schedule": "wsd",
    "learning_rate": 0.001,
    "sliding_window": 128,
    "warmup_steps": 10,
    "train_steps": 100,
    "clip_grad": 1.0,
    "gradient_accumulation": 2,
    "data_parallel": 2,
    "tensor_parallel": 2,
    "pipeline_parallel": 2,
    "lora_rank": 8,
    "qkv_bias": True,
    "compute_dtype": "float16",
    "loss_scaling": "dynamic",
    "router_expert_bias": True,
    "shuffle": True,
    "seq_length": 4096,
}
PAIRS: dict[str, tuple[Any, Any]] = {
    # what is no second value of its kind by the usual change
    "tf32": (True, False),
    "sliding_window": (1024, 2048),
    "initial_weights": ("a", "b"),
    "capacity_factor": (1.1, 1.5),
    "attention": ("gqa", "mha"),
    "weight_decay_scope": ("all", "matrices"),
    "lr_schedule": ("wsd", "cosine"),
    "weight_decay_schedule": ("linear", "constant"),
    "load_balancing": ("aux_loss", "none"),
    "token_drop_policy": ("position", "probs"),
    "recompute": ("full", "none"),
    "loss_reduction": ("mean", "per_token"),
}
CHANGED_CONTEXT: dict[str, dict[str, Any]] = {
    "warmup_ratio": {"warmup_steps": None, "train_steps": None, "decay_steps": None},
    "tf32": {"compute_dtype": "float32"},
    "softmax_compute_dtype": {"flash_attention": False},
    "init_std": {},
    "rope_low_freq_factor": {"rope_scaling": "llama3"},
    "rope_high_freq_factor": {"rope_scaling": "llama3"},
    "rope_original_positions": {"rope_scaling": "yarn"},
}


@pytest.mark.parametrize("section", ROWS)
def test_every_row_of_the_guide_has_its_rules(section: str) -> None:
    """Each rule a row needs is there and cites it: no rule of the tables can be left out unseen."""
    cited = {(source, rule.key) for rule in ALL_RULES for source in rule.sources}
    wanted = {(f"{section}: {row}", key) for row, keys in ROWS[section].items() for key in keys.split()}
    assert wanted - cited == set()


def test_a_first_reproduction_is_the_guide_s() -> None:
    rules_of = {rule.field: rule for rule in FIELD_RULES if rule.field in REPRODUCTION}
    found = {field: parsed(rule.reproduce).evaluate(NOTHING) for field, rule in rules_of.items()}
    assert found == REPRODUCTION


def test_no_rule_cites_a_row_that_is_not_there() -> None:
    known = {f"{section}: {row}" for section, rows in ROWS.items() for row in rows}
    known |= {"data: same data", "weight conversion: same weights"}
    assert {source for rule in ALL_RULES for source in rule.sources} <= known


def test_every_row_is_tested_by_a_rule_with_two_cases_or_named() -> None:
    two_cases = {source for rule in (*FIELD_RULES, *CONDITIONS) for source in rule.sources}
    rows = {f"{section}: {row}" for section, names in ROWS.items() for row in names}
    assert rows - two_cases <= set(BY_HAND)


def test_every_field_has_exactly_one_rule() -> None:
    named = [rule.field for rule in FIELD_RULES]
    assert sorted(named) == sorted(set(fields().all) - {"decay_steps_for_warmup"})


@pytest.mark.parametrize("rule", FIELD_RULES, ids=lambda rule: str(rule.key))
def test_field(rule: Demand, tmp_path: Path) -> None:
    """Aligned where both sides have one value; different, and the verdict with it, where they have two."""
    first, second = PAIRS.get(rule.field) or _two_values(fields().spec(rule.field))
    context = CONTEXT | CHANGED_CONTEXT.get(rule.field, {})
    if rule.field in ("init_std", "init_method", "init_scaled_output"):
        context.pop("initial_weights", None)
    one, other = context | {rule.field: first}, context | {rule.field: second}
    aligned = _checked(tmp_path, one, one)
    assert _status(aligned, rule.key) is DemandStatus.ALIGNED
    assert aligned.training == "agree"
    apart = _checked(tmp_path, one, other)
    assert _status(apart, rule.key) is DemandStatus.DIFFERENT
    row = next(row for row in apart.rows if row.key == rule.key)
    if row.severity != "note":
        assert apart.training == "differ"
    if row.severity != "note" or rule.consistent:
        assert apart.exit_code == 1 or rule.unmet == "note"


SHARES = [
    ("", "--warmup_ratio 0.05", "differ"),
    ("--warmup_ratio 0.1", "--warmup_ratio 0.05", "differ"),
    ("--warmup_ratio 0.1", "--warmup_ratio 0.10", "agree"),
    ("--warmup_ratio 0", "", "agree"),
    ("--warmup_ratio 0.1", "--warmup_steps 10", "undecided"),
    ("--warmup_ratio 0.1 --max_steps 100", "--warmup_steps 10 --max_steps 100", "agree"),
]


@pytest.mark.parametrize(("target", "reference", "wanted"), SHARES)
def test_a_share_of_a_total_that_no_file_states(target: str, reference: str, wanted: str) -> None:
    command = "python train.py --per_device_train_batch_size 1 --learning_rate 1e-4 --max_grad_norm 1.0"
    assert check([f"{command} {target}"], [f"{command} {reference}"]).training == wanted


@pytest.mark.parametrize(("end", "rows"), [(None, 1), (0.2, 2), ((0.2, 0.3), 3)], ids=str)
def test_an_end_that_follows_the_weight_decay_is_no_second_difference(
    end: Any, rows: int, tmp_path: Path
) -> None:
    """One of its own is: on both sides, where they state it."""
    ends = end if isinstance(end, tuple) else (end, end)
    sides = [
        {"weight_decay": decay} | ({} if last is None else {"weight_decay_end": last})
        for decay, last in zip((0.1, 0.05), ends, strict=True)
    ]
    found = _checked(tmp_path, *sides)
    told = [row.key for row in found.rows if row.key in ("weight_decay", "weight_decay_end")]
    apart = [row.key for row in found.rows if row.status is DemandStatus.DIFFERENT]
    assert (len(told), len(apart)) == {1: (1, 1), 2: (2, 1), 3: (2, 2)}[rows]


def test_what_is_recommended_is_the_guide_s() -> None:
    assert {rule.field for rule in FIELD_RULES if rule.recommended} == set(RECOMMENDED)


@pytest.mark.parametrize("field", RECOMMENDED)
def test_recommendation(field: str, tmp_path: Path) -> None:
    """One side alone: the guide's value keeps the recommendation, another one breaks it."""
    context = CONTEXT | CHANGED_CONTEXT.get(field, {})
    kept, broken = (
        _status(_checked(tmp_path, context | {field: value}, None), field) for value in RECOMMENDED[field]
    )
    assert kept in (DemandStatus.ALIGNED, DemandStatus.DEFAULT)
    assert broken is DemandStatus.BROKEN


@pytest.mark.parametrize("rule", CONDITIONS, ids=lambda rule: rule.key)
def test_condition(rule: Demand, tmp_path: Path) -> None:
    assert _status(_checked(tmp_path, rule.holds, rule.holds), rule.key) is None
    assert _status(_checked(tmp_path, rule.breaks, rule.holds), rule.key) is DemandStatus.BROKEN
    assert _status(_checked(tmp_path, rule.breaks, None), rule.key) is DemandStatus.BROKEN


def _two_values(spec: FieldSpec) -> tuple[Any, Any]:
    return {
        "int": (4, 6),
        "float": (0.5, 0.25),
        "bool": (True, False),
        "dtype": ("float32", "bfloat16"),
        "text": ("one", "two"),
        "version": ("2.4.10", "2.6.0"),
        "files": (["/data/a.bin"], ["/data/b.bin"]),
        "names": ("all", "q_proj,v_proj"),
        "shares": ("98,2,0", "95,5,0"),
        "list": (["/data/a.bin"], ["/data/b.bin"]),
        "choice": (*list(spec.aliases)[:2], "one", "two")[:2],
    }[spec.kind]


def _checked(folder: Path, target: Mapping[str, Any], reference: Mapping[str, Any] | None) -> Checklist:
    for name, values in (("target", target), ("reference", reference)):
        if values is not None:
            (folder / f"{name}.json").write_text(json.dumps(dict(values)), encoding="utf-8")
    second = None if reference is None else [str(folder / "reference.json")]
    return check([str(folder / "target.json")], second)


def _status(checklist: Checklist, key: str) -> DemandStatus | None:
    return next((row.status for row in checklist.rows if row.key == key), None)
