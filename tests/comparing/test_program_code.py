"""Where the code of two programs differs."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.comparing.traces import Recorder
from trueup.adapters.code import ReachableCode
from trueup.comparing.options import CompareOptions
from trueup.comparing.program_code import CodeBook, code_book
from trueup.comparing.run import compare
from trueup.store.code import ProgramCode, ProgramFunction, code_of
from trueup.types.codes import EvidenceCode, NoteCode, VerdictCode
from trueup.types.reason import Reason
from trueup.types.status import Outcome

MODEL = """
import helpers

IGNORED = -100
TABLE = {"plain": abs}


class Layer:
    width = 4

    def forward(self, x):
        '''What it does.'''
        return helpers.normalised(x) * self.scale(x)

    def scale(self, x: float) -> float:
        return x + IGNORED
"""
HELPERS = """
def normalised(value):
    return value / 2  # half
"""


def side(folder: Path, *, model: str = MODEL, helpers: str = HELPERS, after: str = "") -> Path:
    """What capture keeps of a program with one layer."""
    folder.mkdir()
    for name, text in (("model", model), ("helpers", helpers)):
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    spaces: dict[str, Any] = {}
    kept = {name: sys.modules.pop(name, None) for name in ("model", "helpers")}
    sys.path.insert(0, str(folder))
    try:
        program = folder / "program.py"
        program.write_text(f"import model, helpers\nlayer = model.Layer()\n{after}", encoding="utf-8")
        exec(compile(program.read_text(encoding="utf-8"), str(program), "exec"), spaces)
    finally:
        sys.path.remove(str(folder))
        modules = {name: sys.modules.pop(name, None) for name in kept}
        sys.modules.update({name: module for name, module in kept.items() if module is not None})
    sys.modules.update(cast("dict[str, Any]", modules))  # classes are asked where they come from
    found = ReachableCode(()).collect([("", spaces["model"]), ("layer", spaces["layer"])])
    for name in modules:
        del sys.modules[name]
    (folder / "code").mkdir()
    (folder / "code" / "rank_00000.json.gz").write_bytes(gzip.compress(json.dumps(found).encode()))
    return folder


def book_of(target: Path, reference: Path, worlds: tuple[int, int] = (1, 1)) -> CodeBook:
    sources = [
        SimpleNamespace(path=path, steps=lambda: {0: [0]}, manifest={"world_size": world})
        for path, world in zip((target, reference), worlds, strict=True)
    ]
    book = code_book(*cast("list[Any]", sources))
    assert isinstance(book, CodeBook)
    return book


def differences(target: Path, reference: Path) -> tuple[Reason, ...]:
    return book_of(target, reference).near("layer", "forward").reasons


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    return side(tmp_path / "reference")


def test_the_same_program_differs_nowhere(tmp_path: Path, reference: Path) -> None:
    assert differences(side(tmp_path / "target"), reference) == ()


@pytest.mark.parametrize(
    ("model", "helpers"),
    [
        (MODEL.replace("'''What it does.'''", "# nothing"), HELPERS),
        (MODEL.replace("x: float) -> float", "y)").replace("x + IGNORED", "y + IGNORED"), HELPERS),
        (MODEL, HELPERS.replace("# half", "").replace("value / 2", "(value / 2)")),
        (MODEL.replace("TABLE = {", "TABLE = {'more': max, "), HELPERS),
    ],
    ids=["comment", "names of arguments", "layout", "a table with more"],
)
def test_another_way_to_write_it_is_no_difference(
    model: str, helpers: str, tmp_path: Path, reference: Path
) -> None:
    assert differences(side(tmp_path / "target", model=model, helpers=helpers), reference) == ()


def test_other_statements_of_a_function_that_is_called(tmp_path: Path, reference: Path) -> None:
    target = side(tmp_path / "target", helpers=HELPERS.replace("value / 2", "value / 3"))
    (found,) = differences(target, reference)
    assert found.code is EvidenceCode.CODE_DIFFERS
    assert (found.place("function"), found.place("target"), found.place("reference")) == (
        "normalised",
        "return value / 3",
        "return value / 2",
    )
    assert str(found.place("target_at")).endswith("helpers.py:2")


@pytest.mark.parametrize(("ahead", "begins"), [(40, "return"), (400, "…")])
def test_a_long_statement_is_shown_from_where_it_differs(ahead: int, begins: str, tmp_path: Path) -> None:
    sides = [
        side(
            tmp_path / name,
            helpers=HELPERS.replace("value / 2", f"value{' + value' * (ahead // 8)} / {number}"),
        )
        for name, number in (("target", 3), ("reference", 2))
    ]
    (found,) = differences(*sides)
    for name, number in (("target", "3"), ("reference", "2")):
        text = str(found.place(name))
        assert (text.startswith(begins), text.endswith(f"/ {number}")) == (True, True)


def functions(folder: Path, target: str, reference: str) -> tuple[Reason, ...]:
    """What differs where a function that a layer calls is written in these two ways."""
    bodies = (("target", target), ("reference", reference))
    return differences(*(side(folder / name, helpers=text) for name, text in bodies))


def chain(*names: str, last: str) -> str:
    lines = [f"{name} = value.sum() + {before}" for before, name in zip(("1", *names), names, strict=False)]
    body = "\n    ".join([*lines, f"return {last}"])
    return f"def normalised(value):\n    {body}\n"


def test_of_many_statements_those_that_call_something_else_are_shown(tmp_path: Path) -> None:
    """A function written anew: most of its statements differ by the names of variables alone."""
    (found,) = functions(tmp_path, chain(*"abcdefg", last="c.max(b)"), chain(*"tuvwxyz", last="z.sum()"))
    assert str(found.place("target")).startswith("return c.max(b); ")


@pytest.mark.parametrize(("last", "number"), [("z.sum()", 0), ("y.sum()", 1)])
def test_other_names_of_variables_are_no_difference(last: str, number: int, tmp_path: Path) -> None:
    """A twin: another variable than the one that stands for it."""
    assert len(functions(tmp_path, chain(*"abcdefg", last="g.sum()"), chain(*"tuvwxyz", last=last))) == number


ROUTE = """def normalised(value):
    {s} = value.{cast}.sigmoid()
    {c} = {s} + 1
    {g} = {c}.view(4, 2).topk(2)[0].sum(-1)
    {m} = {g}.{mask}
    {i} = ({c} * {m}).topk(2)[1]
    {w} = {of}.gather(1, {i})
    return {w} / {w}.sum(-1)
