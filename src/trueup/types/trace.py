"""What the JSON files and the table of summaries of a trace hold, by key (docs/trace-format.md).

A key that a trace may lack is optional: capture of an older version did not write it, a tool whose dump was
imported does not know it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from typing_extensions import NotRequired, Required, TypedDict  # pydantic reads typing's from Python 3.12 on


class OfTheProgram(TypedDict, total=False):
    """Options of a capture that shape the run itself."""

    seed: int | None
    deterministic: bool | None
    manual_steps: bool
    first_step: int
    tracer: int | None
    functions: bool


class CapturedWith(OfTheProgram, total=False):
    """``options`` of the manifest; there are more."""

    store_values_of: Sequence[str]


class Manifest(TypedDict, total=False):
    """``manifest.json``: facts of the run."""

    schema_version: int
    source: str
    """the tool whose dump it is; not there in a trace of ours"""
    framework: str
    framework_version: object
    trueup_version: str | None
    python_version: str | None
    platform: str | None
    run_id: str | None
    launch: str
    created: str | None
    command: Sequence[str] | None
    world_size: int
    level: str | None
    task: str | None
    seed: int | None
    deterministic: bool | None
    options: CapturedWith
    changed_on_purpose: Sequence[str]
    layout: Mapping[str, object] | None
    environment: Mapping[str, str]
    num_threads: int | None
    devices: Sequence[object]
    deterministic_algorithms: bool
    matmul_precision: str
    default_dtype: str
    cudnn_deterministic: bool
    cuda: str | None
    allow_tf32: bool
    allow_bf16_reduced_precision_reduction: bool
    allow_fp16_reduced_precision_reduction: bool
    beside: Mapping[str, str]


class ParameterFacts(TypedDict, total=False):
    """One row of ``parameters``."""

    fqn: Required[str]
    shape: Required[Sequence[int]]
    dtype: Required[str]
    numel: int
    requires_grad: Required[bool]
    tied_to: str | None
    content: str | None
    optimizer_group: Sequence[int] | None
    parallel: Mapping[str, int]
    """how Megatron's layers say that they cut it"""


class BufferFacts(TypedDict):
    """One row of ``buffers``: a buffer as capture first saw it."""

    fqn: str
    shape: Sequence[int]
    dtype: str
    content: str | None
    """order-sensitive digest; None where reading it would have held up the device"""
    values: NotRequired[Sequence[float]]
    """numbers of a short floating one of one dimension"""


class ShardPiece(TypedDict):
    """Where a parameter of one rank lies in the one of the unsharded model."""

    name: str
    flat: Sequence[int]
    """begin and end in the flattened parameter"""
    shape: Sequence[int]
    axes: Sequence[str]


OptimizerFacts = TypedDict(
    "OptimizerFacts",
    {
        "class": Required[str],
        "groups": "Required[Sequence[Mapping[str, object]]]",
        "pieces": "Mapping[str, ShardPiece]",
    },
    total=False,
)
"""One entry of ``optimizers``."""


class Failure(TypedDict):
    """An error of capture."""

    step: int
    site: str
    error: str


class LeftFreeDocument(TypedDict):
    """Places that a replay did not replace, for one reason."""

    reason: object
    count: int
    examples: Sequence[str]


class KeptGradient(TypedDict):
    """A parameter that kept its own gradient."""

    fqn: str
    reason: object


class ReplacedGradients(TypedDict):
    """What a run with the reference's gradients put in place of its own."""

    replaced: Sequence[str]
    free: Sequence[KeptGradient]


class Root(TypedDict):
    """A module that no other one calls."""

    name: str
    type: str


class Replayed(TypedDict, total=False):
    """What a replay put in place of the program's values."""

    plan: str
    equal: int
    replaced: int
    free: Sequence[LeftFreeDocument]
    tried: Sequence[str]
    """modules in which a supposed cause was tried"""


class AverageFacts(TypedDict):
    """An averaged copy of the weights that the program keeps."""

    slot: str
    """of its records"""
    kind: str
    """class that holds it, ``AveragedModel``, or ``dict``, ``list``"""
    held: int | None
    """step at whose beginning the model's weights were what the copy held when it was found"""
    constant: Sequence[str]
    """parameters and buffers of which nothing was written in the copy"""


class MasterFacts(TypedDict):
    """Master weights that the program keeps outside the framework's optimizers."""

    slot: str
    """of their records, among those of averages"""
    kind: str
    """class that holds them, or ``dict``, ``list``"""
    held: int | None
    """step at whose beginning the weights were what the copy held when it was found, rounded"""


