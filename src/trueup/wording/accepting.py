"""English of a sign-off."""

from __future__ import annotations

import math

from trueup.types.codes import AcceptCode as A
from trueup.types.codes import CriterionCode as Criteria
from trueup.types.reason import reason
from trueup.wording.curves import signed
from trueup.wording.phrase import ReasonFacts, absolute, beside, clause, count, heading, listed, percent

PARTS = {
    "checklist": "Checklist of the configurations",
    "preparation": "Aligned preparation",
    "first_steps": "Steps 1 and 2",
    "no_update": "Learning rate 0",
    "long_run": "Long run",
    "downstream": "Downstream tasks",
}
_TITLES = {
    "checklist": "Settings of both runs",
    "recommendations": "Recommendations of the guide",
    "checklist:schedules": "Learning rate and weight decay, computed step by step",
    "loss_of_step_1": "Loss of step 1",
    "loss_of_step_2": "Loss of step 2",
    "forward": "Forward of step 1, module by module",
    "backward": "Backward of step 1: local norms, then layer by layer",
    "reduction": "Gradients accumulated, reduced and clipped",
    "optimizer": "Update by the optimizer",
    "next_loss": "Forward of step 2",
    "judgement": "Drift, late gap, spikes, plateau, NaN",
    "no_update_loss": "Loss of every step, weights not updated",
    "no_update_norm": "Global gradient norm of every step, weights not updated",
    "downstream": "Scores of downstream tasks",
}
_RULES = {
    "forward": "comparison of step 1's losses",
    "backward": "local norms of step 1",
    "reduction": "local norms of step 1",
    "optimizer": "optimizer computation",
    "loss": "loss of step 2",
}


def _named(facts: ReasonFacts) -> str:
    return listed([title[:1].lower() + title[1:] for title in facts.parts], shown=2) or "nothing"


def _accepted(facts: ReasonFacts) -> str:
    met = "the deciding item is met" if facts["num"] == 1 else f"all {facts['num']} deciding items are met"
    waived = f", {count(facts['waived'], 'row')} waived" if facts["waived"] else ""
    return f"Accepted: {met}{waived}"


def _input(facts: ReasonFacts) -> str:
    repeat = f", repeat {facts['repeat']}" if facts["repeat"] else ""
    return f"{facts['what']} of the {facts['side']}{repeat}" if facts["side"] else facts["what"]


def _frozen_loss(facts: ReasonFacts) -> str:
    return (
        f"mean {absolute(facts['mean'])}, largest {absolute(facts['largest'])}, "
        f"{facts['num']:,} of {count(facts['total'], 'step')} beyond"
    )


def _scores(facts: ReasonFacts) -> str:
    sides = [f"{facts[s]:.4f} ({s})" for s in ("target", "reference") if facts.get(s) is not None]
    difference = facts.get("difference")
    if difference is None or not math.isfinite(difference):
        return ", ".join(sides) or "–"
    error = "" if facts.get("standard_error") is None else f" ± {facts['standard_error']:.4f}"
    return f"{', '.join(sides)}: {signed(difference)}{error}, {percent(facts['relative'])}"


def _settings(facts: ReasonFacts) -> str:
    words = [f"{facts['aligned']} of {count(facts['total'], 'setting')} aligned"]
    if facts["grave"]:
        words.append(f"changes the training: {listed(facts['grave'])}")
    if facts["light"]:
        words.append(f"may change rounding: {listed(facts['light'])}")
    if facts["open"]:
        words.append(f"{facts['open']} not comparable")
    return "; ".join(words)


def _sides(facts: ReasonFacts) -> str:
    values = {side: facts[side] for side in ("target", "reference") if facts[side]}
    if len(values) == 2 and len(set(values.values())) == 1:
        return f"{facts['target']} on both sides"
    return ", ".join(f"{value} ({side})" for side, value in values.items())


def _other_settings(facts: ReasonFacts) -> str:
    sides = zip(facts["names"], facts["target"], facts["reference"], strict=True)
    return "evaluated differently: " + "; ".join(f"{n} {a} (target), {b} (reference)" for n, a, b in sides)


def _not_finite(facts: ReasonFacts) -> str:
    return f"NaN or infinite in the {' and the '.join(facts['sides'])}"


