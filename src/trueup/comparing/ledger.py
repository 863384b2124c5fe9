"""Everything result.json needs, gathered one step of one rank at a time, so that memory never grows with the
run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from trueup.comparing.arbiter import Arbitration, arbiter_said, tally
from trueup.comparing.attribution import ORIGIN, PROPAGATED, STATUS, Attribution
from trueup.comparing.judge import (
    DIFFERENT,
    EQUAL,
    UNDECIDED,
    UNMATCHED,
    WITHIN,
    Judgement,
    bracketed,
)
from trueup.comparing.metrics import NONE, Metrics
from trueup.comparing.origins import likelihood, said_of_row, score_of_row
from trueup.comparing.owner import owner_of_row
from trueup.comparing.pairing import StepPair
from trueup.comparing.rows import Rows
from trueup.comparing.tolerance import Bound
from trueup.matching.codes import Codes
from trueup.matching.step import NO_PARAMETER

MAX_GROUPS = 200
MAX_STACKS = 20_000


@dataclass(slots=True)
class First:
    """The first row beyond tolerance of a phase, with what was seen before it in its step and rank."""

    step: int
    rank: int
    order: int
    row: dict[str, Any]
    owner: str | None
    before: dict[str, Any]
    hints: list[str]
    said: list[str] = field(default_factory=list)
    """why it is called an origin"""
    likelihood: tuple[bool, int, int] = (True, 0, 0)
    weight: str | None = None
    """of a collective that no module called: the first weight whose gradient differs with it; of another call
    outside of the model: the weight whose gradient it took"""


@dataclass(slots=True)
class Ledger:
    """Sums over all steps and ranks compared so far."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(phase, status) -> rows"""
    compared: int = 0
    beyond: int = 0
    """rows beyond their tolerance"""
    followed: int = 0
    """rows that only a tolerance holds which was widened for an update beyond its own"""
    origin: First | None = None
    """the likeliest origin"""
    lacking: First | None = None
    """the first weight that one run alone has"""
    num_origins: int = 0
    arbitration: Counter[str] = field(default_factory=Counter)
    arbitration_first: dict[str, str] = field(default_factory=dict)
    evidence: Counter[str] = field(default_factory=Counter)
    groups: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    """(side, module, name, reason) -> unmatched records"""
    alone: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(side, phase) -> unmatched records"""
    not_bracketed: int = 0
    not_bracketed_examples: list[str] = field(default_factory=list)
    firsts: dict[str, First] = field(default_factory=dict)
    modules: dict[str, dict[str, Any]] = field(default_factory=dict)
    depth: list[dict[str, Any]] = field(default_factory=list)
    local_norms: list[dict[str, Any]] = field(default_factory=list)
    limits: dict[int, dict[str, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    pairs: int = 0

    def add(
        self,
        pair: StepPair,
        rows: Rows,
        metrics: Metrics,
        bound: Bound,
        verdict: Judgement,
        attribution: Attribution,
        table: pa.Table,
    ) -> None:
        """Take in one step of one rank."""
        status = verdict.status
        phases = rows.match.words.phase
        of_both = rows.phase * len(STATUS) + attribution.status
        counted = np.bincount(of_both, minlength=len(phases) * len(STATUS))
        for code in np.flatnonzero(counted).tolist():
            self.counts[phases[code // len(STATUS)], STATUS[code % len(STATUS)]] += int(counted[code])
        self.beyond += int((status == DIFFERENT).sum())
        self.followed += int(((status == WITHIN) & (attribution.status == PROPAGATED)).sum())
        self.compared += int(np.isin(status, (EQUAL, WITHIN, DIFFERENT)).sum())
        from trueup.comparing.metrics import EVIDENCE

        for code, count in enumerate(np.bincount(metrics.evidence[rows.paired], minlength=NONE + 1).tolist()):
            if count:
                self.evidence[EVIDENCE[code]] += count
        self._add_open(pair, rows, verdict, table)
        self._add_firsts(pair, rows, verdict, table)
        self._add_origin(pair, rows, verdict, attribution, table)
        self._add_modules(rows, verdict, attribution)
        self._add_limits(pair, rows, verdict)
        if self.pairs == 0:
            self._add_depth(pair, rows, metrics, verdict, table)
            self._add_local_norms(rows, metrics)
        self._add_requires_grad(pair, table)
        self.pairs += 1

    def _add_open(self, pair: StepPair, rows: Rows, verdict: Judgement, table: pa.Table) -> None:
        open_ = np.isin(verdict.status, (UNMATCHED, UNDECIDED))
        neither = (rows.target.summary < 0) & (rows.reference.summary < 0)
        open_ &= ~(rows.paired & neither & rows.phase_is("collective"))  # memory that awaits what is received
        if not open_.any():
            return
        inside = bracketed(rows, verdict)
        outside = np.flatnonzero(open_ & ~inside)
        self.not_bracketed += len(outside)
        for row in outside[: 3 - len(self.not_bracketed_examples)].tolist():
            said = table["reason"][row].as_py()
            self.not_bracketed_examples.append(f"{table['site'][row].as_py()}: {said}")
        alone = np.flatnonzero(verdict.status == UNMATCHED)
        if len(alone):
            part = table.select(["module", "name", "reason"]).take(pa.array(alone)).to_pydict()
            sides = np.where(rows.target.record[alone] >= 0, "target", "reference").tolist()
            phases = [rows.match.words.phase[code] for code in rows.phase[alone].tolist()]
            self.alone.update(zip(sides, phases, strict=True))
            self.groups.update(zip(sides, part["module"], part["name"], part["reason"], strict=True))
            weights = [row for row in alone[rows.phase_is("param")[alone]].tolist() if _no_weight(table, row)]
            if weights and (self.lacking is None or pair.step < self.lacking.step):
                self.lacking = _first(pair, rows, verdict, table, weights[0])

    def _add_firsts(self, pair: StepPair, rows: Rows, verdict: Judgement, table: pa.Table) -> None:
        beyond = np.flatnonzero(verdict.status == DIFFERENT)
        if not len(beyond):
            return
        phases, at = np.unique(rows.phase[beyond], return_index=True)
        for phase, row in zip(phases.tolist(), beyond[at].tolist(), strict=True):
            name = rows.match.words.phase[phase]
            known = self.firsts.get(name)
            if known is not None and (known.step, known.order) <= (pair.step, row):
                continue
            self.firsts[name] = _first(pair, rows, verdict, table, row)

    def _add_origin(
        self, pair: StepPair, rows: Rows, verdict: Judgement, attribution: Attribution, table: pa.Table
    ) -> None:
        """Keep the likeliest origin so far."""
        at = np.flatnonzero(attribution.status == ORIGIN)
        self.num_origins += len(at)
        best: tuple[tuple[bool, int, int], int] | None = None
        for row in at.tolist():
            plain = {name: table[name][row].as_py() for name in _SCORED}
            found = likelihood(score_of_row(plain), pair.step, row), row
            best = found if best is None else min(best, found)
            if not best[0][0]:
                break
        if best is not None and (self.origin is None or best[0] < self.origin.likelihood):
            self.origin = _first(pair, rows, verdict, table, best[1])
            self.origin.said, self.origin.likelihood = said_of_row(self.origin.row), best[0]
            if self.origin.owner is None and self.origin.row["phase"] == "collective":
                _name_weight(self.origin, rows, at)
            elif self.origin.owner is None and self.origin.row["phase"] == "forward":
                _name_held_gradient(self.origin, rows)

    def add_arbitration(self, arbitration: Arbitration, table: pa.Table) -> None:
        """Take in what the arbiter says of one step of one rank."""
        counts, first = tally(arbitration, table["site"])
        self.arbitration.update(counts)
        self.arbitration_first = {**first, **self.arbitration_first}

    def arbitrated(self, path: str) -> dict[str, Any]:
        """The ``arbiter`` object of result.json."""
        counts = {name: self.arbitration[name] for name in ("neither", "target", "reference")}
        said = arbiter_said(path, counts, self.arbitration_first)
        return {"path": path, "less_accurate": counts, "first": self.arbitration_first, "sentence": said}

    def _add_modules(self, rows: Rows, verdict: Judgement, attribution: Attribution) -> None:
        scores = np.where(np.isnan(verdict.score), -1.0, verdict.score)
        owner = _module_of_rows(rows)
        frame = pl.DataFrame(
            {
                "module": owner,
                "phase": rows.phase,
                "score": scores,
                "status": attribution.status,
                "order": np.arange(len(rows)),
            }
        ).filter(pl.col("module") >= 0)
        grouped = frame.group_by("module", "phase").agg(
            pl.col("score").max(),
            pl.col("order").min(),
            *((pl.col("status") == code).any().alias(name) for code, name in enumerate(STATUS)),
        )
        types = _types_of_modules(rows)
        words = rows.match.words
        for row in grouped.iter_rows(named=True):
            fqn = words.name[row["module"]]
            entry = self.modules.setdefault(fqn, _new_module(fqn, row["order"]))
            entry["type"] = entry["type"] or types.get(row["module"])
            if self.pairs == 0:
                entry["order"] = min(entry["order"], row["order"])
            worst = _WORST.get(words.phase[row["phase"]])
            if worst is not None and row["score"] >= 0:
                entry[worst] = max(entry[worst] if entry[worst] is not None else 0.0, row["score"])
            entry["seen"].update(name for name in STATUS if row[name])

    def _add_limits(self, pair: StepPair, rows: Rows, verdict: Judgement) -> None:
        limits = self.limits.setdefault(pair.step, {"loss": 0.0, "gradient": 0.0})
        for name, phases in (("loss", ("loss",)), ("gradient", ("param_grad",))):
            at = rows.phase_is(*phases) & np.isfinite(verdict.tolerance)
            if not at.any() and name == "loss":
                at = rows.phase_is("forward") & rows.slot_starts("output") & np.isfinite(verdict.tolerance)
            if at.any():
                limits[name] = max(
                    limits[name], float(np.median(verdict.tolerance[at])) * (2 if name == "loss" else 1)
                )

    def _add_depth(
        self, pair: StepPair, rows: Rows, metrics: Metrics, verdict: Judgement, table: pa.Table
    ) -> None:
        shown = rows.kind_is("module") & rows.phase_is("forward", "backward") & rows.slot_starts("output")
        at = np.flatnonzero(shown & rows.paired & ~np.isnan(verdict.score))
        part = table.select(["order", "module", "type", "phase", "rel_l2", "tolerance"]).take(pa.array(at))
        self.depth += [{"step": pair.step, "rank": pair.rank, **row} for row in part.to_pylist()]

    def _add_local_norms(self, rows: Rows, metrics: Metrics) -> None:
        words = rows.match.words
        chosen: dict[str, int] = {}
        rank_of_slot = {"clipped": 0, "local": 1, "accumulated": 2}
        gradients = np.flatnonzero(rows.phase_is("param_grad") & rows.paired)
        for row in gradients.tolist():
            fqn = words.name[rows.match.target.name[rows.target.call[row]]]
            now = rank_of_slot.get(words.slot[rows.slot[row]], -1)
            old = chosen.get(fqn)
            if old is None or now >= rank_of_slot.get(words.slot[rows.slot[old]], -1):
                chosen[fqn] = row
        relative = metrics.rel_l2
        for fqn, row in chosen.items():
            target = float(rows.target.statistics["l2_norm"][row])
            reference = float(rows.reference.statistics["l2_norm"][row])
            rel_diff = (
                abs(target - reference) / reference if reference else (0.0 if target == reference else np.inf)
            )
            self.local_norms.append(
                {
                    "fqn": fqn,
                    "target": target,
                    "reference": reference,
                    "rel_diff": rel_diff,
                    "rel_l2": float(relative[row]),
                }
            )

    def _add_requires_grad(self, pair: StepPair, table: pa.Table) -> None:
        import pyarrow.compute as pc

        apart = (
            pc.sum(pc.not_equal(table["target_requires_grad"], table["reference_requires_grad"])).as_py() or 0
        )
        if apart:
            self.notes.append(
                f"step {pair.step}, rank {pair.rank}: requires_grad differs at {apart} records."
            )

    def module_tree(self) -> list[dict[str, Any]]:
        """Modules in execution order with their worst scores and status."""
        tree = sorted(self.modules.values(), key=lambda m: (m["order"], m["depth"]))
        rank = ("origin", "amplified", "propagated", "undecided", "unmatched", "within_noise", "equal")
        out = []
        for entry in tree:
            seen = entry["seen"]
            status = next((s for s in rank if s in seen), "undecided")
            out.append({k: v for k, v in entry.items() if k != "seen"} | {"status": status})
        return out

    def unmatched(self) -> list[dict[str, Any]]:
        """Groups of unmatched records, largest first."""
        columns = ("side", "module", "name", "reason")
        top = self.groups.most_common(MAX_GROUPS)
        return [{**dict(zip(columns, key, strict=True)), "count": count} for key, count in top]


_SCORED = ("rel_l2", "tolerance", "score", "gain", "error_in")


def _first(pair: StepPair, rows: Rows, verdict: Judgement, table: pa.Table, row: int) -> First:
    return First(
        step=pair.step,
        rank=pair.rank,
        order=row,
        row={column: table[column][row].as_py() for column in table.column_names},
        owner=owner_of_row(rows, row),
        before=_before(rows, verdict, table, row),
        hints=_hints(rows, row),
    )


def _no_weight(table: pa.Table, row: int) -> bool:
    """Whether a record stands alone because the other run has no such weight."""
    return NO_PARAMETER in (table["reason"][row].as_py() or "")


def _name_weight(first: First, rows: Rows, origins: Codes) -> None:
    """What a collective of the training step carried: the first weight whose gradient differs after it."""
    gradients = origins[rows.phase_is("param_grad")[origins] & (origins > first.order)]
    if len(gradients):
        words, row = rows.match.words, int(gradients[0])
        first.weight = words.name[rows.match.target.plain[rows.target.call[row]]]
        first.owner = owner_of_row(rows, row)


def _name_held_gradient(first: First, rows: Rows) -> None:
    """The weight whose gradient, as backward left it in the reference, a call outside of the model took
    (clipping, a norm)."""
    summary = rows.reference.summary[first.order]
    same = rows.phase_is("param_grad") & (rows.reference.summary == summary)
    held = np.flatnonzero(same & (rows.target.call >= 0)) if summary >= 0 else np.zeros(0, np.int64)
    if len(held):
        words, row = rows.match.words, int(held[0])
        first.weight = words.name[rows.match.target.plain[rows.target.call[row]]]
        first.owner = owner_of_row(rows, row)


_WORST = {
    "forward": "worst_forward",
    "loss": "worst_forward",
    "backward": "worst_backward",
    "param_grad": "worst_grad",
}


def _new_module(fqn: str, order: int) -> dict[str, Any]:
    depth = fqn.count(".") + 1 if fqn else 0
    entry: dict[str, Any] = {"fqn": fqn, "type": None, "order": order, "depth": depth}
    return entry | dict.fromkeys(("worst_forward", "worst_backward", "worst_grad")) | {"seen": set()}


def _module_of_rows(rows: Rows) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The module (code of its name) each row belongs to: itself, the enclosing one, or a parameter's."""
    side, words = rows.match.target, rows.match.words
    kinds = {word: code for code, word in enumerate(words.kind)}
    module = side.kind == kinds.get("module", -2)
    parent = np.maximum(side.parent, 0)
    owner = np.where(module, side.name, np.where((side.parent >= 0) & module[parent], side.name[parent], -1))
    codes = {word: code for code, word in enumerate(words.name)}
    for call in np.flatnonzero(side.kind == kinds.get("parameter", -2)).tolist():
        owner[call] = codes.get(words.name[side.name[call]].rpartition(".")[0], -1)
    if not len(owner):
        return np.full(len(rows), -1, np.int64)
    return np.where(rows.target.call >= 0, owner[np.maximum(rows.target.call, 0)], -1)


def _types_of_modules(rows: Rows) -> dict[int, str]:
    side, words = rows.match.target, rows.match.words
    known = np.flatnonzero(side.type >= 0)
    return {int(side.name[c]): words.type[side.type[c]] for c in known[::-1].tolist()}


def _before(rows: Rows, verdict: Judgement, table: pa.Table, row: int) -> dict[str, Any]:
    status, score = verdict.status[:row], verdict.score[:row]
    within = np.flatnonzero(status == WITHIN)
    said: dict[str, Any] = {
        "equal": int((status == EQUAL).sum()),
        "within_noise": len(within),
        "beyond": int((status == DIFFERENT).sum()),
        "open": int(np.isin(status, (UNMATCHED, UNDECIDED)).sum()),
    }
    if len(within):
        worst = int(within[np.argmax(np.nan_to_num(score[within]))])
        said["worst_score"] = float(score[worst])
        said["worst_site"] = table["site"][worst].as_py()
    return said


def _hints(rows: Rows, row: int) -> list[str]:
    """Arguments and dtypes that differ at or before a row: likely causes, in words."""
    from trueup.comparing.owner import argument_differences, dtype_differences

    return [*argument_differences(rows, row), *dtype_differences(rows, row)]