"""
ONE = {"s": "scores", "c": "choice", "g": "group", "m": "allowed", "i": "chosen", "w": "weights"}
OTHER = {"s": "p", "c": "biased", "g": "best_two", "m": "mask", "i": "indices", "w": "taken"}


@pytest.mark.parametrize(
    ("taken", "first"), [("choice", "weights = choice.gather(1, chosen)"), ("scores", None)]
)
def test_a_value_that_is_taken_of_another_variable_is_told_first(
    taken: str, first: str | None, tmp_path: Path
) -> None:
    """In functions written by two hands; a twin that takes it of the same."""
    target = ROUTE.format(**ONE, cast="float()", mask="bool()", of=taken)
    reference = ROUTE.format(**OTHER, cast="to(float)", mask="gt(0)", of="p")
    (found,) = functions(tmp_path, target, reference)
    shown = str(found.place("target"))
    assert shown.startswith(first) if first else not shown.startswith("weights = ")
    if first:
        assert str(found.place("reference")).startswith("taken = p.gather(1, indices)")


def test_exchanged_halves_are_told_first(tmp_path: Path) -> None:
    head = "def normalised(value):\n    out = value * 0\n    for e in range(4):\n        here = value[e]\n"
    tail = "        if here.numel():\n            out[e] = {y}\n    out = out.abs()\n"
    tail += "    out = out + 1\n    return out\n"
    target = (
        head
        + "        up, gate = here.chunk(2, -1)\n        y = gate.tanh() * up\n"
        + tail.format(y="y.sin()")
    )
    reference = (
        head.replace("here", "one").replace("out", "total")
        + "        gate, up = one.chunk(2, -1)\n        made = gate.tanh() * up\n        made = made.cos()\n"
        + tail.format(y="made").replace("here", "one").replace("out", "total")
    )
    (found,) = functions(tmp_path, target, reference)
    for name, text in (
        ("target", "up, gate = here.chunk(2, -1)"),
        ("reference", "gate, up = one.chunk(2, -1)"),
    ):
        assert text in str(found.place(name)).split("; ")[:2]


DISPATCH = """
from functools import wraps

