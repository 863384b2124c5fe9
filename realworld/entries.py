"""The programs, read from ``programs.yaml``."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from bugzoo.scoreboard.answers import Named

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
SCRIPTS = HERE / "programs"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What a planted fault should be called."""

    compare: str
    """value of ``trueup.types.Stage`` that ``trueup compare`` should say"""
    diagnose: str
    """the same of ``trueup diagnose``"""
    sites: list[str] | None = None
    """patterns of module or weight names that are right; None: the stage alone says where"""

    def is_named(self, named: Named, stage: str) -> bool:
        """Whether a finding names it, at this stage."""
        if named.stage != stage:
            return False
        if self.sites is None or named.site is None:
            return self.sites is None
        owner = named.site.removesuffix(".weight").removesuffix(".bias")
        return any(fnmatchcase(given, site) for site in self.sites for given in (named.site, owner))


@dataclass(frozen=True, kw_only=True)
class Program:
    """One program in one setting."""

    name: str
    summary: str
    script: str
    environment: str
    packages: list[str]
    """whose versions the table names"""
    imports: list[str] = field(default_factory=list)
    """modules that take its start seconds: a Python that is warm has them (none that trueup waits for)"""
    arguments: list[str] = field(default_factory=list)
    processes: int = 1
    in_ci: str | None = None
    """the fault that CI plants into it; None: CI leaves it out"""
    processes_in_ci: int | None = None
    """None: as many as elsewhere"""
    known: dict[str, str] = field(default_factory=dict)
    """how a line of ``trial.faults_of`` begins -> why it is so for now"""
    faults: dict[str, Fault] = field(default_factory=dict)
    seed_stages: list[str] = field(default_factory=lambda: ["data", "weights"])
    settings: dict[str, str] = field(default_factory=dict)
    """environment variables"""
    parity: dict[str, str] = field(default_factory=dict)
    """with ``check-run --compile-parity``: operation computed wrongly (``--wrong``) -> pattern of the module
    that is named; with one, the program as it is has to pass too"""
    alone: str | None = None
    """the same training in one process: another program"""

    @property
    def python(self) -> Path:
        """The interpreter of its environment."""
        folder = Path(os.environ.get("TRUEUP_REALWORLD_VENVS", ROOT / ".cache" / "realworld"))
        return folder / self.environment / "bin" / "python"

    def command(self, python: str, *, seed: int = 0, fault: str | None = None) -> list[str]:
        """What trains it."""
        planted = ["--fault", fault] if fault else []
        script = [str(SCRIPTS / self.script), *self.arguments, "--seed", str(seed), *planted]
        if self.processes == 1:
            return [python, *script]
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.processes}"]
        return [python, *launcher, *script]


@cache
def programs() -> dict[str, Program]:
    """All of them by name."""
    read = yaml.safe_load((HERE / "programs.yaml").read_text(encoding="utf-8"))
    shared = read.pop("faults")
    return {name: _program(name, plain, shared) for name, plain in read.items()}


def _program(name: str, plain: dict[str, Any], shared: dict[str, Any]) -> Program:
    faults = {one: Fault(**(shared[one] | given)) for one, given in (plain.pop("faults", None) or {}).items()}
    return Program(name=name, faults=faults, **plain)
