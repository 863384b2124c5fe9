"""Records of weights under other names: gradients that one microbatch has several of, and an optimizer's
pieces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from tests.comparing.traces import Recorder
from trueup.matching import match_step
from trueup.matching.bridge import PieceOf, build_bridge
from trueup.matching.step import StepMatch
from trueup.store import StepTables

Floats = NDArray[np.float32]
NAMES = {"target": ("wide", "narrow"), "reference": ("up_projection", "down_projection")}
OWN = {"target": ("0.part", "1.part"), "reference": ("group.a", "group.b")}
"""what each optimizer calls its pieces"""


def drawn(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def model(side: str) -> Recorder:
    """Two weights of other names on either side, each used once."""
    out = Recorder()
    calls = {}
    for number, name in enumerate(NAMES[side]):
        calls[name] = out.call("parameter", f"{name}.weight")
        out.record(calls[name], "param", "value", drawn(number, 6, 4 + number))
    root = out.call("module", "", type_="Net")
    for number, name in enumerate(NAMES[side]):
        module = out.call("module", name, root, "Linear" if side == "target" else "Dense")
        out.record(module, "forward", "input.0", drawn(10 + number, 3, 4))
        out.record(module, "forward", "output.0", drawn(20 + number, 3, 6))
    for number, name in enumerate(NAMES[side]):
        for turn in range(2):  # both arrive in one microbatch
            out.record(calls[name], "param_grad", "local", drawn(100 * number + turn, 6, 4 + number))
    return out


def with_pieces(side: str, *cuts: tuple[int, int]) -> Recorder:
    """What an optimizer got of parts of the first weight."""
    out = model(side)
    for name, (start, stop) in zip(OWN[side], cuts, strict=True):
        out.record(out.call("parameter", name), "param_grad", "clipped", drawn(7, 24)[start:stop])
    return out


def matched(
    folder: Path,
    target: Recorder,
    reference: Recorder,
    pieces: dict[str, dict[str, PieceOf]] | None = None,
) -> tuple[StepMatch, tuple[StepTables, StepTables]]:
    tables = target.write(folder / "target").read(0, 0), reference.write(folder / "reference").read(0, 0)
    bridge = build_bridge(None, None, tables)
    if pieces is not None:
        bridge = replace(bridge, pieces=(pieces["target"], pieces["reference"]))
    return match_step(*tables, bridge), tables


def gradients(match: StepMatch, tables: tuple[StepTables, StepTables], slot: str) -> set[tuple[int, int]]:
    """Pairs of records under a slot, counted among those of the slot on either side."""
    orders = []
    for one in tables:
        rows = np.flatnonzero((one.records["slot"].cast(pl.String) == slot).to_numpy()).tolist()
        orders.append({row: at for at, row in enumerate(rows)})
    pairs = zip(match.records.target.tolist(), match.records.reference.tolist(), strict=True)
    return {(orders[0][t], orders[1][r]) for t, r in pairs if t in orders[0]}


def pieces_of(**cuts: tuple[tuple[int, int], ...]) -> dict[str, dict[str, PieceOf]]:
    return {
        side: {
            name: PieceOf(f"{NAMES[side][0]}.weight", *cut)
            for name, cut in zip(OWN[side], cuts[side], strict=True)
        }
        for side in NAMES
    }


def test_gradients_of_one_microbatch_are_paired_in_order(tmp_path: Path) -> None:
    """A pipeline gives the gradients of several microbatches back in the last of them."""
    match, tables = matched(tmp_path, model("target"), model("reference"))
    assert gradients(match, tables, "local") == {(at, at) for at in range(4)}


def test_a_gradient_more_has_no_partner(tmp_path: Path) -> None:
    target = model("target")
    target.record(0, "param_grad", "local", drawn(55, 6, 4))
    match, tables = matched(tmp_path, target, model("reference"))
    assert gradients(match, tables, "local") == {(at, at) for at in range(4)}
    assert len(match.records.only_target) == 1


@pytest.mark.parametrize("known", [True, False])
def test_pieces_of_the_same_elements_are_paired(tmp_path: Path, known: bool) -> None:
    """Whatever the optimizers call them, and only where the traces say of what they are pieces."""
    cuts = (0, 10), (10, 24)
    found = pieces_of(target=cuts, reference=cuts) if known else None
    match, tables = matched(tmp_path, with_pieces("target", *cuts), with_pieces("reference", *cuts), found)
    assert gradients(match, tables, "clipped") == ({(0, 0), (1, 1)} if known else set())


def test_pieces_in_another_order_find_their_own(tmp_path: Path) -> None:
    here, there = ((0, 10), (10, 24)), ((10, 24), (0, 10))
    match, tables = matched(
        tmp_path,
        with_pieces("target", *here),
        with_pieces("reference", *there),
        pieces_of(target=here, reference=there),
    )
    assert gradients(match, tables, "clipped") == {(0, 1), (1, 0)}


def test_pieces_cut_elsewhere_are_no_pair(tmp_path: Path) -> None:
    here, there = ((0, 10), (10, 24)), ((0, 11), (11, 24))
    match, tables = matched(
        tmp_path,
        with_pieces("target", *here),
        with_pieces("reference", *there),
        pieces_of(target=here, reference=there),
    )
    assert gradients(match, tables, "clipped") == set()


def with_gradients(side: str, gradient: Floats, *, passes: bool) -> Recorder:
    """The first module's output with a gradient; one that ``passes`` returns what it is given."""
    out = Recorder()
    name = NAMES[side][0]
    weight = out.call("parameter", f"{name}.weight")
    out.record(weight, "param", "value", drawn(0, 6, 6))
    module = out.call("module", name, out.call("module", "", type_="Net"), "Linear")
    out.record(module, "forward", "input.0", drawn(20, 3, 6))
    out.record(module, "forward", "output.0", drawn(20 if passes else 21, 3, 6))
    out.record(module, "backward", "output.0", gradient)
    return out


@pytest.mark.parametrize("passes", [False, True])
def test_what_a_module_makes_has_one_gradient_however_far_the_two_are_apart(
    tmp_path: Path, passes: bool
) -> None:
    """Where a module returns what it is given, its tensor has other uses, and their gradients are no pair."""
    sides = [
        with_gradients(side, drawn(at, 3, 6), passes=passes) for at, side in ((1, "target"), (2, "reference"))
    ]
    match, tables = matched(tmp_path, *sides)
    phases = [one.records["phase"].cast(pl.String).to_list() for one in tables]
    paired = {
        phases[0][t]
        for t, r in zip(match.records.target.tolist(), match.records.reference.tolist(), strict=True)
        if phases[0][t] == phases[1][r]
    }
    assert ("backward" in paired) is not passes