def plain(value):
    return value / 2

def decorated(original):
    @wraps(original)
    def wrapper(value):
        return original(value)
    return wrapper

normalised = decorated(plain)
"""


def test_what_a_wrapper_stands_for_is_compared(tmp_path: Path) -> None:
    (found,) = functions(tmp_path, "def normalised(value):\n    return value / 3\n", DISPATCH)
    texts = [found.place(name) for name in ("target", "reference", "function")]
    assert texts == ["return value / 3", "return value / 2", "plain"]


BUCKET = "def {name}(value, signed=True, size=4):\n    return value % size if signed else -value\n"
HANDED = {
    "all": ("signed=signed, size=size", "value, signed=True, size=4", []),
    "by place": ("signed, size", "value, signed=True, size=4", []),
    "one is dropped": ("size=size", "value, signed=True, size=4", ["signed"]),
    "not taken": ("size=size", "value, size=4", []),
}


@pytest.mark.parametrize("how", HANDED)
def test_an_argument_that_is_not_handed_on(how: str, tmp_path: Path) -> None:
    given, taken, lacks = HANDED[how]
    wrapper = f"def normalised({taken}):\n    return bucket(value, {given})\n"
    found = functions(tmp_path, BUCKET.format(name="bucket") + wrapper, BUCKET.format(name="normalised"))
    assert found[-1].code is EvidenceCode.CODE_WRAPPED
    told = [(one.place("name"), one.place("default"), one.place("side")) for one in found[:-1]]
    assert told == [(name, "True", "target") for name in lacks]


CALL = "def normalised(value):\n    return bucket({given})\n"


@pytest.mark.parametrize(
    ("given", "lacks"),
    [("value, size=2", ["signed"]), ("value, size=3, signed=False", []), ("value, 2", [])],
    ids=["dropped", "another value", "two differ"],
)
def test_an_argument_that_a_call_lacks(given: str, lacks: list[str], tmp_path: Path) -> None:
    inner = BUCKET.format(name="bucket")
    found = functions(
        tmp_path, inner + CALL.format(given=given), inner + CALL.format(given="value, signed=False, size=2")
    )
    told = [
        tuple(one.place(name) for name in ("name", "called", "default", "value", "side"))
        for one in found[:-1]
    ]
    assert told == [(name, "bucket", "True", "False", "target") for name in lacks]
    assert found[-1].code is EvidenceCode.CODE_DIFFERS


GIVEN = """def inner(value, size):
    return value / {inner}


def normalised(value):
    return {call}
