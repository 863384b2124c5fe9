"""The hand-written pairs, and how a match compares with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tests.matching.implementations.sizes import Sizes
from trueup.matching import StepMatch
from trueup.matching.across.sites import site_of
from trueup.matching.tree import TreeSide, Words, build
from trueup.store import TraceSource

_FILE = Path(__file__).with_name("truth.yaml")
_LIKE = {"torch_moe": "torchtitan", "mindspore_moe": "mindspore", "mindspore_sorted_moe": "mindspore"}
"""whose modules an implementation has besides its experts"""
_PACKAGES = {
    "T": "torch.Tensor",
    "F": "torch.nn.functional",
    "M": "mindspore.Tensor",
    "mint": "mindspore.mint",
    "P": "mindspore.ops",
}


@dataclass(kw_only=True)
class Score:
    """What a match found of what there is to be found."""

    modules: int = 0
    modules_expected: int = 0
    outputs: int = 0
    outputs_expected: int = 0
    wrong: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)

    @property
    def module_share(self) -> float:
        return self.modules / self.modules_expected

    @property
    def output_share(self) -> float:
        return self.outputs / self.outputs_expected


@lru_cache(maxsize=1)
def _truth() -> dict[str, Any]:
    held: dict[str, Any] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return held


def modules_of(name: str, sizes: Sizes) -> dict[str, int]:
    """Module of one implementation -> number of its line, layers apart."""
    out = {}
    name = _LIKE.get(name, name)
    for number, line in enumerate(_truth()["modules"]):
        if name in line and not (sizes.num_experts and line.get("dense")):
            for layer in range(sizes.num_layers if "{i}" in line[name] else 1):
                out[line[name].replace("{i}", str(layer))] = number * 1000 + layer
    return out


def tensors_of(name: str, sizes: Sizes) -> dict[str, str]:
    """``site@output`` of one implementation -> the tensor it is."""
    out = {}
    for module, tensors in _truth()["tensors"][name].items():
        for layer in range(sizes.num_layers if "{i}" in module else 1):

            def filled(text: str, layer: int = layer) -> str:
                return text.replace("{i}", str(layer)).replace("{j}", str(layer + 1))

            where = "" if module == "top" else f"{filled(module)} · "
            for tensor, sites in tensors.items():
                for site in sites:
                    function, _, output = site.partition("@")
                    short, dot, rest = function.partition(".")
                    long = f"{_PACKAGES.get(short, short)}{dot}{rest}"
                    out[f"{where}{long}@{output or 0}"] = filled(tensor)
    return out


def places_of(side: TreeSide, words: Words) -> dict[tuple[int, int], str]:
    """(call, slot) of every API output -> ``site@output``."""
    forward = words.phase.index("forward")
    api = words.kind.index("api")
    out = {}
    rows = np.flatnonzero((side.record_phase == forward) & (side.kind[side.record_call] == api))
    for row in rows.tolist():
        call, slot = int(side.record_call[row]), int(side.record_slot[row])
        head, _, number = words.slot[slot].partition(".")
        if head == "output":
            out[call, slot] = f"{site_of(side, words, call)}@{number}"
    return out


def numbers_of(
    trace: TraceSource, step: int, name: str, sizes: Sizes
) -> Iterator[tuple[str, str, tuple[float, float]]]:
    """Tensor, place and (norm, largest value) of all hand-written places of one implementation.

    Raises:
        AssertionError: a place is not in the trace.
    """
    tables = trace.read(step, 0)
    side, _, words = build(tables, tables)
    truth, places = tensors_of(name, sizes), places_of(side, words)
    assert set(truth) <= set(places.values()), set(truth) - set(places.values())
    forward = side.record_phase == words.phase.index("forward")
    columns = side.record_call, side.record_slot, side.record_summary
    for call, slot, summary in zip(*(column[forward].tolist() for column in columns), strict=True):
        tensor = truth.get(places.get((call, slot), ""))
        if tensor is not None and summary >= 0:
            row = tables.summaries.row(summary, named=True)
            yield tensor, f"{name} {places[call, slot]}", (row["l2_norm"], row["maximum"])


def assert_same_numbers(found: Iterable[tuple[str, str, tuple[float, float]]]) -> None:
    """Every tensor has one norm and one largest value, wherever it is said to be."""
    seen: dict[str, dict[str, tuple[float, float]]] = {}
    for tensor, place, numbers in found:
        seen.setdefault(tensor, {})[place] = numbers
    for tensor, places in seen.items():
        values = np.array(list(places.values()))
        assert np.allclose(values, values[0], rtol=1e-4), (tensor, places)


def scored(match: StepMatch, target: str, reference: str, sizes: Sizes) -> Score:
    """The modules and API outputs that were paired, against the hand-written pairs."""
    score = Score()
    _score_modules(score, match, modules_of(target, sizes), modules_of(reference, sizes))
    _score_outputs(score, match, tensors_of(target, sizes), tensors_of(reference, sizes))
    return score


def _score_modules(score: Score, match: StepMatch, here: dict[str, int], there: dict[str, int]) -> None:
    words = match.words
    common = set(here.values()) & set(there.values())
    score.modules_expected = len(common)
    module = words.kind.index("module")
    for call in np.flatnonzero(match.target.kind == module).tolist():
        name, other = words.name[match.target.name[call]], int(match.calls.reference_of[call])
        partner = None if other < 0 else words.name[match.reference.name[other]]
        if partner is not None and here.get(name, -1) == there.get(partner, -2):
            score.modules += 1
        elif partner is not None:
            score.wrong.append(f"module {name} = {partner}")
        elif here.get(name) in common:
            score.missed.append(f"module {name}")


def _score_outputs(score: Score, match: StepMatch, here: dict[str, str], there: dict[str, str]) -> None:
    words, records = match.words, match.records
    places = places_of(match.target, words), places_of(match.reference, words)
    counts = [
        Counter(known[place] for place in found.values() if place in known)
        for known, found in zip((here, there), places, strict=True)
    ]
    score.outputs_expected = sum(min(counts[0][t], counts[1][t]) for t in counts[0].keys() & counts[1].keys())
    forward = words.phase.index("forward")
    paired: Counter[str] = Counter()
    for t, r in zip(records.target.tolist(), records.reference.tolist(), strict=True):
        one = places[0].get((int(match.target.record_call[t]), int(match.target.record_slot[t])))
        two = places[1].get((int(match.reference.record_call[r]), int(match.reference.record_slot[r])))
        if match.target.record_phase[t] != forward or one is None or two is None:
            continue
        if one in here and here[one] == there.get(two):
            score.outputs += 1
            paired[here[one]] += 1
        else:
            score.wrong.append(f"{one} = {two}")
    for tensor in sorted(counts[0].keys() & counts[1].keys()):
        short = min(counts[0][tensor], counts[1][tensor]) - paired[tensor]
        score.missed += [f"{short} of {tensor}"] if short > 0 else []
