"""English of the migration accuracy standard."""

from __future__ import annotations

from trueup.types.codes import CriterionCode as C
from trueup.types.reason import reason
from trueup.wording.phrase import ReasonFacts, absolute, clause, count, percent

TITLES = {
    "steps": "Steps observed without a break",
    "repeats": "Repeats of the reference, determinism off",
    "smooth": "Reference curve is smooth (change from step to step)",
    "first_loss": "First loss",
    "mean_loss": "Mean error of the loss",
    "global_norm": "Global gradient norm, mean relative error",
    "weights": "Same initial weights",
    "settings": "Same hyperparameters",
    "randomness": "Randomness off",
    "data": "Same batches, step by step",
}
_CONDITIONS = {
    "dataset": ("Dataset", "wikitext-103 (pretraining), alpaca (fine-tuning)"),
    "accuracy_mode": ("Accuracy mode", "BF16, mixed-precision settings the same on both sides"),
    "parallelism": ("Parallel method", "data parallel"),
    "cluster": ("Cluster", "one machine, 8 cards"),
    "checkpoint": ("Checkpoint", "initialized by the script (pretraining), loaded (fine-tuning)"),
    "determinism": ("Determinism", "on for comparisons; off to measure the fluctuation"),
}


def _steps(facts: ReasonFacts) -> str:
    hours = facts.get("hours")
    return f"{facts['steps']:,}" + (f", {hours:.1f} h" if hours is not None else "")


def _relaxed(facts: ReasonFacts) -> str:
    spread = percent(facts["spread"]) if facts["is_relative"] else absolute(facts["spread"])
    return (
        f"migration standard, {facts['rule']}, relaxed to the reference's own fluctuation ({spread} between "
        f"repeats, × {facts['allowance']:g})"
    )


def _settings_differ(facts: ReasonFacts) -> str:
    sides = zip(facts["keys"], facts["target"], facts["reference"], strict=True)
    return "; ".join(f"{key} {a} (target), {b} (reference)" for key, a, b in sides)


_CURVE: dict[str, object] = {"abs": 0.0031, "rel": 0.004}

FIRST_LOSS = (
    reason(C.TITLE, key="first_loss"),
    reason(C.ABS_AND_REL, abs=0.02, rel=0.006),
    reason(C.BELOW_EITHER, abs=0.005, rel=0.005),
)
"""title, value and threshold: parts of the samples of other rooms"""

