"""English of the stages of a diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trueup.types.codes import StagesCode as S
from trueup.types.reason import reason
from trueup.wording.criterion import FIRST_LOSS
from trueup.wording.kinds import kind_name
from trueup.wording.phrase import Phrase, Told, count, listed

_EFFECTS = {
    "forward": "forward output differs",
    "loss": "loss differs",
    "backward": "gradients differ",
    "reduction": "gradients differ after reduction",
    "optimizer": "update differs",
    "weights": "initial weights differ",
    "data": "input data differs",
}
_PHASES = {
    "forward": "forward output",
    "loss": "loss",
    "backward": "gradients",
    "reduction": "reduced gradients",
    "optimizer": "update",
    "weights": "initial weights",
    "data": "input",
}


def _module(told: Told) -> str:
    return told["module"] or "the root module"


def _of_kind(told: Told) -> str:
    kind = kind_name(told["kind"])
    kind = kind[:1].upper() + kind[1:]
    if told["stage"] == "loss":
        return f"{kind} in the loss"
    return f"{kind} in the {_PHASES.get(told['stage'], 'output')} of {_module(told)}"


def _origin(told: Told) -> str:
    if told["stage"] == "loss":
        return "The loss is computed differently"
    effect = _EFFECTS.get(told["stage"], "result differs")
    return f"{effect[:1].upper()}{effect[1:]} in {_module(told)}"


def _setting(told: Told) -> str:
    where = _module(told)
    what = f"{told.get('type')} {told['name']}" if told.get("type") else told["name"]
    return f"{what} differs in {where}: {told['target']} (target), {told['reference']} (reference)"


def _counts(told: Told) -> str:
    names = (
        ("equal", "bit-identical"),
        ("within", "within rounding"),
        ("beyond", "exceeding tolerance"),
        ("unmatched", "without a counterpart"),
        ("undecided", "undecided"),
    )
    shown = [f"{told[name]:,} {words}" for name, words in names if told.get(name)]
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


def _follows(told: Told) -> str:
    return f"Differs as a consequence of {_STAGES.get(told['stage'], told['stage'])}"


def _loss_values(told: Told) -> str:
    gap = told.get("rel_diff")
    relative = (
        "" if gap is None or told["target"] == told["reference"] else f", relative difference {gap:.2g}"
    )
    return f"loss {told['target']:.8g} (target), {told['reference']:.8g} (reference){relative}"


def _next_loss(told: Told) -> str:
    return (
        f"with the reference's gradients, the next loss is {told['given']:.8g}; without, "
        f"{told['target']:.8g} (target), {told['reference']:.8g} (reference)"
    )


_LOSSES = {"given": 2.5, "target": 2.6, "reference": 2.5}


def _local_norm(told: Told) -> str:
    how = "element by element" if told["elementwise"] else "in norm"
    rank = f", the largest difference among {told['among']} weights" if told.get("among") else ""
    return (
        f"the first step's gradient of {told['parameter']} differs by {told['gap']:.2g} {how}{rank} "
        f"(local norm {told['target']:.6g} (target), {told['reference']:.6g} (reference))"
    )


def _row(told: Told) -> str:
    sides = [f"{told[side]}{_where(told, side)} ({side})" for side in ("target", "reference")]
    return f"{told['key']}: {sides[0]}, {sides[1]}"


def _where(told: Told, side: str) -> str:
    return f" [{told[f'{side}_place']}]" if told.get(f"{side}_place") else ""


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
    "order": "The batch holds the same rows in a different order",
    "shift": "The token ids are shifted relative to the reference",
    "padding": "The batch is padded differently",
    "packing": "The tokens are packed into rows differently",
    "shape": "The batch has a different shape",
    "mapped_ids": "Single token ids differ everywhere: different tokenizer or special tokens",
    "some_rows": "Some rows of the batch differ",
    "other": "The runs train on different batches",
    "elsewhere": "Different batches: the target's rows appear elsewhere in the reference",
}

_WAYS = {
    "own": "over microbatches",
    "ranks": "over microbatches and ranks",
    "last": "only the last microbatch",
}


def _alike(told: Told) -> str:
    what = "accumulated" if told["part"] == "accumulated" else "reduced after backward"
    ways = ", ".join(
        f"{number} {_WAYS.get(way, way)}" for way, number in zip(told["ways"], told["numbers"], strict=True)
    )
    return f"step {told['step']}: both runs have gradients {what} in the same way ({ways})"


def _sums(told: Told) -> str:
    return f"{told['parameter']}: {_sum(told, 'target')} (target), {_sum(told, 'reference')} (reference)"


def _sum(told: Told, side: str) -> str:
    over, way, factor = told[f"{side}_over"], told[f"{side}_way"], told[f"{side}_factor"]
    along = "" if not over or tuple(over) == ("world",) else f" along {' and '.join(over)}"
    words = {
        "own": "the sum of this rank's local gradients",
        "ranks": f"the sum over all ranks{along}",
        "last": "only the last microbatch's gradient",
        "carried": "the local gradients plus those left by the previous step",
        "none": "no accumulated gradient",
    }.get(str(way), str(way))
    times = "" if abs(factor - 1) < 1e-6 or way == "none" else f" times {factor:.6g}"
    residual = told[f"{side}_residual"]
    return words + times + (f" ({residual:.2g} of it unexplained)" if residual > 1e-4 else "")


_SUMS = {
    "parameter": "layers.0.weight",
    "target_over": (),
    "target_way": "own",
    "target_factor": 0.5,
    "target_residual": 0.0,
    "reference_over": ("dp",),
    "reference_way": "ranks",
    "reference_factor": 1.0,
    "reference_residual": 0.01,
}


def _not_reduced(told: Told) -> str:
    axes = tuple(told["axes"])
    over = "ranks" if axes == ("world",) else f"the ranks along {' and '.join(axes)}"
    return f"Missing all-reduce: gradients of {told['parameters']} are not summed over {over}"


_SETTINGS = {
    "lr": "learning rate",
    "weight_decay": "weight decay",
    "bias_correction": "bias correction",
    "decoupled": "decoupled weight decay",
    "class": "optimizer",
    "dtype": "dtype of the weights",
    "state": "dtype of the optimizer state",
    "moved": "update",
    "count": "step count",
}


def setting_name(key: str) -> str:
    """A setting of an optimizer as documentation spells it."""
    return _SETTINGS.get(key, key.replace("_", " "))


_MOVED = {"not_held": "in no optimizer", "stepped": "updated by an optimizer"}


def _two_sides(told: Told) -> str:
    target, reference = (_MOVED.get(told[side], told[side]) for side in ("target", "reference"))
    return f"{target} (target), {reference} (reference)"


def _optimizer_setting(told: Told) -> str:
    name = setting_name(told["key"])
    where = "" if told["key"] in ("dtype", "state") else f" for {told['parameters']}"
    return (
        f"{name[:1].upper()}{name[1:]} differs{where}: {told['target']} (target), "
        f"{told['reference']} (reference)"
    )


def _values(told: Told) -> str:
    name = setting_name(told["key"])
    return f"{name} of {told['parameters']}: {_two_sides(told)}"


_OPTIMIZER = {
    "key": "eps",
    "parameters": "the 3 norm weights",
    "target": "1e-06",
    "reference": "1e-08",
}


def _measured(told: Told) -> str:
    keys, values = told["keys"], told["values"]
    shown = ", ".join(f"{setting_name(k)} {v}" for k, v in zip(keys, values, strict=True))
    return f"measured in the target from the update of {told['parameter']}: {shown}"


def _given_same(told: Told) -> str:
    within = told["within"]
    how = f"{told['equal']} bit-identical, {within} within rounding" if within else "bit-identical"
    weights = count(told["total"], "updated weight")
    return f"with the reference's gradients, {weights} agree with the reference: {how}"


def _and_more(told: Told) -> str:
    return f"{told.parts[0]} ({count(told['more'], 'more finding')})"


def _stage_agrees(told: Told) -> str:
    return f"{told['stage']}: {_lower(told.parts[0])}"


def _plain(sentence: str, *samples: Mapping[str, object], advice: str | None = None) -> Phrase:
    return Phrase(sentence=sentence, samples=samples or ({},), advice=advice)


def _made(sentence: Callable[[Told], str], *samples: Mapping[str, object]) -> Phrase:
    return Phrase(sentence=sentence, samples=samples or ({},))


_ANY = {"parts": (reason(S.WITHIN_ROUNDING),)}
_PLACE: dict[str, object] = {"module": "layers.1.mlp", "stage": "forward"}


def _not_handed_back(told: Told) -> str:
    ranks = told["ranks"]
    updates = f"Updates of rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}" if ranks else "Updates"
    return f"{updates} missing from the model's weights: {told['parameters']}"


PHRASES = {
    S.EQUAL: _plain("Bit-identical"),
    S.WITHIN_ROUNDING: _plain("Agrees within rounding"),
    S.NOTHING_RECORDED: _made(
        lambda told: f"no {told['what']} was recorded in both runs", {"what": "gradient"}, {"what": "record"}
    ),
    S.FOLLOWS: _made(_follows, {"stage": "data"}, {"stage": "weights"}),
    S.EXPLAINED: _made(lambda told: f"Differs: {told.parts[0]}", {"parts": (reason(S.BATCH_DIFFERS),)}),
    S.NO_PLACE: _plain(
        "{num:count record} exceed tolerance, the first at {site}; where the difference starts was not found",
        {"num": 2, "site": "layers.0 · output"},
    ),
    S.ONE_STEP: _plain("only one step was captured in both runs"),
    S.NEXT_LOSS_ALONE: _plain(
        "Differs although no fault was found in the first step: check its backward pass again, with the "
        "values of every gradient"
    ),
    S.GIVEN_LOSS: _made(_next_loss, _LOSSES),
    S.UPDATE_RIGHT: _made(
        lambda told: f"{_next_loss(told)}: the update is correct, the target's own gradients are not", _LOSSES
    ),
    S.NO_CURVES: _plain("No curves were given: --curves TARGET_LOG REFERENCE_LOG [REPEAT ...]"),
    S.MAY_FOLLOW: _made(
        lambda told: f"{told.parts[0]}; may be a consequence of {_STAGES.get(told['stage'], told['stage'])}",
        {**_ANY, "stage": "forward"},
    ),
    S.CRITERION: _plain(
        "{parts[0]}: {parts[1]} (expected {parts[2]}), {status}",
        {"criterion": "first_loss", "status": "not met", "parts": FIRST_LOSS},
    ),
    S.SEE_CURVES: Phrase(
        sentence=lambda told: "; then ".join(["to see the curves", *told["also"]]),
        command=lambda told: (
            f"trueup curves {told['target']} --reference {' '.join(told['references'])} -o OUT"
        ),
        samples=(
            {"target": "a.log", "references": ("b.log",), "also": ()},
            {"target": "a.log", "references": ("b.log", "c.log"), "also": ("trueup capture -o target",)},
        ),
    ),
    S.COUNTS: _made(_counts, {"equal": 12, "within": 3, "beyond": 1, "unmatched": 2, "undecided": 1}, {}),
    S.SETTING_DIFFERS: _made(
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
    S.OF_KIND: _made(
        _of_kind,
        {**_PLACE, "kind": "wrong_scale"},
        {**_PLACE, "stage": "loss", "kind": "missing_or_extra_term"},
        {**_PLACE, "stage": "backward", "module": "", "kind": "frozen_or_missing_gradient"},
    ),
    S.ORIGIN: _made(
        _origin, _PLACE, {**_PLACE, "stage": "loss"}, {**_PLACE, "stage": "backward", "module": ""}
    ),
    S.COLLECTIVE_MISSING: _plain(
        "the reference calls {collective} over ranks {ranks} in this module, the target does not",
        {"collective": "all_reduce", "ranks": ("0", "1")},
    ),
    S.LOCAL_NORM: _made(
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
    S.ALSO_AT: _plain("also at {site} ({phase})", {"site": "a · output.0", "phase": "backward"}),
    S.ALIGN_SETTING: _made(
        lambda told: f"set {told['name']} of {_module(told)} to the reference's value and run again",
        {"module": "layers.1.norm", "name": "eps"},
    ),
    S.COMPARE_CODE: _plain("compare the code of both sides at this place"),
    S.ALSO_PASSIVE: _plain("the traces alone, without replay, name the same module"),
    S.WEIGHTS_DIFFER_FROM: _plain("the weights differ from step {step} on", {"step": 1}),
    S.WEIGHT_DIFFERS: _plain("{parameter} differs at the start", {"parameter": "a.weight"}),
    S.LOSS_SCALE_DIFFERS: _plain("the loss scale differs"),
    S.BATCH_DIFFERS: _plain("the batch differs"),
    S.LOSS_VALUES: _made(
        _loss_values,
        {"target": 2.5, "reference": 2.4, "rel_diff": 0.04},
        {"target": 2.5, "reference": 2.5, "rel_diff": 0.0},
    ),
    S.NORMS_EQUAL: _plain("the local norms of all {num:count weight} are equal", {"num": 12}),
    S.NORMS_DIFFER: _made(
        lambda told: (
            f"local norms: {told['equal']} of {told['num']} equal; largest difference at "
            f"{told['parameter']}: {told['target']:.6g} (target), {told['reference']:.6g} (reference), "
            f"{told['rel_diff']:.2g} relative"
        ),
        {"equal": 3, "num": 12, "parameter": "a.w", "target": 1.0, "reference": 2.0, "rel_diff": 0.5},
    ),
    S.NO_CONFIGURATION: _plain(
        "Neither run recorded its configuration; --config TARGET REFERENCE gives the files"
    ),
    S.CONFIG_ALIGNED: _plain(
        "No setting differs that changes the training ({num:count setting} compared)", {"num": 9}
    ),
    S.CONFIG_DIFFERS: _plain(
        "{key} differs: {target} (target), {reference} (reference)",
        {"key": "clip_grad", "target": "0.25", "reference": "1.0"},
    ),
    S.CONFIGS_DIFFER: _plain(
        "{num:count setting} differ that change the training: {keys}",
        {"num": 2, "keys": ("clip_grad", "seed")},
    ),
    S.CONFIG_ROW: _made(_row, _ROW, {**_ROW, "target_place": ""}),
    S.MAY_CHANGE_ROUNDING: _plain("may change rounding: {parts:join ; }", _A_ROW),
    S.ACTS_HERE: _plain("the configurations differ in a setting that acts here: {parts:join ; }", _A_ROW),
    S.WITHOUT_EFFECT: _plain("without effect in the captured steps: {parts:join ; }", _A_ROW),
    S.ALL_WITHOUT_EFFECT: _made(
        lambda told: (
            f"{listed(told['keys'])} {'differs' if len(told['keys']) == 1 else 'differ'} in the "
            "configuration, without effect in the captured steps"
        ),
        {"keys": ("clip_grad",)},
        {"keys": ("clip_grad", "seed")},
    ),
    S.STEPS_AGREE_BUT: _made(
        lambda told: f"The captured steps agree, but {_lower(told.parts[0])}",
        {"parts": (reason(S.CONFIG_DIFFERS, key="clip_grad", target="0.25", reference="1.0"),)},
    ),
    S.RULE_WHY: _plain("{why}", {"why": "clipping at another norm changes every update", "key": "clip_grad"}),
    S.RULE_ADVICE: _plain("{advice}", {"advice": "use 1.0 on both sides", "key": "clip_grad"}),
    S.CHECK_CONFIGS: Phrase(
        sentence="to see every setting",
        command="trueup check {target} {reference}",
        samples=({"target": "a.yaml", "reference": "b.yaml"},),
    ),
    S.ALIGN_SETTINGS: _plain("set them to the same values on both sides, and capture again"),
    S.SAME_STREAM: _plain(
        "the same microbatches in the same order, {target:count microbatch} a step (target), "
        "{reference} (reference)",
        {"target": 2, "reference": 4},
    ),
    S.SAME_SHARD: _plain("Every rank reads the same shard of the data"),
    S.SAME_ROWS: _plain(
        "in the target several ranks read the same rows; in the reference each reads different ones"
    ),
    S.SAMPLER_CAUSE: _plain("the sampler does not use the rank: every rank reads the same shard"),
    S.GIVE_RANK: _plain("give the sampler its rank and the number of ranks"),
    S.NO_BATCH: _plain("neither run recorded a batch of integers, nor a digest of one"),
    S.SAME_BATCHES: _plain("Both runs have the same batches"),
    S.SAME_IDS: _plain(
        "step {step}, rank {rank}: {ids:count id} in {inputs:count input} are the same, row by row",
        {"step": 0, "rank": 0, "ids": 4096, "inputs": 1},
    ),
    S.SAME_DIGESTS: _plain(
        "step {step}, rank {rank}: the digests of the batches are equal", {"step": 0, "rank": 0}
    ),
    S.ELSEWHERE: _plain(
        "{num} of {rows:count row} are rows of the reference's {place}",
        {"num": 2, "rows": 8, "place": "step 1, rank 0, microbatch 0"},
    ),
    S.BATCH: _made(lambda told: _BATCHES[told["relation"]], {"relation": "order"}, {"relation": "elsewhere"}),
    S.DIGESTS: _plain(
        "digest {target} (target), {reference} (reference); the ids themselves were not stored",
        {"target": "0a1b", "reference": "ffee"},
    ),
    S.OUT_OF_VOCABULARY: _plain("Token ids lie outside the vocabulary"),
    S.OUT_OF_RANGE: _plain(
        "{num:count id} outside 0 to {size}, the first {value} in row {row}, position {column}",
        {"num": 3, "size": 100, "value": 101, "row": 0, "column": 7},
    ),
    S.SAME_BATCH_FIRST: _plain(
        "use the same batch in both runs first: every later difference may follow from this one"
    ),
    S.CAPTURE_IDS: _plain("capture both runs with --preset diagnose to see which rows differ"),
    S.COMPARE_VOCABULARY: _plain("compare the tokenizer's vocabulary with the size of the embedding"),
    S.SUMMED_ALIKE: _made(_alike, {"step": 0, "part": "accumulated", "ways": ("own",), "numbers": ("12",)}),
    S.SUMMED: _made(_sums, _SUMS, {**_SUMS, "target_way": "none", "target_factor": 1.0}),
    S.NUM_GRADIENTS: _plain("{num} of {total:count gradient}", {"num": 2, "total": 12}),
    S.FROM_OWN_GRADIENTS: _plain(
        "measured from each run's own gradients before and after: earlier differences do not matter"
    ),
    S.CARRIED: _plain(
        "Gradients of {parameters} still hold the previous step's", {"parameters": "all 12 parameters"}
    ),
    S.NEVER_REACH: _plain("Gradients of {parameters} never reach the optimizer", {"parameters": "a.weight"}),
    S.NOT_REDUCED: _made(
        _not_reduced,
        {"parameters": "a.weight", "axes": ("world",)},
        {"parameters": "a.weight", "axes": ("dp",)},
    ),
    S.LAST_ONLY: _plain(
        "Gradients of {parameters} hold only the last microbatch", {"parameters": "a.weight"}
    ),
    S.ROUNDED: _plain(
        "Gradients of {parameters} are rounded to a coarser dtype before the optimizer",
        {"parameters": "a.weight"},
    ),
    S.SCALED: _plain(
        "Gradients of {parameters} are scaled by {factor:.4g}", {"parameters": "a.weight", "factor": 0.5}
    ),
    S.CHANGED: _plain("Gradients of {parameters} are changed after backward", {"parameters": "a.weight"}),
    S.BOTH_ALIKE: _plain(
        "The gradients differ, but both runs reduce and clip them the same way: caused earlier"
    ),
    S.SETTING: _made(_optimizer_setting, _OPTIMIZER, {**_OPTIMIZER, "key": "dtype"}),
    S.COUNT: _plain(
        "Optimizer step count differs: {target} (target), {reference} (reference); state lost or not reset",
        {"target": "1", "reference": "5"},
    ),
    S.UPDATE_LOST: _made(
        lambda told: f"Update of {told['parameters']} differs: {_two_sides(told)}",
        {"parameters": "a.weight", "target": "unchanged", "reference": "changed"},
    ),
    S.MOVED: _made(
        lambda told: f"{told['parameters']}: {_two_sides(told)}",
        {"parameters": "a.weight", "target": "not_held", "reference": "stepped"},
    ),
    S.DECAY_TARGET: _plain(
        "Weight decay applies to {parameters} only in the target ({target})",
        {"parameters": "the 3 norm weights", "target": "0.1", "reference": "0"},
    ),
    S.DECAY_REFERENCE: _plain(
        "Weight decay applies to {parameters} only in the reference ({reference})",
        {"parameters": "the 3 norm weights", "target": "0", "reference": "0.1"},
    ),
    S.SIDES: _made(_values, _OPTIMIZER),
    S.DECLARED: _plain("the programs' own parameter groups have these values"),
    S.MEASURED_PAIR: _plain(
        "measured from the update of {parameter}: {target:.4g} (target), {reference:.4g} (reference)",
        {"parameter": "a.weight", "target": 1e-6, "reference": 1e-8},
    ),
    S.MEASURED: _made(
        _measured, {"parameter": "a.weight", "keys": ("lr", "eps"), "values": ("0.001", "1e-08")}
    ),
    S.PARAMETERS: _plain("parameters: {names}", {"names": ("a", "b", "c")}),
    S.GIVEN_SAME: _made(
        _given_same, {"total": 12, "equal": 12, "within": 0}, {"total": 12, "equal": 10, "within": 2}
    ),
    S.GIVEN_DIFFER: _plain(
        "with the reference's gradients, {num} of {total:count updated weight} still differ ({names})",
        {"num": 2, "total": 12, "names": ("a", "b")},
    ),
    S.GIVEN_COUNTER: _plain(
        "the reference's gradients were supplied: differences before the optimizer do not matter"
    ),
    S.MEASURED_COUNTER: _plain(
        "measured from each run's own gradients, weights and moments: earlier differences do not matter"
    ),
    S.UNNAMED: _plain("The optimizer computes different updates from the same gradients"),
    S.NO_UPDATE: _plain(
        "no update was recorded in both runs: is the optimizer one that the framework does not provide?"
    ),
    S.NOT_TOLD: _plain(
        "the updates differ; without stored weights and moments, gradients and optimizer cannot be told apart"
    ),
    S.GIVEN_CLEARS: _plain(
        "With the reference's gradients the update agrees: the difference is caused earlier"
    ),
    S.BOTH_SAME: _plain("The updates differ, but both optimizers apply the same rule: caused earlier"),
    S.OTHER_OPTIMIZER: _plain("a different optimizer, or a different update rule"),
    S.COMPARE_OPTIMIZERS: _plain("compare the optimizers of both sides line by line"),
    S.OTHER_GROUPS: _plain(
        "parameter groups built by a different rule: biases and one-dimensional weights are often excluded"
    ),
    S.NO_BIAS_CORRECTION: _plain("an optimizer without bias correction, or with it turned off"),
    S.COUPLED_DECAY: _plain("Adam with L2 regularization instead of AdamW, or the reverse"),
    S.DEFAULT_EPS: _plain("the default eps of a different framework"),
    S.NO_MASTER_WEIGHTS: _plain("no float32 master weights"),
    S.STATE_NOT_RESTORED: _plain("moments were not restored on resume"),
    S.AND_MORE: _made(_and_more, {**_ANY, "more": 1}, {**_ANY, "more": 3}),
    S.LONG_RUN_OPEN: _made(
        lambda told: f"The captured steps agree; the long run is undecided: {_lower(told.parts[0])}", _ANY
    ),
    S.LATE_DIFFERENCES: _plain(
        "Every stage agrees; records of a later step reach {score:.3g} x tolerance", {"score": 1.5}
    ),
    S.NO_STAGE: _made(lambda told: f"{told.parts[0]}. No stage could determine the cause", _ANY),
    S.LEARNING_RATE: _plain(
        "Learning rate differs at step {step}: {target} (target), {reference} (reference)",
        {"step": 2, "target": "0.001", "reference": "0.0005"},
    ),
    S.RATE_EARLIER: _plain("Learning rate schedule of the target is one step ahead of the reference"),
    S.RATE_LATER: _plain("Learning rate schedule of the target is one step behind the reference"),
    S.STEPS_DIFFER: _plain(
        "the learning rate differs in {num} of {total:count step}", {"num": 2, "total": 3}
    ),
    S.SCHEDULER_CAUSE: _plain("scheduler.step() is called at a different place, or once too often"),
    S.COMPARE_SCHEDULERS: _plain(
        "compare where both runs call scheduler.step(), and the settings of the schedulers"
    ),
    S.STEPS_AFTER: _plain(
        "Optimizer step after {target:count microbatch} (target), {reference:count microbatch} (reference)",
        {"target": 1, "reference": 4},
    ),
    S.STEP_EACH_CAUSE: _plain("the optimizer steps after every microbatch"),
    S.ACCUMULATION_CAUSE: _plain("a different number of microbatches to accumulate"),
    S.STEP_ONCE: _plain("step the optimizer, and clear the gradients, once after all microbatches of a step"),
    S.MOMENT_RESIDUAL: _plain(
        "{share:.2g} of the first moment of step {step} is not derived from step {before}",
        {"share": 0.3, "step": 1, "before": 0},
    ),
    S.STATE_ROUNDED: _plain("Optimizer state is rounded to a coarser dtype between two steps"),
    S.STATE_CHANGED: _plain("Optimizer state changes between two steps"),
    S.NUM_PARAMETERS: _plain("{num} of {total:count parameter}", {"num": 3, "total": 12}),
    S.REFERENCE_MOMENTS: _plain(
        "in the reference, the moments of each step follow from those of the previous step"
    ),
    S.CHECK_STATE: _plain("check which code changes the optimizer state between two steps"),
    S.REQUIRES_GRAD: _plain(
        "requires_grad differs for {parameters}: {target} (target), {reference} (reference)",
        {"parameters": "the 3 norm weights", "target": "False", "reference": "True"},
    ),
    S.SET_REQUIRES_GRAD: _plain("set requires_grad to the same value in both runs"),
    S.NOT_HANDED_BACK: _made(
        _not_handed_back,
        {"parameters": "the 3 matrices", "ranks": ()},
        {"parameters": "layers.0.weight", "ranks": ("1",)},
        {"parameters": "layers.0.weight", "ranks": ("1", "3")},
    ),
    S.STALE_ELEMENTS: _plain(
        "{parameter}: {share:.0%} of the elements still have their values of step {step}",
        {"parameter": "layers.0.weight", "share": 0.98, "step": 0},
    ),
    S.COPY_BEFORE_UPDATE: _plain("the working copy is made before the update"),
    S.PARTS_NOT_GATHERED: _plain("updated shards are not gathered from the other ranks"),
    S.NUM_WEIGHTS: _plain("{num:count weight} on {ranks:count rank}", {"num": 3, "ranks": 2}),
    S.SAME_UPDATES: _plain("the optimizers of both runs computed the same update from their gradients"),
    S.COPY_UPDATED: _plain("copy or gather the updated weights before the next forward pass"),
    S.STAGE_AGREES: _made(_stage_agrees, {**_ANY, "stage": "Data"}),
    S.BY_REPLAY: _plain(
        "Places were found by replay: the target ran with the reference's values as inputs of every "
        "matched call"
    ),
    S.BY_TRACES: _plain(
        "Places were found from the two traces alone, which is never certain; --replay COMMAND confirms them"
    ),
    S.REPLAY_TO_BE_CERTAIN: Phrase(
        sentence="to confirm: the replay uses the reference's values as inputs, so that each place is judged "
        "separately",
        command="{command}",
        samples=({"command": "trueup diagnose A B --replay 'python train.py' -o OUT"},),
    ),
    S.LAYOUTS_DIFFER: _plain("The two runs have different parallel layouts: no replay was made or read"),
    S.REPLAY_FAILED: _plain("The target could not be replayed: {error}", {"error": "no step was captured"}),
    S.GRADIENTS_FAILED: _plain(
        "The optimizer could not be checked separately: {error}", {"error": "no step was captured"}
    ),
    S.EXIT_STATUS: _plain(
        "The program ended with exit status {status} in its {run}", {"status": 1, "run": "replay"}
    ),
    S.NO_STEP_LEFT: _plain(
        "The {run} recorded no step (exit status {status}); its stages use the traces alone",
        {"status": 1, "run": "replay"},
    ),
}