"""


@pytest.mark.parametrize(
    ("inner", "call", "told"),
    [
        ("size", "inner(value, value.width)", ["inner", "normalised"]),
        ("size", "2 * inner(value, value.width)", ["normalised"]),
        ("2", "inner(value, value.width)", ["normalised"]),
    ],
    ids=["it does something else", "and more differs", "it does the same"],
)
def test_what_another_argument_is_for_is_told_first(
    inner: str, call: str, told: list[str], tmp_path: Path
) -> None:
    found = functions(
        tmp_path, GIVEN.format(inner=inner, call=call), GIVEN.format(inner="2", call="inner(value, 2)")
    )
    assert [one.place("function") for one in found] == told


def test_a_function_that_calls_itself_is_told_once(tmp_path: Path) -> None:
    text = "def normalised(value, depth=2):\n    return normalised(value, {given}) if depth else value\n"
    found = functions(tmp_path, text.format(given="depth - 2"), text.format(given="depth - 1"))
    assert [one.place("function") for one in found] == ["normalised"]


@pytest.mark.parametrize(
    ("target", "reference", "dtypes"),
    [
        ("value.bfloat16() / 2", "value / 2", {"bfloat16"}),
        ("value.to(torch.float16) / 2", "value.to(torch.float32) / 2", {"float16", "float32"}),
        ("value.to(torch.float16) / 3", "value.to(torch.float16) / 2", set()),
        ("value / 3", "value / 2", set()),
    ],
)
def test_dtypes_that_one_side_s_code_names(
    target: str, reference: str, dtypes: set[str], tmp_path: Path
) -> None:
    sides = [
        side(tmp_path / name, helpers=f"import torch\ndef normalised(value):\n    return {text}\n")
        for name, text in (("target", target), ("reference", reference))
    ]
    assert book_of(*sides).near("layer", "forward").dtypes == dtypes
    assert book_of(*reversed(sides)).near("layer", "forward").dtypes == dtypes
    assert not book_of(*sides).near(None, "optimizer").dtypes  # another place


def test_a_statement_that_moved_into_a_loop_is_told_with_the_loop(tmp_path: Path) -> None:
    loop, last = "    for _ in range(2):\n        value = value / 2\n", "value = abs(value)\n"
    sides = [
        side(tmp_path / name, helpers=f"def normalised(value):\n{loop}{indent}{last}    return value\n")
        for name, indent in (("target", "        "), ("reference", "    "), ("again", "  " * 2))
    ]
    (found,) = differences(*sides[:2])
    assert found.code is EvidenceCode.CODE_NESTED_OTHERWISE
    assert (found.place("text"), found.place("target")) == ("value = abs(value)", "for _ in range(2):")
    assert found.place("reference") == ""
    assert not list(differences(*sides[1:]))


def test_statements_in_another_order_are_told_with_what_they_follow(tmp_path: Path) -> None:
    first, second = "    value = value / 2\n", "    value = abs(value)\n"
    sides = [
        side(tmp_path / name, helpers=f"def normalised(value):\n{body}    return value\n")
        for name, body in (("target", second + first), ("reference", first + second))
    ]
    (found,) = differences(*sides)
    assert found.code is EvidenceCode.CODE_IN_OTHER_ORDER
    assert {str(found.place("target")), str(found.place("reference"))} <= {
        "",
        "value = abs(value)",
        "value = value / 2",
    }
    assert found.place("target") != found.place("reference")


@pytest.mark.parametrize("more", ["value = value / 3", "value = value / 2"])
def test_a_statement_more_is_another_statement(more: str, tmp_path: Path) -> None:
    """Also one that the function has already."""
    body = "    value = value / 2\n    return value\n"
    sides = [
        side(tmp_path / name, helpers=f"def normalised(value):\n{start}{body}")
        for name, start in (("target", f"    {more}\n"), ("reference", ""))
    ]
    (found,) = differences(*sides)
    assert (found.code, found.place("reference")) == (EvidenceCode.CODE_DIFFERS, "")


def test_another_value_of_a_constant(tmp_path: Path, reference: Path) -> None:
    target = side(tmp_path / "target", model=MODEL.replace("IGNORED = -100", "IGNORED = 0"))
    (found,) = differences(target, reference)
    assert found.code is EvidenceCode.CODE_VALUE_DIFFERS
    assert (found.place("name"), found.place("target"), found.place("reference")) == ("IGNORED", "0", "-100")


@pytest.mark.parametrize(
    ("target", "reference", "told"),
    [("'up'", "''", ("'up'", "''")), ("''", "'  '", ("''", "'  '")), ("'1'", "1", ("'1'", "1"))],
)
def test_values_that_show_nothing_are_quoted(
    target: str, reference: str, told: tuple[str, str], tmp_path: Path
) -> None:
    sides = [
        side(tmp_path / name, model=MODEL.replace("IGNORED = -100", f"IGNORED = {value}"))
        for name, value in (("target", target), ("reference", reference))
    ]
    (found,) = differences(*sides)
    assert (found.place("target"), found.place("reference")) == told


@pytest.mark.parametrize(
    ("values", "worlds", "told"),
    [((2, 1), (2, 1), False), ((1, 4), (1, 4), False), ((2, 1), (1, 1), True), ((4, 2), (2, 1), True)],
)
def test_the_number_of_processes_is_no_other_value(
    values: tuple[int, int], worlds: tuple[int, int], told: bool, tmp_path: Path
) -> None:
    sides = [
        side(tmp_path / name, model=MODEL.replace("IGNORED = -100", f"IGNORED = {value}"))
        for name, value in zip(("target", "reference"), values, strict=True)
    ]
    assert bool(book_of(*sides, worlds=worlds).near("layer", "forward").reasons) is told


PATCHES = {
    "replaced on the object": ("layer.scale = lambda x: x * 7", EvidenceCode.CODE_DIFFERS),
    "replaced in the module": (
        "def normalised(value):\n    return value\nhelpers.normalised = normalised",
        EvidenceCode.CODE_DIFFERS,
    ),
    "wrapped": (
        "inner = model.Layer.scale\n"
        "def twice(self, x):\n    return inner(self, x) * 2\n"
        "model.Layer.scale = twice",
        EvidenceCode.CODE_WRAPPED,
    ),
    "a library's in its place": ("layer.scale = abs", EvidenceCode.CODE_OF_ONE_SIDE),
    "forward of one object": (
        "def forward(x):\n    return x\nlayer.forward = forward",
        EvidenceCode.CODE_DIFFERS,
    ),
}


@pytest.mark.parametrize("name", PATCHES)
def test_functions_replaced_while_it_runs(name: str, tmp_path: Path, reference: Path) -> None:
    patch, code = PATCHES[name]
    target = side(tmp_path / "target", after=patch)
    assert [found.code for found in differences(target, reference)] == [code]
    assert [found.code for found in differences(reference, target)] == [code]


SCRIPT = """
import math
import torch

