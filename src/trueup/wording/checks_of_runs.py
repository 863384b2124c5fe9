"""English of the checks of one run that compare: labels, a second run, random streams, ranks."""

from __future__ import annotations

import math

from trueup.types.codes import CheckCode as C
from trueup.types.reason import reason
from trueup.wording.phrase import Phrase, ReasonFacts, clause, count, share


def _fit(facts: ReasonFacts) -> str:
    loss, step, num, total = (facts.get(name) for name in ("first_loss", "step", "num", "total"))
    known = "unknown" if loss is None else f"{loss:.4g}"
    which = "first loss" if step == 0 else f"loss of step {step}"
    expected = f", ln({facts['vocabulary']}) = {facts['expected']:.3g}" if facts.get("expected") else ""
    batches = "" if num == total else f" in {num:,} of {count(total, 'microbatch')}"
    ranged = ", ids are in range" if facts["is_in_range"] else ""
    most = "up to " if total > 1 and facts["ignored"] else ""
    return (
        f"labels are the inputs shifted once{batches}{ranged}, {most}{share(facts['ignored'])} of labels "
        f"ignored, {which} {known}{expected}"
    )


_SHIFTS = {
    0: "not shifted: the model predicts the token it is given",
    -1: "shifted the wrong way: the model predicts the preceding token",
}


def _wrong_shift(facts: ReasonFacts) -> str:
    shift = facts["shift"]
    how = _SHIFTS.get(shift, f"shifted {shift} times: the model predicts the token {shift} places ahead")
    return f"labels are {how} ({share(facts['share'], 1)} of {count(facts['num'], 'position')})"


def _same_mask(facts: ReasonFacts) -> str:
    site, other = facts["site"], facts["other"]
    both = f"{site} has" if site == other else f"{site} and {other} have"
    rank = f" (rank {facts['rank']})"
    if facts["step"] != facts["other_step"]:
        return f"{both} the same mask in steps {facts['step']} and {facts['other_step']}{rank}"
    if facts["microbatch"] != facts["other_microbatch"]:
        batches = f"{facts['microbatch']} and {facts['other_microbatch']}"
        return f"{both} the same mask in microbatches {batches}{rank}"
    return f"{both} the same mask in step {facts['step']}{rank}"


_TENSORS = {
    "value": "weights at the start of the step",
    "accumulated": "gradients after backward",
    "clipped": "gradients given to the optimizer",
    "param": "weights after the update",
}
_FIT: dict[str, object] = {"ignored": 0.0, "step": 0, "num": 4, "total": 4, "is_in_range": False}
_MASK: dict[str, object] = {
    "site": "a · dropout",
    "other": "b · dropout",
    "step": 0,
    "other_step": 0,
    "microbatch": 0,
    "other_microbatch": 0,
    "rank": 0,
}
_BATCH: dict[str, object] = {"step": 0, "rank": 0, "microbatch": 0}
_REGION: dict[str, object] = {"region": "0/0", "function": "forward (model.py:81)", "files": ["/tmp/c.py"]}
_TENSOR: dict[str, object] = {
    **_REGION,
    "operation": "gelu",
    "phase": "forward",
    "tensor": "gradient h.1.mlp.c_fc.bias",
    "rel_l2": 3.7e-5,
    "times": 15.4,
    "num": 12,
    "total": 30,
}


def _region_tensor(facts: ReasonFacts) -> str:
    what = facts.fill(
        "region {region}, {function}: {tensor} differs from the uncompiled one by {by}, {times:times} what "
        "rounding explains; {num} of its {total:count tensor} {num:verb differ} by more than that",
        by="{:.2g} (relative)".format(facts["rel_l2"])
        if math.isfinite(facts["rel_l2"])
        else "all of its size",
    )
    operation = facts.get("operation")
    first = "" if operation is None else f"first operation to differ, {facts['phase']}: {operation}; "
    return f"{first}{what}{_generated(facts)}"


def _generated(facts: ReasonFacts) -> str:
    return f"; generated source: {', '.join(facts['files'])}" if facts["files"] else ""


def _region_differs(facts: ReasonFacts) -> str:
    return f"{count(facts['num'], 'region')} beyond rounding; the first at {facts['site']}"


