"""The tables of one step, collected as lists and turned into the frames of docs/trace-format.md."""

from __future__ import annotations

import json
import math

import polars as pl

from trueup.importers.frames import columns_from_rows, frame_from_columns, with_text
from trueup.importers.msprobe.leaves import Leaf
from trueup.importers.msprobe.names import dtype_from_dump
from trueup.store import StepTables, schema
from trueup.store.gaps import Gap
from trueup.types.codes import RecordCode
from trueup.types.reason import Reason
from trueup.types.table_rows import CallRow

GAPS = (
    Gap(kind="module", name="", code=RecordCode.ROOT_NOT_DUMPED),
    Gap(
        phase="param_grad",
        slot="local|clipped",
        code=RecordCode.ONE_GRADIENT_DUMPED,
    ),
    Gap(
        phase="backward",
        kind="module",
        slot=r"input\.(?!\d).*",
        code=RecordCode.KEYWORD_GRADIENTS_NOT_DUMPED,
    ),
)


_USUAL_KEYS = frozenset(
    {
        "type",
        "dtype",
        "shape",
        "Max",
        "Min",
        "Mean",
        "Norm",
        "requires_grad",
        "md5",
        "data_name",
        "tensor_stat_index",
    }
)
_NEVER_KNOWN = ("device", "placement", "num_zero", "smallest_nonzero", "digest", "sketch")
_USUAL_TYPES = ("torch.Tensor", "mindspore.Tensor")

_MD5_DIGITS = 32

MISSING_VALUES = "values named by the dump are not in dump_tensor_data"
UNSAFE_NAME = "values refused: the dump names a file outside dump_tensor_data"


class Columns:
    """Rows of one step, in execution order."""

    def __init__(self, framework: str, stored: frozenset[str]) -> None:
        self.calls: list[CallRow] = []
        self.absent: dict[int, list[str]] = {}
        self.arguments: dict[int, dict[str, object]] = {}
        self.stacks: dict[int, list[str]] = {}
        self._records: list[tuple[object, ...]] = []
        self._reasons: dict[int, Reason] = {}
        self._summaries: list[tuple[object, ...]] = []
        self._digests: dict[int, str] = {}
        self._extra: dict[int, str] = {}
        self._framework = framework
        self._stored = stored

    def record(
        self, call: int, phase: str, slot: str, microbatch: int, leaf: Leaf, reason: Reason | None
    ) -> None:
        """Add one tensor at one site."""
        summary, trouble = self._summary(leaf)
        if reason is not None and not trouble:
            self._reasons[len(self._records)] = reason
        self._records.append((call, phase, slot, microbatch, summary, leaf.get("requires_grad"), trouble))

    def missing(self, call: int, phase: str, slot: str, microbatch: int, reason: str) -> None:
        """Add one site without anything in the dump."""
        self._records.append((call, phase, slot, microbatch, None, None, reason))

    def _summary(self, leaf: Leaf) -> tuple[int, str | None]:
        row = len(self._summaries)
        shape = leaf["shape"]
        dtype = dtype_from_dump(leaf["dtype"])
        exact = leaf.get("md5")
        if isinstance(exact, float):  # in xor mode msprobe gives the value itself of a 0-d tensor
            leaf = {**leaf, "Max": exact, "Min": exact, "Mean": exact, "Norm": exact}
        norm = _number(leaf.get("Norm"))
        if norm is not None and norm < 0:  # of a 0-d tensor msprobe gives the value itself
            norm = -norm
        file, trouble = leaf.get("data_name"), None
        if file is not None and file not in self._stored:
            trouble = UNSAFE_NAME if "/" in file or "\\" in file else f"{MISSING_VALUES}: {file}"
            file = None
        minimum, maximum, mean = _number(leaf.get("Min")), _number(leaf.get("Max")), _number(leaf.get("Mean"))
        counts = _counts(dtype, minimum, maximum, norm)
        crc32 = self._crc32(row, leaf.get("md5"), dtype)
        chunk = None if file is None else 0
        self._summaries.append(
            (dtype, shape, math.prod(shape), *counts, minimum, maximum, mean, norm, crc32, chunk, file)
        )
        if len(leaf) > 8 or trouble or leaf["type"] not in _USUAL_TYPES:
            extra: dict[str, object] = {k: v for k, v in leaf.items() if k not in _USUAL_KEYS}
            if trouble:
                extra["data_name"] = leaf["data_name"]
            if leaf["type"] not in _USUAL_TYPES:
                extra["type"] = leaf["type"]
            if extra:
                self._extra[row] = json.dumps(extra)
        return row, trouble

    def _crc32(self, row: int, value: object, dtype: str) -> int | None:
        """msprobe's ``md5`` is a CRC-32 of the bytes, or an xor of their 64-bit words: no digest of ours. An
        older list may hold a real one."""
        if value is None:
            return None
        text = str(value)
        if len(text) == 8 and not text.startswith("0x"):
            if self._framework == "mindspore" and dtype.startswith(("bfloat", "float8", "hifloat")):
                self._digests[row] = f"crc32-float32:{text}"
                return None
            return int(text, 16)
        self._digests[row] = f"{'md5' if len(text) == _MD5_DIGITS else 'xor'}:{text}"
        return None

    def tables(self, step: int, rank: int) -> StepTables:
        """The frames."""
        num = len(self.calls)
        arguments = [json.dumps(self.arguments[c]) if c in self.arguments else None for c in range(num)]
        calls = columns_from_rows(self.calls, CallRow._fields)
        calls |= {"call": range(num), "arguments": arguments}
        records = columns_from_rows(self._records, [f.name for f in schema.RECORDS])
        return StepTables(
            step=step,
            rank=rank,
            calls=with_text(
                frame_from_columns(calls, num, schema.CALLS),
                "absent",
                {c: json.dumps(v) for c, v in self.absent.items()},
            ),
            records=frame_from_columns(records, len(self._records), schema.RECORDS),
            summaries=self._summaries_frame(),
            stacks=frame_from_columns(
                {"stack": list(self.stacks), "frames": list(self.stacks.values())},
                len(self.stacks),
                schema.STACKS,
            ),
            gaps=GAPS,
            coarse_statistics=True,
            reasons=self._reasons,
        )

    def _summaries_frame(self) -> pl.DataFrame:
        names = [f.name for f in schema.SUMMARIES if f.name not in _NEVER_KNOWN]
        columns = columns_from_rows(self._summaries, names)
        frame = frame_from_columns(columns, len(self._summaries), schema.SUMMARIES)
        frame = frame.with_row_index("summary").cast({"summary": pl.Int32})
        frame = with_text(frame, "source_digest", self._digests)
        return with_text(frame, "source_extra", self._extra)


def _counts(
    dtype: str, minimum: float | None, maximum: float | None, norm: float | None
) -> tuple[int | None, int | None, int | None]:
    """Number of NaN, +Inf and -Inf where the others prove that there is none; a NaN shows in every sum."""
    if maximum is None or minimum is None:
        return None, None, None
    if norm is None:
        return (0, 0, 0) if dtype.startswith(("int", "uint", "bool")) else (None, None, None)
    if math.isfinite(norm):
        return 0, 0, 0
    if math.isnan(norm):
        return None, None, None
    return 0, None if maximum == math.inf else 0, None if minimum == -math.inf else 0


def _number(value: float | None) -> float | None:
    try:
        return None if value is None else float(value)
    except OverflowError:  # JSON has integers of any size
        return math.inf if value is not None and value > 0 else -math.inf
