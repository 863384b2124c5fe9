"""The session: one process's capture from its first training forward to its end.

It is the ``Sink`` an adapter reports to. It decides which step it is and whether tensors are recorded, and
passes finished steps to the store. No internal error ever reaches the program: it is printed once, recorded
in the trace, and capture continues or is disabled.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from trueup import adapters
from trueup.adapters.base import Adapter
from trueup.capture import claim
from trueup.capture.allocator import keep_freed_memory
from trueup.capture.claim import role_of
from trueup.capture.clock import StepClock
from trueup.capture.declared import declared_layout
from trueup.capture.facts import manifest_of, ray_facts, same_launch, scalar_line
from trueup.capture.later import Later
from trueup.capture.observer import Observer, Watch
from trueup.capture.options import CaptureOptions, Task
from trueup.capture.overflow import overflow_sentence
from trueup.capture.recorder import StepRecorder
from trueup.capture.scope import CaptureScope, without_idle_arguments
from trueup.capture.shield import say, shielded
from trueup.store import RunWriter, StepColumns
from trueup.store.layout import MANIFEST, rank_file, whole_steps
from trueup.types.layout import Layout

_MAX_FAILURES = 50
_SLOW_SECONDS = 1.0
"""of a run, that a person should know the program has waited for the disk"""
_PROGRESS_BYTES = 1e8
"""bytes of one step's values from which a line says how far they are written"""
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG, errno.ESTALE, errno.ENODEV}
_DISK |= {errno.ETIMEDOUT}
"""errors after which no more can be written"""

FROM_OUTSIDE = "TRUEUP_CAPTURE"
"""environment variable that holds the options where ``trueup capture`` runs the program"""

_current: Session | None = None


def current() -> Session | None:
    """The session of this process, if one is under way."""
    return _current


def begin(options: CaptureOptions, *, framework: str, observer: Observer | None = None) -> Session:
    """Start the session of this process and put the framework's hooks in place.

    Tensors are captured from the first training forward on. A second call returns the session already under
    way, switched to the new options. A program that has imported two frameworks has a session for each until
    one of them trains: that one is the run. ``observer`` watches a session that is new.
    """
    global _current
    if _current is not None and (_current.framework == framework or _current.has_begun):
        _current.reconfigure(options)
        return _current
    session = Session(options, framework=framework, observer=observer)
    if not _fork_noted:
        os.register_at_fork(after_in_child=_after_fork)
        _fork_noted.append(True)
    session.rival = _current
    if _current is not None:
        _current.rival = session
    _current = session
    atexit.register(session.close)
    return session


_fork_noted: list[bool] = []


def _after_fork() -> None:
    if _current is not None:
        _current.forked()