PHRASES = {
    C.LABELS_FIT: clause(
        _fit,
        {**_FIT, "first_loss": 5.5, "vocabulary": 256, "expected": 5.545, "is_in_range": True},
        {
            **_FIT,
            "first_loss": None,
            "vocabulary": None,
            "expected": None,
            "step": 4,
            "num": 3,
            "ignored": 0.1,
        },
    ),
    C.SHIFT_UNKNOWN: clause("too few labels, or no token ids beside them: their shift cannot be told"),
    C.NOT_NEXT_TOKEN: clause("the labels are not the shifted inputs: not a next-token model"),
    C.FIRST_LOSS_LOW: clause(
        "the first loss, {loss:.4g}, is far below ln({vocabulary}) = {expected:.3g}: trained weights, or "
        "labels visible to the model",
        {"loss": 1.0, "vocabulary": 256, "expected": 5.545},
    ),
    C.FIRST_LOSS_HIGH: clause(
        "the first loss is {loss:.4g}, far above ln({vocabulary}) = {expected:.4g} of an untrained model: "
        "check the initial weights, the shift of the labels and the reduction of the loss",
        {"loss": 50.0, "vocabulary": 256, "expected": 5.545},
    ),
    C.OF_BATCH: clause(
        "step {step}, rank {rank}, microbatch {microbatch}: {parts[0]}",
        {**_BATCH, "parts": (reason(C.ALL_IGNORED, index=-100),)},
    ),
    C.ALL_IGNORED: clause("every label is ignored ({index}), the loss has no term", {"index": -100}),
    C.STOPPED: clause(
        lambda facts: (
            f"it ended with exit status {facts['status']}"
            + ("" if facts.get("step") is None else f" in step {facts['step']}")
        ),
        {"status": 1, "step": 3},
        {"status": 1, "step": None},
    ),
    C.IDS_OUT_OF_RANGE: clause(
        "token ids range from {minimum:.0f} to {maximum:.0f}, the embedding has {size:count row}",
        {"minimum": 0.0, "maximum": 300.0, "size": 256},
    ),
    C.ID_OUTSIDE: clause(
        "token id {value} in row {row}, position {column} is outside the vocabulary of {size:count entry}",
        {"value": 300, "row": 0, "column": 3, "size": 256},
    ),
    C.LABELS_OUT_OF_RANGE: clause(
        "labels range from {minimum} to {maximum}, the vocabulary has {size:count entry}",
        {"minimum": 0, "maximum": 300, "size": 256},
    ),
    C.WRONG_SHIFT: clause(_wrong_shift, *({"shift": n, "share": 1.0, "num": 64} for n in (0, -1, 2, 3))),
    C.PADDING_COUNTS: clause("padding by the attention mask, but not ignored: {num:count label}", {"num": 9}),
    C.THE_INPUTS: clause("the inputs"),
    C.NO_LOSS: clause("no loss is in the trace: backward() was not seen"),
    C.NO_LABELS: clause("the trace holds no labels; trueup check-run -- COMMAND stores them"),
    C.NO_INTEGERS: clause("the loss is computed without integer labels"),
    C.ONE_RUN: clause("there is one run only; trueup check-run -- COMMAND runs the program twice"),
    C.NO_COMMON_STEP: clause("the two runs have no step in common"),
    C.NO_DIGESTS: clause("the traces hold no digests; capture without --no-digest"),
    C.REPEATS: clause("bit-identical in two runs: {num:count record}", {"num": 12}),
    C.OTHER_CALLS: clause(
        "the second run makes different calls in step {step} (rank {rank})", {"step": 0, "rank": 0}
    ),
    C.OTHER_WEIGHTS: clause(
        lambda facts: facts.fill(
            "the two runs start from different weights ({parameter}): the program sets no seed, or loads "
            "another checkpoint"
            if facts["step"] == 0
            else "the two runs have different weights ({parameter}) before step {step}, the first captured"
        ),
        {"parameter": "head.weight", "step": 0},
        {"parameter": "head.weight", "step": 4},
    ),
    C.OTHER_BATCHES: clause(
        "the two runs read different batches in step {step}: the order of the data is not fixed, or the "
        "program resumed from a checkpoint of the first run",
        {"step": 0},
    ),
    C.NOT_REPEATED: clause(
        "step {step} does not repeat: first {site}, after {before:count bit-identical record}",
        {"step": 0, "site": "a · torch.randn · output.0", "before": 12},
    ),
    C.SEED_OUTSIDE: Phrase(
        sentence="to seed the program from outside", command="trueup check-run --seed 1 -- COMMAND"
    ),
    C.DETERMINISTIC: clause(
        "use trueup capture --deterministic, or torch.use_deterministic_algorithms(True) in the program"
    ),
    C.EQUAL_INPUTS: clause("equal inputs"),
    C.FIRST_ONLY: clause("in the first run only"),
    C.RANDOM_NUMBERS: clause("draws random numbers from a generator that is not seeded in the same way"),
    C.UNWRITTEN_MEMORY: clause("returns uninitialized memory"),
    C.FUSED_ATTENTION: clause(
        "the backward of fused attention may add partial sums in any order (atomics); its dropout draws "
        "random numbers"
    ),
    C.ATTENTION_DROPOUT: clause("its dropout draws random numbers"),
    C.ATOMIC_ROWS: clause("on a GPU, its backward adds into rows in any order (atomics)"),
    C.ATOMIC_SUMS: clause("on a GPU, it adds or writes into the same element in any order (atomics)"),
    C.NO_FIXED_ORDER: clause("on a GPU, the kernel has no fixed order"),
    C.ATOMIC_BACKWARD: clause("on a GPU, its backward adds in any order (atomics)"),
    C.CUDNN_BENCHMARK: clause(
        "cuDNN may choose a different algorithm by timing (torch.backends.cudnn.benchmark)"
    ),
    C.SPLIT_PRODUCT: clause(
        "a matrix product may be split differently with another number of threads or cuBLAS workspace"
    ),
    C.RANK_ORDER: clause("a reduction over ranks may add in a different order"),
    C.NOTHING_COMPILED: clause("the program compiled nothing: torch.compile was not used, or had no effect"),
    C.REGIONS_AGREE: clause(
        lambda facts: facts.fill(
            "{regions:count region}, {num:count tensor} ({what}): the largest difference from uncompiled is "
            "{times:.2g} of what rounding explains",
            what="outputs and gradients" if facts["has_gradients"] else "outputs",
        ),
        {"num": 60, "regions": 1, "times": 0.2, "has_gradients": True},
        {"num": 1, "regions": 1, "times": 0.2, "has_gradients": False},
    ),
    C.REGION_DIFFERS: clause(
        _region_differs,
        {"num": 1, "site": "h.1.mlp.gelu"},
    ),
    C.REGION_TENSOR: clause(_region_tensor, _TENSOR, {**_TENSOR, "operation": None, "files": []}),
    C.REGION_SKIPPED: clause(
        "region {region} in {site} was not measured: {why}",
        {"region": "1/0", "site": "head", "why": "it communicates with other ranks"},
    ),
    C.REGIONS_UNKNOWN: clause("not measured: {num} of {total:count region}", {"num": 1, "total": 3}),
    C.COMPILE_OTHERWISE: clause(
        'compile with backend="aot_eager": if that agrees with eager, the backend computes this operation '
        "wrongly; if not, the tracing does"
    ),
    C.RUNS_AGREE: clause(
        "no record differs by more than rounding and the measured noise of the eager run: {num:count record}",
        {"num": 348},
    ),
    C.RUNS_DIFFER: clause("{parts[0]}", {"parts": (reason(C.NOTHING_COMPILED),)}),
    C.RUNS_NOT_COMPARED: clause("{why}", {"why": "no step in common"}),
    C.IN_REGION: clause(
        lambda facts: facts.fill("computed in region {region}, {function}") + _generated(facts), _REGION
    ),
    C.COMPILATIONS: clause(
        "{regions:count region}, {breaks:count graph break}, {recompiles:count recompile}",
        {"regions": 3, "breaks": 1, "recompiles": 0},
    ),
    C.GRAPH_BREAK: clause("{num:count graph break}: {why}", {"num": 1, "why": "Call to print"}),
    C.EAGER_RANDOM_NUMBERS: clause(
        "compiled code was set to draw random numbers as eager code does (fallback_random), so that both can "
        "agree"
    ),
    C.MASKS_DIFFER: clause(
        lambda facts: facts.fill(
            "no two dropout masks{which} agree more than chance lets them ({num:count mask} on "
            "{ranks:count rank})",
            which=" of one rank" if facts["is_shared"] else "",
        ),
        {"num": 12, "ranks": 1, "is_shared": False},
        {"num": 12, "ranks": 2, "is_shared": True},
    ),
    C.SAME_MASK: clause(
        _same_mask,
        _MASK,
        {**_MASK, "other": "a · dropout", "other_step": 1},
        {**_MASK, "other_microbatch": 1},
    ),
    C.SAME_MASK_ON_RANKS: clause(
        "{site} has the same mask on ranks {first} and {rank}",
        {"site": "a · dropout", "first": 0, "rank": 1},
    ),
    C.RECOMPUTED: clause(
        "{site} is recomputed to a different value from equal inputs in step {step}",
        {"site": "a · output.0", "step": 0},
    ),
    C.SAME_AS: clause(
        "the same elements as {site} in step {step}, microbatch {microbatch}",
        {"site": "a · dropout", "step": 0, "microbatch": 0},
    ),
    C.SAME_AS_RANK: clause("the same elements as on rank {rank}", {"rank": 0}),
    C.OTHER_STATE: clause(
        "recomputed by activation checkpointing: with a different random state or autocast setting, or by an "
        "operation that does not repeat"
    ),
    C.RESTORE_STATE: clause(
        "let the checkpoint restore the random state and autocast of the forward (preserve_rng_state=True)"
    ),
    C.SHARED_MASKS: clause(
        "the same on two ranks, as tensor parallelism requires: {num:count mask}", {"num": 2}
    ),
    C.FIND_SEED: clause(
        "look for manual_seed in the forward or in a loop, and for a seed that does not depend on the rank"
    ),
    C.NEED_MIX: clause("dropout is visible among API calls only; capture with --level mix"),
    C.NO_SAMPLES: clause("the trace holds no samples of dropout; trueup check-run -- COMMAND takes them"),
    C.NO_DROPOUT: clause("no dropout function is active (dropout inside fused attention is not seen)"),
    C.NO_BATCH_DIGEST: clause("the batches have no digest (not on the CPU), or only one rank was captured"),
    C.BATCHES_DIFFER: clause(
        lambda facts: facts.fill(
            "the batches of all {which} differ in {num:count step}",
            which="data-parallel ranks" if facts["is_grouped"] else "ranks",
        ),
        {"num": 3, "is_grouped": False},
        {"num": 1, "is_grouped": True},
    ),
    C.SAME_BATCH: clause(
        "ranks read the same batch in {num} of {total:count step}, first in step {step}",
        {"num": 1, "total": 3, "step": 0},
    ),
    C.MAYBE_TENSOR_PARALLEL: clause(
        "nothing shows that these ranks are data-parallel (tensor-parallel ranks must read the same)"
    ),
    C.USE_SAMPLER: clause("give the data loader a DistributedSampler, or an offset by rank"),
    C.ONE_RANK_CAPTURED: clause("the trace holds one rank only"),
    C.NO_WEIGHT_DIGESTS: clause("no weights with digests are in the trace"),
    C.REPLICAS_EQUAL: clause(
        lambda facts: facts.fill(
            "bit-identical on {ranks:count rank}"
            + (", within each of {groups} groups of replicas" if facts["groups"] > 1 else "")
            + ": {num:count record} of {kinds:list}"
        ),
        {"ranks": 2, "num": 12, "groups": 1, "kinds": ["weights", "gradients"]},
        {"ranks": 4, "num": 1, "groups": 2, "kinds": ["weights"]},
    ),
    C.REPLICAS_DIFFER: clause(
        lambda facts: (
            f"{_TENSORS[facts['slot']]} differ across ranks in step {facts['step']}: first "
            f"{facts['parameter']} ({count(facts['num'], 'parameter')} there)"
        ),
        *({"slot": slot, "step": 0, "parameter": "a.weight", "num": 1} for slot in _TENSORS),
    ),
    C.REPLICA_DIFFERS: clause(
        "{parameter} differs across ranks: {parts[0]}",
        {"parameter": "a.weight", "parts": (reason(C.OTHER_EXPERTS),)},
    ),
    C.ARE_SHARDS: clause("the ranks hold shards of it (distributed tensors), not replicas"),
    C.SHAPES_DIFFER: clause("the shapes differ too, so the ranks hold shards"),
    C.OTHER_EXPERTS: clause("the ranks may hold different experts"),
    C.MAYBE_SHARDED: clause(
        "the ranks start from different weights, and no wrapper shows that they are replicas: shards of a "
        "model-parallel layout, or a missing broadcast"
    ),
    C.FROM_RANK_0: clause(
        lambda facts: (
            f"differs from rank {facts['first']}"
            + ("" if facts.get("ratio") is None else f"; largest norm over smallest {facts['ratio']:.4g}")
        ),
        {"ratio": None, "first": 0},
        {"ratio": 1.01, "first": 1},
    ),
    C.REDUCE: clause(
        "reduce it over the data-parallel ranks: is the parameter outside the wrapper, or under no_sync?"
    ),
    C.BROADCAST: clause(
        "broadcast the weights from rank 0 before the first step; look for code that writes them later"
    ),
    C.CHECK_OPTIMIZERS: clause(
        "the updates differ and no gradient was seen to: compare the optimizer's settings and state on each "
        "rank"
    ),
}
