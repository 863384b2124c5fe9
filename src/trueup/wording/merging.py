"""Why parts of a tensor do not make a whole, and how the ranks of a run were put together."""

from trueup.types.codes.merging import MergingCode as Is
from trueup.types.codes.record import RecordCode
from trueup.types.reason import reason
from trueup.wording.phrase import Phrase, ReasonFacts, listed

_TWO_SHAPES = {"one": "[4, 8]", "other": "[4, 2]"}


def _whole(facts: ReasonFacts) -> str:
    sentence = facts.fill("{ranks:count rank} ({mesh}) as whole tensors, layout {source}")
    return sentence + (facts.fill("; {folded} microbatches as one") if facts["folded"] > 1 else "")


def _inferred(facts: ReasonFacts) -> str:
    counts = (f"{number} {placement}" for placement, number in facts.reason.numbers)
    return f"layout inferred from the reference: {listed(list(counts), 20)}"


PHRASES = {
    Is.RANK_WITHOUT_SUMMARY: Phrase(
        sentence=lambda facts: (
            facts.fill("rank {rank} has no summary of it") + (f": {facts.parts[0]}" if facts.parts else "")
        ),
        samples=({"rank": 1},),
    ),
    Is.STAGE_WITHOUT_RANK: Phrase(sentence="no rank of stage {stage} has it", samples=({"stage": 1},)),
    Is.NOT_DIVISIBLE: Phrase(
        sentence="{shape} does not split into {split}", samples=({"shape": "[5]", "split": "[2, -1]"},)
    ),
    Is.PARTS_MISSING: Phrase(
        sentence="{parts_found} of {parts_expected} parts along {axis}",
        samples=({"parts_found": 1, "parts_expected": 2, "axis": "tp"},),
    ),
    Is.PLACEMENT_UNKNOWN: Phrase(
        sentence="its placement along {axis} is not known", samples=({"axis": "world"},)
    ),
    Is.NO_SUCH_DIM: Phrase(
        sentence="parts of shape {shape} have no dim {dim}", samples=({"dim": 2, "shape": "[4, 8]"},)
    ),
    Is.PIECES_INCOMPLETE: Phrase(
        sentence="pieces make {found}, expected {expected}", samples=({"found": "[4]", "expected": "[8]"},)
    ),
    Is.SHAPES_DIFFER: Phrase(
        sentence="parts of shapes {one} and {other} along dim {dim}", samples=({**_TWO_SHAPES, "dim": 0},)
    ),
    Is.LENGTHS_DIFFER: Phrase(
        sentence="parts of lengths {lengths} along dim {dim}", samples=({"lengths": "[4, 3]", "dim": 0},)
    ),
    Is.TERMS_DIFFER: Phrase(sentence="terms of shapes {one} and {other}", samples=(_TWO_SHAPES,)),
    Is.SIZE_DIFFERS: Phrase(sentence="{one} cannot be reshaped to {other}", samples=(_TWO_SHAPES,)),
    Is.SUM_NOT_ROUNDED: Phrase(
        sentence="rounding a sum to {dtype} is not supported", samples=({"dtype": "float8_e4m3fn"},)
    ),
    Is.SIDE: Phrase(
        sentence="{side}: {parts[0]}",
        samples=({"side": "target", "parts": (reason(Is.GRADIENTS_LEFT_OUT, parameters=2),)},),
    ),
    Is.MICROBATCH_ORDER: Phrase(
        sentence="a step's microbatches come in another order; each is compared with the one of the same rows"
    ),
    Is.WHOLE_TENSORS: Phrase(
        sentence=_whole,
        samples=(
            {"ranks": 4, "mesh": "dp 2, tp 2", "source": "declared", "folded": 1},
            {"ranks": 1, "mesh": "one process", "source": "declared", "folded": 2},
        ),
    ),
    Is.RANKS_MISSING: Phrase(
        sentence="the {side} holds {found} of the {expected:count rank} of its run: compared rank by rank",
        samples=({"side": "target", "found": 1, "expected": 2},),
    ),
    Is.LAYOUT_INFERRED: Phrase(sentence=_inferred, samples=({"shard(0)": 12, "invariant": 3},)),
    Is.REPLICAS: Phrase(
        sentence="taken for data parallel: ranks hold the same weights and read other rows",
        samples=({"same": 12, "apart": 3},),
    ),
    Is.NO_PLACEMENT_FITS: Phrase(
        sentence="{tensors:count tensor} left out, because no placement fits: {examples:list}",
        samples=({"tensors": 1, "examples": ("norm forward output.0",)},),
    ),
    Is.GRADIENTS_LEFT_OUT: Phrase(
        sentence="gradients right after backward were recorded for {parameters:count parameter} only, and "
        "are left out: the pipeline schedule runs parts of backward by itself",
        samples=({"parameters": 2},),
    ),
    Is.FUNCTIONS_LEFT_OUT: Phrase(
        sentence="{tensors:count tensor} of framework functions left out: the placement is not known",
        samples=({"tensors": 2},),
    ),
    Is.RECORDS_NOT_MERGED: Phrase(
        sentence="{records:count record} not merged: {parts:join ; }",
        samples=({"records": 5, "parts": (reason(Is.STAGE_WITHOUT_RANK, stage=1),)},),
    ),
    Is.RECORD_NOT_MERGED: Phrase(
        sentence="{record}: {parts[0]}",
        samples=({"record": "norm output.0", "parts": (reason(Is.STAGE_WITHOUT_RANK, stage=1),)},),
    ),
    Is.COPIES_OF_TENSOR_DIFFER: Phrase(
        sentence="copies of {record} are not equal: {parts:join ; }",
        samples=(
            {"record": "norm.weight", "parts": (reason(RecordCode.COPY_DIFFERS, axis="tp", ranks=("3",)),)},
        ),
    ),
    Is.COPIES_DIFFER: Phrase(
        sentence="copies of {tensors:count tensor} differ in total", samples=({"tensors": 9},)
    ),
}
