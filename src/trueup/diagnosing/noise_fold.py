"""Folds reruns of a reference into its noise profile: how far each record of it moved."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone

import numpy as np
import polars as pl

from trueup import __version__
from trueup.capture.options import StepSet
from trueup.comparing.metrics import NONE, measure
from trueup.comparing.noise import MEASURES, SCHEMA, SCHEMA_VERSION, NoiseFacts, NoiseProfile, keys_of_records
from trueup.comparing.options import CompareOptions
from trueup.comparing.pairing import StepPair
from trueup.comparing.rows import StepRows, rows_from_match
from trueup.comparing.values import read_values
from trueup.diagnosing.gradients import scalar_line
from trueup.diagnosing.thresholds import OTHER_WEIGHTS
from trueup.errors import ConfigError, NothingCompared
from trueup.matching import match_step
from trueup.numerics.dtypes import DTYPES
from trueup.store import Trace
from trueup.types.arrays import Bools, Floats


@dataclass(slots=True)
class NoiseFold:
    """Sums over reruns, per step and rank one number a record of the reference."""

    reference: Trace
    steps: StepSet | None = None
    num_repeats: int = 0
    seeds: int = 0
    _found: dict[tuple[int, int], dict[str, Floats]] = field(default_factory=dict)
    _keys: dict[tuple[int, int], pl.DataFrame] = field(default_factory=dict)

    def add(self, rerun: Trace, *, perturbed: bool) -> None:
        """Take one rerun in.

        Raises:
            NothingCompared: no step and rank in common.
            ConfigError: it is another training: other weights to begin with, other batches.
        """
        held, common = rerun.steps(), 0
        for step, ranks in self.reference.steps().items():
            if self.steps is not None and step not in self.steps:
                continue
            for rank in sorted(set(ranks) & set(held.get(step, []))):
                self._add_step(rerun, step, rank, perturbed)
                if not perturbed:
                    self._same_batch(rerun, step, rank)
                common += 1
        if not common:
            raise NothingCompared(
                f"a rerun of the program of {self.reference.path} has no step in common with it: it holds "
                f"steps {sorted(held)}, the reference {sorted(self.reference.steps())}. Is it the same "
                "command?"
            )
        self.seeds += perturbed
        self.num_repeats += not perturbed

    def _same_batch(self, rerun: Trace, step: int, rank: int) -> None:
        digests = [scalar_line(source, rank, step).get("batch_digest") for source in (rerun, self.reference)]
        if None not in digests and digests[0] != digests[1]:
            raise ConfigError(
                f"a plain rerun read another batch in step {step}: what that changes is no noise. Does the "
                "program seed its data loader?"
            )

    def _add_step(self, rerun: Trace, step: int, rank: int, perturbed: bool) -> None:
        target, reference = rerun.read(step, rank), self.reference.read(step, rank)
        rows = rows_from_match(target, reference, match_step(target, reference))
        metrics = measure(rows)
        pair = StepPair(step=step, rank=rank, reference_step=step, reference_rank=rank)
        read_values(rows, metrics, np.zeros(len(rows)), rerun, self.reference, pair, CompareOptions())
        known = rows.paired & (metrics.evidence != NONE) & ~np.isnan(metrics.difference)
        noise = np.where(known, metrics.rel_l2, np.nan)
        if step == min(self.reference.steps()):
            _same_beginning(rows, noise)
        num = reference.records.height
        found = self._found.setdefault((step, rank), _nothing(num))
        self._keys.setdefault((step, rank), keys_of_records(reference))
        at = rows.reference.record[known]
        name = "perturbed" if perturbed else "repeat"
        found[name][at] = np.fmax(found[name][at], noise[known])
        found["num_runs"][at] += 1
        bias = np.abs(metrics.details["scale"] - 1.0)[known]
        found["bias"][at] = np.fmax(found["bias"][at], bias)
        if perturbed:
            gain = call_gain(rows, noise)[known]
            found["gain"][at] = np.fmax(found["gain"][at], gain)

    def profile(self, *, command: list[str]) -> NoiseProfile:
        """What was found so far.

        Raises:
            NothingCompared: not one record could be compared.
        """
        frames = [self._frame(step, rank) for step, rank in sorted(self._found)]
        table = pl.concat(frames).filter(pl.col("num_runs") > 0)
        if table.is_empty():
            raise NothingCompared(
                f"not one record of {self.reference.path} has a digest, sketch or value to compare its "
                "reruns with: capture it again with sketches"
            )
        manifest = self.reference.manifest
        facts: NoiseFacts = {
            "schema_version": SCHEMA_VERSION,
            "run_id": manifest.get("run_id"),
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "trueup_version": __version__,
            "command": command,
            "level": manifest.get("level"),
            "num_repeats": self.num_repeats,
            "num_perturbed": self.seeds,
            "steps": sorted({step for step, _ in self._found}),
            "ranks": sorted({rank for _, rank in self._found}),
        }
        return NoiseProfile(table=table, facts=facts, path=self.reference.path / "noise")

    def _frame(self, step: int, rank: int) -> pl.DataFrame:
        found = {
            name: pl.Series(values, dtype=pl.Float64).fill_nan(None)
            for name, values in self._found[step, rank].items()
        }
        columns = [pl.lit(step, pl.Int32).alias("step"), pl.lit(rank, pl.Int32).alias("rank")]
        frame = self._keys[step, rank].with_columns(*columns, **found)
        return frame.select(pl.col(name).cast(kind) for name, kind in SCHEMA.items())


def _same_beginning(rows: StepRows, noise: Floats) -> None:
    """Raise where the weights of a rerun are not the reference's to begin with: it is another training.

    Raises:
        ConfigError: naming one of them.
    """
    apart = np.flatnonzero(rows.phase_is("param") & (noise > OTHER_WEIGHTS))
    if len(apart):
        name = rows.match.words.name[int(rows.of_call("name")[apart[0]])]
        raise ConfigError(
            f"a rerun begins with other weights than the reference, {name} among them: that is another "
            "training, not noise. Does the program set its seeds before it builds the model?"
        )


def call_gain(rows: StepRows, noise: Floats) -> Floats:
    """Noise of what a call gives over the largest noise of what it was given; NaN where that is not defined.

    Forward: an output over the call's floating inputs. Backward, the mirror: a gradient leaving over the
    gradients arriving. Not defined for roots, and where nothing noisy went in.
    """
    forward, backward = rows.phase_is("forward"), rows.phase_is("backward")
    inputs, outputs = rows.slot_starts("input"), rows.slot_starts("output")
    inner = rows.kind_is("module", "api") & ((rows.of_call("parent") >= 0) | rows.kind_is("api"))
    floating = _floating(rows) & ~np.isnan(noise)
    gain = np.full(len(rows), np.nan)
    for into, out in ((forward & inputs, forward & outputs), (backward & outputs, backward & inputs)):
        entered = np.zeros(rows.match.reference.num_calls + 1)
        chosen = into & floating & (rows.reference.call >= 0)
        np.maximum.at(entered, rows.reference.call[chosen], noise[chosen])
        entered[-1] = 0.0
        size = entered[rows.reference.call]
        defined = out & inner & floating & (size > 0)
        gain[defined] = noise[defined] / size[defined]
    return gain


def _floating(rows: StepRows) -> Bools:
    words = rows.match.words.dtype
    table = np.array([w in DTYPES and DTYPES[w].kind in ("float", "complex") for w in words] + [False])
    return np.asarray(table[rows.reference.dtype])


def _nothing(num: int) -> dict[str, Floats]:
    found = {name: np.full(num, np.nan) for name in MEASURES}
    return {**found, "num_runs": np.zeros(num)}