model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    loss = model(torch.ones(6, 4)).square().mean()
    (loss * 2).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_script_is_told_where_its_statement_stands_and_not_what_it_imports(tmp_path: Path) -> None:
    for name, text in (
        ("reference", SCRIPT),
        ("target", SCRIPT.replace("import math\n", "").replace("* 2", "* 3")),
    ):
        program = tmp_path / f"{name}.py"
        program.write_text(text, encoding="utf-8")
        command = ["-m", "trueup", "capture", "-o", str(tmp_path / name), "--", sys.executable, str(program)]
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
    first = compare(tmp_path / "target", tmp_path / "reference").verdict.evidence[0]
    assert (first.code, first.place("function")) == (EvidenceCode.CODE_DIFFERS, "<module>")
    assert "import" not in f"{first.place('target')} {first.place('reference')}"
    assert (first.place("target"), str(first.place("reference_at"))[-2:]) == ("(loss * 3).backward()", ":7")


PROGRAM = """
import torch
import torch.nn.functional as F

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def loss_of(x, y):
    {loss}


for step in range(2):
    x, y = torch.randn(6, 4), torch.randint(0, 3, (6,))
    loss_of(x, y).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LOSSES = {
    "mean": "return F.cross_entropy(model(x), y)",
    "sum": "return F.cross_entropy(model(x), y, reduction='sum')",
    "mean of its own": "return (F.cross_entropy(model(x), y, reduction='none') / len(y)).sum()",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    for name, loss in LOSSES.items():
        program = folder / f"{name}.py"
        program.write_text(PROGRAM.format(loss=loss), encoding="utf-8")
        command = ["-m", "trueup", "capture", "-o", str(folder / name), "--", sys.executable, str(program)]
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
    return folder


def test_a_loss_that_differs_is_shown(runs: Path) -> None:
    verdict = compare(runs / "sum", runs / "mean").verdict
    first = verdict.evidence[0]
    assert verdict.headline.code is VerdictCode.ARGUMENT_LACKS
    assert verdict.headline.place("function") == "loss_of"
    assert (verdict.outcome, first.code) == (Outcome.DIFFER, EvidenceCode.CODE_ARGUMENT_LACKS)
    facts = {name: first.place(name) for name in ("name", "called", "side", "value", "function")}
    assert facts == {
        "name": "reduction",
        "called": "cross_entropy",
        "side": "reference",
        "value": "'sum'",
        "function": "loss_of",
    }
    second = verdict.evidence[1]
    assert second.code is EvidenceCode.CODE_DIFFERS
    assert "reduction='sum'" in str(second.place("target"))


def test_programs_that_agree_are_told_to_differ(runs: Path) -> None:
    comparison = compare(runs / "mean of its own", runs / "mean", options=CompareOptions())
    assert comparison.verdict.outcome is Outcome.AGREE
    (note,) = [one for one in comparison.content.notes if one.code is NoteCode.CODE_DIFFERS]
    assert [part.code for part in note.parts] == [EvidenceCode.CODE_DIFFERS]


@pytest.mark.parametrize("scale", ["2", "3"])
def test_programs_whose_comparison_is_open_are_told_to_differ(scale: str, tmp_path: Path) -> None:
    """What both runs hold agrees, one of them holds a gradient more."""
    for name, divisor in {"target": scale, "reference": "2"}.items():
        out, x = Recorder(), np.ones(4, np.float32)
        layer = out.call("module", "layer", out.call("module", "", type_="Net"), type_="Layer")
        out.record(layer, "forward", "output.0", x)
        if name == "target":
            out.record(layer, "backward", "output.0", x)
        out.write(tmp_path / name, options={"level": "L0", "task": "statistics"})
        program = side(tmp_path / f"{name}-program", helpers=HELPERS.replace("/ 2", f"/ {divisor}"))
        (program / "code").rename(tmp_path / name / "code")
    comparison = compare(tmp_path / "target", tmp_path / "reference")
    assert comparison.verdict.outcome is Outcome.UNDECIDED
    notes = [one for one in comparison.content.notes if one.code is NoteCode.PROGRAMS_DIFFER]
    assert [[part.place("function") for part in one.parts] for one in notes] == [["normalised"]] * (
        scale != "2"
    )


def test_a_trace_without_it_is_compared_as_before(runs: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    subprocess.run(["cp", "-r", str(runs / "sum"), str(damaged)], check=True)
    (damaged / "code" / "rank_00000.json.gz").write_bytes(b"no gzip")
    source: Any = SimpleNamespace(path=damaged, steps=lambda: {0: [0]})
    assert code_of(source, 0) is None
    verdict = compare(damaged, runs / "mean").verdict
    assert verdict.outcome is Outcome.DIFFER
    assert not [one for one in verdict.evidence if one.code is EvidenceCode.CODE_DIFFERS]


ANOTHER_HAND = """
import torch
import torch.nn.functional as F


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(4, 8), torch.nn.Linear(8, 3)

    def forward(self, {x}):
        return self.down(torch.tanh(self.up({x}))) {twice}