def _better(facts: ReasonFacts) -> str:
    return "worse" if facts["is_worse"] else "better"


def _no_schedule(facts: ReasonFacts) -> str:
    side = f" for the {facts['side']}" if facts["side"] else ""
    return f"cannot be computed{side}" + (f": {facts['missing']}" if facts["missing"] else "")


def _errors(facts: ReasonFacts, template: str) -> str:
    """Standard errors beside their limit."""
    z, limit = facts["z"], facts["limit"]
    return template.format(z=f"{beside(z, limit):.2f}", limit=f"{beside(limit, z):.2f}")


_TITLE = {"parts": (reason(A.TITLE, key="forward"),)}
_SETTINGS: dict[str, object] = {"aligned": 8, "total": 9, "grave": (), "light": (), "open": 0}
_SCORES: dict[str, object] = {
    "target": 0.5,
    "reference": 0.49,
    "difference": 0.01,
    "relative": 0.02,
    "standard_error": 0.005,
}

PHRASES = {
    A.ACCEPTED: heading(
        _accepted, {"num": 1, "waived": 0}, {"num": 12, "waived": 0}, {"num": 12, "waived": 2}
    ),
    A.REFUSED: heading(lambda facts: f"Refused, not met: {_named(facts)}", _TITLE),
    A.FAILED_UNPROVED: heading(lambda facts: f"Undecided, failed without proof: {_named(facts)}", _TITLE),
    A.UNFOLLOWED: heading(lambda facts: f"Undecided, neither met nor waived: {_named(facts)}", _TITLE),
    A.OPEN: heading(lambda facts: f"Undecided, not shown: {_named(facts)}", _TITLE),
    A.INPUT: clause(
        _input,
        {"what": "trace", "side": "target", "repeat": 0},
        {"what": "log", "side": "reference", "repeat": 1},
        {"what": "training data", "side": "", "repeat": 0},
    ),
    A.PART: clause(lambda facts: PARTS[facts["part"]], *({"part": part} for part in PARTS)),
    A.TITLE: clause(lambda facts: _TITLES[facts["key"]], *({"key": key} for key in _TITLES)),
    A.SECTION: clause("{title}", {"title": "Optimizer"}),
    A.SCORE: clause("{task}, {metric}", {"task": "arc_easy", "metric": "acc_norm"}),
    A.ALL_SCORES: clause(
        lambda facts: f"All {count(facts['num'], 'task')}, mean of their main metric", {"num": 3}
    ),
    A.NO_TRACES: clause("no traces were given"),
    A.NO_LOGS: clause("no logs were given"),
    A.NO_EVALUATION: clause("no evaluation was given"),
    A.NOT_IN_LOGS: clause("the logs do not contain it"),
    A.NOT_CAPTURED: clause("not captured in both runs"),
    A.NO_SETTINGS: clause("both runs contain none of them in common"),
    A.NO_CONFIGS: clause("no configurations were given"),
    A.RATE_ZERO: clause("the learning rate in these logs is 0 throughout"),
    A.RATE_NOT_ZERO: clause("the learning rate in these logs is not 0 throughout"),
    A.RATE_NOT_LOGGED: clause("these logs do not contain the learning rate"),
    A.NO_FINITE: clause("no step has a finite loss in both runs"),
    A.NO_NORM: clause("no gradient norm was logged in both runs"),
    A.FROZEN_LOSS: clause(_frozen_loss, {"mean": 0.001, "largest": 0.002, "num": 0, "total": 1000}),
    A.FROZEN_NORM: clause(
        lambda facts: (
            f"mean {absolute(facts['mean'])}, {percent(facts['rel'])}, largest {absolute(facts['largest'])}"
        ),
        {"mean": 0.01, "rel": 0.02, "largest": 0.05},
    ),
    A.SCORES: clause(_scores, _SCORES, dict.fromkeys(_SCORES)),
    A.SETTINGS: clause(
        _settings, _SETTINGS, {**_SETTINGS, "grave": ("clip_grad",), "light": ("tf32",), "open": 1}
    ),
    A.SCHEDULES_DIFFER: clause("first different at step {step}", {"step": 100}),
    A.SCHEDULES_EQUAL: clause("the same in {num:count step}", {"num": 1000}),
    A.NO_SCHEDULE: clause(
        _no_schedule, {"missing": "train_steps", "side": "target"}, {"missing": "", "side": ""}
    ),
    A.BY_FILES: clause(
        "{num:count setting} of the configuration files compared, none changes the training", {"num": 9}
    ),
    A.WITHIN_NOISE: clause("within rounding and the measured noise"),
    A.WITHIN_SPREAD: clause("within the reference's own spread, centred on zero"),
    A.NO_SETTING: clause("no setting that changes the training differs"),
    A.EVERY_STEP: clause("the same at every step"),
    A.FROZEN_STEPS: clause(
        "every step {parts[0]}, {num:count step}",
        {"num": 1000, "parts": (reason(Criteria.BELOW_EITHER, abs=0.005, rel=0.005),)},
    ),
    A.ON_MEAN: clause("{parts[0]} on the mean", {"parts": (reason(Criteria.AT_MOST, rel=0.1),)}),
    A.SCORE_LIMIT: clause(
        lambda facts: (
            "< 1.0 %, or "
            + (
                "within the standard error"
                if facts.get("z") is None
                else f"≤ {facts['z']:.2f} standard errors"
            )
        ),
        {"z": None},
        {"z": 1.96},
    ),
    A.GUIDE: clause("accuracy guide, {rule}", {"rule": "stage 3"}),
    A.OF_STAGE: clause(
        lambda facts: (
            f"accuracy guide, stage 2: {_RULES[facts['stage']]}; bounds as trueup compare gives them"
        ),
        *({"stage": stage} for stage in _RULES),
    ),
    A.CHECKLIST: clause(
        lambda facts: "accuracy guide, checklist" + (f": {facts['section']}" if facts["section"] else ""),
        {"section": "optimizer"},
        {"section": ""},
    ),
    A.FIRST_LOSS_RULE: clause(
        "accuracy guide, {rule}; the number is the standard's first loss", {"rule": "stage 2"}
    ),
    A.NORM_RULE: clause(
        "accuracy guide, {rule}; the number is the standard's monitoring indicator", {"rule": "stage 3"}
    ),
    A.REPEATS_RULE: clause(
        "migration standard, test standard 4; accuracy guide, benchmark error confirmation"
    ),
    A.DOWNSTREAM_RULE: clause(
        "accuracy guide, loss varies in the later stages: the 1 %; standard errors are the evaluation's"
    ),
    A.FINDING: clause("{parts[0]} (confidence: {confidence})", {**_TITLE, "confidence": "likely"}),
    A.LOSSES: clause(
        "captured step {step}: {target:.8g} (target), {reference:.8g} (reference)",
        {"step": 0, "target": 2.5, "reference": 2.4},
    ),
    A.LARGEST: clause("{num:count step}; largest difference at step {step}", {"num": 1000, "step": 12}),
    A.OUTLYING: clause("outlying steps: {steps}", {"steps": ("12", "40")}),
    A.LATE_GAP: clause("the long run leaves a small late gap: the guide lets downstream tasks decide"),
    A.SUSPECT: clause("to verify, {key}: {parts[0]}", {"key": "embedding_dtype", **_TITLE}),
    A.RECOMMENDATION: clause("Recommended: {key}", {"key": "clip_grad"}),
    A.NOT_FOLLOWED: clause(
        _sides,
        {"target": "5.0", "reference": "5.0"},
        {"target": "5.0", "reference": "1.0"},
        {"target": "", "reference": "bfloat16"},
        {"target": "True", "reference": ""},
    ),
    A.ALL_FOLLOWED: clause("every recommendation that the settings tell of is met"),
    A.WHY: clause("{why}", {"why": "Unclipped gradients of early steps are large."}),
    A.WAIVED_BECAUSE: clause("waived: {why}", {"why": "the published recipe clips at 5.0"}),
    A.WAIVE: clause(
        lambda facts: "; ".join((*facts["ways"], f'or --waive {facts["key"]} "REASON"')),
        {"key": "clip_grad", "ways": ("target: --clip-grad 1.0",)},
        {"key": "clip_grad", "ways": ()},
    ),
    A.UNJUDGED: clause("Without a rule: {key}", {"key": "model.router_jitter"}),
    A.VALUES_DIFFER: clause(
        lambda facts: (
            f"{facts['target'] or 'not set'} (target), {facts['reference'] or 'not set'} (reference)"
        ),
        {"target": "0.1", "reference": ""},
    ),
    A.SAME_VALUE: clause("the same on both sides, since no rule says what it changes"),
    A.WAIVE_SETTING: clause(
        'set it alike on both sides, or --waive {key} "REASON"', {"key": "model.router_jitter"}
    ),
    A.NEEDLESS_WAIVER: clause("--waive {key}: nothing that was given violates it", {"key": "clip_grad"}),
    A.NO_WAIVER: clause(
        "--waive {key}: it differs between the two sides, which a waiver does not cover", {"key": "norm_eps"}
    ),
    A.ONE_FILE: clause(
        "{file} is the configuration of both sides: its settings were compared with themselves",
        {"file": "train.yaml"},
    ),
    A.NOT_COMPARED: clause("{key} is not compared: {parts[0]}", {"key": "clip_grad", **_TITLE}),
    A.AND_MORE: clause("and {num:count setting} more, in the checklist's report", {"num": 1}, {"num": 3}),
    A.BELOW_1_PERCENT: clause("less than 1 % difference"),
    A.NO_ERROR: clause(
        lambda facts: f"{_better(facts)} by 1 % or more; the file gives no standard error",
        {"is_worse": True},
        {"is_worse": False},
    ),
    A.BEYOND: clause(
        lambda facts: _errors(facts, f"{_better(facts)} by {{z}} standard errors, more than {{limit}}"),
        {"is_worse": True, "z": 3.2, "limit": 2.5},
    ),
    A.TOO_FEW_SAMPLES: clause(
        "too few samples: two standard errors are more than {share:.0%} of the score", {"share": 0.2}
    ),
    A.WITHIN: clause(
        lambda facts: _errors(facts, "within its standard error ({z} of at most {limit})"),
        {"z": 0.5, "limit": 2.5},
    ),
    A.OTHER_SETTINGS: clause(_other_settings, {"names": ("shots",), "target": ("5",), "reference": ("0",)}),
    A.ONE_SIDED: clause("the {side} was not evaluated on it", {"side": "reference"}),
    A.SCORE_NOT_FINITE: clause(_not_finite, {"sides": ("target",)}, {"sides": ("target", "reference")}),
    A.GIVE_TRACES: clause(
        "two traces: trueup capture --preset diagnose --deterministic -o RUN -- COMMAND, on both sides"
    ),
    A.GIVE_LOGS: clause(
        "--curves TARGET_LOG REFERENCE_LOG REPEAT ..., with two or more runs of the reference, determinism "
        "off"
    ),
    A.GIVE_FROZEN: clause(
        "train both at learning rate 0 (trueup capture --learning-rate 0) for 1,000 steps, then "
        "--learning-rate-0 TARGET_LOG REFERENCE_LOG"
    ),
    A.GIVE_CONFIGS: clause("--config TARGET REFERENCE, the configuration files of both runs"),
    A.GIVE_EVALUATIONS: clause(
        "--eval TARGET.json REFERENCE.json, results of lm-evaluation-harness with the same tasks and shots"
    ),
    A.CAPTURE_TWO: clause("capture two steps on both sides"),
    A.REPLAY: clause('trueup capture --preset diagnose on both sides, and --replay "COMMAND"'),
    A.OR_ASSUME: clause(
        "{parts[0]}; or --assume {key}", {"key": "weights", "parts": (reason(A.CAPTURE_TWO),)}
    ),
    A.WITH_NOTE: clause("{parts:join ; }", {"parts": (reason(A.CAPTURE_TWO), reason(A.REPLAY))}),
    A.BY_HAND: clause(
        lambda facts: f"{facts.parts[0]}" + (f" ({facts['advice']})" if facts["advice"] else ""),
        {**_TITLE, "advice": "trueup check"},
        {**_TITLE, "advice": ""},
    ),
    A.EXPANSION: clause(
        "Scenario expansion: from one device to many, then to the full model with every parallel feature, "
        "each step accepted before the next (trueup check CONFIG --expand writes the steps)"
    ),
}
