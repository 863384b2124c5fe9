"""A place where an error was made, put into a finding: its kind, confidence, both sides' lines."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from trueup.comparing.attributes import apart
from trueup.comparing.buffers import buffer_gaps
from trueup.comparing.losses.calls import criteria
from trueup.diagnosing.kinds.thresholds import COARSE_ROUNDOFF
from trueup.diagnosing.stages.context import Context, basis_of
from trueup.diagnosing.stages.naming import kind_named
from trueup.diagnosing.stages.trainable import unreached_of
from trueup.diagnosing.stages.tried import judged
from trueup.diagnosing.stages.whose import whose
from trueup.diagnosing.step_calls import exchanges
from trueup.diagnosing.thresholds import FEW_INDICES
from trueup.numerics.dtypes import DTYPES
from trueup.store import StepView, TraceSource
from trueup.types.arrays import Floats
from trueup.types.codes import EvidenceCode, KindReason, VerdictCode
from trueup.types.codes import StagesCode as Stages
from trueup.types.finding import Basis, EvidenceRank, Finding, Kind, KindCode, Origin, Stage
from trueup.types.reason import Reason, reason


# In one piece: what is known of the place, each part of the finding made of those before it.
def finding_from_origin(origin: Origin, context: Context) -> Finding:
    """The finding, with the kinds the rules name for it."""
    seen = _with_exchange(context.kinds_of(origin), origin, context)
    differing = settings_that_differ(origin.module, context)
    kinds, settings, tried = (
        judged(origin.module, seen, differing, context)
        if origin.phase == "forward"
        else (seen, differing, ())
    )
    kinds = _with_settings(kinds, settings)
    buffers = _buffers_of_other_content(origin, context)
    kinds = _with_buffers(kinds, buffers)
    classes = _other_class(origin, context)
    if classes is not None and not settings and _is_left_out(origin, kinds, context):
        kinds = (kind_named("missing_or_extra_term", EvidenceRank.STATED, classes), *kinds)
    best = kinds[0] if kinds else None
    unnamed = best is None or not best.rank.is_named or best.sentence.code in _WEIGHED
    of_tokens = best is not None and best.sentence.code is KindReason.WEIGHTS_OF_TOKENS
    only_gradient = (unnamed or of_tokens) and _is_only_of_gradient(origin, context)
    sends_otherwise = unnamed and only_gradient
    detached = (reason(Stages.DETACHED_CAUSE),) if only_gradient else ()
    attributed = origin
    origin = replace(
        origin,
        source=_with_code(origin.source, context.replayed or context.target, context),
        reference_source=_with_code(origin.reference_source, context.reference, context),
    )
    causes = detached if sends_otherwise else ()
    causes = causes or tuple(dict.fromkeys([*settings, *(best.causes if best else ()), *detached]))
    evidence = [
        *((best.sentence,) if best else ()),
        *(unreached_of(origin.module, context) if origin.phase == "forward" else ()),
        *(_apart_at(origin, context) if unnamed or best is None or best.name in _SAY_NO_PLACE else ()),
        *tried,
        *(settings or differing),
        *buffers,
        *norms_of(origin.module, origin.step, origin.phase, context),
        *origin.evidence,
    ]
    finding = Finding(
        stage=_stage_of(origin, context),
        headline=reason(Stages.LOSS_GRADIENT)
        if sends_otherwise
        else _headline(origin, best, settings, buffers, classes, context.steps[0][0]),
        module=origin.module,
        site=origin.site,
        phase=origin.phase,
        step=origin.step,
        rank=origin.rank,
        source=origin.source,
        kinds=kinds,
        basis=basis_of(origin),
        evidence=tuple(dict.fromkeys(evidence)),
        counter_evidence=origin.counter_evidence,
        causes=causes,
        next_note=_next(settings, best),
        origin=origin,
    )
    finding = _of_count(finding, attributed, context)
    return whose(finding, attributed, kinds, context)


def _apart_at(origin: Origin, context: Context) -> tuple[Reason, ...]:
    """The indices of one dimension at which a tensor of the forward pass differs, where these are few and all
    other elements have the same bits: first or last positions, rows of some samples."""
    if context.evidence_of is None or origin.phase != "forward":
        return ()
    evidence = context.evidence_of(origin)
    target, reference = evidence.target_values, evidence.reference_values
    # of a part of a large tensor nothing can be said of all else
    if target is None or reference is None or target.shape != reference.shape or evidence.part_seen:
        return ()
    found = few_indices(target, reference)
    if found is None:
        return ()
    dim, indices = found
    shown = (*map(str, indices[:_SHOWN]), *(("…",) if len(indices) > _SHOWN else ()))
    return (reason(Stages.APART_AT, num=len(indices), size=target.shape[dim], dim=dim, indices=shown),)


def few_indices(target: Floats, reference: Floats) -> tuple[int, list[int]] | None:
    """A dimension, and its indices at which two arrays differ, where these are at most ``FEW_INDICES`` of it;
    of several dimensions that with the smallest share.

    Example:
        >>> few_indices(np.eye(4), np.eye(4) + np.eye(4)[[1]].T)
        (0, [1])
    """
    apart = (target != reference) & ~(np.isnan(target) & np.isnan(reference))
    best: tuple[float, int, list[int]] | None = None
    for dim, size in enumerate(apart.shape):
        others = tuple(axis for axis in range(apart.ndim) if axis != dim)
        indices = np.flatnonzero(apart.any(axis=others)).tolist()
        share = len(indices) / size
        if 0 < share <= FEW_INDICES and (best is None or share < best[0]):
            best = share, dim, indices
    return None if best is None or not best[2] else best[1:]


_SHOWN = 4
_SAY_NO_PLACE = (KindCode.OTHER_FUNCTIONS, KindCode.MISSING_OR_EXTRA_TERM)


def _of_count(finding: Finding, origin: Origin, context: Context) -> Finding:
    """The finding; where what a collective is given is one whole number, it is no gradient but a count: of
    tokens, mostly, and behind the update of those of the next step."""
    if origin.phase != "collective" or not origin.slot.startswith("input"):
        return finding
    at = next((n for n, steps in enumerate(context.steps) if steps[0] == origin.step), 0)
    records = origin.target_record, origin.reference_record
    counts = []
    for book, record in zip(context.pair(at, origin.rank), records, strict=True):
        size = book.norm(record)
        is_whole = DTYPES[book.dtype(record) or "float32"].kind in ("int", "uint")
        if size is None or not is_whole or math.prod(book.shape(record) or ()) != 1:
            return finding
        counts.append(round(size))
    return replace(
        finding,
        headline=reason(
            Stages.COUNT_GIVEN, call=origin.module, step=origin.step, target=counts[0], reference=counts[1]
        ),
        causes=(reason(Stages.COUNT_CAUSE),),
        next_note=reason(Stages.CAPTURE_NEXT_STEP, next=origin.step + 1),
    )


def _with_buffers(kinds: tuple[Kind, ...], buffers: tuple[Reason, ...]) -> tuple[Kind, ...]:
    """The kinds, led by buffers of other content where no other cause is named; a table that differs is one
    that a buffer may hold."""
    named = bool(kinds) and kinds[0].rank.is_named
    begins = (
        bool(buffers)
        and buffers[0].code is EvidenceCode.BUFFER_BEGINS
        and buffers[0].place("name") not in _RUNNING
    )
    of_values = not named or kinds[0].sentence.code in _AS_A_BUFFER_MAKES
    # what a module holds before its forward goes before what its results look like, not before its settings
    of_values |= begins and kinds[0].rank is not EvidenceRank.STATED
    if not buffers or not of_values:
        return kinds
    kind = kind_named("constant_argument", EvidenceRank.STATED, buffers[0])
    if buffers[0].code is EvidenceCode.BUFFER_BEGINS:  # written by the program, and no setting
        kind = replace(kind, causes=())
    return kind, *kinds


_AS_A_BUFFER_MAKES = (KindReason.OFFSET_BY_TABLE, KindReason.ROWS_EMPTY)
"""what results look like: a table added, rows of NaN; a buffer that differs makes them so"""
_RUNNING = ("running_mean", "running_var", "num_batches_tracked")
"""what batch norms write while they train, and read in evaluation alone"""


def norms_of(module: str | None, step: int | None, phase: str | None, context: Context) -> tuple[Reason, ...]:
    """The local norms of the gradients of a module's own weights in the first step."""
    if step != context.steps[0][0] or phase not in ("forward", "backward"):
        return ()
    norms = context.comparison.content.local_norms
    gaps = {one.fqn: one.rel_l2 if math.isfinite(one.rel_l2) else one.rel_diff for one in norms}
    furthest = max(gaps, key=gaps.__getitem__, default=None)
    return tuple(
        reason(
            Stages.LOCAL_NORM,
            parameter=one.fqn,
            gap=gaps[one.fqn],
            elementwise=math.isfinite(one.rel_l2),
            among=len(gaps) if one.fqn == furthest and len(gaps) > 1 else None,
            target=one.target,
            reference=one.reference,
        )
        for one in norms
        if one.fqn.rpartition(".")[0] == module and gaps[one.fqn]
    )


