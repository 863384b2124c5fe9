"""The guide's procedure from its checklist to downstream tasks, with what is given."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trueup.accepting.downstream import Downstream, downstream, downstream_items
from trueup.accepting.first_steps import preparation_items, step_items
from trueup.accepting.item import Item, State
from trueup.accepting.long_run import compared, leaves_a_small_gap, long_run_items, no_update_items
from trueup.accepting.recommended import needless, recommendation_items, unjudged_items, waivable
from trueup.accepting.settings import by_hand, checklist_items
from trueup.accepting.signoff import SignOff
from trueup.curves.comparison import CurveComparison, Options
from trueup.curves.conditions import ASSUMABLE, SETTINGS, conditions, proofs
from trueup.diagnosing.diagnosis import Diagnosis
from trueup.diagnosing.pipeline import diagnose
from trueup.diagnosing.stages.config import Configurations, configurations
from trueup.errors import ConfigError
from trueup.store import layout
from trueup.types.codes import AcceptCode as Code
from trueup.types.reason import Reason, reason


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceInputs:
    """All that a person hands over."""

    target: Path | None = None
    """trace of the first steps of the run under question"""
    reference: Path | None = None
    configs: tuple[str, str] | None = None
    data: Sequence[str] = ()
    """data sets whose ids are held against the special ids"""
    inference: Sequence[str] = ()
    """what the target is used for inference with"""
    curves: Sequence[str] = ()
    """the target's log, the reference's, those of its repeats"""
    no_update: Sequence[str] = ()
    """the same at learning rate 0"""
    evaluations: tuple[Path, Path] | None = None
    command: Sequence[str] | None = None
    """the target's program, to replay it"""
    assumed: frozenset[str] = frozenset()
    """what a person vouches for: weights, settings, randomness, data"""
    stated: Mapping[str, str] = field(default_factory=dict)
    """the standard's default conditions, as changed"""
    waived: Mapping[str, str] = field(default_factory=dict)
    """row of the recommendations, or setting that no rule reads -> why it is not followed, or differs"""

    @property
    def traces(self) -> tuple[Path, Path] | None:
        """Both traces."""
        return None if self.target is None or self.reference is None else (self.target, self.reference)

    def inputs(self) -> list[tuple[Reason, str]]:
        """Role and place of everything."""
        named: list[tuple[Reason, str]] = []
        pairs = (
            ("trace", self.traces),
            ("configuration", self.configs),
            ("log", self.curves),
            ("log at learning rate 0", self.no_update),
            ("evaluation", self.evaluations),
        )
        for what, places in pairs:
            for at, place in enumerate(places or ()):
                side = "target" if at == 0 else "reference"
                named.append((reason(Code.INPUT, what=what, side=side, repeat=max(0, at - 1)), str(place)))
        for what, places in (("training data", self.data), ("inference", self.inference)):
            named += [(reason(Code.INPUT, what=what, side="", repeat=0), place) for place in places]
        return named


@dataclass(frozen=True, slots=True, kw_only=True)
class Procedure:
    """The sign-off and all it was made from."""

    signoff: SignOff
    configurations: Configurations | None
    diagnosis: Diagnosis | None
    curves: CurveComparison | None
    no_update: CurveComparison | None
    downstream: Downstream | None


def accept(
    given: AcceptanceInputs, *, output: Path, say: Callable[[str], None] = lambda _: None
) -> Procedure:
    """Go through the whole guide; writes signoff.json below ``output``, and the diagnosis in ``diagnosis``.

    Raises:
        ConfigError: nothing was given, or something that cannot be read.
        TraceError: a trace or log cannot be read.
        NothingCompared: two things given have nothing in common.
    """
    if not given.inputs():
        raise ConfigError(
            "nothing to accept by: give two traces (trueup accept TARGET REFERENCE), --config, --curves, "
            "--learning-rate-0 or --eval"
        )
    began = time.perf_counter()
    native = _native(given.traces)
    options = Options(
        assumed=given.assumed,
        stated=dict(given.stated),
        target_trace=native[0] if native else None,
        reference_trace=native[1] if native else None,
    )
    settings = _settings(given)
    notes = (*_one_file(given), *needless(settings, given.waived))
    tasks = downstream(given.evaluations)
    long_run = compared(given.curves, "--curves", options)
    still = compared(given.no_update, "--learning-rate-0", replace(options, assumed=frozenset(ASSUMABLE)))
    diagnosis = None
    if given.traces is not None:
        folder = output / "diagnosis"
        diagnosis = diagnose(
            *given.traces, output=folder, command=given.command, configs=given.configs, say=say
        )
    if long_run is not None:
        proved = [c for c in long_run.evidence.criteria if c.key in ASSUMABLE]
    else:
        proved = proofs(options.target_trace, options.reference_trace, assumed=given.assumed)
    items = [
        *checklist_items(settings),
        *recommendation_items(settings, given.waived),
        *unjudged_items(settings, given.waived),
        *(_by_files(item, settings) for item in preparation_items(proved, diagnosis)),
        *step_items(diagnosis),
        *no_update_items(still),
        *long_run_items(long_run),
        *downstream_items(tasks, wanted=leaves_a_small_gap(long_run)),
    ]
    signoff = SignOff(
        items=tuple(items),
        inputs=tuple(given.inputs()),
        conditions=tuple(conditions(options.target_trace, dict(given.stated))),
        by_hand=(*by_hand(settings), reason(Code.EXPANSION)),
        notes=(*notes, *(() if long_run is None else long_run.notes)),
        waivers={row: why for row, why in given.waived.items() if row in waivable(settings)},
        seconds={"all": time.perf_counter() - began},
    )
    signoff.write(output)
    return Procedure(
        signoff=signoff,
        configurations=settings,
        diagnosis=diagnosis,
        curves=long_run,
        no_update=still,
        downstream=tasks,
    )


def _native(traces: tuple[Path, Path] | None) -> tuple[Path, Path] | None:
    """Both traces, where they are trueup's own: what dumps of others do not hold cannot be proved."""
    if traces is None or not all((trace / layout.MANIFEST).is_file() for trace in traces):
        return None
    return traces


def _settings(given: AcceptanceInputs) -> Configurations | None:
    if given.traces is None and given.configs is None:
        if given.data or given.inference:
            raise ConfigError(
                "--data and --inference are held against the settings of the runs: give --config TARGET "
                "REFERENCE, or two traces"
            )
        return None
    return configurations(
        *(given.traces or (Path(), Path())), given.configs, data=given.data, inference=given.inference
    )


def _one_file(given: AcceptanceInputs) -> Iterator[Reason]:
    """Runs of one script may share its file; one file given twice by mistake proves nothing."""
    if given.configs is not None and Path(given.configs[0]).resolve() == Path(given.configs[1]).resolve():
        yield reason(Code.ONE_FILE, file=given.configs[0])


def _by_files(item: Item, settings: Configurations | None) -> Item:
    """Hyperparameters that no trace proves are proved by two configuration files that agree throughout."""
    if (
        item.key != SETTINGS
        or item.state is not State.NOT_SHOWN
        or settings is None
        or settings.given is None
    ):
        return item
    if settings.checklist.training != "agree":
        return item
    compared_settings = reason(Code.BY_FILES, num=settings.num_compared)
    return replace(item, state=State.PASSED, measured=compared_settings, evidence=(), how=None)
