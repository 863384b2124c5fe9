"""Every constant that decides is an entry, and the case just below it is judged otherwise than the one just
above.

A room is converted once its folder stands in ``CONVERTED``: no other float, power or named number may decide
there. For each entry a module named ``deciding_*`` beside the room's tests has a function under ``@decides``.
"""

from __future__ import annotations

import ast
import math
from importlib import import_module
from pathlib import Path

import pytest

from tests.deciding import DECIDERS, Decider
from trueup.types.threshold import GENERATED, Threshold, thresholds

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[1]
ROOMS = {"numerics"}
"""rooms with entries beside those of CONVERTED"""
CONVERTED = {
    "src/trueup/diagnosing/kinds": "kinds",
    "src/trueup/diagnosing/evidence": None,
    "src/trueup/comparing": "comparing",
    "src/trueup/monitoring": "monitoring",
    "src/trueup/curves": "curves",
    "src/trueup/matching/*.py": "matching",
    "src/trueup/matching/weights": None,
    "src/trueup/diagnosing/*.py": "diagnosing",
    "src/trueup/diagnosing/replay": "diagnosing",
    "src/trueup/diagnosing/stages": "diagnosing",
    "src/trueup/diagnosing/rl": "rl",
    "src/trueup/checklist/*.py": "checklist",
    "src/trueup/mismatch": "mismatch",
}
"""folder, or modules -> the first word of its entries' names, None: it decides nothing by a constant"""
TABLES = (
    "trueup.diagnosing.kinds.thresholds",
    "trueup.diagnosing.thresholds",
    "trueup.comparing.thresholds",
    "trueup.monitoring.thresholds",
    "trueup.curves.thresholds",
    "trueup.matching.thresholds",
    "trueup.checklist.thresholds",
    "trueup.mismatch.thresholds",
    "trueup.diagnosing.rl.thresholds",
)
DECIDING = (
    "tests.diagnosing.deciding_kinds",
    "tests.diagnosing.deciding_diagnosing",
    "tests.comparing.deciding_comparing",
    "tests.monitoring.deciding_monitoring",
    "tests.curves.deciding_curves",
    "tests.matching.deciding_matching",
    "tests.checklist.deciding_checklist",
    "tests.mismatch.deciding_mismatch",
    "tests.diagnosing.rl.deciding_rl",
)
ARITHMETIC = (0.0, 0.5, 1.0, 2.0)
"""floats that any formula holds"""
ALLOWED: dict[str, set[float | str]] = {
    "checklist/data_ids.py": {
        "_MOST_SEQUENCES",
        "_MOST_PLACES",
        "_WIDEST",
        "2 ** 22",
        "_ROLES",
    },  # read; of chat
    "checklist/document.py": {"FORMAT", "_DRAWN_POINTS"},  # written
    "checklist/fields.py": {"_CLOSE", 1e-7, 1e-300, "_LARGEST_COUNT", "2 ** 53"},  # float32 and float64
    "checklist/expression.py": {"_MOST_ITEMS"},  # made in memory
    "checklist/schedule.py": {"MAX_POINTS", "_CLOSE", 1e-6},  # drawn; rounding of a schedule computed twice
    "comparing/buffers.py": {"_MOST_RANKS", "_SHOWN"},  # costs time; shown
    "comparing/averages.py": {"_MOST_COPIES", "_MOST_NUMBERS", "_SHOWN"},  # costs time; shown
    "comparing/coarse_activations.py": {"MOST", "_MOST_NUMBERS", "_SAMPLED"},  # costs time
    "comparing/values.py": {"_FEW"},  # costs time
    "comparing/coarse_norms.py": {
        "_MANTISSA_BITS",
        "_MOST_ROWS",
        "MOST",
        1e-5,
        1e-6,
        1e-8,
        1e-12,
    },  # usual eps; costs time
    "comparing/coarse_sums.py": {"MOST_NUMBERS"},  # costs time
    "comparing/content.py": {"SCHEMA_VERSION"},
    "comparing/coarse_grids.py": {"_MOST_NUMBERS"},  # costs time
    "comparing/counted_rows.py": {"_MOST_NUMBERS"},  # costs time
    "comparing/grounds.py": {"_NUM_AHEAD"},  # rows shown
    "comparing/losses/divergence.py": {
        "_FEWEST_CLASSES",
        *(0.5, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0),
        *(0.9, 0.8, 0.75, 0.7, 0.6, 0.4, 0.3, 0.25, 0.2, 0.1),
    },  # of two classes mixing and smoothing are one; usual temperatures and shares: a family, none chosen
    "comparing/layouts.py": {"SAMPLES"},  # values read: costs time
    "comparing/makers.py": {"_STEPS_BACK"},  # followed
    "comparing/ledger.py": {"MAX_GROUPS", "_MOST_EXAMPLES"},  # shown
    "comparing/losses/cross_entropy.py": {"MAX_LOGITS", 12.0},  # costs time; variance of an even distribution
    "comparing/metrics.py": {"_BLOCK"},  # costs memory
    "comparing/noise.py": {"SCHEMA_VERSION"},
    "comparing/owner.py": {"MAX_HINTS"},  # shown
    "comparing/program_code.py": {"MOST_PAIRS", "SHOWN"},  # costs time; shown
    "comparing/program_statements.py": {"LINES", "_WIDTH"},  # shown
    "comparing/telling_statements.py": {"ALIKE", 0.5, "_LEAST_NODES"},  # the order in which it is shown
    "comparing/precision_gap.py": {"2.0 ** (-11)", "_TF32_ROUNDOFF"},  # its definition
    "comparing/rules/inputs_bound.py": {"_MOST_ROUNDS"},  # costs time
    "comparing/stacks.py": {"MAX_STACKS"},  # written
    "comparing/table.py": {"ROW_GROUP"},  # of the file
    "comparing/verdict.py": {"_SHOWN"},  # shown
    "comparing/comparable.py": {"_MOST_LISTED", "_MOST_LIMITS"},  # shown
    "diagnosing/own_adam.py": {"_PASSES"},  # of one solution
    "diagnosing/stages/from_origin.py": {"_SHOWN"},  # shown
    "diagnosing/stages/samplers.py": {"MOST_STEPS"},  # costs time
    "diagnosing/stages/loss_weights.py": {"_SHOWN"},  # shown
    "diagnosing/stages/own_update.py": {
        *(0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9995),
        "_AS_WELL",
        10.0,
    },  # betas that programs use; which of several is shown
    "diagnosing/noise_options.py": {"_MOST_RERUNS"},  # costs time
    "diagnosing/rl/advantage_checks.py": {
        *(0.5, 0.9, 0.95, 0.96, 0.97, 0.98, 0.99, 0.995, 0.999, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3),
        "_LINE",
    },  # settings in use; points of a line
    "diagnosing/rl/loss_forms.py": {
        *(0.05, 0.1, 0.15, 0.2, 0.22, 0.25, 0.28, 0.3, 0.4, 0.5),
        *(3e-4, 4e-4, 3e-3, 4e-3, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 10.0),
    },  # settings in use
    "diagnosing/rl/formulas.py": {
        *("_WHITEN", "_MOST_LOG_RATIO", "_MOST_OF_SEQUENCES", "_MOST_KL"),
        *(1e-8, 20.0, 10.0, 1e-6),
    },  # verl's
    "diagnosing/rl/loss_checks.py": {0.2, 3.0, 1e-300},  # verl's defaults; against a division by 0
    "diagnosing/around.py": {"_BESIDE"},  # shown
    "diagnosing/batches.py": {"_NUM_LISTED"},  # shown
    "diagnosing/diagnosis.py": {"SCHEMA_VERSION"},
    "diagnosing/ledger.py": {1e-12},  # against a division by 0
    "diagnosing/loss_form.py": {"MAX_NUMBERS"},  # costs time
    "diagnosing/parity.py": {"_MAX_PLACES"},  # shown
    "diagnosing/pipeline.py": {"MAX_POINTS"},  # drawn
    "diagnosing/replay/trials.py": {"MOST_SINGLE"},  # costs time
    "diagnosing/stages/counted.py": {"_MOST_IDS"},  # special tokens
    "diagnosing/stages/between_steps.py": {"_MOST_NUMBERS", "_SHOWN"},  # costs memory; shown
    "diagnosing/stages/crossed.py": {"_FIRST"},  # shown
    "diagnosing/stages/decay_order.py": {"_ITERATIONS"},  # costs time
    "diagnosing/stages/tried.py": {"MOST"},  # costs time
    "diagnosing/replay/charge.py": {1e300},  # infinities, sorted
    "diagnosing/replay/outcome.py": {"SCHEMA_VERSION"},
    "diagnosing/replay/plan.py": {"VERSION"},
    "diagnosing/replay/words.py": {"MAX_REASONS"},  # shown
    "diagnosing/stages/batch.py": {"_IGNORE"},
    "diagnosing/stages/config.py": {"_NAMED"},  # shown
    "diagnosing/stages/reduction.py": {1e-9},  # against a division by 0
    "diagnosing/stages/together.py": {"_SAME_DIGITS"},  # which findings are shown as one
    "diagnosing/stages/texts.py": {"NUM_ROWS", "_LONGEST"},  # shown
    "diagnosing/update_rule.py": {0.9, 0.999, 1e-8, 1e-6, 1e-5, 1e-10, 1e-15},  # settings in use
    "mismatch/judging.py": {
        "_HEAD_TOKENS",
        "_MOST_SEQUENCES",
        "_SMALLEST",
        "2.0 ** (-14)",
        "2.0 ** -14",
    },  # cost time; against log 0
    "mismatch/measuring.py": {"VERL_BOUND", "_SAFE", "_TINY", 20.0, 1e-8, 99.9},  # verl's; shown
    "mismatch/parts.py": {"_MOST_PARTS", 0.1, 0.9},  # shown
    "monitoring/alarms.py": {"SUBJECTS"},  # shown
    "monitoring/events.py": {"VERSION"},
    "monitoring/monitor.py": {"_BEFORE"},  # written
    "monitoring/replicas.py": {"_KEPT"},  # costs memory
    "monitoring/rules.py": {1e-300},  # against the logarithm of 0
    "monitoring/settings.py": {
        6.0,
        10.0,
        1e-3,
        100.0,
        0.01,
        0.9,
    },  # defaults that a person changes: docs/options
    "monitoring/tensorboard.py": {"_ROWS"},  # read
    "curves/aligning.py": {0.1, 0.9, "MAX_OFFSET", "_LOOKED_AT"},  # quantiles of a clip; where a search looks
    "curves/columns.py": {1e-3},  # milliseconds
    "curves/comparison.py": {"VERSION"},
    "curves/conditions.py": {"2 ** 64", "_NUM_LISTED"},  # a digest's size; shown
    "curves/curve.py": {"_ENOUGH"},  # costs time
    "curves/files.py": {"HEAD_BYTES", "_MAX_FILES"},  # read
    "curves/following.py": {10.0},  # seconds between two looks
    "curves/local_norms.py": {"_LISTED", 1e-30},  # shown; against a division by 0
    "curves/many.py": {"_FEW", "_THREADS"},  # cost memory
    "curves/readers/epoch_step.py": {1e-3},  # milliseconds
    "curves/readers/lines.py": {"SAMPLE_BYTES"},  # read
    "curves/readers/megatron.py": {1e-3},
    "curves/readers/mindformers.py": {1e-3, 1e-12},  # units
    "curves/readers/nanotron.py": {1e-3},
    "curves/readers/words.py": {"_FEWEST"},  # lines of a log
    "curves/readers/scanning.py": {"_SAMPLE_BYTES", 1e3, 1e6, 1e9, 1e12, 1.2},  # units; room for lines
    "curves/reading.py": {"_MOST_NORMS"},  # costs memory
    "curves/commands.py": {"_STEPS_BEFORE"},  # costs time
    "curves/standard.py": {1e-30},  # against a division by 0
    "curves/statistics/departing.py": {
        "_HALVED",
        "_SCALES",
        "_BEFORE",
        "_KNOWN",
        "_WINDOWS",
        "_RECENT",
        "_FEWEST",
    },  # where a search looks
    "curves/statistics/bends.py": {
        *("_POWERS", "_BLOCKS", "_ROUNDS", "_LENGTHS", "_SHORTEST", "_LONGEST", "_STEEPEST", "_UNLIKELY"),
        *(
            "_PARAMETERS",
            "_NOTHING",
            1e-300,
            1e-150,
            1e-9,
            0.99,
        ),  # where a search looks; against a division by 0
        *(0.75, 1.25, 1.5, 2.0, 2.5, 3.0, 10.0, 12.0),  # powers and lengths: a family, none chosen
        *(0.05, 0.95),  # the interval that is stated
    },
    "curves/statistics/growing.py": {
        *(
            "_BLOCKS",
            "_IN_A_BLOCK",
            "_FEWEST",
            "_LENGTHS",
            "_FINER",
            "_ROUNDS",
            "_SMOOTHED",
            "_SOME",
        ),  # cost time
        *("_PARAMETERS", "_LONGEST", "_UNLIKELY", "_NOTHING", 2.5, 10.0, 1e-300),
        *(0.75, 1.25, 1.5, 3.0, 3.75, 4.0, 4.5, 5.5),  # powers and rates: a family, none chosen
        *(0.05, 0.95),  # the interval that is stated
    },
    "curves/statistics/excursions.py": {"_LISTED"},  # shown
    "curves/statistics/memories.py": {0.3, 0.6, 1.5, 2.2, 3.3, 5.0, 7.5, 11.0, 16.0, 9600.0, 25.0}
    | {10.0, 3.0, 6.0, 12.0, 8.0, 18.0, 28.0}  # a grid of memories and shapes
    | {"_NOTHING", 1e-9},  # against a division by 0
    "curves/statistics/trend.py": {
        *(1e-4, "_LEAST_WEIGHT", "_BLOCKS_A_SHAPE"),
        *(1e-20, "_NOTHING", 1e-10, 1e-12, "_EXACT"),
    },  # cost time; against a division by 0; where a search ends
    "curves/statistics/centred.py": {0.9999},  # against a division by 0
    "curves/statistics/frozen.py": {"_LISTED", 1e-30},
    "curves/statistics/health.py": {"_LISTED"},
    "curves/statistics/noise.py": {0.95},  # a coefficient of -1 has no long-run variance
    # confidences: what decides is on which side of matching.sure they are; what costs time; next to nothing
    "matching/align.py": {0.98, 0.93, 0.7, 0.85, 0.8, 0.75, "_GRAM", "_FIRST_WINDOW", "_MAX_CELLS", 1e-3}
    | {"_ONLY_NAME"},
    "matching/calls.py": {0.9, 0.6},  # confidences
    "matching/weights/analogy.py": {"BY_ANALOGY", 0.9},  # confidence
    "matching/weights/content.py": {"MASK", "MOST_PIECES", "MOST_IN_UNIT", "SEEN_ROWS"},  # cost time
    "matching/weights/infer.py": {"UNREAD_TRANSPOSE", 0.8, 0.95},  # confidences
    "matching/weights/kinds.py": {"_FEWEST_BELOW"},  # how names are read
    "matching/weights/moves.py": {"MAX_DIMS"},  # costs time
    "matching/weights/places.py": {0.95, 0.9, 0.8},  # confidences
    "matching/weights/rows.py": {"MAX_PIECES"},  # costs time
    "matching/weights/structure.py": {0.3, "_MOST_FUSED", "_MOST_LEFT"},  # confidence; cost time
    "matching/layouts.py": {"MAX_DIMS", "MAX_WAYS"},  # cost time
    "matching/mapping.py": {"VERSION"},
    "matching/modules.py": {0.99, 0.8, 0.85, "10 ** 9"},  # confidences; a number beyond all atoms
    "diagnosing/kinds/other_functions.py": {"_MOST"},  # shown
    "diagnosing/kinds/gated.py": {"MAX_SOURCES"},  # costs time
    "diagnosing/kinds/functions.py": {0.044715, 1.702},  # of the definitions of gelu
    "diagnosing/kinds/updates.py": {1e-8, 0.9, 0.999},  # PyTorch's defaults of Adam
    "diagnosing/kinds/attended.py": {1e4, "_USUAL_THETA"},  # never read without a rotary embedding
    "diagnosing/kinds/attention.py": {
        *(1e2, 1e8, 1.1, 0.05, 8.0, 500.0),
        *("THETA_NEAR", "MAX_SOURCES", "LIKELIEST", "ALIBI"),
    },  # where a search looks; the slopes of ALiBi
    "diagnosing/kinds/norms.py": {1e-5, 1e-6, 1e-8, 1e-12},  # usual eps, tried first
    "diagnosing/kinds/quantised.py": {
        *(448.0, 57344.0, 127.0, 128, 32, 2.0, 4.0),
        *("_MOST_ROWS", "_MOST_FEATURES", "_TINY", 1e-12),
    },  # what formats and recipes are; cost time
    "diagnosing/kinds/routing.py": {"MAX_EXPERTS", "MAX_CHOSEN", "MAX_SLOPES"},  # cost time
    "diagnosing/kinds/token_weights.py": {"_SHOWN"},
    "diagnosing/kinds/constant_argument.py": {"_SHOWN"},
    "diagnosing/kinds/criterion.py": {"_IGNORED"},  # PyTorch's ignore_index
    "diagnosing/kinds/dtype_or_rounding.py": {"_GRID_SAMPLE"},  # costs time
    "diagnosing/kinds/grids.py": {"2.0 ** (-11)"},  # tf32's unit roundoff
    "diagnosing/kinds/randomness.py": {"_MOST_DIMS"},  # costs time
    "diagnosing/kinds/missing_or_extra_term.py": {
        "_MAX_CANDIDATES",
        "_MAX_COMPARED",
        "_MOST_RAISED",
    },  # cost time
    "diagnosing/kinds/permutations.py": {"_SEED", "2.0 ** (-24)"},  # float32's unit roundoff
    "diagnosing/kinds/rotary.py": {"_MAX_VALUES"},  # costs time
    "diagnosing/kinds/transposed_or_permuted.py": {"_MAX_PAIRS"},  # costs time
    "diagnosing/kinds/wrong_mask.py": {"IGNORED_LABEL", "_MOST_RUNS", "_SHOWN"},
    "diagnosing/kinds/wrong_scale.py": {"_SHOWN"},
    "diagnosing/evidence/elsewhere.py": {"MAX_EARLIER", "MAX_RANKS"},  # read
    "diagnosing/evidence/run.py": {"MAX_RANKS"},  # read
    "diagnosing/evidence/surroundings.py": {"MAX_NEARBY", "MAX_NEIGHBOURS"},  # read
    "diagnosing/evidence/vectors.py": {3e-7, "SKETCH_ROUNDING", 1e140, 1e-140},  # its dtype; overflow
    "diagnosing/evidence/windows.py": {"MAX_VALUES", "MAX_WHOLE", "_LEAST_ROWS", "_CHUNK"},  # read
}
for _table in (*TABLES, *DECIDING):
    import_module(_table)
