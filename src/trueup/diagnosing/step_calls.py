"""The calls of a step that matter to a diagnosis: what the model was given, the loss, collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import polars as pl

from trueup.store import StepView
from trueup.types.layout import layout_from_plain
from trueup.types.placement import Shard

_EMBEDDING = "torch.nn.functional.embedding"
Exchange = tuple[str, tuple[int, ...]]
"""name of a collective and its ranks, none where all take part"""


INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "bool")


def embedded(view: StepView) -> dict[int, int]:
    """Digest of ids that an embedding looks up -> its number of rows. A weight that is empty while it is not
    used (ZeRO-3 keeps parts elsewhere) tells of none."""
    return view.once(embedded, lambda: _embedded(view))


def _embedded(view: StepView) -> dict[int, int]:
    integers = view.frame_of("forward").filter(pl.col("dtype").is_in(INTEGERS), pl.col("slot") == "input.0")
    tables = {
        p["fqn"]: p["shape"]
        for p in view.facts.get("parameters") or []
        if not is_part(p.get("parallel")) and 0 not in p["shape"]
    }
    found: dict[int, int] = {}
    for row in integers.filter(pl.col("kind") == "module").iter_rows(named=True):
        weight = f"{row['name']}.weight"
        if weight in tables and _is_no_lookup(view, row["call"], int(tables[weight][0])):
            continue
        if weight in tables and (num := _whole_rows(view, weight, int(tables[weight][0]))) is not None:
            found.setdefault(row["digest"], num)
    weights = view.frame_of("forward", "input.1").filter(pl.col("name") == _EMBEDDING)
    rows = dict(zip(weights["call"], weights["shape"].to_list(), strict=True))
    for row in integers.filter(pl.col("name") == _EMBEDDING).iter_rows(named=True):
        if row["call"] in rows and rows[row["call"]][0]:
            found.setdefault(row["digest"], int(rows[row["call"]][0]))
    return found


def _is_no_lookup(view: StepView, call: int, held: int) -> bool:
    """Whether a module returned with an id beyond the rows it holds: torch's lookup raises, so that it
    looks up something else (its own part of a vocabulary, of ids that it moved)."""
    if view.source.manifest.get("framework") != "pytorch":
        return False  # MindSpore's gives zeros
    records = {view.slot[record]: record for record in view.records(call, "forward")}
    given = view.summary(records.get("input.0")) or {}
    largest = given.get("maximum")
    return largest is not None and largest >= held and any(slot.startswith("output") for slot in records)


def _whole_rows(view: StepView, weight: str, held: int) -> int | None:
    """Rows of the whole weight, of which the declared layout may give a process a part; None: it does not say
    how many there are."""
    plain = view.source.manifest.get("layout")
    if not plain:
        return held
    layout = layout_from_plain(plain)
    placed = layout.of_parameter(weight, "param", "value").placements.items()
    cut = [
        one
        for axis, one in placed
        if isinstance(one, Shard) and one.dim == 0 and layout.mesh.get(axis, 1) > 1
    ]
    return held if not cut else cut[0].total


def is_part(recorded: Mapping[str, int] | None) -> bool:
    """Whether Megatron marks a weight as cut along its rows: how many ranks share them is not known.

    It marks them also where one rank has all. Its layer then looks ids up that it has shifted and masked.
    """
    return recorded is not None and recorded.get("partition_dim") == 0


def exchanges(view: StepView, module: str) -> Counter[Exchange]:
    """Collectives that a module's own code calls in its forward."""
    return Counter(
        (view.name[call], _group_in(view.arguments(call)))
        for call in view.calls_of_kind("collective")
        if (parent := view.parent[call]) >= 0 and (view.kind[parent], view.name[parent]) == ("module", module)
    )


def _group_in(arguments: Mapping[str, object]) -> tuple[int, ...]:
    """The ranks of a collective's group, as capture writes them among its arguments."""
    texts = (v for v in arguments.values() if isinstance(v, str) and v.replace(" ", "").isdigit())
    return tuple(map(int, next(texts, "").split()))