def _stage_of(origin: Origin, context: Context) -> Stage:
    """Forward and loss are one stage; what a criterion sends back belongs to the loss: it is its
    gradient."""
    of_loss = origin.stage is Stage.LOSS
    if origin.stage is Stage.BACKWARD and origin.module:
        of_loss = origin.module in criteria(context.pair(0, origin.rank)[0])
    return Stage.FORWARD if of_loss else origin.stage


def _with_exchange(kinds: tuple[Kind, ...], origin: Origin, context: Context) -> tuple[Kind, ...]:
    """A sum over ranks that the reference alone makes inside the module outweighs what is left without it;
    not a factor, which says more."""
    if not context.mesh.wide_axes or origin.phase != "forward" or (kinds and kinds[0].name == "wrong_scale"):
        return kinds
    at = next((n for n, steps in enumerate(context.steps) if steps[0] == origin.step), 0)
    target, reference = (exchanges(book, origin.module) for book in context.pair(at, origin.rank))
    lacking = [(name, group) for name, group in reference - target if "reduce" in name]
    if not lacking:
        return kinds
    name, group = lacking[0]
    over = group or tuple(context.ranks)
    missing = reason(
        Stages.COLLECTIVE_MISSING, collective=name, ranks=[str(rank) for rank in over], module=origin.module
    )
    found = replace(
        kind_named("missing_all_reduce", EvidenceRank.STATED, missing, phase="forward"), over=over
    )
    return (found, *(kind for kind in kinds if kind.name != found.name))


