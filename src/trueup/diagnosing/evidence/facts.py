"""What can be known about one tensor and what stands around it, values read when first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trueup.diagnosing.loss_form import LossForm
from trueup.numerics.dtypes import DTYPES, float64_from_array, real_view
from trueup.numerics.hidden import with_hidden_as_infinite
from trueup.types.arrays import Floats
from trueup.types.reason import Json

Stored = NDArray[np.generic]
"""values as a run stored them"""
Plain = Json
"""an argument or setting as JSON holds it"""
Arguments = Mapping[str, Plain]
Window = tuple[tuple[int, int], ...]
"""(start, stop) of every dimension"""
NUMBERS = (
    "numel",
    "num_nan",
    "num_posinf",
    "num_neginf",
    "num_zero",
    "minimum",
    "maximum",
    "mean",
    "l2_norm",
    "smallest_nonzero",
)


class Known:
    """One tensor as far as a run kept it: summary always, values where they were stored."""

    def __init__(
        self,
        name: str,
        *,
        dtype: str,
        shape: tuple[int, ...],
        statistics: Mapping[str, float | None],
        digest: int | None = None,
        sketch: Floats | None = None,
        raw: Callable[[], Stored | None] = lambda: None,
    ) -> None:
        self.name = name
        """as a person reads it"""
        self.dtype = dtype
        self.shape = shape
        self.statistics = statistics
        self.digest = digest
        self.sketch = sketch
        self._raw = raw
        self._windows: dict[Window | None, Floats] = {}

    @property
    def numel(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def is_floating(self) -> bool:
        """Real or complex floating point."""
        return self.dtype in DTYPES and DTYPES[self.dtype].kind in ("float", "complex")

    @cached_property
    def raw(self) -> Stored | None:
        """Values as they are stored, shaped; None where they are not."""
        if self.dtype not in DTYPES:
            return None
        return self._raw()

    def values(self, window: Window | None = None) -> Floats | None:
        """Values as float64, complex ones with a last dimension of 2, what a mask hides as minus infinity;
        ``window`` restricts them to a part."""
        if window not in self._windows:
            array = self.raw
            if array is None:
                return None
            if window is not None and len(window) == array.ndim:
                array = np.ascontiguousarray(array[tuple(slice(*w) for w in window)])
            parts, entry = real_view(array, DTYPES[self.dtype])
            self._windows[window] = with_hidden_as_infinite(float64_from_array(parts, entry.name), entry.name)
        return self._windows[window]

    def statistic(self, name: str) -> float:
        """One statistic, NaN where there is none."""
        value = self.statistics.get(name)
        return float("nan") if value is None else float(value)

    def same_bits(self, other: Known) -> bool | None:
        """Whether two tensors are bit-identical; None where neither digests nor values can tell."""
        if (self.dtype, self.shape) != (other.dtype, other.shape):
            return False
        if self.digest is not None and other.digest is not None:
            return self.digest == other.digest
        if self.raw is not None and other.raw is not None:
            return self.raw.tobytes() == other.raw.tobytes()
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPair:
    """One slot on both sides."""

    slot: str
    target: Known | None = None
    reference: Known | None = None
    forced: bool = False
    """a replay put the reference's value in"""

    @property
    def agree(self) -> bool | None:
        """Whether the code that follows saw the same bits on both sides; None where that is not known."""
        if self.forced:
            return True
        if self.target is None or self.reference is None:
            return None
        return self.target.same_bits(self.reference)

    @property
    def given(self) -> Known | None:
        """What the target's code worked on: the reference's value where a replay put it in."""
        return self.reference if self.forced or self.target is None else self.target


