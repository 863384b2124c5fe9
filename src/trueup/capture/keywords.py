"""Keyword arguments of ``Tracer``, for editors and type checkers.

Written by ``python docs/make_keywords.py``.
"""

from __future__ import annotations

from os import PathLike
from typing import Literal, TypedDict

from trueup.capture.options import Level, StepSet, Task


class TracerKeywords(TypedDict, total=False):
    """Options of ``CaptureOptions`` by name, each in the forms that ``Tracer`` takes."""

    level: Level | Literal["L0", "L1", "mix"]
    """Modules, API calls or both. Default: L0."""

    task: Task | Literal["statistics", "tensor", "overflow_check"]
    """statistics; tensor: values as well; overflow_check: only what produces NaN and infinity. Default:
    statistics."""

    steps: StepSet | str | list[int] | list[int | str] | list[tuple[int, int]] | None
    """Steps to capture, such as 0,1,5-8, or all. Scalars are kept for every step. Default: 0-1."""

    ranks: StepSet | str | list[int] | list[int | str] | list[tuple[int, int]] | None
    """Ranks to capture, such as 0,8-15. Default: all."""

    sample_ranks: int | None
    """At most N of the ranks, evenly spaced. Where tensors are split over ranks, choose with --ranks. A
    number from 1. Default: all."""

    max_bytes: int | str | None
    """Size of the trace, such as 20GB, shared by the captured ranks: values that do not fit are left out,
    then further steps. A finite number above 0. Default: no limit."""

    digest: bool
    """64-bit hash of every tensor. Default: on."""

    sketch: bool
    """64 numbers that estimate the norm of a difference. Default: on."""

    crc32: bool
    """CRC-32, which msprobe calls md5. Default: off."""

    scope: tuple[str, str] | list[str] | str | None
    """Only from the first named call to the last, both included; also by full name, as
    Functional.gelu.3.forward or Module.fc.Linear.forward.0 is one."""

    names: list[str] | tuple[str, ...] | set[str] | frozenset[str]
    """Only calls whose name contains one of these, and everything inside a module that matches; a full
    name, Functional.gelu.3.forward, takes that pass of that call alone."""

    data_mode: list[str] | tuple[str, ...] | set[str] | frozenset[str] | str
    """Some of forward, backward, input, output, joined by commas. Default: all."""

    backward: bool
    """Gradients at calls. Default: on."""

    gradients: bool
    """Gradients of parameters. Default: on."""

    optimizer: bool
    """Optimizer steps. Default: on."""

    collectives: bool
    """Collectives. Default: on."""

    store_values_of: list[str] | tuple[str, ...] | set[str] | frozenset[str]
    """With task statistics: kinds whose values are kept as well. module (inputs, outputs, their
    gradients), parameter (weights, gradients except those of each microbatch, optimizer state), labels
    (of the loss call), configuration (how modules are set), integers (token ids, labels, masks
    everywhere), dropout (a sample of what it dropped). No effect with task tensor."""

    overflow_nums: int | None
    """With task overflow_check: origins to keep before capture ends; None: all. Default: 1. No effect
    with other tasks."""

    evaluation: bool
    """Forwards without gradients, kept apart from training. Default: on."""

    stacks: bool
    """Source lines of calls, and the functions of the program that they reach. Default: on."""

    functions: bool
    """Which functions each module calls in the first step, and what they are given besides tensors, at
    --level L0; with --stacks. Default: off."""

    gradients_from: str | PathLike[str] | None
    """Folder of gradients that replace the program's in the first captured step, before clipping (trueup
    replay --gradients)."""

    seed: int | None
    """Seed random, numpy and the framework from outside. A number from 0 to 4294967295."""

    deterministic: bool | None
    """Deterministic algorithms, from outside."""

    perturb: int | None
    """Seed of rounding-sized changes of weights and inputs (trueup noise)."""

    replay: str | PathLike[str] | None
    """Folder of a plan whose reference values replace the program's (trueup replay)."""

    compiled: str | None
    """What torch.compile does: eager, nothing is compiled; measured, every region is also evaluated
    without the compiler (trueup check-run --compile-parity). No effect outside PyTorch."""

    learning_rate: float | None
    """Every optimizer step uses this rate; 0: no update. A number from 0. Default: the program's."""

    only_batch: int | None
    """Feed batch N at every step, counted from 0. A number from 0."""

    skip_batch: int | None
    """Leave batch N out; the next one replaces it. A number from 0."""

    observer: dict[str, object] | None
    """The observer of the run: made_by and settings (capture/observer.py)."""

    overwrite: bool
    """Overwrite an existing trace. Default: off."""

    append: bool
    """Continue in a folder that already holds this run (a second PrecisionDebugger). Default: off."""

    first_step: int
    """Number of the first step seen. Default: 0."""

    manual_steps: bool
    """Steps end only where the program calls step(). Default: off."""

    estimate: bool
    """Values are counted, not written (trueup capture --estimate). Default: off."""

    tracer: int | None
    """Which Tracer of the program makes the trace, counted from 0; None: captured from outside, from the
    first training step."""