def _with_settings(kinds: tuple[Kind, ...], settings: dict[Reason, str]) -> tuple[Kind, ...]:
    """What both programs record of the very module outweighs what its values look like."""
    if not settings:
        return kinds
    setting, name = next(iter(settings.items()))
    # a mode is set while the program runs: no default, and no value that a constructor is given
    causes = () if setting.place("name") == "training" else None
    kind = kind_named(name, EvidenceRank.STATED, setting, causes=causes)
    return (kind, *(other for other in kinds if other.name != kind.name))


def _next(settings: dict[Reason, str], kind: Kind | None) -> Reason | None:
    if settings:
        first = next(iter(settings))
        return reason(Stages.ALIGN_SETTING, module=first.place("module"), name=first.place("name"))
    return kind.next if kind else reason(Stages.COMPARE_CODE)


def _with_code(source: str | None, trace: TraceSource, context: Context) -> str | None:
    """The frame of a call stack that stands at ``file:line``: its function and its line of code too."""
    if source is None or " | " in source:
        return source
    step = min(trace.steps(), default=None)
    if step is None:
        return source
    stacks = context.book(trace, step, trace.steps()[step][0]).frames.values()
    wanted = source.partition(" ")[0] + " "
    return next((frame for frames in stacks for frame in frames if frame.startswith(wanted)), source)


