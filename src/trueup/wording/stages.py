"""English of the stages of a diagnosis."""

from __future__ import annotations

import math

from trueup.types.codes import StagesCode as S
from trueup.types.codes.kinds import DivisorCode, KindReason
from trueup.types.reason import reason
from trueup.wording.batch import numbers
from trueup.wording.cause_headlines import cause_headline
from trueup.wording.criterion import FIRST_LOSS
from trueup.wording.kinds import kind_name
from trueup.wording.phrase import Phrase, ReasonFacts, clause, count, heading, listed

_EFFECTS = {
    "forward": "forward output differs",
    "loss": "loss differs",
    "backward": "gradients differ",
    "reduction": "gradients differ after reduction",
    "exchange": "exchanged values differ",
    "optimizer": "update differs",
    "weights": "initial weights differ",
    "data": "input data differs",
}
STAGE_TITLES = {
    "config": ("Configuration", "the settings of both runs, by the checklist"),
    "data": ("Data", "the same batch, ids in range, labels shifted once"),
    "weights": ("Initial weights", "the same on both sides"),
    "forward": ("Forward and loss", "the first step, module by module"),
    "backward": ("Backward", "the first step's local norms, then layer by layer"),
    "reduction": ("Reduction", "accumulated, reduced over ranks, cleared, clipped"),
    "optimizer": ("Optimizer", "settings, which parameters they apply to, the update itself"),
    "next_loss": ("Next loss", "the forward of the second step"),
    "long_run": ("Long run", "the loss curves, against the reference's own spread"),
    "prompts": ("Prompts", "the same prompts, in any order"),
    "rollout": ("Rollout", "generated tokens, and their log-probs by the inference engine"),
    "rewards": ("Rewards", "the score of each sequence, and on which token it is"),
    "old_log_probs": ("Old log-probs", "of the policy before its update, on the same tokens"),
    "reference_log_probs": ("Reference log-probs", "of the frozen policy, on the same tokens"),
    "values": ("Values", "of the critic, on the same tokens"),
    "advantages": ("Advantages", "masks, and what the estimator gives of rewards, groups and values"),
    "policy_loss": ("Policy loss", "its inputs, clipping, aggregation, entropy, and the total"),
    "kl_term": ("KL term", "in the reward and in the loss: estimator, direction, coefficient"),
    "value_loss": ("Value loss", "its inputs, clipping and aggregation"),
    "update": ("Update", "what the models give after an update whose losses agree"),
}
"""what a stage is called, and what it looks at"""
_PHASES = {
    "forward": "forward output",
    "loss": "loss",
    "backward": "gradients",
    "reduction": "reduced gradients",
    "exchange": "exchanged values",
    "optimizer": "update",
    "weights": "initial weights",
    "data": "input",
}


def _batch(facts: ReasonFacts) -> str:
    """What became of a batch, or of the labels that came with it."""
    text = _BATCHES[facts["relation"]]
    if facts["relation"] == "more_rows":
        text = facts.fill(text, side="target" if facts["target"] > facts["reference"] else "reference")
    if not facts.get("labels"):
        return text
    for one, many in (("holds", "hold"), ("is", "are"), ("has", "have")):
        text = text.replace(f"The batch {one} ", f"The labels {many} ")
    return text.replace("token ids", "labels").replace("batch", "labels")


def _module(facts: ReasonFacts) -> str:
    if (call := facts.get("call")) is not None:
        return f"{call.removeprefix('torch.')} outside the model"
    return facts["module"] or "the root module"


def _of_kind(facts: ReasonFacts) -> str:
    kind = kind_name(facts["kind"])
    kind = kind[:1].upper() + kind[1:]
    of_loss = facts["stage"] == "loss" and facts.get("call") is None
    if facts.parts:
        named = cause_headline(
            facts.reason.parts[0], facts.parts[1:], "the loss" if of_loss else _module(facts)
        )
        if named is not None:
            return named
    if of_loss:
        return f"{kind} in the loss"
    if facts.get("call") is not None:
        return f"{kind} in {_module(facts)}"
    return f"{kind} in the {_PHASES.get(facts['stage'], 'output')} of {_module(facts)}"


def _origin(facts: ReasonFacts) -> str:
    if facts["stage"] == "loss":
        return "The loss differs, though its recorded inputs agree"
    effect = _EFFECTS.get(facts["stage"], "result differs")
    if (step := facts.get("later")) is not None:
        effect = f"weights differ at the start of step {step:g}"
    return f"{effect[:1].upper()}{effect[1:]} in {_module(facts)}"


def _setting(facts: ReasonFacts) -> str:
    where = _module(facts)
    what = f"{facts.get('type')} {facts['name']}" if facts.get("type") else facts["name"]
    return f"{what} differs in {where}: {facts['target']} (target), {facts['reference']} (reference)"


def _counts(facts: ReasonFacts) -> str:
    names = (
        ("equal", "bit-identical"),
        ("within", "within rounding"),
        ("beyond", "exceeding tolerance"),
        ("unmatched", "without a counterpart"),
        ("undecided", "undecided"),
    )
    shown = [f"{facts[name]:,} {words}" for name, words in names if facts.get(name)]
    return f"records: {', '.join(shown) if shown else 'none was recorded'}"


_STAGES = {
    "config": "the configuration",
    "data": "the data",
    "weights": "the initial weights",
    "forward": "the forward pass",
    "loss": "the loss",
    "backward": "the backward pass",
    "reduction": "the accumulation, reduction or clipping of gradients",
    "optimizer": "the optimizer",
    "resume": "the resumed state",
}


def _follows(facts: ReasonFacts) -> str:
    return f"Differs as a consequence of {_STAGES.get(facts['stage'], facts['stage'])}"


def _loss_values(facts: ReasonFacts) -> str:
    gap = facts.get("rel_diff")
    relative = (
        "" if gap is None or facts["target"] == facts["reference"] else f", relative difference {gap:.2g}"
    )
    return f"loss {facts['target']:.8g} (target), {facts['reference']:.8g} (reference){relative}"


def _next_loss(facts: ReasonFacts) -> str:
    return (
        f"with the reference's gradients, the next loss is {facts['given']:.8g}; without, "
        f"{facts['target']:.8g} (target), {facts['reference']:.8g} (reference)"
    )


_LOSSES = {"given": 2.5, "target": 2.6, "reference": 2.5}


def _local_norm(facts: ReasonFacts) -> str:
    how = "element by element" if facts["elementwise"] else "in norm"
    rank = f", the largest difference among {facts['among']} weights" if facts.get("among") else ""
    return (
        f"the first step's gradient of {facts['parameter']} differs by {facts['gap']:.2g} {how}{rank} "
        f"(local norm {facts['target']:.6g} (target), {facts['reference']:.6g} (reference))"
    )


def _first_call(facts: ReasonFacts) -> str:
    sites = {"target": facts["call"], "reference": facts["other"] or facts["call"]}
    own, other = (f"{site} ({facts[side]})" if facts[side] else site for side, site in sites.items())
    apart = facts.fill(", relative difference {rel_l2}") if facts["rel_l2"] is not None else ""
    differ = other != own and (facts["reference"] or sites["reference"] != sites["target"])
    beside = f", beside {other} in the reference" if differ else ""
    return f"the first call inside it whose inputs do not explain how it differs is {own}{beside}{apart}"


def _row(facts: ReasonFacts) -> str:
    sides = [f"{facts[side]}{_where(facts, side)} ({side})" for side in ("target", "reference")]
    return f"{facts['key']}: {sides[0]}, {sides[1]}"


def _where(facts: ReasonFacts, side: str) -> str:
    return f" [{facts[f'{side}_place']}]" if facts.get(f"{side}_place") else ""


_ROW = {
    "key": "clip_grad",
    "target": "0.25",
    "reference": "1.0",
    "target_place": "max_norm, a.yaml:3",
    "reference_place": "clip_grad, b.yaml:7",
}
_A_ROW = {"parts": (reason(S.CONFIG_ROW, **_ROW),)}


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