ENTRIES = {name: one for name, one in thresholds().items() if not name.startswith("doctest")}


def numbers(path: Path) -> list[tuple[int, float | str]]:
    """Line and value of every float literal and constant power, line and name of every number of a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: list[tuple[int, float | str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, float) and node.value not in ARITHMETIC:
            found.append((node.lineno, node.value))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and _is_number(node):
            found.append((node.lineno, ast.unparse(node)))
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and _is_number(statement.value):
            found += [(statement.lineno, ast.unparse(name)) for name in statement.targets]
    return sorted(found, key=str)


def _is_number(node: ast.AST) -> bool:
    """Whether an expression holds nothing but numbers."""
    kept = (ast.Constant, ast.UnaryOp, ast.BinOp, ast.operator, ast.unaryop)
    inside = list(ast.walk(node))
    values = [one.value for one in inside if isinstance(one, ast.Constant)]
    return all(isinstance(one, kept) for one in inside) and all(type(v) in (int, float) for v in values)


@pytest.mark.parametrize("folder", CONVERTED)
def test_no_other_number_decides(folder: str) -> None:
    bare = []
    for path in sorted(ROOT.glob(folder if "*" in folder else f"{folder}/**/*.py")):
        allowed = ALLOWED.get(str(path.relative_to(ROOT / "src/trueup")), set())
        if path.name != "thresholds.py":
            bare += [f"{path.name}:{at} {number}" for at, number in numbers(path) if number not in allowed]
    assert bare == []


def test_a_number_that_decides_is_seen(tmp_path: Path) -> None:
    (tmp_path / "rule.py").write_text(
        "FEWEST = 3\nFINE = 2**-24\n\n\ndef rule(x: float) -> bool:\n    return FEWEST * x > 0.97 + 0.5\n"
    )
    assert {number for _, number in numbers(tmp_path / "rule.py")} == {"FEWEST", "FINE", "2 ** (-24)", 0.97}


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_an_entry_has_an_account_and_a_test(entry: Threshold) -> None:
    assert entry.unit
    assert len(entry.account.split()) > 3
    assert entry.test != GENERATED or entry.name in DECIDERS, "add a @decides function"
    assert entry.name.split(".")[0] in {*CONVERTED.values(), *ROOMS}


@pytest.mark.parametrize("name", sorted(DECIDERS))
def test_a_near_miss_on_either_side(name: str) -> None:
    """The decision changes between just below and just above the entry's value."""
    decider = DECIDERS[name]
    below, above = sides(ENTRIES[name], decider)
    assert decider.decide(below) != decider.decide(above), (below, above)


def sides(entry: Threshold, decider: Decider) -> tuple[float, float]:
    """The nearest values that a case can have; of counts the entry's own and the one beside it."""
    if isinstance(entry.value, int) and decider.margin is None:
        return entry.value + decider.beside[0], entry.value + decider.beside[1]
    margin = decider.margin or 0.01
    sides = sorted((entry.value * (1 - margin), entry.value * (1 + margin)))
    assert math.isfinite(sum(sides))
    return sides[0], sides[1]
