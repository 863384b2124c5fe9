"""Constants by which a check judges the ids of data; settings themselves are compared exactly."""

from __future__ import annotations

from trueup.types.threshold import chosen

FEWEST_DOCUMENTS = chosen(
    "checklist.fewest_documents", 8, "documents", "fewer may begin or end with the same word by chance"
)
SHARED_END = chosen(
    "checklist.shared_end",
    0.9,
    "of documents",
    "a special id ends every document but those that were cut; the commonest word ends a few in a hundred",
)
PADDING_RUN = chosen(
    "checklist.padding_run",
    4,
    "equal ids at the end of a row",
    "text repeats a token three times at most now and then; padding fills the rest of a row",
)
PADDED_ROWS = chosen(
    "checklist.padded_rows",
    0.1,
    "of rows",
    "rows of documents of many lengths are mostly padded; a row of text that ends in a run is an exception",
)
ENDS_A_ROW = chosen(
    "checklist.ends_a_row",
    2.0,
    "times a row",
    "an end of documents comes once a row, or once a turn of two; a line break comes many times",
)
UNKNOWN_SHARE = chosen(
    "checklist.unknown_share",
    0.01,
    "of ids",
    "a tokenizer that fits its data leaves out rare signs; one of another vocabulary misses words",
)
