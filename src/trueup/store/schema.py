"""Arrow schemas of the tables of one step on one rank, version 1."""

from __future__ import annotations

import pyarrow as pa

from trueup.numerics.summary import SKETCH_SIZE

SCHEMA_VERSION = 1

_name = pa.dictionary(pa.int32(), pa.string())

CALLS = pa.schema(
    [
        ("call", pa.int32()),
        ("parent", pa.int32()),
        ("kind", _name),
        ("name", _name),
        ("type", _name),
        ("ordinal", pa.int32()),
        ("microbatch", pa.int32()),
        ("mode", _name),
        ("opaque", pa.bool_()),
        ("stack", pa.int32()),
        ("arguments", _name),
        ("global_ordinal", pa.int32()),
    ]
)

RECORDS = pa.schema(
    [
        ("call", pa.int32()),
        ("phase", _name),
        ("slot", _name),
        ("microbatch", pa.int32()),
        ("summary", pa.int32()),
        ("requires_grad", pa.bool_()),
        ("reason", _name),
    ]
)

SUMMARIES = pa.schema(
    [
        ("dtype", _name),
        ("shape", pa.list_(pa.int64())),
        ("device", _name),
        ("placement", _name),
        ("numel", pa.int64()),
        ("num_nan", pa.int64()),
        ("num_posinf", pa.int64()),
        ("num_neginf", pa.int64()),
        ("num_zero", pa.int64()),
        ("minimum", pa.float64()),
        ("maximum", pa.float64()),
        ("mean", pa.float64()),
        ("l2_norm", pa.float64()),
        ("smallest_nonzero", pa.float64()),
        ("digest", pa.uint64()),
        ("crc32", pa.uint32()),
        ("sketch", pa.binary(4 * SKETCH_SIZE)),
        ("chunk", pa.int32()),
        ("tensor", pa.string()),
    ]
)

FORCED = pa.schema(
    [
        ("record", pa.int32()),
        ("call", pa.int32()),
        ("phase", _name),
        ("slot", _name),
        ("state", _name),
        ("reason", _name),
        ("difference", pa.float64()),
        ("norm", pa.float64()),
        ("scale", pa.float64()),
        ("residual", pa.float64()),
        ("max_abs_diff", pa.float64()),
        ("max_ulp_diff", pa.int64()),
        ("bias_z", pa.float64()),
        ("reference_record", pa.int32()),
    ]
)
"""Only in a replay: what was looked up of the reference, and what came of it."""

STACKS = pa.schema([("stack", pa.int32()), ("frames", pa.list_(pa.string()))])

TABLES = {"calls": CALLS, "records": RECORDS, "summaries": SUMMARIES, "stacks": STACKS}
