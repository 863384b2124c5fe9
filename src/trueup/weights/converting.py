"""From what a person asks for to a plan: which names, which layout, how large a vocabulary."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trueup.errors import ConfigError
from trueup.weights.applying import apply_plan, misfits, unused_sources
from trueup.weights.conventions import FRAMEWORKS, plan_to_framework
from trueup.weights.inverse import inverse
from trueup.weights.layouts import Heads
from trueup.weights.mapping import plan_from_maps
from trueup.weights.model_config import heads_beside
from trueup.weights.plan import ConversionPlan, PlannedWeight, Reshape, SourcePiece
from trueup.weights.plan_file import read_plan, write_plan
from trueup.weights.weight_set import Table, WeightInfo, WeightSet

_EMBEDDING = re.compile(
    r"(^|\.)(embed_tokens|word_embeddings?|tok_embeddings|token_embeddings?|wte|tok_emb|embed(ding)?s?)\."
    r"(weight|embedding_weight|embedding_table)$"
)
_OUTPUT = re.compile(r"(^|\.)(lm_head|output_layer|output|unembed(ding)?|head)\.(weight|bias)$")


Infer = Callable[[WeightSet, WeightSet], ConversionPlan]
"""target, source -> plan; ``matching.weights.infer_plan``, passed in because weights lie below matching"""

_NAMED = 6
PROPOSED = "structure"
"""``how`` of an entry that nothing but layer and shape speaks for"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """What is asked for. At most one of ``to`` and ``plan``; with neither, ``like`` says, or names stay.

    Attributes:
        to: a family of naming maps, or ``torch`` or ``mindspore``; None: as ``plan`` or ``like`` say.
        source_family: family of the source; None: the one whose map reads it. No effect without a family in
            ``to``.
        plan: a plan file.
        turned_round: the plan is of the other direction; ``like`` then gives the weights it once began with.
        like: weights whose names and shapes the result must have.
        heads: attention heads; None: as a configuration beside the source says.
        pad_vocabulary: make the vocabulary a multiple of this; None: leave it.
        allow_unmatched: source weights that go nowhere, or wanted ones that nothing makes, are no error.
        save_plan: file the plan is written to, also where it leaves weights over, so that it can be completed
            and given as ``plan``.
    """

    to: str | None = None
    source_family: str | None = None
    plan: Path | None = None
    turned_round: bool = False
    like: WeightSet | None = None
    heads: Heads | None = None
    pad_vocabulary: int | None = None
    allow_unmatched: bool = False
    save_plan: Path | None = None
    proposal: Path | None = None
    """file for a plan that rests on structure alone in part, where ``save_plan`` names none"""


def plan_conversion(source: WeightSet, asked: Conversion, *, infer: Infer | None = None) -> ConversionPlan:
    """The plan for ``asked``; it fits the source, and the target where one is given.

    What a plan file lists as ``only_target`` or ``only_source`` is known to be left over; of an inferred plan
    these are what was not found.

    Raises:
        ConfigError: options that contradict each other, no plan leads there, or weights are left over on
            either side; says which.
    """
    _check(asked)
    plan = _plan(source, asked, infer)
    _leave_proposal(plan, asked)
    made = apply_plan(plan, source)
    if asked.pad_vocabulary is not None:
        plan = with_padded_vocabulary(plan, made.table, asked.pad_vocabulary)
        made = apply_plan(plan, source)
    if asked.save_plan is not None:
        write_plan(plan, asked.save_plan)
    if not asked.allow_unmatched:
        left = unused_sources(plan, source.table)
        _complain(left, f"{source.path}: no entry of the plan takes", asked)
        if asked.like is not None:
            wanted = {
                name: info.shape
                for name, info in asked.like.table.items()
                if asked.plan is None or name not in plan.only_target
            }
            beginning = f"the result does not fit {asked.like.path}:"
            _complain(misfits(made.table, wanted), beginning, asked, left_over=plan.only_source)
    return plan


def _leave_proposal(plan: ConversionPlan, asked: Conversion) -> None:
    """A plan that is a proposal in part is written for a person to edit, and nothing is converted."""
    proposed = [entry for entry in plan.entries if entry.how == PROPOSED]
    file = asked.save_plan or asked.proposal
    if asked.plan is not None or not proposed or file is None:
        return
    write_plan(plan, file)
    left = len(plan.only_target)
    open_ones = f" and {left} have no origin" if left else ""
    raise ConfigError(
        f"{len(proposed)} of {len(plan.entries)} weights are paired by layer and shape alone{open_ones}: "
        f"neither values nor known names pair them.{_two_layouts(plan, file)} Check the plan in {file} "
        f"(how: {PROPOSED}), then convert with --plan {file}"
    )


def _two_layouts(plan: ConversionPlan, file: Path) -> str:
    """Where names leave the layout of fused weights open: both plans, and which is which."""
    if plan.other is None:
        return ""
    beside = file.with_name(f"{file.stem}.other{file.suffix}")
    write_plan(plan.other, beside)
    open_ones: dict[str, str] = {}
    for one, other in zip(plan.entries, plan.other.entries, strict=True):
        if one != other:
            name = one.target if one.join else one.pieces[0].source
            layouts = f"{name} {_layout_words(one)} in {file}, {_layout_words(other)} in {beside}"
            open_ones.setdefault(re.sub(r"\d+", "", name), layouts)
    both = "; ".join(open_ones.values())
    return (
        f" Names leave open how rows of fused weights lie: {both}. The program that trains with them decides."
    )


def _layout_words(entry: PlannedWeight) -> str:
    """In words, how a fused weight lies, by the steps that fuse it or take a part out of it."""
    first = next(iter(entry.pieces[0].steps), None)
    if not isinstance(first, Reshape):
        return "one part above the other"
    two = first.shape[1] == (1 if entry.join else 2)
    return "a row of each part in turn" if two else "by groups of heads"


def _check(asked: Conversion) -> None:
    if asked.to is not None and asked.plan is not None:
        raise ConfigError(f"--to {asked.to} and --plan {asked.plan}: one of them, or neither")
    if asked.source_family is not None and (asked.to is None or asked.to in FRAMEWORKS):
        raise ConfigError(
            f"--from {asked.source_family} needs --to with a family of models: without one no map is used"
        )
    if asked.turned_round and (asked.plan is None or asked.like is None):
        raise ConfigError("--inverse needs --plan FILE and --like ORIGINAL, the weights that plan began with")


def _complain(what: list[str], beginning: str, asked: Conversion, *, left_over: tuple[str, ...] = ()) -> None:
    if not what:
        return
    also = f". Left over in the source: {_some(left_over, ', ')}" if left_over else ""
    plan = "--save-plan FILE keeps the plan so far" if asked.save_plan is None else f"in {asked.save_plan}"
    raise ConfigError(
        f"{beginning} {_some(what, '; ')}{also}. Complete the plan ({plan}) and give it with --plan FILE, or "
        "go on without: --allow-unmatched"
    )


def _some(names: Sequence[str], between: str) -> str:
    more = f"{between}and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return between.join(names[:_NAMED]) + more


def _plan(source: WeightSet, asked: Conversion, infer: Infer | None) -> ConversionPlan:
    if asked.plan is not None:
        plan = read_plan(asked.plan)
        if asked.turned_round and asked.like is not None:
            return inverse(plan, {name: info.shape for name, info in asked.like.table.items()})
        return plan
    if asked.to in FRAMEWORKS:
        return plan_to_framework(source.table, asked.to)
    if asked.to is not None:
        heads = asked.heads or heads_beside(source.path)
        return plan_from_maps(
            source.table,
            to=asked.to,
            source_family=asked.source_family,
            heads=heads,
            whole=not asked.allow_unmatched,
        )
    if asked.like is not None:
        if infer is None:
            raise ConfigError("this installation cannot infer a plan from --like; give --to or --plan")
        return infer(asked.like, source)
    return kept(source)


def kept(source: WeightSet) -> ConversionPlan:
    """The plan that leaves every weight as it is."""
    entries = tuple(PlannedWeight(target=name, pieces=(SourcePiece(source=name),)) for name in source.table)
    return ConversionPlan(entries=entries)


def merged(given: Heads, found: Heads) -> Heads:
    """What a person gave, with the rest as found; key/value heads are found only with their query heads."""
    if given.num_heads is None:
        return replace(found, num_kv_heads=given.num_kv_heads or found.num_kv_heads)
    return given


def with_padded_vocabulary(plan: ConversionPlan, made: Table, multiple: int) -> ConversionPlan:
    """``plan`` with zero rows added until the vocabulary is a multiple of ``multiple``.

    The vocabulary is the rows of the token embedding; the output projection is padded with it where it has as
    many. Logits of added tokens are then 0, not minus infinity: a loss over them must mask them.

    Args:
        made: table of what the plan makes without padding.
        multiple: of rows, at least 1.

    Raises:
        ConfigError: no token embedding is there by any usual name, or two of different sizes.
    """
    if multiple < 1:
        raise ConfigError(f"--pad-vocab {multiple}: expected a number above 0")
    embeddings = [info for name, info in made.items() if _EMBEDDING.search(name) and len(info.shape) == 2]
    sizes = {info.shape[0] for info in embeddings}
    if len(sizes) != 1:
        found = ", ".join(f"{info.name} {list(info.shape)}" for info in embeddings) or "none"
        raise ConfigError(f"--pad-vocab needs one token embedding; found {found}")
    (vocabulary,) = sizes
    rows = -vocabulary % multiple
    entries = tuple(_padded(entry, made[entry.target], vocabulary, rows) for entry in plan.entries)
    return replace(plan, entries=entries)


def is_vocabulary(name: str) -> bool:
    """Whether a weight has a row for each token, by its name."""
    return bool(_EMBEDDING.search(name) or _OUTPUT.search(name))


def _padded(entry: PlannedWeight, info: WeightInfo, vocabulary: int, rows: int) -> PlannedWeight:
    if not rows or not is_vocabulary(info.name) or not info.shape or info.shape[0] != vocabulary:
        return entry
    return replace(entry, padding=entry.padding + rows)
