"""Why tensors of a replay were not replaced: sentences of version 1 are read as today's codes."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from trueup.store.layout import rank_dir
from trueup.store.left_free import left_free_from_plain
from trueup.store.reader import Trace
from trueup.store.schema import FORCED, SCHEMA_VERSION
from trueup.store.writer import write_json, write_table
from trueup.types.codes import GivenCode, LeftFree
from trueup.types.reason import Reason, reason

VERSION_1 = {
    "a parameter or buffer: compared, never overwritten": reason(LeftFree.PARAMETER),
    "compared, never overwritten": reason(LeftFree.COMPARED_ONLY),
    "expanded: several elements share one place in memory": reason(LeftFree.EXPANDED),
    "one tensor with an output of a module around or beside it, where it was looked at": reason(
        LeftFree.SHARED_GRADIENT
    ),
    "the last of its uses sent no gradient": reason(LeftFree.LAST_USE_WITHOUT_GRADIENT),
    "made before the program called its model: its memory may be read-only": reason(LeftFree.BEFORE_MODEL),
    "the reference has no such tensor at this call": reason(LeftFree.NOT_IN_REFERENCE),
    "the reference kept no values of it": reason(LeftFree.NO_VALUES),
    "another shape: [5, 6] against [5, 3]": reason(
        LeftFree.SHAPE_DIFFERS, target="[5, 6]", reference="[5, 3]"
    ),
    "layout sparse_coo: not replaced": reason(LeftFree.LAYOUT, layout="sparse_coo"),
    "inside a function transform: no values of its own": reason(LeftFree.FUNCTION_TRANSFORM),
    "dtype int4: not replaced": reason(LeftFree.DTYPE, dtype="int4"),
    "float32 values cannot be rounded to bfloat16 here": reason(
        LeftFree.ROUNDING, reference="float32", target="bfloat16"
    ),
    "called another number of times there than in the reference": reason(LeftFree.NUM_CALLS_DIFFERS),
    "its values lie otherwise in the reference, in a way that cannot be undone": reason(
        LeftFree.LAYOUT_NOT_INVERTIBLE
    ),
    "called in another order: it stands where the reference calls another module": reason(
        LeftFree.CALL_ORDER_DIFFERS
    ),
    "its place is not unique in the step": reason(LeftFree.PLACE_NOT_UNIQUE),
    "the reference has no gradient of this parameter": reason(LeftFree.GRADIENT_NOT_IN_REFERENCE),
    "the reference has no gradient of it; here there is always one": reason(LeftFree.GRADIENT_ALWAYS_THERE),
    "it has no gradient here to put the reference's in": reason(LeftFree.GRADIENT_NOT_IN_TARGET),
    "a sparse_coo gradient": reason(LeftFree.GRADIENT_LAYOUT, layout="sparse_coo"),
    "its shape is [2], the reference's [3]": reason(
        LeftFree.GRADIENT_SHAPE_DIFFERS, target="[2]", reference="[3]"
    ),
}
LATER = {LeftFree.LOOKED_FOR, LeftFree.OUTSIDE_TABLE}
"""codes that version 1 did not know"""


def test_every_code_had_a_sentence() -> None:
    assert {one.code for one in VERSION_1.values()} == set(LeftFree) - LATER


@pytest.mark.parametrize("sentence", VERSION_1)
def test_sentences_of_version_1_are_codes(sentence: str) -> None:
    assert left_free_from_plain(sentence) == VERSION_1[sentence]


@pytest.mark.parametrize("why", VERSION_1.values(), ids=lambda why: why.code.value)
def test_reasons_are_read_back(why: Reason) -> None:
    assert left_free_from_plain(why.to_json()) == why


def test_an_unknown_sentence_is_kept() -> None:
    assert left_free_from_plain("no such module") == reason(GivenCode.TEXT, text="no such module")


def test_the_table_of_an_old_replay_has_codes(tmp_path: Path) -> None:
    cells = [*VERSION_1, None, LeftFree.EXPANDED.value, "no such module"]
    write_json(tmp_path / "manifest.json", {"schema_version": SCHEMA_VERSION})
    columns = {
        field.name: pl.Series([None] * len(cells), dtype=pl.Int32) if field.name != "reason" else cells
        for field in FORCED
    }
    folder = rank_dir(tmp_path, 0, 0)
    folder.mkdir(parents=True)
    write_table(pl.DataFrame(columns).to_arrow(), folder / "forced.parquet")
    read = Trace(tmp_path).forced(0, 0)["reason"].to_list()
    assert read == [*(one.code.value for one in VERSION_1.values()), None, LeftFree.EXPANDED.value, None]
