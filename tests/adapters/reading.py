"""A captured run as the tests ask about it: by name, phase and slot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trueup.store import Trace

Row = Mapping[str, Any]


class Captured:
    """One step of one rank: calls, and records with their call and summary beside them."""

    def __init__(self, path: Path, step: int = 0, rank: int = 0) -> None:
        self.trace = Trace(path)
        self.step, self.rank = step, rank
        tables = self.trace.read(step=step, rank=rank)
        self.calls: list[dict[str, Any]] = tables.calls.to_dicts()
        self.stacks = {row["stack"]: row["frames"] for row in tables.stacks.to_dicts()}
        summaries = tables.summaries.to_dicts()
        self.records: list[dict[str, Any]] = []
        for row in tables.records.to_dicts():
            call = self.calls[row["call"]]
            summary = None if row["summary"] is None else summaries[row["summary"]]
            self.records.append({**row, "site": call, "summary": summary})

    @property
    def facts(self) -> dict[str, Any]:
        return self.trace.rank_facts(self.rank)

    def find(self, name: str, phase: str, slot: str, **wanted: Any) -> list[dict[str, Any]]:
        """Records of the calls with this name, in execution order; ``wanted`` are columns of call or
        record."""
        return [
            r
            for r in self.records
            if r["site"]["name"] == name
            and r["phase"] == phase
            and r["slot"] == slot
            and all((r[k] if k == "microbatch" else r["site"][k]) == v for k, v in wanted.items())
        ]

    def one(self, name: str, phase: str, slot: str, **wanted: Any) -> dict[str, Any]:
        found = self.find(name, phase, slot, **wanted)
        assert len(found) == 1, f"{len(found)} records of {name!r} {phase} {slot} {wanted}"
        return found[0]

    def values(self, record: Row) -> Any:
        """The stored values of a record, in the tests' framework."""
        raise NotImplementedError

    def value(self, name: str, phase: str, slot: str, **wanted: Any) -> Any:
        return self.values(self.one(name, phase, slot, **wanted))

    def slots(self, name: str, phase: str, **wanted: Any) -> list[str]:
        """Slots recorded for the calls with this name."""
        return [
            r["slot"]
            for r in self.records
            if r["site"]["name"] == name
            and r["phase"] == phase
            and all(r["site"][k] == v for k, v in wanted.items())
        ]

    def sites(self, *, modes: tuple[str, ...] = ("train", "eval")) -> list[tuple[Any, ...]]:
        """Every record by place, without what it held; the same for two runs of one program."""
        paths: list[tuple[Any, ...]] = []
        for call in self.calls:
            above = () if call["parent"] is None else paths[call["parent"]]
            paths.append((*above, (call["kind"], call["name"], call["ordinal"], call["mode"])))
        return [
            (paths[r["call"]], r["microbatch"], r["phase"], r["slot"])
            for r in self.records
            if r["site"]["mode"] in modes
        ]

    def digests(self, **options: Any) -> list[tuple[Any, ...]]:
        """Every record by place, with its digest."""
        kept = options.get("modes", ("train", "eval"))
        records = [r for r in self.records if r["site"]["mode"] in kept]
        return [
            (site, r["summary"] and r["summary"]["digest"], r["reason"])
            for site, r in zip(self.sites(**options), records, strict=True)
        ]

    def arguments(self, name: str, **wanted: Any) -> dict[str, Any]:
        calls = [c for c in self.calls if c["name"] == name and all(c[k] == v for k, v in wanted.items())]
        assert len(calls) == 1, f"{len(calls)} calls of {name}"
        return {} if calls[0]["arguments"] is None else json.loads(calls[0]["arguments"])