_BATCHES = {
    "flags": "Other positions of an input are 1",
    "order": "The batch holds the same rows in a different order",
    "offset": "Every id of the batch is larger or smaller by one constant",
    "begin_anew": "Positions begin anew inside rows in one run alone",
    "more_rows": "The batch holds more rows in the {side}: {target} (target), {reference} (reference)",
    "counting": "Positions count from another number",
    "offset_by_row": "Every row of the batch counts from another number",
    "shift": "The token ids are shifted relative to the reference",
    "padding": "The batch is padded differently",
    "packing": "The tokens are packed into rows differently",
    "cut_later": "Rows of the batch hold a later part of the same text",
    "cut_earlier": "Rows of the batch hold an earlier part of the same text",
    "shape": "The batch has a different shape",
    "other_lengths": "The runs train on different batches, of other lengths",
    "mapped_ids": "Single token ids differ everywhere: different tokenizer or special tokens",
    "first_token": "All rows of the batch begin with another token",
    "one_token": "One token of each row of the batch differs",
    "some_rows": "Some rows of the batch differ",
    "some_tokens": "Some token ids of the batch differ",
    "other": "The runs train on different batches",
    "elsewhere_in_target": "Different batches: the reference's rows appear elsewhere in the target",
    "elsewhere": "Different batches: the target's rows appear elsewhere in the reference",
}

_WAYS = {
    "own": "over microbatches",
    "ranks": "over microbatches and ranks",
    "last": "only the last microbatch",
}


def _alike(facts: ReasonFacts) -> str:
    what = "accumulated" if facts["part"] == "accumulated" else "reduced after backward"
    ways = ", ".join(
        f"{number} {_WAYS.get(way, way)}" for way, number in zip(facts["ways"], facts["numbers"], strict=True)
    )
    return f"step {facts['step']}: both runs have gradients {what} in the same way ({ways})"


def _divided(facts: ReasonFacts) -> str:
    sides = [f"{facts[side]:.5g}" for side in ("target", "reference")]
    target, reference = facts.parts or sides
    tokens = count(facts["tokens"], "token")
    return f"the loss of {tokens} is divided by {target} (target), {reference} (reference)"


def _sums(facts: ReasonFacts) -> str:
    return f"{facts['parameter']}: {_sum(facts, 'target')} (target), {_sum(facts, 'reference')} (reference)"


def _sum(facts: ReasonFacts, side: str) -> str:
    over, way, factor = facts[f"{side}_over"], facts[f"{side}_way"], facts[f"{side}_factor"]
    along = "" if not over or tuple(over) == ("world",) else f" along {' and '.join(over)}"
    words = {
        "own": "the sum of this rank's local gradients",
        "ranks": f"the sum over all ranks{along}",
        "last": "only the last microbatch's gradient",
        "carried": "the local gradients plus those left by the previous step",
        "partly": "the sum over all ranks of some microbatches plus this rank's own of the others",
        "weighted": f"the microbatches{' over all ranks' + along if over else ''} times "
        f"{listed(facts.get(f'{side}_weights') or ())}",
        "none": "no accumulated gradient",
    }.get(str(way), str(way))
    times = "" if abs(factor - 1) < 1e-6 or way in ("none", "partly", "weighted") else f" times {factor:.6g}"
    residual = facts[f"{side}_residual"]
    return words + times + (f" ({residual:.2g} of it unexplained)" if residual > 1e-4 else "")


_SUMS = {
    "parameter": "layers.0.weight",
    "target_over": (),
    "target_way": "own",
    "target_factor": 0.5,
    "target_residual": 0.0,
    "target_weights": (),
    "reference_weights": (),
    "reference_over": ("dp",),
    "reference_way": "ranks",
    "reference_factor": 1.0,
    "reference_residual": 0.01,
}


def _not_reduced(facts: ReasonFacts) -> str:
    axes = tuple(facts["axes"])
    over = "ranks" if axes == ("world",) else f"the ranks along {' and '.join(axes)}"
    return f"Missing all-reduce: gradients of {facts['parameters']} are not summed over {over}"


_SETTINGS = {
    "lr": "learning rate",
    "weight_decay": "weight decay",
    "bias_correction": "bias correction",
    "decoupled": "decoupled weight decay",
    "eps_place": "place of eps",
    "class": "optimizer",
    "updated_dtype": "dtype of the updated weights or copies",
    "dtype": "dtype of the weights",
    "state": "precision of the optimizer state",
    "moved": "update",
    "rounded_away": "update",
    "count": "step count",
    "updates": "number of updates per step",
}


def setting_name(key: str) -> str:
    """A setting of an optimizer as documentation spells it."""
    return _SETTINGS.get(key, key.replace("_", " "))


_AVERAGE_CAUSES = {
    "decay": "another decay, or another schedule of it: a warm-up, a first update that copies the weights",
    "order": "the program averages before it calls the optimizer's step",
    "microbatches": "the program averages more than once a step, as after each microbatch",
    "coarse": "averages kept in the dtype of autocast or of a model that was cast, not in float32",
    "parameters_only": "the program averages what parameters() returns, without buffers such as running "
    "statistics",
}
_MASTER_CAUSES = {
    "rounded": "master weights made anew of the rounded weights at every update, or no update of their own",
    "decay": "weight decay applied to other weights, or another weight decay or learning rate",
    "scaled": "another learning rate, or another bias correction of the moments",
    "update": "gradients summed in another dtype, clipped by another norm, or another formula of the update",
}
_MOVED = {"not_held": "updated by no optimizer", "stepped": "updated by an optimizer"}


def _two_sides(facts: ReasonFacts) -> str:
    target, reference = (_MOVED.get(facts[side], facts[side]) for side in ("target", "reference"))
    return f"{target} (target), {reference} (reference)"


def _optimizer_setting(facts: ReasonFacts) -> str:
    name = setting_name(facts["key"])
    where = "" if facts["key"] in ("dtype", "state") else f" for {facts['parameters']}"
    return (
        f"{name[:1].upper()}{name[1:]} differs{where}: {facts['target']} (target), "
        f"{facts['reference']} (reference)"
    )


def _values(facts: ReasonFacts) -> str:
    name = setting_name(facts["key"])
    return f"{name} of {facts['parameters']}: {_two_sides(facts)}"


_OPTIMIZER = {
    "key": "eps",
    "parameters": "the 3 norm weights",
    "target": "1e-06",
    "reference": "1e-08",
}


def _measured(facts: ReasonFacts) -> str:
    keys, values = facts["keys"], facts["values"]
    shown = ", ".join(f"{setting_name(k)} {v}" for k, v in zip(keys, values, strict=True))
    return f"measured in the target from the update of {facts['parameter']}: {shown}"


MOST_FACTORS = 4
"""that one line names"""


def _span(low: float, high: float) -> str:
    one, other = f"{low:.4g}", f"{high:.4g}"
    return one if one == other else f"{one} to {other}"


def _factors(facts: ReasonFacts) -> str:
    groups = zip(facts["factors"], facts["names"], facts["nums"], strict=True)
    each = [
        f"{float(factor):.4g} times in {name}" + (f" and {int(num) - 1} more" if num != "1" else "")
        for factor, name, num in groups
    ]
    more = f" and {len(each) - MOST_FACTORS} other factors" if len(each) > MOST_FACTORS else ""
    return f"beside decay, updates are multiples of the reference's: {', '.join(each[:MOST_FACTORS])}{more}"


def _pulled_updates(facts: ReasonFacts) -> str:
    low, high = sorted((abs(facts["low"]), abs(facts["high"])))
    if facts["low"] < 0 < facts["high"]:
        return f"The optimizer takes another share of the weights off: up to {high:.4g}"
    sign = "more" if facts["low"] > 0 else "less"
    return f"The optimizer takes {_span(low, high)} times the weight {sign} off at each update"


def _given_same(facts: ReasonFacts) -> str:
    within = facts["within"]
    how = f"{facts['equal']} bit-identical, {within} within rounding" if within else "bit-identical"
    weights = count(facts["total"], "updated weight")
    return f"with the reference's gradients, {weights} agree with the reference: {how}"


def _and_more(facts: ReasonFacts) -> str:
    return f"{facts.parts[0]} ({count(facts['more'], 'more finding')})"


