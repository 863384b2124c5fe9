"""What capture and a framework adapter ask of each other.

The adapter sees the program (calls, tensors, gradients, optimizers) and tells a ``Sink``; the sink decides
what a step is and where things go. Neither imports the other: ``adapters.load(name)`` brings the adapter,
and the session hands itself in as the sink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from trueup.adapters.measures import Measured, Wanted
from trueup.adapters.placing import WherePlaced
from trueup.numerics.rows import Rows
from trueup.types.arrays import Array
from trueup.types.layout import Layout
from trueup.types.pieces import Pieces
from trueup.types.table_rows import CallRow, RecordRow

if TYPE_CHECKING:
    from typing_extensions import Self

RowT = TypeVar("RowT", covariant=True)
ModuleT = TypeVar("ModuleT")
"""a framework's modules"""
TensorT = TypeVar("TensorT", bound="TensorLike")
"""a framework's tensors, parameters among them"""
ModuleIn = TypeVar("ModuleIn", contravariant=True)
TensorIn = TypeVar("TensorIn", contravariant=True)

Row = int | tuple[int | None, str]
"""Number of a tensor's summary; with a reason where there is none, or it is special."""
Slotted = Sequence[tuple[str, TensorT]]
"""tensors of a call by slot"""


class TensorLike(Protocol):
    """What is asked of a tensor without knowing its framework."""

    @property
    def shape(self) -> Sequence[int]: ...

    def stride(self) -> Sequence[int]: ...

    def __add__(self, other: Self, /) -> Self: ...


class GraphNode(Protocol):
    """A node of a backward graph; hooks get its gradients and may return others."""

    def register_hook(self, fn: Callable[..., Any], /) -> object:
        """Behind the node."""

    def register_prehook(self, fn: Callable[..., Any], /) -> object:
        """In front of it."""


OnItsWay = Callable[[], dict[str, Any]]
"""waits until the rows of a step are written, and returns its scalars as host numbers"""


class RecordTable(Protocol[RowT]):
    """A table that grows by rows of cells in the column order of ``store.schema``."""

    append: Callable[[tuple[object, ...]], None]

    def __len__(self) -> int: ...

    def __getitem__(self, row: int) -> RowT: ...

    def cell(self, row: int, column: str) -> Any:
        """One cell: cheaper than its row."""

    def put(self, row: int, column: str, value: object) -> None:
        """Another value in one cell."""

    def __iter__(self) -> Iterator[tuple[Any, ...]]: ...


class Recorder(Protocol):
    """Columns of the step under way."""

    calls: RecordTable[CallRow]
    records: RecordTable[RecordRow]
    step: int
    counts_values: bool
    """values are counted and not stored: none need be brought to the host"""
    stacks: dict[int, list[str]]
    forced: list[tuple[object, ...]] | None
    """what a replay put in place of the program's values; None where nothing is replayed"""
    rows: Rows
    """the summaries themselves"""

    def commit(self, address: int, dtype: str, shape: tuple[int, ...], placement: str | None) -> int:
        """Number of the row with the summary at ``address``, or of an earlier one with the same content."""

    def keep(
        self, address: int, dtype: str, shape: tuple[int, ...], device: str, placement: str | None
    ) -> int:
        """Number of a new row with the summary at ``address``; 0: it is to be written later."""

    def view(self, row: int) -> np.void:
        """The row as a numpy void, to read and write its fields."""

    def put(self, rows: NDArray[np.int64], summaries: Array) -> None:
        """Write rows that were kept empty: SUMMARY_DTYPE."""

    def has_values(self, row: int) -> bool:
        """Whether the values of a row are on disk already."""

    def store_values(
        self, row: int, name: str, dtype: str, shape: tuple[int, ...], data: memoryview | Pieces
    ) -> None:
        """Append contiguous values to the step's chunk files."""


class CallScope(Protocol):
    """Which calls are captured, asked in execution order."""

    def begins(self, call: int, row: CallRow) -> bool:
        """A call of the step begins: whether anything of it can be wanted."""

    def takes(self, call: int, phase: str, row: CallRow) -> bool:
        """Whether a record of the call in this phase is captured."""

    def returned(self, call: int) -> None:
        """The call has returned."""


class Sink(Protocol):
    """The session, as an adapter sees it."""

    active: bool
    """the current step is captured"""
    recorder: Recorder
    microbatch: int
    over: bool
    """the optimizer has run: what happens at top level now is no part of the step"""
    options: Any
    layout: Layout | None
    """what the program has declared of its parallel layout"""
    rank: int

    @property
    def scope(self) -> CallScope | None:
        """Which calls are captured; None: all."""

    def root_begins(self, *, training: bool, has_parameters: bool) -> None:
        """A module call with no enclosing module call begins; may end the step before."""

    def backward_begins(self) -> None:
        """``backward()`` was called; of a forward that is all compiled nothing may have been seen."""

    def forward_failed(self) -> None:
        """A training forward of a root was left by an exception."""

    def backward_ended(self, *, gradients_present: bool) -> None:
        """``backward()`` returned."""

    def optimizer_stepped(self) -> None:
        """Some optimizer updated its parameters."""

    def scaler_stepped(self) -> None:
        """A gradient scaler ended an optimizer's turn, whether or not that ran."""

    def scaler_updated(self) -> None:
        """A gradient scaler ended its step, whether or not the optimizer ran."""

    def gradients_cleared(self) -> None:
        """Gradients that were there after backward are gone without an optimizer step."""

    def scalar(self, name: str, value: object, *, per_microbatch: bool = False) -> None:
        """Note a scalar of this step; tensors are brought to the host when the step ends."""

    def batch(self, *, of: int = 0, tokens: int, samples: object, digest: object) -> None:
        """Note the inputs of one training forward of the root ``of``; ``samples`` may be a tensor."""

    def batches_of(self) -> set[int]:
        """The roots whose inputs were noted in this step."""

    def no_batches(self, of: set[int]) -> None:
        """These roots are parts of another: what they were given is no batch."""

    def failed(self, site: str, error: BaseException) -> None:
        """Capture failed: noted once, training continues."""

    def limit(self, sentence: str) -> None:
        """Something this capture cannot see; listed in the trace."""