def loss_of(logits, y):
    {loss}


def main():
    torch.manual_seed(0)
    model = Net()
    for step in range(2):
        x, y = torch.randn(6, 4), torch.randint(0, 3, (6,))
        loss_of(model(x), y).backward()
        model.zero_grad()


{name} = 1
main()
"""


@pytest.mark.parametrize(
    ("changed", "function"),
    [
        ({"loss": "return F.cross_entropy(logits, y, reduction='sum')"}, "loss_of"),
        ({"loss": "return F.cross_entropy(logits, y) / 1"}, None),
        ({"twice": "* 2"}, "Net.forward"),
    ],
)
def test_of_a_loss_the_code_that_makes_it_is_told_and_not_the_model_s(
    changed: dict[str, str], function: str | None, tmp_path: Path
) -> None:
    """The model and the script differ in their words too; where the model differs, its code is told."""
    plain = {"x": "x", "twice": "", "loss": "return F.cross_entropy(logits, y)", "name": "LIMIT"}
    other = {**plain, "x": "ids", "twice": "* 1", "name": "MOST", **changed}
    for name, parts in (("target", other), ("reference", plain)):
        program = tmp_path / f"{name}.py"
        program.write_text(ANOTHER_HAND.format(**parts), encoding="utf-8")
        command = ["-m", "trueup", "capture", "-o", str(tmp_path / name), "--", sys.executable, str(program)]
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
    verdict = compare(tmp_path / "target", tmp_path / "reference").verdict
    assert verdict.outcome is (Outcome.AGREE if function is None else Outcome.DIFFER)
    if function is not None:
        assert (verdict.headline.place("function"), verdict.evidence[0].place("function")) == (function,) * 2


@pytest.mark.parametrize(
    ("module", "counterpart"), [("", "model"), ("norm", "model.norm"), ("layers.0", "layers.0")]
)
def test_a_module_that_is_called_alone_is_the_one_of_its_class(module: str, counterpart: str) -> None:
    """One run calls the model without its head; layers are several of one class, and tell nothing."""
    inside = {"": "Inner", "norm": "Norm", "layers.0": "Layer", "layers.1": "Layer"}
    whole = {"": "Whole"} | {f"model.{name}".rstrip("."): one for name, one in inside.items()}
    sides = (
        ProgramCode(functions=(), types=one, classes={}, modules={}, frames={}) for one in (inside, whole)
    )
    book = CodeBook(**dict(zip(("target", "reference"), sides, strict=True)))
    assert book.counterpart(module) == counterpart


def programs(
    *sources: str, files: tuple[str, str] = ("train.py", "train.py"), elsewhere: bool = False
) -> CodeBook:
    """Of two programs with one function above the model; the last of three is called by the first alone,
    unless the second calls it ``elsewhere``."""
    sides = []
    for at, source in enumerate(sources[:2]):
        calls = {"build": 1} if at == 0 and len(sources) > 2 else {}
        functions = [
            ProgramFunction(
                name="loss_of", file="train.py", line=1, source=source, digest=source, values={}, calls=calls
            )
        ]
        functions += [
            ProgramFunction(name="build", file=files[0], line=2, source=one, digest=one, values={}, calls={})
            for one in (sources[2:] if at == 0 or elsewhere else ())
        ]
        kept: Any = {"functions": tuple(functions), "types": {}, "classes": {}, "modules": {}}
        sides.append(ProgramCode(**kept, frames={"loss_of": 0}))
    return CodeBook(target=sides[0], reference=sides[1])


@pytest.mark.parametrize(
    ("target", "cuts_nothing"),
    [("return 0.7 * x.sum()", True), ("return x.detach().sum()", False), ("return x.sum().item()", False)],
)
def test_a_graph_is_cut_by_what_is_written_so(target: str, cuts_nothing: bool) -> None:
    functions = [f"def loss_of(x):\n    {body}\n" for body in (target, "return x.sum()")]
    assert programs(*functions).near(None, "loss").cuts_nothing is cuts_nothing
    assert not programs(functions[0], functions[0]).near(None, "loss").cuts_nothing


@pytest.mark.parametrize(
    ("file", "told"), [("train.py", True), ("/env/lib/python3.11/site-packages/trainers/base.py", False)]
)
def test_of_a_package_nothing_is_said_to_run_in_one_program_alone(file: str, told: bool) -> None:
    same = "def loss_of(x):\n    return build(x)\n"
    found = programs(same, same, "def build(x):\n    return x\n", files=(file, file)).near(None, "loss")
    assert (EvidenceCode.CODE_OF_ONE_SIDE in {one.code for one in found.reasons}) is told


def test_a_function_that_both_programs_run_is_not_said_to_be_of_one() -> None:
    """A scheduler puts the step that it counts into the optimizer itself, where one run alone finds it."""
    same = "def loss_of(x):\n    return build(x)\n"
    book = programs(same, same, "def build(x):\n    return x\n", elsewhere=True)
    assert book.near(None, "loss").reasons == ()