# In one piece: one branch a headline, the most telling first.
def _headline(
    origin: Origin,
    kind: Kind | None,
    settings: dict[Reason, str],
    buffers: tuple[Reason, ...],
    classes: Reason | None,
    first: int,
) -> Reason:
    """The cause where it is known, else what differs; ``first``: the first captured step, whose weights are
    the initial ones."""
    if settings:
        return next(iter(settings))
    if buffers and kind is not None and kind.sentence == buffers[0]:
        facts = {name: buffers[0].facts[name] for name in ("name", "module")}
        if buffers[0].code is EvidenceCode.BUFFER_BEGINS:
            return reason(VerdictCode.BUFFER_BEGINS, **facts, step=origin.step)
        return reason(VerdictCode.BUFFER_DIFFERS, **dict(buffers[0].places))
    if kind is not None and kind.sentence.code is KindReason.LOSS_DIVISORS:
        return reason(Stages.LOSS_DIVISOR, *kind.sentence.parts)
    if kind is not None and kind.sentence.code in (KindReason.DIVISORS_GIVEN, KindReason.NUMBER_GIVEN):
        return reason(Stages.NUMBER_GIVEN, name=kind.sentence.place("name"))
    if classes is not None and (kind is None or not kind.rank.is_named or kind.sentence == classes):
        return classes
    sends = origin.phase == "collective" and "reduce" not in origin.site
    place = {"module": origin.module, "stage": "exchange" if sends else origin.stage.value}
    function, _, _ = origin.site.rpartition(" · ")
    if not origin.module and function.startswith("torch."):
        place["call"] = function
    if kind is not None and kind.rank.is_named:
        return reason(Stages.OF_KIND, kind.sentence, *kind.sentence.parts, kind=kind.name, **place)
    later = {"later": origin.step} if origin.stage is Stage.WEIGHTS and origin.step > first else {}
    return reason(Stages.ORIGIN, **place, **later)


_WEIGHED = (KindReason.SCALED_PER_ROW, KindReason.SCALED_PER_TOKEN)
"""factors of rows in a gradient, which a loss of equal value does not weigh otherwise"""


def _is_only_of_gradient(origin: Origin, context: Context) -> bool:
    """Whether a loss of equal inputs has its value and sends something else back. A gradient that a program
    asks for before the loss is there (``autograd.grad`` of a part) comes first, whatever the value is."""
    if origin.stage is not Stage.LOSS or origin.phase != "backward" or context.replayed is None:
        return False
    books = (context.book(context.replayed, origin.step, origin.rank), context.pair(0, origin.rank)[1])
    values = [_losses(book) for book in books]
    return origin.basis is Basis.REPLAY and bool(values[0]) and _are_alike(*values)


def _losses(book: StepView) -> list[float]:
    records = zip(book.phase, book.slot, strict=True)
    norms = (book.norm(record) for record, at in enumerate(records) if at == ("loss", "value"))
    return [norm for norm in norms if norm is not None]


def _are_alike(values: list[float], others: list[float]) -> bool:
    """Whether losses are the same but for rounding."""
    if len(values) != len(others):
        return False
    pairs = zip(values, others, strict=True)
    return all(abs(one - other) <= COARSE_ROUNDOFF * max(one, other) for one, other in pairs)


_OF_ONE_SIDE = (KindReason.ACTIVATION_OF_ONE_SIDE, KindReason.STEP_LEFT_OUT)
"""what a module computes that the other run's does not: said by its class, where that is another"""