def _stage_agrees(facts: ReasonFacts) -> str:
    name = STAGE_TITLES[facts["stage"]][0] if facts["stage"] in STAGE_TITLES else facts["stage"]
    return f"{name}: {_lower(facts.parts[0])}"


_ANY = {"parts": (reason(S.WITHIN_ROUNDING),)}
_PLACE: dict[str, object] = {"module": "layers.1.mlp", "stage": "forward"}
_THETA = reason(
    KindReason.ROTARY_THETA, target=5e5, reference=1e4, origin_phase="forward", origin_slot="output.0"
)


def _not_copied_back(facts: ReasonFacts) -> str:
    ranks = facts["ranks"]
    updates = f"Updates of rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}" if ranks else "Updates"
    return f"{updates} missing from the model's weights: {facts['parameters']}"


PHRASES = {
    S.TITLE: clause(
        lambda facts: ": ".join(STAGE_TITLES[facts["key"]]), *({"key": key} for key in STAGE_TITLES)
    ),
    S.EQUAL: clause("Bit-identical"),
    S.COMPARED_EQUAL: clause("What was compared is bit-identical"),
    S.WITHIN_ROUNDING: clause("Agrees within rounding"),
    S.AGREED_BEFORE: clause(
        lambda facts: f"{facts.parts[0]}, but was recorded before the difference in step {facts['step']}",
        _ANY | {"step": 1},
    ),
    S.SCALE_UNDONE: clause(
        "Agrees but for a factor of {factor:.6g} that is taken out before the update", {"factor": 0.5}
    ),
    S.NOTHING_RECORDED: clause(
        lambda facts: f"no {facts['what']} was recorded in both runs",
        {"what": "gradient"},
        {"what": "record"},
    ),
    S.FOLLOWS: clause(_follows, {"stage": "data"}, {"stage": "weights"}),
    S.EXPLAINED: clause(lambda facts: f"Differs: {facts.parts[0]}", {"parts": (reason(S.BATCH_DIFFERS),)}),
    S.NO_PLACE: clause(
        "{num:count record} {num:verb exceed} tolerance, the first at {site}; where the difference starts "
        "was not found",
        {"num": 1, "site": "layers.0 · output"},
        {"num": 2, "site": "layers.0 · output"},
    ),
    S.ONLY_CARRIED: clause(
        "{num:count record} {num:verb exceed} tolerance, and no call does with the reference's inputs: "
        "carried rounding",
        {"num": 1},
        {"num": 4},
    ),
    S.ONE_STEP: clause("only one step was captured in both runs"),
    S.DIFFERS_LATER: clause(
        lambda facts: facts.fill(
            "Agrees in step {first}; differs in "
            + ("a later step" if facts.get("step") is None else "step {step}")
        ),
        {"first": 0, "step": 1},
        {"first": 0, "step": None},
    ),
    S.NEXT_LOSS_FOUND: clause(
        lambda facts: f"Differs from {facts['site']} on" if facts["site"] else "Differs",
        {"site": "layers.0 · output.0"},
        {"site": ""},
    ),
    S.NEXT_LOSS_AGREES: clause(
        "The loss agrees, though {num:count record} before it {num:verb differ}", {"num": 3}
    ),
    S.LOSS_GRADIENT: clause("The loss agrees, but its gradient differs"),
    S.DETACHED_CAUSE: clause("a part of the loss that is detached, or has a gradient in one run alone"),
    S.EVALUATED_WEIGHTS: clause(
        "{root} is evaluated with other weights ({num:count layer})", {"root": "GPT", "num": 26}
    ),
    S.EVALUATED_STATISTICS: clause(
        "{root} is evaluated with other weights or running statistics ({num:count norm})",
        {"root": "ResNet", "num": 5},
    ),
    S.AVERAGED_ON_RANKS: clause(
        lambda facts: (
            f"The averaged weights are not updated on rank{'s' if len(facts['ranks']) > 1 else ''} "
            f"{listed(facts['ranks'], 8)} ({facts['side']})"
        ),
        {"side": "target", "ranks": ("1",)},
        {"side": "reference", "ranks": ("1", "2", "3")},
    ),
    S.NEXT_LOSS_ONLY: clause(
        "Differs although no fault was found in the first step: check its backward pass again, with the "
        "values of every gradient"
    ),
    S.GIVEN_LOSS: clause(_next_loss, _LOSSES),
    S.UPDATE_RIGHT: clause(
        lambda facts: f"{_next_loss(facts)}: the update is correct, the target's own gradients are not",
        _LOSSES,
    ),
    S.NO_CURVES: clause("No curves were given: --curves TARGET_LOG REFERENCE_LOG [REPEAT ...]"),
    S.MAY_FOLLOW: clause(
        lambda facts: (
            f"{facts.parts[0]}; may be a consequence of {_STAGES.get(facts['stage'], facts['stage'])}"
        ),
        {**_ANY, "stage": "forward"},
    ),
    S.CRITERION: clause(
        "{parts[0]}: {parts[1]} (expected {parts[2]}), {status}",
        {"criterion": "first_loss", "status": "not met", "parts": FIRST_LOSS},
    ),
    S.SEE_CURVES: Phrase(
        sentence=lambda facts: "; then ".join(["to see the curves", *facts["also"]]),
        command=lambda facts: (
            f"trueup curves {facts['target']} --reference {' '.join(facts['references'])} -o OUT"
        ),
        samples=(
            {"target": "a.log", "references": ("b.log",), "also": ()},
            {"target": "a.log", "references": ("b.log", "c.log"), "also": ("trueup capture -o target",)},
        ),
    ),
    S.COUNTS: clause(_counts, {"equal": 12, "within": 3, "beyond": 1, "unmatched": 2, "undecided": 1}, {}),
    S.SETTING_DIFFERS: clause(
        _setting,
        {
            "module": "layers.1.norm",
            "type": "RMSNorm",
            "name": "eps",
            "target": "3e-05",
            "reference": "1e-06",
        },
        {"module": "", "type": "", "name": "scale", "target": "2", "reference": "1"},
    ),
    S.ALSO_IN: clause(
        lambda facts: facts.fill(
            "the same in {num:count other place}"
            + (", factors {low:.4g} to {high:.4g}" if facts.get("low") is not None else "")
            + ": {modules:list}"
        ),
        {"num": 2, "modules": ("layers.1.norm", "norm")},
        {"num": 1, "modules": ("norm",), "low": 1.001, "high": 1.003},
    ),
    S.SAME_CODE_IN: clause(
        "{num:count other place} with the same code {num:verb differ} too: {modules:list}",
        {"num": 2, "modules": ("layers.1.norm", "norm")},
    ),
    S.LOSS_DIVISOR: Phrase(
        sentence="Loss divisor differs: {parts[0]} (target), {parts[1]} (reference)",
        headline="Loss divisor differs: {parts[0]} (target), {parts[1]} (reference)",
        samples=(
            {
                "parts": (
                    reason(DivisorCode.COUNTED_OF_STEP, number=124),
                    reason(DivisorCode.NOTHING, number=1),
                )
            },
        ),
    ),
    S.NUMBER_GIVEN: Phrase(
        sentence="The number given to the model as {name} differs",
        headline="The number given to the model as {name} differs",
        samples=({"name": "denominator"},),
    ),
    S.OF_KIND: clause(
        _of_kind,
        {**_PLACE, "kind": "wrong_scale"},
        {**_PLACE, "stage": "loss", "kind": "missing_or_extra_term"},
        {**_PLACE, "stage": "backward", "module": "", "kind": "frozen_or_missing_gradient"},
        {**_PLACE, "kind": "constant_argument", "parts": (_THETA,)},
    ),
    S.ORIGIN: clause(
        _origin,
        _PLACE,
        {**_PLACE, "stage": "loss"},
        {**_PLACE, "stage": "backward", "module": ""},
        {**_PLACE, "stage": "weights", "later": 1},
    ),
    S.COLLECTIVE_MISSING: clause(
        "the reference calls {collective} over ranks {ranks} in this module, the target does not",
        {"collective": "all_reduce", "ranks": ("0", "1")},
    ),
    S.LOCAL_NORM: clause(
        _local_norm,
        {"parameter": "a.w", "gap": 0.1, "elementwise": True, "among": 39, "target": 1.1, "reference": 1.0},
        {
            "parameter": "a.w",
            "gap": 0.1,
            "elementwise": False,
            "among": None,
            "target": 1.1,
            "reference": 1.0,
        },
    ),
    S.ALSO_AT: clause("also at {site} ({phase})", {"site": "a · output.0", "phase": "backward"}),
    S.ALIGN_SETTING: clause(
        lambda facts: f"set {facts['name']} of {_module(facts)} to the reference's value and run again",
        {"module": "layers.1.norm", "name": "eps"},
    ),
    S.COMPARE_CODE: clause("compare the code of both sides at this place"),
    S.GIVEN_SHAPES: clause(
        "no call of {module} has a counterpart: it is given {target} (target), {reference} (reference)",
        {"module": "attn.q_norm", "target": "[2, 4, 48, 16]", "reference": "[2, 48, 4, 16]"},
    ),
    S.FIRST_CALL: clause(
        _first_call,
        {
            "call": "attn · mindspore.Tensor.__mul__ · output.0",
            "other": "attn · torch.outer · output.0",
            "target": "port.py:30",
            "reference": "train.py:20",
            "rel_l2": 0.09,
        },
        {
            "call": "attn · torch.cos · output.0",
            "other": "attn · torch.cos · output.0",
            "target": "",
            "reference": "",
            "rel_l2": None,
        },
    ),
    S.ALSO_PASSIVE: clause("the traces alone, without replay, name the same module"),
    S.WEIGHTS_DIFFER_FROM: clause("the weights differ from step {step} on", {"step": 1}),
    S.WEIGHT_DIFFERS: clause("{parameter} differs at the start", {"parameter": "a.weight"}),
    S.OTHER_DTYPE: clause("the runs compute in different dtypes"),
    S.AFTER_BACKWARD: clause(
        "forward differs from microbatch {microbatch} on, after the backward of microbatch {before} differed",
        {"microbatch": 1, "before": 0},
    ),
    S.INSIDE_ONLY: clause("the loss and the gradients of all weights agree"),
    S.LOSS_SCALE_DIFFERS: clause("the loss scale differs"),
    S.BATCH_DIFFERS: clause("the batch differs"),
    S.LOSS_VALUES: clause(
        _loss_values,
        {"target": 2.5, "reference": 2.4, "rel_diff": 0.04},
        {"target": 2.5, "reference": 2.5, "rel_diff": 0.0},
    ),
    S.NORMS_EQUAL: clause("the local norms of all {num:count weight} are equal", {"num": 12}),
    S.NORMS_DIFFER: clause(
        lambda facts: (
            f"local norms: {facts['equal']} of {facts['num']} equal; largest difference at "
            f"{facts['parameter']}: {facts['target']:.6g} (target), {facts['reference']:.6g} (reference)"
            + (f", {facts['rel_diff']:.2g} relative" if math.isfinite(facts["rel_diff"]) else "")
        ),
        {"equal": 3, "num": 12, "parameter": "a.w", "target": 1.0, "reference": 2.0, "rel_diff": 0.5},
    ),
    S.NO_CONFIGURATION: clause(
        "Neither run recorded its configuration; --config TARGET REFERENCE gives the files"
    ),
    S.CONFIG_ALIGNED: clause(
        "Of {num:count setting} compared none differs that always changes the training", {"num": 9}
    ),
    S.CONFIG_ALIGNED_BUT: clause(
        lambda facts: facts.fill(
            "Of {num:count setting} compared none differs that always changes the training; {names:list}, "
            "set elsewhere in the program, {many:verb do}",
            many=len(facts["names"]),
        ),
        {"num": 9, "names": ("rope_interleave",)},
        {"num": 9, "names": ("rope_interleave", "eps")},
    ),
    S.CONFIG_DIFFERS: clause(
        "{key} differs: {target} (target), {reference} (reference)",
        {"key": "clip_grad", "target": "0.25", "reference": "1.0"},
    ),
    S.CONFIGS_DIFFER: clause(
        "{num:count setting} {num:verb differ} that {num:verb change} the training: {keys}",
        {"num": 2, "keys": ("clip_grad", "seed")},
    ),
    S.CONFIG_ROW: clause(_row, _ROW, {**_ROW, "target_place": ""}),
    S.MAY_CHANGE_ROUNDING: clause(
        "may change the training, or only round otherwise: {parts:join ; }", _A_ROW
    ),
    S.ACTS_HERE: clause("the configurations differ in a setting that acts here: {parts:join ; }", _A_ROW),
    S.WITHOUT_EFFECT: clause("without effect in the captured steps: {parts:join ; }", _A_ROW),
    S.ALL_WITHOUT_EFFECT: clause(
        lambda facts: (
            f"{listed(facts['keys'])} {'differs' if len(facts['keys']) == 1 else 'differ'} in the "
            "configuration, without effect in the captured steps"
        ),
        {"keys": ("clip_grad",)},
        {"keys": ("clip_grad", "seed")},
    ),
    S.STEPS_AGREE_BUT: clause(
        lambda facts: f"The captured steps agree, but {_lower(facts.parts[0])}",
        {"parts": (reason(S.CONFIG_DIFFERS, key="clip_grad", target="0.25", reference="1.0"),)},
    ),
    S.RULE_WHY: clause("{why}", {"why": "clipping at another norm changes every update", "key": "clip_grad"}),
    S.RULE_ADVICE: clause("{advice}", {"advice": "use 1.0 on both sides", "key": "clip_grad"}),
    S.CHECK_CONFIGS: Phrase(
        sentence="to see every setting",
        command="trueup check {target} {reference}",
        samples=({"target": "a.yaml", "reference": "b.yaml"},),
    ),
    S.ALIGN_SETTINGS: clause("set them to the same values on both sides, and capture again"),
    S.SAME_STREAM: clause(
        "the same microbatches in the same order, {target:count microbatch} a step (target), "
        "{reference} (reference)",
        {"target": 2, "reference": 4},
    ),
    S.SAME_SHARD: clause("Every rank reads the same shard of the data"),
    S.SAME_ROWS: clause(
        "in the target several ranks read the same rows; in the reference each reads different ones"
    ),
    S.MADE_BY_RANK_CAUSE: clause(
        "samples are changed on those ranks alone before the model takes them: augmentation or noise whose "
        "random numbers depend on the rank in one run and not in the other"
    ),
    S.MADE_BEFORE_CAUSE: clause(
        "samples are changed before the model takes them: normalization, augmentation, added noise or its "
        "schedule"
    ),
    S.COUNTED_BEFORE: clause(
        lambda facts: facts.fill(
            "the optimizer of both runs had made {target:count step} before the first captured step"
            if facts["target"] == facts["reference"]
            else "the optimizer had made {target:count step} (target), {reference} (reference) before the "
            "first captured step"
        ),
        {"target": 3, "reference": 3},
        {"target": 1, "reference": 4},
    ),
    S.SAMPLER_CAUSE: clause("the sampler does not use the rank: every rank reads the same shard"),
    S.GIVE_RANK: clause("give the sampler its rank and the number of ranks"),
    S.BATCH_IN_PARTS: clause(
        "the batch was not put together: its microbatches, or ranks, hold rows of other widths"
    ),
    S.NO_BATCH: clause("no batch of integers, nor a digest of one, was recorded in both runs"),
    S.BATCH_IN_OTHER_FORM: clause(
        "The batches hold the same in another form: the loss and the gradient of every weight agree"
    ),
    S.INPUTS_FOLLOW: clause(
        lambda facts: facts.fill("{names:list} {num:verb follow} {ids}", num=len(facts["names"])),
        {"names": ("labels",), "ids": "input_ids"},
        {"names": ("attention_mask", "labels"), "ids": "input_ids"},
    ),
    S.INPUTS_ALIKE: clause(
        lambda facts: facts.fill(
            "input {names:list} of the same calls {num:verb are} bit-identical", num=len(facts["names"])
        ),
        {"names": ("input_ids",)},
        {"names": ("input_ids", "labels")},
    ),
    S.INPUT_WITHOUT_EFFECT: clause(
        lambda facts: facts.fill(
            "{names:list} {num:verb differ} without effect here: the loss and the gradient of every weight "
            "agree",
            num=len(facts["names"]),
        ),
        {"names": ("position_ids",)},
        {"names": ("position_ids", "token_type_ids")},
    ),
    S.SAME_BATCHES: clause("Both runs have the same batches"),
    S.SAME_IDS: clause(
        "step {step}, rank {rank}: {ids:count id} in {inputs:count input} are the same, row by row",
        {"step": 0, "rank": 0, "ids": 4096, "inputs": 1},
    ),
    S.SAME_DIGESTS: clause(
        "step {step}, rank {rank}: the digests of the batches are equal", {"step": 0, "rank": 0}
    ),
    S.ELSEWHERE: clause(
        "{num} of {rows:count row} {num:verb stand} in the reference's {place}",
        {"num": 2, "rows": 8, "place": "step 1, rank 0, microbatch 0"},
    ),
    S.ELSEWHERE_IN_TARGET: clause(
        "{num} of the reference's {rows:count row} {num:verb stand} in the target's {place}",
        {"num": 2, "rows": 8, "place": "step 1, rank 0, microbatch 0"},
    ),
    S.ROWS_OF_RANKS: clause(
        "several ranks of the target read {num:count row} alike in the captured steps, and those of the "
        "reference none: the ranks' shards overlap",
        {"num": 3},
    ),
    S.BATCH: clause(
        _batch,
        {"relation": "order"},
        {"relation": "elsewhere"},
        {"relation": "shift", "labels": True},
        {"relation": "more_rows", "labels": True, "target": 8, "reference": 4},
    ),
    S.INPUT_OF_ONE_SIDE: clause(
        "Only the {side} gives the model the input {name}", {"side": "target", "name": "position_ids"}
    ),
    S.LOSS_DIVIDED: clause(
        _divided,
        {"tokens": 48, "target": 96.0, "reference": 104.0},
        {
            "tokens": 48,
            "target": 96.0,
            "reference": 104.0,
            "parts": (
                reason(DivisorCode.COUNTED_TIMES, number=96.0),
                reason(DivisorCode.COUNTED_OF_STEP, number=104.0),
            ),
        },
    ),
    S.EVALUATED_ON: clause(
        "Input {name} of a call without gradients differs in step {step}", {"name": "input_ids", "step": 0}
    ),
    S.STATE_CARRIED: clause(
        "Input {name} of the model is carried over from the step before only in the {side}",
        {"name": "state", "side": "reference"},
    ),
    S.STATE_RETURNED: clause(
        "in the {side} the input {name} is bit-identical with an output of the model in the step before, in "
        "the other run it is not",
        {"name": "state", "side": "reference"},
    ),
    S.INPUT_SCALED: clause(
        lambda facts: (
            f"{'Each channel of input' if facts['by_channel'] else 'Input'} {facts['name']} of the model "
            "is scaled or shifted"
        ),
        {"name": "pixel_values", "by_channel": True},
        {"name": "input_features", "by_channel": False},
    ),
    S.INPUT_LIMITED: clause(
        "Input {name} of the model is cut off at another bound", {"name": "pixel_values"}
    ),
    S.INPUT_ROUNDED: clause("Input {name} of the model is rounded differently", {"name": "pixel_values"}),
    S.INPUT_MOVED: clause(
        "Input {name} of the model has its dimension {dim} in another order",
        {"name": "pixel_values", "dim": 1},
    ),
    S.INPUT_IS: clause(
        lambda facts: (
            f"Input {facts['name']} of the model is {numbers(facts, 'target')} (target), "
            f"{numbers(facts, 'reference')} (reference)"
        ),
        {
            "name": "3",
            "target_least": 3.5,
            "target_most": 3.5,
            "reference_least": 1.0,
            "reference_most": 1.0,
        },
    ),
    S.INPUT_DIFFERS: clause("Input {name} of the model differs", {"name": "token_type_ids"}),
    S.RETURNED_BY_NONE: clause(
        "no recorded call of either run returned it: it was made before the first recorded call of the step, "
        "or by functions that are not recorded",
        {},
    ),
    S.SAME_ROWS_REGROUPED: clause(
        "the {num:count row} of the first steps {num:verb are} the same, in another order, in other "
        "microbatches or padded otherwise",
        {"num": 12},
        {"num": 1},
    ),
    S.GIVE_BOTH: clause("give both models the input {name}, or neither", {"name": "position_ids"}),
    S.SAME_SHARED: clause("The inputs that both runs give the model are the same"),
    S.PACKED_OTHERWISE: clause(
        "sequences are packed in the {side} alone (step {step}): digests cannot tell whether they "
        "are the same",
        {"side": "target", "step": 0},
    ),
    S.DIGESTS: clause(
        "digest {target} (target), {reference} (reference)",
        {"target": "0a1b", "reference": "ffee"},
    ),
    S.OUT_OF_VOCABULARY: clause(
        lambda facts: facts.fill(
            "Token id {value} is outside the vocabulary"
            + ("" if facts.get("size") is None else " ({size:count entry})")
        ),
        {"value": 101, "size": 100},
        {"value": -100, "size": None},
    ),
    S.OUT_OF_RANGE: clause(
        lambda facts: facts.fill(
            "{num:count id} outside the vocabulary"
            + ("" if facts.get("size") is None else " of {size:count entry}")
            + ", the first {value} in row {row}, position {column}"
        ),
        {"num": 3, "size": 100, "value": 101, "row": 0, "column": 7},
        {"num": 1, "size": None, "value": -1, "row": 0, "column": 7},
    ),
    S.SAME_BATCH_FIRST: clause(
        "use the same batch in both runs first: every later difference may follow from this one"
    ),
    S.CAPTURE_IDS: clause("capture both runs with --preset diagnose to see which rows differ"),
    S.COMPARE_VOCABULARY: clause("compare the tokenizer's vocabulary with the size of the embedding"),
    S.SUMMED_ALIKE: clause(_alike, {"step": 0, "part": "accumulated", "ways": ("own",), "numbers": ("12",)}),
    S.SUMMED: clause(_sums, _SUMS, {**_SUMS, "target_way": "none", "target_factor": 1.0}),
    S.NUM_GRADIENTS: clause("{num} of {total:count gradient}", {"num": 2, "total": 12}),
    S.FROM_OWN_GRADIENTS: clause(
        "measured from each run's own gradients before and after: earlier differences do not matter"
    ),
    S.CARRIED: clause(
        "Gradients of {parameters} still hold the previous step's", {"parameters": "all 12 parameters"}
    ),
    S.APART_AT: clause(
        "it differs at {num} of {size} indices of dimension {dim} alone ({indices:list}); all else is "
        "bit-identical",
        {"num": 1, "size": 16, "dim": 1, "indices": ("0",)},
        {"num": 6, "size": 40, "dim": 0, "indices": ("3", "4", "9", "…")},
    ),
    S.UNREACHED: clause(
        lambda facts: facts.fill(
            "No gradient reaches {parameters} in the {side}", side=facts.get("side") or "target"
        ),
        {"parameters": "a.weight"},
        {"parameters": "a.weight", "side": "reference"},
    ),
    S.NEVER_CALLED: clause(
        "the target never calls {modules:list} in this step, the reference does",
        {"modules": ("layers.0.attn.k_norm",)},
    ),
    S.NEVER_REACH: clause("Gradients of {parameters} never reach the optimizer", {"parameters": "a.weight"}),
    S.NOT_REDUCED: clause(
        _not_reduced,
        {"parameters": "a.weight", "axes": ("world",)},
        {"parameters": "a.weight", "axes": ("dp",)},
    ),
    S.PARTLY_REDUCED: clause(
        lambda facts: (
            f"Missing all-reduce: of gradients of {facts['parameters']} only what microbatch "
            f"{listed(facts['microbatches'])} made is summed over ranks"
        ),
        {"parameters": "a.weight", "microbatches": ("0",)},
    ),
    S.BETWEEN_MICROBATCHES: clause("gradients clipped, scaled or cleared between microbatches"),
    S.WEIGHTED: clause(
        lambda facts: (
            f"Gradients of {facts['parameters']} are sums of microbatches times {listed(facts['counts'])}"
        ),
        {"parameters": "a.weight", "counts": ("0.25", "1")},
    ),
    S.MASTER_COUNTS: clause(
        lambda facts: (
            f"{facts['parameter']}: the gradient of its master {facts['master']} is the sum of the "
            f"microbatches times {listed(facts['target'])} (target), {listed(facts['reference'])} (reference)"
        ),
        {
            "parameter": "a.weight",
            "master": "AdamW.group0.0",
            "target": ("2", "1"),
            "reference": ("1", "1"),
        },
    ),
    S.LACKS_MICROBATCHES: clause(
        lambda facts: (
            f"Gradients of {facts['parameters']} lack "
            f"microbatch{'es' if len(facts['microbatches']) > 1 else ''} {listed(facts['microbatches'])}"
        ),
        {"parameters": "a.weight", "microbatches": ("1",)},
        {"parameters": "a.weight", "microbatches": ("0", "1")},
    ),
    S.LAST_ONLY: clause(
        "Gradients of {parameters} hold only the last microbatch", {"parameters": "a.weight"}
    ),
    S.ROUNDED: clause(
        "Gradients of {parameters} are rounded to a coarser dtype before the optimizer",
        {"parameters": "a.weight"},
    ),
    S.SCALED: clause(
        "Gradients of {parameters} are scaled by {factor:.4g} relative to the reference",
        {"parameters": "a.weight", "factor": 0.5},
    ),
    S.CHANGED: clause("Gradients of {parameters} are changed after backward", {"parameters": "a.weight"}),
    S.BOTH_ALIKE: clause(
        "The gradients differ, but both runs reduce and clip them the same way: caused earlier"
    ),
    S.SETTING: clause(_optimizer_setting, _OPTIMIZER, {**_OPTIMIZER, "key": "dtype"}),
    S.COUNT: clause(
        "Optimizer step count differs: {target} (target), {reference} (reference); state lost or not reset",
        {"target": "1", "reference": "5"},
    ),
    S.UPDATE_LOST: clause(
        lambda facts: f"Update of {facts['parameters']} differs: {_two_sides(facts)}",
        {"parameters": "a.weight", "target": "unchanged", "reference": "changed"},
    ),
    S.ROUNDED_AWAY: clause(
        lambda facts: f"Update of {facts['parameters']} is within one rounding: {_two_sides(facts)}",
        {"parameters": "a.weight", "target": "unchanged", "reference": "changed"},
    ),
    S.MOVED: clause(
        lambda facts: (
            f"Updated by no optimizer of the {'target' if facts['target'] == 'not_held' else 'reference'}: "
            f"{facts['parameters']}"
        ),
        {"parameters": "a.weight", "target": "not_held", "reference": "stepped"},
        {"parameters": "all 24 parameters", "target": "stepped", "reference": "not_held"},
    ),
    S.DECAY_TARGET: clause(
        "Weight decay applies to {parameters} only in the target ({target})",
        {"parameters": "the 3 norm weights", "target": "0.1", "reference": "0"},
    ),
    S.DECAY_REFERENCE: clause(
        "Weight decay applies to {parameters} only in the reference ({reference})",
        {"parameters": "the 3 norm weights", "target": "0", "reference": "0.1"},
    ),
    S.SIDES: clause(_values, _OPTIMIZER),
    S.DECLARED: clause("the programs' own parameter groups have these values"),
    S.DECLARED_ALIKE: clause(
        lambda facts: (
            f"the parameter groups of both programs have {setting_name(facts['key'])} {facts['value']}"
        ),
        {"key": "weight_decay", "value": "0.01"},
    ),
    S.DECAY_ORDER: clause(
        "Weight decay is applied {target} (target), {reference} (reference)",
        {"target": "after the update", "reference": "before it"},
    ),
    S.ACTS_OTHERWISE: clause(
        lambda facts: (
            f"{setting_name(facts['key']).capitalize()} acts differently on {facts['parameters']}: as "
            f"{facts['target']} (target), {facts['reference']} (reference)"
        ),
        {"key": "weight_decay", "parameters": "a.weight", "target": "0.184", "reference": "0.01"},
    ),
    S.MEASURED_PAIR: clause(
        "measured from the update of {parameter}: {target:.4g} (target), {reference:.4g} (reference)",
        {"parameter": "a.weight", "target": 1e-6, "reference": 1e-8},
    ),
    S.MEASURED: clause(
        _measured, {"parameter": "a.weight", "keys": ("lr", "eps"), "values": ("0.001", "1e-08")}
    ),
    S.PARAMETERS: clause("parameters: {names}", {"names": ("a", "b", "c")}),
    S.GIVEN_SAME: clause(
        _given_same, {"total": 12, "equal": 12, "within": 0}, {"total": 12, "equal": 10, "within": 2}
    ),
    S.GIVEN_DIFFER: clause(
        "with the reference's gradients, {num} of {total:count updated weight} still {num:verb differ} "
        "({names:list})",
        {"num": 2, "total": 12, "names": ("a", "b")},
    ),
    S.GIVEN_STATE_DIFFER: clause(
        "with the reference's gradients, the updated weights agree, but the state of {num} of "
        "{total:count parameter} differs after the update ({names:list})",
        {"num": 12, "total": 12, "names": ("exp_avg",)},
    ),
    S.EQUAL_BEFORE: clause(
        "of {num:count parameter} ({names:list}) weight, gradient and moments are bit-identical, the update "
        "is not",
        {"num": 1, "names": ("a",)},
        {"num": 2, "names": ("a", "b")},
    ),
    S.GIVEN_COUNTER: clause(
        "the reference's gradients were supplied: differences before the optimizer do not matter"
    ),
    S.ALIKE_OPTIMIZERS: clause(
        "the optimizers are {target} (target) and {reference} (reference); both made the same updates",
        {"target": "FusedAdam", "reference": "AdamW"},
    ),
    S.MEASURED_COUNTER: clause(
        "measured from each run's own gradients, weights and moments: earlier differences do not matter"
    ),
    S.UNNAMED: clause("The optimizer computes different updates from the same gradients"),
    S.UNNAMED_STATE: clause(
        "The optimizer keeps different state from the same gradients: {names}", {"names": ("exp_avg",)}
    ),
    S.UPDATE_SCALED: heading(
        lambda facts: (
            f"The optimizer's updates are {_span(facts['low'], facts['high'])} times the reference's"
            + (", by shape" if facts["by_shape"] else "")
        ),
        {"low": 2.0, "high": 2.0, "by_shape": False},
        {"low": 0.98, "high": 1.386, "by_shape": True},
    ),
    S.SHARE_KEPT: heading(
        "The optimizer keeps {target:.4g} (target), {reference:.4g} (reference) of the gradient as {state}",
        {"target": 0.1, "reference": 0.01, "state": "exp_avg"},
    ),
    S.UPDATE_FACTORS: clause(
        _factors,
        {"factors": ("2",), "nums": ("12",), "names": ("layers.0.q.weight",)},
        {"factors": ("0.98", "1.386"), "nums": ("1", "4"), "names": ("up.weight", "q.weight")},
    ),
    S.UPDATE_PULLED: heading(
        _pulled_updates,
        {"low": 1e-4, "high": 1e-4},
        {"low": -2e-4, "high": -1e-4},
        {"low": -2e-4, "high": 1e-4},
    ),
    S.COUNT_GIVEN: heading(
        "{call} is given {target} (target), {reference} (reference) in step {step}: a count, no gradient",
        {"call": "torch.distributed.all_reduce", "step": 1, "target": 34, "reference": 29},
    ),
    S.COUNT_CAUSE: clause(
        "other tokens are counted: another batch, or, after the update, that of the next step"
    ),
    S.CAPTURE_NEXT_STEP: clause(
        "look at the batch that is counted; capture step {next} too if it is that step's", {"next": 2}
    ),
    S.NO_UPDATE: clause(
        "no update was recorded in both runs: is the optimizer one that the framework does not provide?"
    ),
    S.UPDATE_IN_ONE: clause(
        "An update in step {step} was recorded in the {side} alone", {"side": "reference", "step": 0}
    ),
    S.UPDATE_LATER: clause(
        "No optimizer steps in step {step}; the first update is in step {next}", {"step": 0, "next": 1}
    ),
    S.OTHER_MODEL_EVALUATED: clause(
        "Only the target evaluates {target:list}; only the reference evaluates {reference:list}",
        {"target": ("the model that trains",), "reference": ("Average",)},
    ),
    S.MOVED_BETWEEN: clause(
        "Weights move by {target:.4g} (target), {reference:.4g} (reference) outside the optimizer "
        "before step {next}",
        {"target": 0.0598, "reference": 0.08, "step": 0, "next": 1},
    ),
    S.MOVED_TO_NAN: clause(
        "{num:count weight} of the {side} alone {num:verb are} NaN or infinite at the start of step {next}",
        {"side": "target", "num": 30, "next": 1},
        {"side": "reference", "num": 1, "next": 1},
    ),
    S.FINITE_GRADIENTS: clause(
        "their gradients of step {step} are finite: the update makes what is not",
        {"step": 0},
    ),
    S.DIVIDED_BY_ZERO: clause(
        "an update that divides by zero: a bias correction before the step is counted, a denominator without "
        "eps, a rate that is NaN"
    ),
    S.AVERAGE_CAUSE: clause(
        lambda facts: _AVERAGE_CAUSES[facts["key"]], *({"key": key} for key in _AVERAGE_CAUSES)
    ),
    S.MASTER_CAUSE: clause(
        lambda facts: _MASTER_CAUSES[facts["key"]], *({"key": key} for key in _MASTER_CAUSES)
    ),
    S.MOVED_TIMES: clause(
        "Weights move by {target:.4g} (target), {reference:.4g} (reference) times their gradient before "
        "step {next}",
        {"target": -0.0669, "reference": 0.0669, "step": 0, "next": 1},
    ),
    S.FROZEN_MOVED: clause(
        lambda facts: (
            f"{count(facts['num'], 'weight')} that no optimizer updates "
            f"{'changes' if facts['num'] == 1 else 'change'} after step {facts['step']} in the "
            f"{facts['side']} alone"
        ),
        {"num": 16, "step": 0, "side": "target"},
        {"num": 1, "step": 3, "side": "reference"},
    ),
    S.FROZEN_NAMED: clause(
        lambda facts: (
            f"of {count(facts['total'], 'weight')} without gradient or update in both runs, {facts['num']:,} "
            f"{'has' if facts['num'] == 1 else 'have'} other bits after step {facts['step']} in the "
            f"{facts['side']} alone: {listed(facts['parameters'])}"
            f"{' …' if len(facts['parameters']) < facts['num'] else ''}"
        ),
        {"num": 16, "total": 54, "step": 0, "side": "target", "parameters": ("a.weight", "b.weight")},
        {"num": 1, "total": 3, "step": 0, "side": "target", "parameters": ("a.weight",)},
    ),
    S.MOVED_ELSEWHERE: clause(
        "Weights move in another direction outside the optimizer before step {next}", {"step": 0, "next": 1}
    ),
    S.MOVED_ALONG: clause(
        "the {side} moves all weights by {factor:.4g} times their gradient, whose norm is {norm:.4g}: a "
        "length of {length:.4g}",
        {"side": "target", "factor": 0.05, "norm": 1.1965, "length": 0.0598},
    ),
    S.MOVED_OTHERWISE: clause(
        lambda facts: facts.fill(
            "the {side} moves its weights by a length of {length:.4g}"
            + (", along no multiple of their gradient" if facts.get("along_none") else "")
        ),
        {"side": "target", "length": 0.08, "along_none": True},
        {"side": "target", "length": 0.08, "along_none": False},
    ),
    S.MOVED_NOT: clause("the {side} leaves its weights as they are", {"side": "target"}),
    S.MOVED_BOTH: clause(
        "before, both runs move their weights alike, without an optimizer, by a length of {length:.4g}",
        {"length": 0.08},
    ),
    S.MOVE_KEPT: Phrase(
        sentence=lambda facts: (
            f"The {'target' if facts['factor'] > 0 else 'reference'} alone does not take back how "
            f"weights moved before step {facts['next']}"
        ),
        samples=({"factor": 1.0, "step": 0, "next": 1}, {"factor": -1.0, "step": 0, "next": 1}),
    ),
    S.MOVE_LEFT: Phrase(
        sentence="after the update, all weights differ from the reference's by {factor:.4g} times that move",
        headline="After the update all weights differ by {factor:.4g} times their move before it",
        samples=({"factor": 0.9995},),
    ),
    S.OWN_ADAM: clause(
        "in the {side} {num} of {total} weights move as in an Adam's first step, to rounding; both runs "
        "have the same gradients",
        {"side": "reference", "num": 38, "total": 40},
    ),
    S.OWN_RATE: heading(
        "Learning rate of the program's own Adam differs: {target:.6g} (target), {reference:.6g} (reference)",
        {"target": 0.002, "reference": 0.001},
    ),
    S.OWN_DECAY: heading(
        "Weight decay of the program's own Adam differs: {target:.6g} (target), {reference:.6g} (reference)",
        {"target": 0.0, "reference": 0.1},
    ),
    S.OWN_EPS: heading(
        "eps of the program's own Adam acts {factor:.4g} times as large as the reference's", {"factor": 4.472}
    ),
    S.OWN_STATE_ROUNDED: heading(
        "The {side}'s own Adam keeps its moments, or its update, in {dtype}",
        {"side": "target", "dtype": "bfloat16", "rel_diff": 0.004},
    ),
    S.OWN_STATE_COARSE: clause("moments, or the update itself, kept in {dtype}", {"dtype": "bfloat16"}),
    S.EPS_BEFORE_CORRECTION: clause(
        "eps added before the bias correction of the root in the {side}: 1 / sqrt(1 - beta2) of beta2 = "
        "{beta2}",
        {"side": "target", "beta2": 0.95},
    ),
    S.OTHER_EPS: clause("another eps"),
    S.SCALED_TO_OPTIMIZER: clause("gradients multiplied by another factor before the update"),
    S.OWN_STEP: clause(
        "what the program does to weights by itself, as between the passes of sharpness-aware minimisation"
    ),
    S.NOT_DISTINGUISHED: clause(
        "the updates differ; no setting of the optimizer could be measured in both runs, so gradients cannot "
        "be distinguished from the optimizer"
    ),
    S.GIVEN_CLEARS: clause(
        "With the reference's gradients the update agrees: the difference is caused earlier"
    ),
    S.BOTH_SAME: clause("The updates differ, but both optimizers apply the same rule: caused earlier"),
    S.OTHER_OPTIMIZER: clause("a different optimizer, or a different update rule"),
    S.COMPARE_OPTIMIZERS: clause("compare the optimizers of both sides line by line"),
    S.OTHER_GROUPS: clause(
        "parameter groups built by a different rule: biases and one-dimensional weights are often excluded"
    ),
    S.NO_BIAS_CORRECTION: clause("an optimizer without bias correction, or with it turned off"),
    S.COUPLED_DECAY: clause("Adam with L2 regularization instead of AdamW, or the reverse"),
    S.DEFAULT_EPS: clause("the default eps of a different framework"),
    S.NO_MASTER_WEIGHTS: clause("no float32 master weights"),
    S.ROUNDED_TO_NEAREST: clause(
        "small updates rounded to nearest in the weights' dtype, where the other run rounds at random or "
        "keeps float32 copies"
    ),
    S.STATE_NOT_RESTORED: clause("moments were not restored on resume"),
    S.AND_MORE: clause(_and_more, {**_ANY, "more": 1}, {**_ANY, "more": 3}),
    S.LONG_RUN_OPEN: clause(
        lambda facts: f"The captured steps agree; the long run is undecided: {_lower(facts.parts[0])}", _ANY
    ),
    S.LATE_DIFFERENCES: clause(
        "Every stage agrees; records of a later step reach {score:.3g} x tolerance", {"score": 1.5}
    ),
    S.CALLS_AGREE: clause(
        "Each call agrees within rounding; what it is given differs by rounding carried on"
    ),
    S.NO_STAGE: clause(lambda facts: f"{facts.parts[0]}. No stage could determine the cause", _ANY),
    S.LEARNING_RATE: clause(
        "Learning rate differs at step {step}: {target} (target), {reference} (reference)",
        {"step": 2, "target": "0.001", "reference": "0.0005"},
    ),
    S.RATE_EARLIER: clause("Learning rate schedule of the target is one step ahead of the reference"),
    S.RATE_LATER: clause("Learning rate schedule of the target is one step behind the reference"),
    S.MOVED_WITHOUT_UPDATE: clause(
        "neither run makes an update in step {step}, as where gradients overflow; only the {side}'s schedule "
        "moves on",
        {"step": 0, "side": "target"},
    ),
    S.STEPS_DIFFER: clause(
        "the learning rate differs in {num} of {total:count step}", {"num": 2, "total": 3}
    ),
    S.SCHEDULE_SETTINGS: clause(
        "the schedules have different formulas or settings (warmup, total steps, minimum)"
    ),
    S.SCHEDULER_PACE: clause(
        "Learning-rate scheduler advances by {target} a training step (target), {reference} (reference)",
        {"target": 2, "reference": 1},
    ),
    S.SCHEDULER_BEFORE: clause(
        "at the update of step {step} the learning-rate scheduler stands at {target} (target), {reference} "
        "(reference)",
        {"step": 0, "target": 1, "reference": 0},
    ),
    S.SCHEDULERS_ALIKE: clause(
        "the learning-rate schedulers of both sides stand at the same step: they compute other rates"
    ),
    S.SCHEDULER_PER_MICROBATCH: clause(
        "scheduler.step() is called for each of the {num:count microbatch} on one side", {"num": 2}
    ),
    S.SCHEDULER_PER_PROCESS: clause(
        "scheduler.step() is called as often as there are processes ({num}) on one side: Accelerate does so "
        "unless split_batches is set",
        {"num": 2},
    ),
    S.SCHEDULER_AHEAD: clause(
        "scheduler.step() is called before optimizer.step(), or once too often, or the step count is one too "
        "large"
    ),
    S.SCHEDULER_BEHIND: clause(
        "scheduler.step() is called once too seldom, or the step count is one too small"
    ),
    S.SCHEDULER_CAUSE: clause("scheduler.step() is called at a different place, or once too often"),
    S.COMPARE_SCHEDULERS: clause(
        "compare where both runs call scheduler.step(), and the settings of the schedulers"
    ),
    S.STEPS_AFTER: clause(
        lambda facts: facts.fill(
            ("Optimizer step after " if facts.get("recorded") is None else "A step is of ")
            + "{target:count microbatch} (target), {reference:count microbatch} (reference)"
        ),
        {"target": 1, "reference": 4},
        {"target": 1, "reference": 4, "recorded": False},
    ),
    S.CLEARED_NOT_REDUCED: clause(
        "The target clears the gradients of this step before any update takes them"
    ),
    S.CLEARED_BEFORE_UPDATE: clause(
        "Gradients are cleared after {target:count microbatch}, before the update; the reference sums "
        "{reference:count microbatch}",
        {"target": 1, "reference": 2},
    ),
    S.SUMMED_BEFORE_UPDATE: clause(
        "Gradients of {target:count microbatch} are summed; the reference clears them after "
        "{reference:count microbatch}",
        {"target": 2, "reference": 1},
    ),
    S.NOT_CLEARED_CAUSE: clause("zero_grad is missing between two backward passes of one update"),
    S.CLEAR_ALIKE: clause("clear the gradients in the same places as the reference"),
    S.CLEARED_CAUSE: clause("the gradients are cleared at the wrong place of the accumulation loop"),
    S.STEP_EACH_CAUSE: clause("the optimizer steps after every microbatch"),
    S.ACCUMULATION_CAUSE: clause("a different number of microbatches to accumulate"),
    S.STEP_ONCE: clause("step the optimizer, and clear the gradients, once after all microbatches of a step"),
    S.MOMENT_RESIDUAL: clause(
        "{share:.2g} of the first moment of step {step} is not derived from step {before}",
        {"share": 0.3, "step": 1, "before": 0},
    ),
    S.STATE_ROUNDED: clause("Optimizer state is rounded to a coarser dtype between two steps"),
    S.STATE_CHANGED: clause("Optimizer state changes between two steps"),
    S.NUM_PARAMETERS: clause("{num} of {total:count parameter}", {"num": 3, "total": 12}),
    S.REFERENCE_MOMENTS: clause(
        "in the reference, the moments of each step follow from those of the previous step"
    ),
    S.CHECK_STATE: clause("check which code changes the optimizer state between two steps"),
    S.REQUIRES_GRAD: clause(
        "requires_grad differs for {parameters}: {target} (target), {reference} (reference)",
        {"parameters": "the 3 norm weights", "target": "False", "reference": "True"},
    ),
    S.SET_REQUIRES_GRAD: clause("set requires_grad to the same value in both runs"),
    S.NOT_COPIED_BACK: clause(
        _not_copied_back,
        {"parameters": "the 3 matrices", "ranks": ()},
        {"parameters": "layers.0.weight", "ranks": ("1",)},
        {"parameters": "layers.0.weight", "ranks": ("1", "3")},
    ),
    S.STALE_ELEMENTS: clause(
        "{parameter}: {share:.0%} of the elements still have their values of step {step}",
        {"parameter": "layers.0.weight", "share": 0.98, "step": 0},
    ),
    S.COPY_BEFORE_UPDATE: clause("the working copy is made before the update"),
    S.PARTS_NOT_GATHERED: clause("updated shards are not gathered from the other ranks"),
    S.NUM_WEIGHTS: clause("{num:count weight} on {ranks:count rank}", {"num": 3, "ranks": 2}),
    S.SAME_UPDATES: clause("the optimizers of both runs computed the same update from their gradients"),
    S.COPY_UPDATED: clause("copy or gather the updated weights before the next forward pass"),
    S.STAGE_AGREES: clause(_stage_agrees, {**_ANY, "stage": "data"}, {**_ANY, "stage": "resume"}),
    S.BY_REPLAY: clause(
        "Judged by replay: the target ran with the reference's values as inputs of every matched call"
    ),
    S.BY_TRACES: clause(
        "Judged from the two traces alone: a place that is named is not certain; --replay COMMAND confirms it"
    ),
    S.REPLAY_TO_BE_CERTAIN: Phrase(
        sentence="to confirm: the replay uses the reference's values as inputs, so that each place is judged "
        "separately",
        command="{command}",
        samples=({"command": "trueup diagnose A B --replay 'python train.py' -o OUT"},),
    ),
    S.VALUES_FOR_REPLAY: Phrase(
        sentence="no replay was made: the reference's trace holds statistics but no values. Capture it again "
        "with values, then diagnose again",
        command="{command}",
        samples=({"command": "trueup capture --preset diagnose -o REFERENCE -- python train.py"},),
    ),
    S.LAYOUTS_DIFFER: clause("The two runs have different parallel layouts: no replay was made or read"),
    S.ROWS_DIFFER_IN_PLACE: clause(
        "The two runs lay out the rows of a batch otherwise: no replay was made or read"
    ),
    S.SHAPES_DIFFER: clause("The model is given inputs of other shapes: no replay was made or read"),
    S.REPLAY_FAILED: clause("The target could not be replayed: {error}", {"error": "no step was captured"}),
    S.GRADIENTS_FAILED: clause(
        "The optimizer could not be checked separately: {error}", {"error": "no step was captured"}
    ),
    S.EXIT_STATUS: clause(
        "The program ended with exit status {status} in its {run}", {"status": 1, "run": "replay"}
    ),
    S.NO_STEP_LEFT: clause(
        "The {run} recorded no step (exit status {status}); its stages use the traces alone",
        {"status": 1, "run": "replay"},
    ),
}