class Session:
    """Capture of one process; see the module's docstring."""

    def __init__(self, options: CaptureOptions, *, framework: str, observer: Observer | None = None) -> None:
        self.options = options
        self.active = False
        self.microbatch = 0
        self.clock = StepClock(step=options.first_step, manual=options.manual_steps)
        self.framework = framework
        self.rival: Session | None = None
        """the session of another framework, until one of them has begun"""
        self._started = not options.manual_steps
        self._explicit = options.manual_steps
        self._aside: str | None = None
        self._failures: list[dict[str, object]] = []
        self._num_failures = 0
        self._limits: dict[str, None] = {}
        self._overflows: list[dict[str, object]] = []
        self._unkept: list[str] = []
        self._outside_scope = ""
        self._unmatched: dict[str, str] = {}
        self._world_size = 1
        self._scalars: dict[str, Any] = {}
        self._writer: RunWriter | None = None
        self._later = Later()
        self._closing = False
        self._ray: dict[str, str] = {}
        """where in a Ray job this process is, known when it begins to train"""
        self._pid = os.getpid()
        self._child = False
        self._hidden = False
        self.rank = 0
        self.output = options.output
        """where this process writes: the options' folder, or one below it (``claim``)"""
        self.watch = Watch(self, observer)
        self.layout: Layout | None = None
        self.recorder = StepRecorder(RunWriter(options.output, rank=0), self.clock.step)
        self.scope = CaptureScope.from_options(options, framework)
        self.adapter: Adapter = adapters.load(framework).Adapter(self)
        try:
            self.adapter.install()
        except BaseException:  # hooks that are in place already must find nothing to do
            self._aside = "capture could not begin"
            raise

    # -- what a program says ------------------------------------------

    def start(self, model: object | None = None) -> None:
        """Capture on; with ``model`` (or a list of them) only inside it."""
        with self.guard("start"):
            models = list(model) if isinstance(model, (list, tuple)) else [model] if model is not None else []
            self.adapter.set_models(models)
            self._started = self._explicit = True
            if self.options.manual_steps:
                self._open_step()

    def stop(self) -> None:
        """Capture off until the next ``start``."""
        self._started = False
        self.active = False

    def step(self) -> None:
        """The step is over, because the program says so."""
        with self.guard("step"):
            self.clock.manual = True
            self._end_step()
            self.active = False
            if self._started and self.options.manual_steps:
                self._open_step()

    def leave_steps_to_program(self) -> None:
        """From now on steps end only where the program says so."""
        if not self.options.manual_steps:
            self.options = replace(self.options, manual_steps=True)
            self.clock.manual = True

    def go_to_step(self, number: int) -> None:
        """The next step is number ``number``."""
        self.clock.step = number

    def begin_phase(self, step: int | None, **named: str) -> int:
        """A part of step ``step`` begins, forward or training, with ``named`` facts; everything up to
        ``end_phase`` is captured. Another ``step`` ends the one before; None is the one under way. How many
        of the same facts came before in this step."""
        before = 0
        with self.guard("phase"):
            self.leave_steps_to_program()
            if step is not None and step != self.clock.step:
                if self.clock.seen_forward or self.recorder.records:
                    self._end_step()
                self.clock.step = step
            self.start()
            phases = self._scalars.setdefault("phases", [])
            before = sum(named.items() <= one.items() for one in phases)
            phases.append({**named, "number": before, "calls": [len(self.recorder.calls)]})
        return before

    def end_phase(self) -> None:
        """The part is over: what follows is no part of a step."""
        with self.guard("phase"):
            self._scalars["phases"][-1]["calls"].append(len(self.recorder.calls))
            self.stop()

    def save(self, name: str, value: object, *, backward: bool = True) -> None:
        """Record a number or a tensor under ``name``; with ``backward`` the gradient at the tensor too."""
        with self.guard("save"):
            if isinstance(value, (bool, int, float, str)):
                self._scalars.setdefault("saved", {})[name] = value
            elif self.active:
                self.adapter.save(name, value, backward=backward)

    def reconfigure(self, options: CaptureOptions) -> None:
        """Go on under other options (a hot switch, a second debugger)."""
        if options.output != self.options.output:
            self._end_step()
            self._finish()
            self.clock = StepClock(step=options.first_step, manual=options.manual_steps)
            self._writer, self._aside, self.output = None, None, options.output
            claim.release()
        self.options = replace(options, first_step=self.clock.step)
        self.scope = CaptureScope.from_options(self.options, self.framework)
        self.adapter.adopt()
        self.active = False

    @shielded
    def close(self) -> None:
        """Write what is left; the session is then over."""
        global _current
        if _current is self:
            _current = None
        if os.getpid() != self._pid:
            return
        with self.guard("close"):
            died = getattr(sys, "last_type", None)
            if died is not None and self.clock.seen_forward:
                self.limit(
                    f"the program ended by {died.__name__} in step {self.clock.step}; that step is partial"
                )
            self._closing = True
            last = self.clock.step if self.clock.seen_forward else self.clock.step - 1
            self._end_step()
            self._note_scope()
            self._note_steps(last)
            self._unkept = self.adapter.unkept()
            for sentence in self._unkept:
                self.limit(sentence)
            self._finish()
        self._started = self.active = False
        self._aside = "closed"
        claim.release()
        with self.guard("close"):
            self.adapter.let_go()
        with self.guard("close"):
            self.watch.close()

    # -- what the adapter says ------------------------------------------

    @property
    def has_begun(self) -> bool:
        """Something has trained: the run is open."""
        return self._writer is not None

    @property
    def over(self) -> bool:
        """The optimizer has run: what happens at top level now is no part of the step.

        Where the program itself marks its steps, everything between the marks is part of one.
        """
        return self.clock.over and not self.options.manual_steps

    def root_begins(self, *, training: bool, has_parameters: bool) -> None:
        """A module call with no enclosing module call begins; may end the step before."""
        if not (training and has_parameters):
            if self._explicit and has_parameters and not self.active:
                self._open_step()
            elif has_parameters and not self.has_begun:
                self._num_before += 1
            return
        self._hidden = False
        self._training_forward()

    def _training_forward(self) -> None:
        if self.clock.training_forward():
            self._end_step()
            self.clock.training_forward()
        self.microbatch = self.clock.microbatch
        if not self.active:
            self._open_step()
        if self._num_before and self.active:
            calls = "1 call" if self._num_before == 1 else f"{self._num_before} calls"
            self.limit(
                f"{calls} of a model without gradients, before the first training forward, left no record"
            )
            self._num_before = 0
        if self._writer is not None and not self._aside:
            self.watch.step_begins(self.clock.step)

    def backward_begins(self) -> None:
        """``backward()`` was called; of a forward that is all compiled nothing may have been seen."""
        if not self._hidden and self.clock.seen_forward:
            return
        self._hidden = True
        self.limit("no module was called outside compiled code: nothing is known of the forward but its loss")
        self._training_forward()

    def forward_failed(self) -> None:
        """A training forward of a root was left by an exception."""
        self.limit(
            f"an exception left the forward of step {self.clock.step}, microbatch {self.clock.microbatch}, "
            "half done"
        )
        self.clock.backward()

    def backward_ended(self, *, gradients_present: bool) -> None:
        """``backward()`` returned, or was left by an exception."""
        self.clock.backward()

    def optimizer_stepped(self) -> None:
        """Some optimizer updated its parameters."""
        self._scalars["_optimizer_ran"] = True
        self._scalars.setdefault("_updates", {})[self.microbatch] = None
        self.clock.may_end()

    def scaler_stepped(self) -> None:
        """A gradient scaler ended an optimizer's turn, whether or not that ran; others may follow before
        the scaler is updated."""
        self._scalars["skipped"] = not self._scalars.get("_optimizer_ran", False)
        self.clock.may_end()

    def scaler_updated(self) -> None:
        """A gradient scaler ended its step, whether or not the optimizer ran."""
        self._scalars.setdefault("skipped", not self._scalars.get("_optimizer_ran", False))
        self.clock.may_end()

    def gradients_cleared(self) -> None:
        """Gradients that were there after backward are gone without an optimizer step."""
        self.clock.may_end()

    def scalar(self, name: str, value: object, *, per_microbatch: bool = False) -> None:
        """Note a scalar of this step; tensors are brought to the host when the step ends."""
        if per_microbatch:
            self._scalars.setdefault(name, []).append(value)
        else:
            self._scalars[name] = value

    def batch(self, *, of: int = 0, tokens: int, samples: object, digest: object) -> None:
        """Note the inputs of one training forward of the root ``of``; ``samples`` may be a tensor."""
        self._scalars.setdefault("_batches", []).append((of, tokens, samples, digest))

    def batches_of(self) -> set[int]:
        """The roots whose inputs were noted in this step."""
        return {batch[0] for batch in self._scalars.get("_batches", ())}

    def no_batches(self, of: set[int]) -> None:
        """These roots are parts of another: what they were given is no batch."""
        self._scalars["_batches"] = [one for one in self._scalars["_batches"] if one[0] not in of]

    def failed(self, site: str, error: BaseException) -> None:
        """Note an error of capture's own; the first of a session is also printed on standard error.

        A disk that cannot be written ends the capture. Never raises: nothing behind it could catch that.
        """
        with contextlib.suppress(Exception):
            self._note_failure(site, error)

    def _note_failure(self, site: str, error: BaseException) -> None:
        if isinstance(error, OSError) and error.errno in _DISK and not self._aside:
            self._stand_aside(f"step {self.clock.step} could not be written: {error}")
            return
        self._num_failures += 1
        if len(self._failures) < _MAX_FAILURES:
            where = {"step": self.clock.step, "site": site, "error": f"{type(error).__name__}: {error}"}
            self._failures.append(where)
        if self._num_failures == 1:
            say(f"capture failed at {site} in step {self.clock.step}: {error}. Training continues.")

    def limit(self, sentence: str) -> None:
        """Something this capture cannot see; listed in the trace."""
        self._limits[sentence] = None

    # -- steps ------------------------------------------

    def _open_step(self) -> None:
        if self._started and not self._aside and not self._has_enough:
            with self._opening:
                self._open_locked()

    def _open_locked(self) -> None:
        """By one thread at a time."""
        if self._writer is None and not self._open_run():
            return
        assert self._writer is not None
        step = self.clock.step
        wanted = step in self.options.steps or self.watch.captures(step)
        if self.active or not wanted or self.rank not in self._captured_ranks:
            return
        if self._writer.is_full:
            self._tell_once(f"the trace has reached --max-bytes: steps from {step} on are not captured")
            return
        if self.recorder.records and self._recorded_step == self.clock.step:
            self.active = True
            return
        self.recorder = StepRecorder(
            self._writer,
            self.clock.step,
            digest=self.options.digest,
            counts_values=self.options.estimate,
        )
        self._recorded_step = self.clock.step
        self.active = True

    _opening = threading.RLock()
    """process-wide: models may run in threads; one of them opens the run, and each step"""
    _recorded_step = -1
    _num_before = 0
    """calls of models before the process is known to train"""
    _captured_ranks: frozenset[int] = frozenset()
    _facts_written: list[int] | None = None

    def _open_run(self) -> bool:
        """First training forward: only now is the rank known and the process known to train."""
        global _current
        if self.rival is not None and self.rival.has_begun:
            self._aside = f"{self.rival.framework} trains this run"
            return False
        _current = self
        if self._child and "multiprocessing.util" in sys.modules:  # children made by fork skip atexit
            sys.modules["multiprocessing.util"].Finalize(None, self.close, exitpriority=100)
        self.rank, world_size, _ = self.adapter.rank()
        self._world_size = world_size
        self._ray = ray_facts()
        layout = declared_layout()
        self.layout = layout if layout is not None and layout.size == world_size else None
        try:
            self.output = output = self._claimed_output(world_size)
            beside = output != self.options.output
            self._captured_ranks = self.options.ranks_of(world_size)
            self._writer = self._new_writer(output)
            if self.options.overwrite and not self.options.append and not beside:
                self._writer.clear(world_size)
            manifest: dict[str, object] | None = None
            first = self.rank == 0 or beside  # beside: a rank 0 need not be there
            if first and not (self.options.append and (output / MANIFEST).exists()):
                manifest = manifest_of(
                    self.options, self.adapter, framework=self.framework, world_size=world_size
                )
                if beside:
                    manifest["beside"] = {"output": str(self.options.output), "role": role_of(os.environ)}
            self._writer.begin_run(manifest)
            self._writer.write_rank(
                {**self._rank_facts(), "parameters": []}
            )  # their hashes may be on a device
        except OSError as error:
            self._writer = None  # nothing more goes where another run may lie
            self._stand_aside(f"the trace cannot be written: {error}")
            return False
        keep_freed_memory()
        self.watch.begin(world_size)
        return True

    def _new_writer(self, output: Path) -> RunWriter:
        options, ranks = self.options, self._captured_ranks
        share = (
            None if options.max_bytes is None or options.estimate else options.max_bytes // max(len(ranks), 1)
        )
        speaks = self.rank == min(ranks, default=0)
        return RunWriter(output, rank=self.rank, max_bytes=share, progress=_say_progress if speaks else None)

    def _tell_once(self, sentence: str) -> None:
        """A limit, also said where a person is looking, by one rank."""
        if sentence not in self._limits and self.rank == min(self._captured_ranks, default=0):
            say(sentence)
        self.limit(sentence)

    def _claimed_output(self, world_size: int) -> Path:
        """The folder for this process: the options', or one below it where that is another process's.

        Raises:
            OSError: it holds another run, or cannot be written.
        """
        options, output = self.options, self.options.output
        outside = FROM_OUTSIDE in os.environ  # the launcher has made sure that no other run is there
        may_continue = options.append or (options.overwrite and not outside)
        ended = (output / MANIFEST).exists() and not may_continue and not claim.is_in_use(output)
        same_job = same_launch(output) and (outside or not rank_file(output, self.rank).exists())
        if ended and not same_job:
            raise FileExistsError(f"{output} already holds a run; choose another folder or say --overwrite")
        group = claim.group_of(world_size, os.environ)
        for folder in claim.places(output, self.rank, group, os.environ):
            if claim.claim(folder, self.rank, group, may_continue=may_continue):
                break
        if folder != output:
            say(f"{output} is in use by other processes of this job: rank {self.rank} writes to {folder}")
            steps = whole_steps(folder) if options.append else {}
            self.clock.step = max([self.clock.step, *(step + 1 for step in steps)])
        return folder

    def _end_step(self) -> None:
        """Write the step under way, if there is one, and go on to the next."""
        had_forward = self.clock.seen_forward or bool(self.recorder.records)
        try:
            if self._writer is not None and not self._aside and had_forward:
                recorded = (
                    self.recorder
                    if self.recorder.records and self._recorded_step == self.clock.step
                    else None
                )
                self._write_step(self._writer, recorded)
        except OSError as error:
            self._stand_aside(f"step {self.clock.step} could not be written: {error}")
        except Exception as error:
            self.failed("the end of the step", error)
            if self._writer is not None:
                self._writer.abandon_step(self.clock.step)
        finally:
            self.active = False
            self._scalars = {}
            self.clock.end()
            self.microbatch = 0
            with self.guard("the end of the step"):
                self.adapter.end_step()
                if self.scope is not None:
                    self.scope.end_step()
            self.recorder = StepRecorder(self._writer or RunWriter(self.output, rank=self.rank), -1)

    def _write_step(self, writer: RunWriter, recorder: StepRecorder | None) -> None:
        if recorder is not None and self.options.stacks:
            with self.guard("the program's code"):
                if (code := self.adapter.reached_code()) is not None:
                    writer.write_code(code)
        if self._written_later(writer, recorder):
            return
        self._later.join()
        if recorder is not None:
            self.adapter.to_host()
            self._note_local_norm(recorder)
        wanted = recorder is not None and self._wants_step(writer)
        self._write_scalars(writer, self._scalars, self.clock.step, self.clock.microbatch + 1)
        if recorder is not None and wanted:  # last: whoever waits for the step may stop the program then
            writer.finish_step(self.clock.step, self._columns(recorder))
            self._note_values(writer)
            self._write_facts(writer, self._rank_facts())

    def _columns(self, recorder: StepRecorder) -> StepColumns:
        columns = recorder.columns()
        if self.scope is None:
            return columns
        phases = zip(columns.records["call"], columns.records["phase"], strict=True)
        forward = {call for call, phase in phases if phase == "forward"}
        return replace(columns, calls=without_idle_arguments(columns.calls, forward))

    def _write_scalars(
        self, writer: RunWriter, scalars: dict[str, Any], step: int, microbatches: int
    ) -> None:
        if self.clock.seen_forward or "saved" in scalars or "phases" in scalars:
            line = scalar_line(scalars, self.adapter, step=step, rank=self.rank, microbatches=microbatches)
            self.watch.step_over(line)
            writer.append_scalars(line)

    def _note_values(self, writer: RunWriter) -> None:
        """What became of the values: left out for lack of room, or waited for."""
        if writer.left_out_bytes:
            self._tell_once("values are missing of some tensors: the trace has reached --max-bytes")
        if writer.waited_seconds > _SLOW_SECONDS:
            self._tell_once(
                "the disk is slower than the program: steps wait until their values are written "
                "(trueup capture --estimate says how to store fewer)"
            )

    def _written_later(self, writer: RunWriter, recorder: StepRecorder | None) -> bool:
        """Whether another thread waits for the step's numbers and writes it: where some are on a device, and
        nobody is to be told of them at once."""
        if self._closing or self.watch.observer is not None or self.options.task is Task.OVERFLOW_CHECK:
            return False
        if not self.clock.seen_forward or self.options.replay is not None:
            return False
        on_its_way = self.adapter.on_its_way(recorder, self._scalars)
        if on_its_way is None:
            return False
        step, microbatch, facts = self.clock.step, self.clock.microbatch, self._rank_facts()

        def write() -> None:
            scalars = on_its_way()
            if recorder is not None:
                self._note_local_norm(recorder, scalars, microbatch)
            line = scalar_line(scalars, self.adapter, step=step, rank=self.rank, microbatches=microbatch + 1)
            writer.append_scalars(line)
            if recorder is not None:
                writer.finish_step(step, self._columns(recorder), program_waits=False)
                self._note_values(writer)
                self._write_facts(writer, {**facts, "limits": list(self._limits)})

        writer.waited_seconds += self._later.submit(write)
        return True

    def _wants_step(self, writer: RunWriter) -> bool:
        """Task overflow_check keeps a step only if a value that is not finite was made in it."""
        if self.options.task is not Task.OVERFLOW_CHECK:
            return True
        found = self.adapter.overflows(skipped=bool(self._scalars.get("skipped")))
        if not found:
            writer.abandon_step(self.clock.step)
            return False
        wanted = self.options.overflow_nums
        room = None if wanted is None else wanted - len(self._overflows)
        kept = [{"step": self.clock.step, **one} for one in found[:room]]
        self._overflows += kept
        say(overflow_sentence(kept[0]))
        return True

    @property
    def _has_enough(self) -> bool:
        """As many origins as were asked for have been kept."""
        wanted = self.options.overflow_nums
        return bool(self._overflows) and wanted is not None and len(self._overflows) >= wanted

    def _write_facts(self, writer: RunWriter, facts: dict[str, object]) -> None:
        """Facts only grow: they are written again when one of their lists has."""
        sizes = [len(value) for value in facts.values() if isinstance(value, list)]
        if sizes != self._facts_written:
            writer.write_rank(facts)
            self._facts_written = sizes

    def _note_local_norm(
        self, recorder: StepRecorder, scalars: dict[str, Any] | None = None, microbatch: int | None = None
    ) -> None:
        """Before reduction where the step has one microbatch; never scaled."""
        scalars = self._scalars if scalars is None else scalars
        first = (self.clock.microbatch if microbatch is None else microbatch) == 0
        slots = ("local", "accumulated") if first else ("accumulated",)
        norms = (recorder.local_norm(slot) for slot in slots)
        norm = next((n for n in norms if n is not None), None)
        if norm is not None:
            scale = self.adapter.item(scalars.get("loss_scale"))
            scalars["local_norm"] = norm / scale if scale else norm

    def _note_scope(self) -> None:
        """Say so where scope or list left nothing; also in the manifest, which the first rank writes."""
        if self.scope is None or self._writer is None or self._aside or self._recorded_step < 0:
            return
        for sentence in self.scope.sentences():
            say(sentence)
            self.limit(sentence)
        self._unmatched = self.scope.unmatched()
        if self._world_size == 1:  # of several ranks each runs some calls: the launcher knows all
            for sentence in self._unmatched.values():
                say(sentence)
                self.limit(sentence)
        if not self.scope.num_kept:
            self._outside_scope = self.scope.sentences()[0]
            self._writer.add_to_manifest({"nothing_captured": self._outside_scope}, first=self.rank == 0)

    def _note_steps(self, last: int) -> None:
        """Say so where the run has no step or rank asked for; ``trueup capture`` says it itself."""
        first, ranks = self.options.first_step, self._captured_ranks
        if self._writer is None or self._aside or self._recorded_step >= 0 or last < first:
            return
        if self.rank != min(ranks, default=0) or FROM_OUTSIDE in os.environ:
            return
        why = f"the program made steps {first} to {last}, and none of them is a step asked for"
        if not ranks:
            size = self._world_size
            there = f"the ranks 0 to {size - 1}" if size > 1 else "rank 0 alone"
            why = f"the program has {there}, and no rank asked for is among them"
        self._tell_once(f"nothing captured: {why}. Correct step or rank")
        self._writer.add_to_manifest({"nothing_captured": f"nothing captured: {why}"}, first=self.rank == 0)

    def _finish(self) -> None:
        if self._writer is not None and not self._aside:
            try:
                self._later.join()
                self._writer.write_rank(self._rank_facts())
            except OSError as error:
                self._stand_aside(str(error))

    # -- facts ------------------------------------------

    def _rank_facts(self) -> dict[str, object]:
        return {
            "rank": self.rank,
            "pid": self._pid,
            **self.adapter.rank_facts(),
            **({"ray": self._ray} if self._ray else {}),
            **({} if self.layout is None else {"coordinate": self.layout.coordinate(self.rank)}),
            **({"overflows": self._overflows} if self.options.task is Task.OVERFLOW_CHECK else {}),
            **({"unkept": self._unkept} if self._unkept else {}),
            **({"outside_scope": self._outside_scope} if self._outside_scope else {}),
            **({"unmatched_names": self._unmatched} if self._unmatched else {}),
            **({"stood_aside": self._aside} if self._aside else {}),
            "limits": list(self._limits),
            "failures": self._failures,
            "num_failures": self._num_failures,
        }

    # -- trouble ------------------------------------------

    def _stand_aside(self, why: str) -> None:
        """Stop capturing for good; what is on disk stays."""
        if not self._aside:
            say(f"{why}. Capture is disabled, training continues.")
        self._aside = why
        self.active = False
        self.adapter.watch(None)
        if self._writer is not None:
            self._writer.abandon_step()
            with contextlib.suppress(OSError):  # where there is no room at all
                self._writer.write_rank(self._rank_facts())

    def forked(self) -> None:
        """This is a child made by fork: it must not write into the parent's run.

        If the parent had not begun to train, the child is a process like any other and captures what it
        trains.
        """
        self.active = False
        self._child = True
        claim.release()
        if self._writer is None:
            self._pid = os.getpid()
        else:
            self._aside = "a forked child of a capturing process"

    def guard(self, site: str) -> _Guard:
        """A context that turns an error of ours into a note."""
        return _Guard(self, site)


def _say_progress(step: int, written: int, waiting: int) -> None:
    if written < _PROGRESS_BYTES:  # a small step takes long where the program does
        return
    say(f"step {step}: {written / 1e9:.1f} GB of values written, {waiting / 1e9:.1f} GB wait for the disk")


class _Guard:
    """Context that turns an error of ours into a note."""

    __slots__ = ("_session", "_site")

    def __init__(self, session: Session, site: str) -> None:
        self._session = session
        self._site = site

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        if isinstance(error, Exception):
            self._session.failed(self._site, error)
            return True
        return False