TENSOR = "<tensor>"
"""in place of an argument that is one: of it and a number nothing is known to differ"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourCall:
    """A call of the same module as the origin, on one side or both."""

    name: str
    kind: str
    ordinal: int
    target: Arguments | None
    """arguments; None where the target has no such call"""
    reference: Arguments | None
    target_dtypes: tuple[str, ...] = ()
    """of its forward records"""
    reference_dtypes: tuple[str, ...] = ()
    before: bool = True
    """stands before the origin, or is the origin's own call"""
    own: bool = False
    """is the origin's own call"""
    arguments_recorded: bool = True
    """both runs keep the arguments of such calls: what is not there was not given"""
    reference_name: str | None = None
    """of the reference's call, where it has one"""
    is_by_name: bool = False
    """a function of which name and arguments are known, and no tensor"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """The innermost module call that returned one run's tensor, and what it made it from."""

    side: str
    module: str
    type: str | None
    given: tuple[Known, ...]
    """of the tensor's shape"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The call that made the tensor, and the module whose own code it belongs to."""

    kind: str = "module"
    """of the call: module api collective parameter loss"""
    name: str = ""
    """of the call"""
    type: str | None = None
    """class of the module whose code it is"""
    called_type: str | None = None
    """class of the module that was called"""
    module: str = ""
    microbatch: int = 0
    inputs: tuple[SlotPair, ...] = ()
    """forward inputs of the call"""
    outputs: tuple[SlotPair, ...] = ()
    """forward outputs of the call"""
    nearby: tuple[SlotPair, ...] = ()
    """records of the same phase of the module and its children"""
    parameters: tuple[SlotPair, ...] = ()
    """of the module itself, before the step"""
    buffers: tuple[SlotPair, ...] = ()
    """short ones of the module itself, as capture first saw them"""
    neighbours: tuple[NeighbourCall, ...] = ()
    makers: tuple[Maker, ...] = ()
    """the module calls, of either run, that made its own tensor, wherever they stand"""

    @property
    def inputs_agree(self) -> bool | None:
        """Whether every input is the same on both sides; None where one is not known."""
        agreements = [pair.agree for pair in self.inputs]
        if any(s is False for s in agreements):
            return False
        return True if agreements and all(agreements) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """The same site at other times and ranks."""

    target_earlier: tuple[tuple[int, Known], ...] = ()
    """(step, tensor), nearest first"""
    reference_earlier: tuple[tuple[int, Known], ...] = ()
    reference_later: tuple[tuple[int, Known], ...] = ()
    target_microbatches: tuple[tuple[int, Known], ...] = ()
    """(microbatch, tensor) of the same step, the origin's own left out"""
    reference_microbatches: tuple[tuple[int, Known], ...] = ()
    target_ranks: tuple[tuple[int, Known], ...] = ()
    """(rank, tensor), the origin's own included"""
    reference_ranks: tuple[tuple[int, Known], ...] = ()
    recomputed: tuple[SlotPair, ...] = ()
    """target: as first computed (``reference``) and as recomputed in backward (``target``)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnGradients:
    """What the calls of a weight's module make of its gradient."""

    target: Floats
    reference: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterStep:
    """One parameter through one step: slot -> tensor, on either side."""

    fqn: str
    before: SlotPair = field(default_factory=lambda: SlotPair(slot="value"))
    """values at the start of the step"""
    gradients: tuple[tuple[int, SlotPair], ...] = ()
    """(microbatch, pair) of ``local``, ``accumulated`` and ``clipped``"""
    updated: tuple[SlotPair, ...] = ()
    """``param`` and ``state.*`` after the update"""
    state_before: tuple[SlotPair, ...] = ()
    """``state.*`` after the step before"""
    target_settings: Arguments = field(default_factory=dict)
    """of its optimizer group, with ``class``"""
    reference_settings: Arguments = field(default_factory=dict)
    target_trainable: bool | None = None
    reference_trainable: bool | None = None
    target_grouped: bool | None = None
    """whether an optimizer holds it"""

    def after(self, slot: str) -> SlotPair | None:
        """What the update left in a slot."""
        return next((p for p in self.updated if p.slot == slot), None)

    def gradient(self) -> SlotPair | None:
        """The gradient as the optimizer received it, else as it was accumulated last."""
        for slot in ("clipped", "accumulated", "local"):
            found = [p for _, p in self.gradients if p.slot == slot]
            if found:
                return found[-1]
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossFacts:
    """The loss of one microbatch, and how much it was made of."""

    value: float
    counted: int
    """labels that count"""
    positions: int
    """labels"""
    rows: int | None
    """sequences"""
    steepest: float | None
    """the largest -dL/dlogit: (1 - p) / d of the token that the model expects least, where the sum over
    tokens is divided by d"""
    form: LossForm | None = None
    """what the gradient of the logits says of it, where values of both were kept"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Numbers of one run at the origin's step."""

    world_size: int | None = None
    data_parallel_size: int | None = None
    microbatches: int | None = None
    microbatches_elsewhere: int | None = None
    """of most of the other steps"""
    loss_scale: float | None = None
    tokens: float | None = None
    rank_tokens: tuple[float, ...] = ()
    """tokens of every rank in this step"""
    rank_counted: tuple[int, ...] = ()
    """labels that count in the losses of the step on every rank, where each reads data of its own"""
    grad_norm: float | None = None
    learning_rate: tuple[float, ...] = ()
    learning_rates: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    """of every step known"""
    loss: float | None = None
    losses: Mapping[int, LossFacts] = field(default_factory=dict)
    """of every microbatch whose labels were kept"""
    sent_back: Mapping[int, Floats] = field(default_factory=dict)
    """microbatch -> gradient that its loss sends back to the model's first output, where values were kept"""
    sent_from: Mapping[int, Floats] = field(default_factory=dict)
    """microbatch -> the values of that output, where they were kept"""
    row_inputs: Mapping[int, Mapping[str, Floats]] = field(default_factory=dict)
    """microbatch -> slot -> one number a row that the model is given, such as a noise level"""
    sent_sizes: Mapping[int, tuple[float, float, float]] = field(default_factory=dict)
    """microbatch -> norm, minimum and maximum of that gradient, before any loss scale"""
    sent_as_reference: frozenset[int] = frozenset()
    """microbatches at which a replay saw that this gradient is the reference's, bit for bit"""
    weighed: Mapping[tuple[int, str], float] = field(default_factory=dict)
    """microbatch and slot -> derivative of its loss by an output of the model that is one number"""
    reduction: str | None = None
    """of the function that made the loss: ``none``, ``mean``, ``sum``; None where no one knows"""
    skipped: bool | None = None
    draws: Mapping[tuple[int, str], tuple[int, ...]] | None = None
    """microbatch and module, in the order in which they end -> where the random generators stood as each of
    its calls began that moved them; None where nobody looked"""
    drawn_by_ranks: frozenset[tuple[int, str]] = frozenset()
    """microbatch and module as which began the generators of two ranks or more stood alike"""
    modules: frozenset[str] = frozenset()
    """names of modules that were called in this step, where it is known which ones drew"""
    batch_digest: str | None = None
    batch_digests: Mapping[int, str] = field(default_factory=dict)
    """of every step known"""
    rank_batch_digests: Mapping[int, str] = field(default_factory=dict)
    """of every rank in this step"""
    leading: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """microbatch -> tokens that the model's mask hides ahead of the first one it shows, row by row"""
    collectives: Mapping[str, int] = field(default_factory=dict)
    """name -> calls in this step"""
    deterministic: bool | None = None
    dtypes: frozenset[str] = frozenset()
    """of all records of the step"""
    on_cpu: bool = False
    """the machine is known to have no other device"""