def _is_left_out(origin: Origin, kinds: tuple[Kind, ...], context: Context) -> bool:
    """Whether a module of another class lacks what the other run's has: weights, or its whole computation.
    What that does to the values, such as a factor of each vector where a norm is left out, follows."""
    if any(kind.sentence.code in _OF_ONE_SIDE for kind in kinds):
        return True
    inside = f"{origin.module}."
    target, reference = (
        {name.removeprefix(inside) for name in book.parameters if name.startswith(inside)}
        for book in context.pair(0, origin.rank)
    )
    return target != reference


def _other_class(origin: Origin, context: Context) -> Reason | None:
    """The classes of a module that both programs of one implementation have, and that differ; not where both
    have modules inside, which say more."""
    if context.bridge is not None or origin.phase != "forward" or not origin.module:
        return None
    sides, leaves = {}, []
    for side, book in zip(("target", "reference"), context.pair(0, origin.rank), strict=True):
        calls = book.named("module", origin.module)
        inside = {book.parent[call] for call in book.calls_of_kind("module")}
        if not calls:
            return None
        leaves.append(not any(call in inside for call in calls))
        sides[side] = str(book.type[calls[0]])
    if sides["target"] == sides["reference"] or not any(leaves):
        return None
    return reason(VerdictCode.MODULE_CLASS_DIFFERS, module=origin.module, **sides)


def settings_that_differ(module: str, context: Context) -> dict[Reason, str]:
    """Plain attributes of a module that differ from the reference's, where both captures recorded them, each
    with the kind of fault that is."""
    sides = (context.facts(trace).get("settings") or {} for trace in (context.target, context.reference))
    found = apart(module, *sides)
    return {
        reason(
            Stages.SETTING_DIFFERS,
            module=module,
            name=name,
            type=context.type_of(module),
            target=str(values[0]),
            reference=str(values[1]),
        ): _kind_of_setting(*values)
        for name, values in (found | _buffers_in_other_dtypes(module, context)).items()
    }


def _buffers_in_other_dtypes(module: str, context: Context) -> dict[str, tuple[str, str]]:
    """Buffers of a module that had other dtypes from the start."""
    initial = buffer_gaps(context.target, context.reference, {}).initial
    return {
        f"buffer {name}": (target["dtype"], reference["dtype"])
        for fqn, (target, reference) in initial.items()
        if fqn.rpartition(".")[0] == module
        and target["dtype"] != reference["dtype"]
        and (name := fqn.rpartition(".")[2])
    }


def _buffers_of_other_content(origin: Origin, context: Context) -> tuple[Reason, ...]:
    """Buffers of one dtype that the module had with other contents from the start, or has as a later step
    begins."""
    if origin.phase not in ("forward", "loss", "backward"):
        return ()
    gaps = buffer_gaps(context.target, context.reference, dict(context.steps))
    before = [one for one in gaps.before if one.step == origin.step and one.module == origin.module]
    if before and origin.phase == "forward":
        return tuple(
            reason(
                EvidenceCode.BUFFER_BEGINS,
                name=one.fqn.rpartition(".")[2],
                module=one.module,
                step=one.step,
                target=one.target,
                reference=one.reference,
                by_norm=one.by_norm,
            )
            for one in before
        )
    initial = gaps.initial
    names = [fqn.rpartition(".") for fqn, pair in initial.items() if pair[0]["dtype"] == pair[1]["dtype"]]
    return tuple(
        reason(
            EvidenceCode.BUFFER_DIFFERS,
            name=name,
            module=module,
            target=initial[f"{module}.{name}" if module else name][0]["dtype"],
            reference=initial[f"{module}.{name}" if module else name][1]["dtype"],
        )
        for module, _, name in names
        if module == origin.module
    )


def _kind_of_setting(*values: object) -> str:
    dtypes = all(isinstance(value, str) and value in DTYPES for value in values)
    return "dtype_or_rounding" if dtypes else "constant_argument"
