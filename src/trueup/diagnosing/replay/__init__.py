"""Replay: the target run again with the reference's values put in at every matched call, so that each error
shows where it is made."""

from __future__ import annotations

from trueup.diagnosing.replay.charge import origins
from trueup.diagnosing.replay.noise import ReplayNoise
from trueup.diagnosing.replay.outcome import ReplayOutcome
from trueup.diagnosing.replay.plan import Plan, build_plan
from trueup.diagnosing.replay.run import run_replay

__all__ = ["Plan", "ReplayNoise", "ReplayOutcome", "build_plan", "origins", "run_replay"]