class RankFacts(TypedDict, total=False):
    """``ranks/rank_NNNNN.json``: what one rank says of itself."""

    rank: int
    local_rank: int
    pid: int | None
    coordinate: Mapping[str, int]
    parameters: Sequence[ParameterFacts]
    buffers: Sequence[BufferFacts]
    averages: Sequence[AverageFacts]
    """averaged copies of the weights"""
    masters: Sequence[MasterFacts]
    """finer copies that the weights are rounded from"""
    roots: Sequence[Root]
    """modules that no other one calls"""
    wrapped_by: Sequence[str]
    groups: Mapping[str, Sequence[int]]
    """ranks, this one among them, that by its wrapper hold the same ``weights`` or ``experts``, or read
    different ``batches``"""
    limits: Sequence[str]
    stood_aside: str
    failures: Sequence[Failure]
    num_failures: int
    opaque: Sequence[Mapping[str, str]]
    optimizers: Sequence[OptimizerFacts]
    settings: Mapping[str, Mapping[str, object]]
    configuration: Mapping[str, Mapping[str, object]]
    overflows: Sequence[Mapping[str, object]]
    long_run: Mapping[str, object]
    unkept: Sequence[str]
    outside_scope: str
    """why scope or list left nothing of any step"""
    unmatched_names: Mapping[str, str]
    """name of list that no call of this rank has -> the same as a sentence"""
    replay: Replayed
    given_gradients: ReplacedGradients
    compiled: Mapping[str, object]
    """``regions``, ``graph_breaks`` and ``recompiles`` of torch.compile, where they were asked for"""


class ArgumentsCell(TypedDict, total=False):
    """``arguments`` of a call, as far as a slot of it has one kind of value."""

    ignore_index: int
    """of a loss"""


class CutCell(TypedDict, total=False):
    """``placement`` of a tensor whose rank has a part of it."""

    whole: Required[Sequence[int]]
    where: Required[Sequence[Sequence[Sequence[int]]]]


class DistributedCell(TypedDict, total=False):
    """``placement`` of a tensor that itself says which part it is."""

    mesh: Required[Mapping[str, int]]
    placements: Required[Sequence[str]]
    global_shape: Required[Sequence[int]]
    offset: Required[Sequence[int]]
    whole: Sequence[int]
    where: Sequence[Sequence[Sequence[int]]]


class ScalarLine(TypedDict, total=False):
    """One line of ``scalars``: the numbers of a training step."""

    step: int
    rank: int
    time: float
    loss: float | None
    losses: Sequence[float | None]
    grad_norm: float | None
    local_norm: float | None
    learning_rate: Sequence[float]
    scheduler_steps: Sequence[int]
    """how often each learning-rate scheduler of the optimizer has stepped before the update"""
    draws: Sequence[Sequence[object]]
    """calls of modules that drew random numbers, and outermost ones: name, microbatch, where the generators
    stood as it began, whether it moved them; not there where nobody looked"""
    loss_scale: float | None
    skipped: bool | None
    microbatches: int | None
    updates: Sequence[int]
    tokens: int | None
    batch_size: int | None
    packed: bool
    """rows may hold several sequences, told apart by their positions; absent: they do not"""
    global_batch_size: int | None
    batch_digest: str | None
    data_parallel_size: int | None
    saved: Mapping[str, object]
    phases: Sequence[Mapping[str, object]]
    """of reinforcement learning: ``role``, ``phase``, its ``number`` and its ``calls``"""
    buffers: Mapping[str, float | None]
    """l2 norms of the floating buffers after the update"""
    buffer_sums: Mapping[str, float | None]
    buffers_before: Mapping[str, float | None]
    """the same of the first model's as the step begins"""
    buffer_sums_before: Mapping[str, float | None]
    """sum_i cos(i) b_i of the same, which signs and order change"""
    weight_norm: float | None
    update_ratio: float | None
    num_not_finite: float | None
    step_seconds: float | None


class SummaryRow(TypedDict, total=False):
    """One row of ``summaries``."""

    summary: int
    dtype: str
    shape: Sequence[int]
    device: str
    placement: str | None
    numel: int
    num_nan: int | None
    num_posinf: int | None
    num_neginf: int | None
    num_zero: int | None
    minimum: float | None
    maximum: float | None
    mean: float | None
    l2_norm: float | None
    captured_l2_norm: float | None
    """over hidden elements too (``store.visible``)"""
    smallest_nonzero: float | None
    digest: int | None
    crc32: int | None
    sketch: bytes | None
    chunk: int | None
    tensor: str | None
    source_digest: str | None
    """of an imported dump, where the tool took one of another kind"""
    source_extra: str | None
    """what else the tool wrote of it, JSON"""


_REDUCTIONS = ("none", "mean", "sum")


def reduction_word(recorded: object) -> str | int | None:
    """How a loss function sums, for the number that stands for it in a graph, as older traces keep it."""
    if isinstance(recorded, int) and 0 <= recorded < len(_REDUCTIONS):
        return _REDUCTIONS[recorded]
    return recorded if isinstance(recorded, (str, int)) else None