PHRASES = {
    C.ADVISORY: clause(
        "The standard is advisory: the accuracy of a large model depends on its field, structure, size and "
        "hyperparameters, and there is no complete and binding one."
    ),
    C.TITLE: clause(lambda facts: TITLES[facts["key"]], *({"key": key} for key in TITLES)),
    C.ABS_AND_REL: clause(
        lambda facts: f"{absolute(facts['abs'])}, {percent(facts['rel'])}", _CURVE, {"abs": None, "rel": None}
    ),
    C.RELATIVE: clause(lambda facts: percent(facts["rel"]), _CURVE, {"rel": None}),
    C.COUNT: clause("{num:,}", {"num": 2}),
    C.STEPS: clause(_steps, {"steps": 1200, "hours": None}, {"steps": 1200, "hours": 3.5}),
    C.NOT_LOGGED: clause("not logged"),
    C.BELOW_EITHER: clause(
        lambda facts: f"< {absolute(facts['abs'])} or < {percent(facts['rel'])}", {"abs": 0.005, "rel": 0.005}
    ),
    C.AT_MOST: clause(lambda facts: f"≤ {percent(facts['rel'])}", {"rel": 0.1}),
    C.AT_LEAST: clause("≥ {num:,}", {"num": 2}),
    C.ENOUGH_STEPS: clause(
        "≥ {num:,} (default {default:,} or {hours} h)", {"num": 1000, "default": 5000, "hours": 12}
    ),
    C.THE_SAME: clause("the same"),
    C.OFF: clause("off"),
    C.STANDARD: clause("migration standard, {rule}", {"rule": "loss 1"}),
    C.RELAXED: clause(
        _relaxed,
        {"rule": "loss 1", "spread": 0.02, "is_relative": False, "allowance": 1.25},
        {"rule": "loss 1", "spread": 0.02, "is_relative": True, "allowance": 1.25},
    ),
    C.OF_TRUEUP: clause("migration standard, {rule}; the number is trueup's", {"rule": "test standard 3"}),
    C.FEWER_THAN_DEFAULT: clause(
        "fewer than the default of {default:,} steps or {hours} h", {"default": 5000, "hours": 12}
    ),
    C.TOO_FEW: clause("too few to judge: at least {num:,} steps are recommended", {"num": 1000}),
    C.EACH_STEP: clause(
        "no weight is updated: each step is judged separately; the guide recommends {num:,} steps",
        {"num": 1000},
    ),
    C.NO_REPEATS: clause("the reference's own fluctuation is unknown: give repeats of it"),
    C.SAME_REPEATS: clause(
        "{first} and {second} log the same losses: repeats must run with determinism off",
        {"first": "a.log", "second": "b.log"},
    ),
    C.ROUGH: clause("a rough curve: prefer model, weights and settings whose loss fluctuates less"),
    C.NO_LOSS: clause("no loss was logged in both runs"),
    C.BOTH_LOSSES: clause(
        "{target:.6g} (target), {reference:.6g} (reference)", {"target": 2.5, "reference": 2.4}
    ),
    C.LOST_LOSSES: clause("steps with a loss in the reference only: {num:,}", {"num": 3}),
    C.WIDE_REPEATS: clause(
        lambda facts: (
            f"the repeats differ by {absolute(facts['spread'])}, {percent(facts['rel'])} of the loss: check "
            "the reference before it serves as the measure"
        ),
        {"spread": 0.2, "rel": 0.08},
    ),
    C.INDICATOR: clause("a monitoring indicator: does not reject by itself"),
    C.STATED: clause("stated by the user"),
    C.STATED_ONLY: clause("stated, not proved"),
    C.UNPROVED: clause("not proved"),
    C.GIVE_TRACES: clause("traces prove it: --target-trace, --reference-trace"),
    C.TENSORS_EQUAL: clause("equal: {num:count tensor}", {"num": 12}),
    C.EQUAL_IN_SUM: clause("equal as a whole"),
    C.SOME_TENSORS: clause("equal: {num:,} of {total:count tensor}", {"num": 3, "total": 12}),
    C.BY_CONTENT: clause("proved by their content, from the traces"),
    C.CUT_DIFFERENTLY: clause("proved by the sum of their content; tensors are divided differently"),
    C.COMPARE_WEIGHTS: clause("trueup compare-weights TARGET REFERENCE shows which differ"),
    C.SETTINGS_EQUAL: clause("equal: {num:count setting}", {"num": 7}),
    C.SETTINGS_DIFFER: clause(
        _settings_differ, {"keys": ("lr",), "target": ("0.001",), "reference": ("0.002",)}
    ),
    C.COMPARED_SETTINGS: clause(
        lambda facts: f"of optimizers and batches, proved from the traces: {', '.join(facts['keys'])}",
        {"keys": ("lr", "betas")},
    ),
    C.CHECK_CONFIGS: clause("trueup check TARGET_CONFIG REFERENCE_CONFIG lists them all"),
    C.NOT_DETERMINISTIC: clause(
        lambda facts: f"deterministic algorithms off in the {' and the '.join(facts['sides'])}",
        {"sides": ("target",)},
        {"sides": ("target", "reference")},
    ),
    C.CAPTURE_DETERMINISTIC: clause("capture with --deterministic"),
    C.DROPOUT_ON: clause("dropout of {value:g} is active", {"value": 0.1}),
    C.DROPOUT_OFF: clause("set dropout to 0 in both runs"),
    C.DETERMINISTIC: clause("deterministic in both runs, no dropout seen"),
    C.FROM_TRACES: clause("proved from the traces"),
    C.BATCHES_EQUAL: clause("equal: {num:count batch}", {"num": 30}),
    C.BY_DIGEST: clause("proved by their digests"),
    C.BATCHES_DIFFER: clause(
        "different: {num:,} of {total:count batch}, the first at step {step}",
        {"num": 2, "total": 30, "step": 4},
    ),
    C.DIAGNOSE: clause("trueup diagnose TARGET REFERENCE -o OUT shows how"),
    C.CONDITION: clause(lambda facts: _CONDITIONS[facts["key"]][0], *({"key": key} for key in _CONDITIONS)),
    C.DEFAULT: clause(lambda facts: _CONDITIONS[facts["key"]][1], *({"key": key} for key in _CONDITIONS)),
    C.UNKNOWN: clause("logs do not contain it"),
    C.AS_STATED: clause("{value}", {"value": "fp16"}),
    C.PROCESSES: clause(lambda facts: count(facts["num"], "process"), {"num": 1}, {"num": 8}),
    C.DETERMINISM: clause(lambda facts: "on" if facts["is_on"] else "off", {"is_on": True}, {"is_on": False}),
    C.DTYPE: clause("parameters in {dtype}", {"dtype": "float16"}),
    C.AXES: clause(
        lambda facts: ", ".join(facts["axes"]) or "one process", {"axes": ("dp", "tp")}, {"axes": ()}
    ),
}