class Unfinished(Protocol):
    """Gradients over several uses, of which some are still to come."""

    def flush(self) -> None:
        """Backward is over: what has not come will not come."""


class SummarisesTensors(Protocol[TensorIn]):
    """Turns a tensor into a row of summaries."""

    asks_for_kind: bool
    """whether it matters what kind of call a tensor is of"""

    def row(
        self, tensor: TensorIn, phase: str, slot: str, kind: str = "module", place: WherePlaced = None
    ) -> Row:
        """Number of the row, made or found; ``place`` tells where the tensor lies in its whole."""

    def keep_values(self, row: int, tensor: TensorIn, phase: str, slot: str) -> None:
        """Store the values behind a row too."""

    def end_step(self) -> None:
        """The step is over."""


class WatchesOverflow(Protocol[TensorIn]):
    """Looks for the call that first makes a value that is not finite."""

    pending: int | None
    """the call whose value has just been found: its other tensors are captured too"""

    def seen(self, call: int, phase: str, slot: str, row: int | None, tensor: TensorIn) -> None:
        """One more record."""

    def keep(self, call: int, phase: str, *sides: Sequence[tuple[str, TensorIn]]) -> None:
        """Keep the values of a call's tensors."""

    def found(self, *, skipped: bool) -> list[dict[str, object]]:
        """What was made in the step under way and did harm; ``skipped`` by the gradient scaler."""

    def end_step(self) -> None:
        """The step is over."""


class ForcesValues(Protocol[TensorT]):
    """In a replay, puts the reference's values in place of the program's."""

    def seen(self, call: int, phase: str, slot: str, tensor: TensorT, row: int | None) -> TensorT | None:
        """Look at a record just made; a gradient that is to be replaced is returned, changed."""

    def facts(self) -> Mapping[str, object]:
        """What was put in place, and what was not."""

    def end_step(self) -> None:
        """The step is over."""


class ChangesRun(Protocol):
    """What a person wants changed in the run: its learning rate, its batches."""

    def facts(self) -> dict[str, object]:
        """What was changed so far."""

    def unkept(self) -> list[str]:
        """What was asked for and did not happen, once the run is over."""


class PerturbsRun(Protocol):
    """In a noise rerun, changes weights and inputs by rounding."""

    @property
    def seed(self) -> int:
        """Of the random changes."""


class MeasuresModules(Protocol[ModuleIn]):
    """Where the run is watched, measures it."""

    on: bool
    """the step under way is measured"""

    @property
    def watched(self) -> Mapping[int, object]:
        """Modules whose outputs are measured, by identity."""

    def choose(self, module: ModuleIn, *, training: bool) -> None:
        """A forward of a root begins: which of its modules are watched?"""

    def take(self) -> Measured:
        """What was measured since the last time."""


class Adapter(Protocol):
    """One framework's side."""

    def install(self) -> None:
        """Put the hooks in place; once a process."""

    def adopt(self) -> None:
        """The session's options have changed."""

    def set_models(self, models: list[object]) -> None:
        """Restrict capture to these models; an empty list means every model that trains."""

    def save(self, name: str, value: object, *, backward: bool) -> None:
        """Record a tensor the program hands over by name; with ``backward`` the total gradient at it too."""

    def watch(self, wanted: Wanted | None) -> None:
        """From now on measure this in the steps that are watched; None: nothing."""

    def measure(self, on: bool) -> None:
        """Whether the step that begins is measured."""

    def measured(self) -> Measured:
        """What was measured in the step under way; asked once when it ends."""

    def to_host(self) -> None:
        """Bring everything still on the device into the recorder's rows; called once when a step ends."""

    def on_its_way(self, recorder: Any, scalars: dict[str, object]) -> OnItsWay | None:
        """Start bringing the step's rows and scalars to the host without waiting; None where nothing of them
        is on a device that lets the host go on. Called instead of ``to_host``. ``recorder``: None where
        the step is not captured."""

    def item(self, value: object) -> float | None:
        """A noted scalar as a Python number."""

    def overflows(self, *, skipped: bool) -> list[dict[str, object]]:
        """With task ``overflow_check``: where values that are not finite were made in the step under way."""

    def unkept(self) -> list[str]:
        """Changes of the run that were asked for and did not happen; asked once the run is over."""

    def let_go(self) -> None:
        """The session is over: what the program does from now on is no longer changed in any way."""

    def end_step(self) -> None:
        """The step under way is over: forget everything tied to it."""

    def manifest(self) -> dict[str, object]:
        """Framework facts for the manifest."""

    def reached_code(self) -> dict[str, object] | None:
        """The program's functions that the calls so far can reach; None: those of the last time."""

    def rank_facts(self) -> dict[str, object]:
        """Coordinate, parameter table, roots, opaque modules."""

    def rank(self) -> tuple[int, int, int]:
        """rank, world size, local rank."""
