"""Every log format is read as its program writes it."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.curves import logs
from tests.curves.simulating import Truth, simulate
from trueup.curves.comparison import compare_curves
from trueup.curves.curve import Curve
from trueup.curves.readers import READERS, scanning
from trueup.curves.readers.scanning import Key
from trueup.curves.reading import read_curve
from trueup.errors import ConfigError, TraceError
from trueup.types.codes import CurvesCode


@pytest.fixture(scope="module")
def curve() -> Curve:
    """300 steps, the first 20 with a rising learning rate."""
    made, _ = simulate(Truth(num_steps=300, data_sigma=0.02), 7)
    rate = 1e-4 * np.minimum(1, np.arange(1, 301) / 20)
    return replace(made, frame=made.frame.with_columns(pl.Series("learning_rate", rate)))


WRITERS = {
    "Megatron-LM": (logs.megatron, 1e-6, {"grad_norm": 5e-4}),
    "MindFormers": (logs.mindformers, 1e-8, {"loss": 5e-4}),
    "MindFormers dynamic graph or trueup_gpt": (logs.epoch_step, 1e-6, {}),
    "torchtitan": (logs.torchtitan, 0, {"loss": 5e-6, "grad_norm": 5e-5}),
    "nanotron": (logs.nanotron, 5e-3, {"loss": 5e-3, "grad_norm": 5e-3}),
    "verl": (logs.verl, 0, {}),
    "Hugging Face trainer_state.json": (logs.trainer_state, 0, {}),
    "Hugging Face Trainer, console": (logs.trainer_console, 0, {"loss": 5e-5}),
    "nanoGPT": (logs.nanogpt, 0, {"loss": 5e-5}),
    "a loop that prints its step and loss": (logs.loop, 0, {}),
    "JSON lines": (logs.jsonl, 0, {}),
}


@pytest.mark.parametrize("title", list(WRITERS))
def test_a_log_gives_back_what_was_written(title: str, curve: Curve, tmp_path: Path) -> None:
    write, exact, rounded = WRITERS[title]
    path = tmp_path / "a log"
    path.write_text(write(curve))
    read = read_curve(path)
    assert read.format == title
    assert read.frame["step"].to_list() == curve.frame["step"].to_list()
    for column in ("loss", "grad_norm", "learning_rate"):
        if column == "learning_rate" and title == "torchtitan":
            continue
        mine, true = read.values(column), curve.values(column)
        assert mine is not None
        assert true is not None
        limit = rounded.get(column, 1e-6 if exact else 0) * (np.abs(true) if title == "nanotron" else 1)
        assert (np.abs(mine - true) <= np.maximum(limit, exact * np.abs(true)) * 1.01).all(), column


def test_units_and_seconds_are_those_of_the_program(curve: Curve, tmp_path: Path) -> None:
    found = {}
    for title in ("Megatron-LM", "MindFormers", "torchtitan", "nanotron", "verl"):
        (tmp_path / "log").write_text(WRITERS[title][0](curve))
        read = read_curve(tmp_path / "log")
        first = read.frame.row(0, named=True)
        found[title] = first.get("step_seconds"), first.get("throughput"), read.units.get("throughput")
    assert found == {
        "Megatron-LM": (1.2345, 312.2, "TFLOP/s/device"),
        "MindFormers": (1.403, pytest.approx(171.176), "TFLOP/s/device"),
        "torchtitan": (None, 12345.0, "tokens/s"),
        "nanotron": (1.23, 849000.0, "tokens/s"),
        "verl": (12.25, 1234.5, "tokens/s"),
    }


@pytest.mark.parametrize("tensors", [False, True])
def test_tensorboard_events(curve: Curve, tmp_path: Path, tensors: bool) -> None:
    path = tmp_path / "events.out.tfevents.1.host.2.0"
    data = logs.events(curve, tensors=tensors)
    path.write_bytes(data + data[100:120])  # a record that is being written
    read = read_curve(path)
    assert read.format == "TensorBoard events"
    assert np.allclose(read.values("loss"), curve.values("loss"), rtol=1e-6)
    assert np.allclose(read.values("learning_rate"), curve.values("learning_rate"), rtol=1e-6)


def test_a_panel_exported_from_wandb(curve: Curve, tmp_path: Path) -> None:
    logs.wandb_csv(curve, tmp_path / "panel.csv")
    read = read_curve(tmp_path / "panel.csv")
    assert read.values("loss") == pytest.approx(curve.values("loss"))
    assert "grad_norm" not in read.frame.columns


def test_tables_of_other_kinds(curve: Curve, tmp_path: Path) -> None:
    curve.frame.write_parquet(tmp_path / "a.parquet")
    (tmp_path / "a.json").write_text(curve.frame.write_json())
    (tmp_path / "a.tsv").write_text(curve.frame.write_csv(separator="\t"))
    for name in ("a.parquet", "a.json", "a.tsv"):
        assert read_curve(tmp_path / name).values("loss") == pytest.approx(curve.values("loss"))


def test_a_column_named_by_a_person_wins(curve: Curve, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    curve.frame.rename({"loss": "my ce"}).with_columns(loss=pl.lit(9.0)).write_csv(path)
    assert read_curve(path).values("loss")[0] == 9.0  # type: ignore[index]
    assert read_curve(path, columns={"loss": "my ce"}).values("loss") == pytest.approx(curve.values("loss"))


def test_numbers_that_python_alone_calls_json(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": NaN}\n{"step": 3, "loss": Infinity}\n{"st')
    assert read_curve(path).frame["loss"].to_list()[0] == 2.0
    assert [np.isfinite(x) for x in read_curve(path).frame["loss"]] == [True, False, False]


def test_a_loss_megatron_leaves_out_is_nan(curve: Curve, tmp_path: Path) -> None:
    loss = curve.frame["loss"].to_numpy().copy()
    loss[5] = np.nan
    broken = replace(curve, frame=curve.frame.with_columns(pl.Series("loss", loss)))
    (tmp_path / "log").write_text(logs.megatron(broken, skipped=[8]))
    read = read_curve(tmp_path / "log")
    assert np.flatnonzero(np.isnan(read.values("loss"))).tolist() == [5]
    assert np.flatnonzero(read.values("skipped")).tolist() == [7]


@pytest.mark.parametrize("sink", [True, False])
def test_steps_of_mindformers_go_on_through_epochs(curve: Curve, tmp_path: Path, sink: bool) -> None:
    (tmp_path / "log").write_text(logs.mindformers(curve, steps_per_epoch=100, sink=sink))
    assert read_curve(tmp_path / "log").frame["step"].to_list() == list(range(1, 301))


def test_steps_of_the_dynamic_graph_go_on_through_epochs(curve: Curve, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(logs.epoch_step(curve, per_epoch=100))
    assert read_curve(tmp_path / "log").frame["step"].to_list() == list(range(1, 301))


def test_local_norms_of_both_frameworks(curve: Curve, tmp_path: Path) -> None:
    text = logs.megatron(curve, last=2)
    lines = text.splitlines(keepends=True)
    (tmp_path / "m").write_text("".join([*lines[:-1], logs.megatron_norms([4.0, 0.25]), lines[-1]]))
    norms = read_curve(tmp_path / "m").local_norms
    assert norms is not None
    assert norms.rows() == [(2, 0, None, 2.0), (2, 1, None, 0.5)]  # squares were printed
    text = logs.mindformers(curve)
    (tmp_path / "f").write_text(logs.mindformers_norm(1, 300, "model.embedding_weight", 2.0) + text)
    norms = read_curve(tmp_path / "f").local_norms
    assert norms is not None
    assert norms.rows() == [(1, 0, "model.embedding_weight", 2.0)]


def wrapped(curve: Curve, squares: list[float]) -> str:
    """A log of MindFormers' whose wrapper prints the local norms of its first step."""
    return logs.mindformers_norms(squares) + logs.mindformers(curve)


def test_local_norms_of_the_training_wrapper(curve: Curve, tmp_path: Path) -> None:
    squares = [float(at + 1) ** 2 for at in range(40)]  # printed over several lines
    (tmp_path / "log").write_text(wrapped(curve, squares))
    norms = read_curve(tmp_path / "log").local_norms
    assert norms is not None
    assert [row[0] for row in norms.rows()] == [1] * 40
    assert norms["local_norm"].to_list() == pytest.approx([at + 1 for at in range(40)])


@pytest.mark.parametrize("form", ["({})", "[{}]"])
@pytest.mark.parametrize("size", ["norm_size:  17", "norm_size:\n17", "norm_size: (4096, 64)"])
def test_local_norms_printed_as_tensors(curve: Curve, tmp_path: Path, form: str, size: str) -> None:
    squares = [2.25, 0.0625, 81.0]
    shown = ", ".join(f"Tensor(shape=[], dtype=Float32, value= {one:g})" for one in squares)
    (tmp_path / "log").write_text(f"{size}\nlocal_norm:\n{form.format(shown)}\n" + logs.mindformers(curve))
    norms = read_curve(tmp_path / "log").local_norms
    assert norms is not None
    assert norms["local_norm"].to_list() == pytest.approx([1.5, 0.25, 9.0])


@pytest.mark.parametrize("num", [2, 6, 90])
@pytest.mark.parametrize("blank", [" ", "\n"])
def test_local_norms_printed_as_one_tensor(curve: Curve, tmp_path: Path, num: int, blank: str) -> None:
    squares = [(at + 0.5) ** 2 for at in range(num)]
    lines = [",  ".join(f"{one:.8e}" for one in squares[at : at + 5]) for at in range(0, num, 5)]
    shown = f"Tensor(shape=[{num}], dtype=Float32, value={blank}[ {f',{chr(10)}  '.join(lines)}])"
    size = f"norm_size: Tensor(shape=[], dtype=Int64, value= {num})"
    (tmp_path / "log").write_text(f"{size}\nlocal_norm: {shown}\n" + logs.mindformers(curve))
    norms = read_curve(tmp_path / "log").local_norms
    assert norms is not None
    assert norms["local_norm"].to_list() == pytest.approx([at + 0.5 for at in range(num)])


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [3, 4, 0, 2, 1]])
def test_the_embeddings_local_norm_is_a_finding(curve: Curve, tmp_path: Path, order: list[int]) -> None:
    """Megatron's optimizer may have its weights in another order than MindFormers."""
    theirs = [4.0, 0.25, 1.0, 9.0, 2.25]
    mine = [1.4 * theirs[0], *theirs[1:]]
    (tmp_path / "target").write_text(wrapped(curve, mine))
    there = logs.megatron_norms([theirs[at] for at in order]) + logs.megatron(curve)
    (tmp_path / "reference").write_text(there)
    found = compare_curves(read_curve(tmp_path / "target"), [read_curve(tmp_path / "reference")])
    assert found.judgement.case == "local_norm"
    headline = found.judgement.headline
    assert headline.number("rel_square") == pytest.approx(0.4, abs=1e-3)
    assert (headline.number("num"), headline.number("total")) == (1, 5)
    assert found.judgement.outcome.value == "undecided"
    assert "diagnose" in found.commands[-1].line


def test_local_norms_that_agree_are_no_finding(curve: Curve, tmp_path: Path) -> None:
    squares = [4.0, 0.25, 1e-12]
    (tmp_path / "target").write_text(wrapped(curve, [*squares[:2], 3e-12]))  # a bias: nothing but rounding
    (tmp_path / "reference").write_text(logs.megatron_norms(squares) + logs.megatron(curve))
    found = compare_curves(read_curve(tmp_path / "target"), [read_curve(tmp_path / "reference")])
    assert found.judgement.case != "local_norm"


def test_local_norms_that_cannot_be_read_are_told(curve: Curve, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("local_norm: see tensorboard\n" + logs.mindformers(curve))
    (tmp_path / "reference").write_text(logs.megatron_norms([1.0]) + logs.megatron(curve))
    target, reference = (read_curve(tmp_path / name) for name in ("target", "reference"))
    assert CurvesCode.NORMS_UNREAD in [note.code for note in target.notes]
    assert reference.notes == ()
    codes = [note.code for note in compare_curves(target, [reference]).notes]
    assert CurvesCode.NORMS_ONE_SIDE in codes
    (tmp_path / "more").write_text(wrapped(curve, [1.0, 2.0]))
    more = compare_curves(read_curve(tmp_path / "more"), [reference])
    assert CurvesCode.NORMS_UNPAIRED in [note.code for note in more.notes]


def test_packed_logs_even_half_written(curve: Curve, tmp_path: Path) -> None:
    packed = gzip.compress(logs.megatron(curve).encode())
    (tmp_path / "log.gz").write_bytes(packed)
    assert read_curve(tmp_path / "log.gz").num_steps == 300
    (tmp_path / "cut.gz").write_bytes(packed[: len(packed) // 2])
    assert 50 < read_curve(tmp_path / "cut.gz").num_steps < 300


def test_room_for_a_file_keeps_nothing_of_the_one_before(curve: Curve, tmp_path: Path) -> None:
    text, room = logs.megatron(curve), bytearray()
    paths = [tmp_path / name for name in ("long", "short.gz", "middle")]
    paths[0].write_text(text)
    paths[1].write_bytes(gzip.compress("".join(text.splitlines(keepends=True)[:100]).encode()))
    paths[2].write_text("".join(text.splitlines(keepends=True)[:200]))
    for path in (*paths, paths[0]):
        assert read_curve(path, room=room).frame.equals(read_curve(path).frame)


def test_a_restart_replaces_the_steps_it_trains_again(curve: Curve, tmp_path: Path) -> None:
    again = replace(curve, frame=curve.frame.with_columns(pl.col("loss") + 0.5))
    (tmp_path / "log").write_text(logs.megatron(curve, last=200) + logs.megatron(again, first=150))
    read = read_curve(tmp_path / "log")
    (restart,) = read.restarts
    assert (restart.step, restart.num_steps) == (151, 50)
    assert restart.max_loss_diff == pytest.approx(0.5, abs=1e-5)
    apart = read.values("loss") - curve.values("loss")
    assert (np.abs(apart[:150]) < 1e-5).all()
    assert (np.abs(apart[150:] - 0.5) < 1e-5).all()


def test_files_of_one_run_joined_by_commas_or_in_a_folder(curve: Curve, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "b.log").write_text(logs.megatron(curve, last=160))
    (folder / "a.log").write_text(logs.megatron(curve, first=150))
    (folder / "notes.txt").write_text("nothing of interest")
    joined = read_curve(f"{folder / 'b.log'},{folder / 'a.log'}")
    whole = read_curve(folder)
    for read in (joined, whole):
        assert read.frame["step"].to_list() == list(range(1, 301))
        assert [r.num_steps for r in read.restarts] == [10]


def test_the_state_of_the_newest_checkpoint(curve: Curve, tmp_path: Path) -> None:
    for last in (100, 300):
        part = replace(curve, frame=curve.frame.head(last))
        (tmp_path / f"checkpoint-{last}").mkdir()
        (tmp_path / f"checkpoint-{last}" / "trainer_state.json").write_text(logs.trainer_state(part))
    read = read_curve(tmp_path)
    assert read.num_steps == 300
    assert read.loss_is_mean


def test_several_ranks_in_one_log_are_one_step_each(curve: Curve, tmp_path: Path) -> None:
    lines = logs.verl(curve).splitlines(keepends=True)
    (tmp_path / "log").write_text("".join(line * 4 for line in lines))
    read = read_curve(tmp_path / "log")
    assert read.num_steps == 300
    assert read.restarts == ()


def test_what_is_no_log_says_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello\nworld\n")
    with pytest.raises(TraceError, match=r"no training log of a kind.*TensorBoard.*Megatron-LM"):
        read_curve(tmp_path / "a.txt")
    with pytest.raises(TraceError, match="no such log"):
        read_curve(tmp_path / "missing.log")
    with pytest.raises(TraceError, match="holds no training log"):
        read_curve(tmp_path)
    (tmp_path / "b.csv").write_text("a,b\n1,2\n")
    with pytest.raises(TraceError, match=r"it has a, b\. Say which with --column"):
        read_curve(tmp_path / "b.csv")


def test_a_column_that_there_is_not() -> None:
    from trueup.curves.columns import parse_choice

    assert parse_choice("loss=a=b") == ("loss", "a=b")
    for text in ("loss", "los=a", "loss="):
        with pytest.raises(ConfigError, match="--column"):
            parse_choice(text)


needs_scanner = pytest.mark.skipif(scanning.scanner is None, reason="the scanner is not built")


@needs_scanner
@pytest.mark.parametrize("reader", [r for r in READERS if hasattr(r, "keys")], ids=lambda r: r.name)
def test_the_scanner_agrees_with_its_definition(reader: object, curve: Curve) -> None:
    text = "".join(write(curve) for write, _, _ in WRITERS.values() if write is not logs.trainer_state)
    keys = [key for alternatives in reader.keys.values() for key in alternatives]  # type: ignore[attr-defined]
    data = text.encode()
    marker = reader.marker  # type: ignore[attr-defined]
    fast, slow = scanning.scan(data, marker, keys), scanning.scan_by_definition(data, marker, keys)
    assert fast.height > 0
    assert fast.equals(slow)


@needs_scanner
def test_numbers_of_every_shape_are_read_as_by_the_definition() -> None:
    shapes = [
        "1",
        "-2.5",
        "+3e-4",
        "1.",
        ".5",
        "nan",
        "NaN",
        "-inf",
        "Infinity",
        "True",
        "false",
        "1,234",
        "12,34",
    ]
    shapes += [
        "1,234.5",
        "3K",
        "2.5M",
        "1B x",
        "7T",
        "8Mi",
        "[0.25]",
        "(1e-3,2e-3,)",
        "tensor(2.5, cuda)",
        "'6.93'",
    ]
    shapes += [
        "np.float64(0.125)",
        "abc",
        "",
        "-",
        "12345678901234567890123",
        "0.1234567890123456789",
        "1e400",
    ]
    shapes += [
        "4.9e-324",
        "1e-330",
        "9007199254740993",
        "1.7976931348623157e308",
        "e5",
        "0x10",
        "--3",
        "5e",
        "5e+",
    ]
    dice = random.Random(0)
    shapes += [repr(dice.uniform(-1, 1) * 10 ** dice.randint(-30, 30)) for _ in range(500)]
    data = "".join(f"step 1 value: {shape}\n" for shape in shapes).encode()
    fast, slow = (
        scan(data, "step", [Key("value: ")]) for scan in (scanning.scan, scanning.scan_by_definition)
    )
    for shape, mine, true in zip(shapes, fast["0"], slow["0"], strict=True):
        assert mine == true or (mine != mine and true != true), shape
    assert fast["0"].to_list()[:5] == [1.0, -2.5, 3e-4, 1.0, 0.5]


@needs_scanner
def test_lines_that_end_early_and_keys_that_are_not_there() -> None:
    for data in (b"", b"step", b"step value:", b"step value: 1", b"no marker\n", b"\n\nstep value: 2\n\n"):
        keys = [Key("value: "), Key("nothing"), Key("value", skip="/")]
        assert scanning.scan(data, "step", keys).equals(scanning.scan_by_definition(data, "step", keys)), data


@needs_scanner
def test_a_log_whose_lines_shorten_needs_more_room(curve: Curve) -> None:
    data = ("step 1" + " " * 5000 + "value: 1\n").encode() * 20 + b"step 2 value: 2\n" * 5000
    assert scanning.scan(data, "step", [Key("value: ")]).height == 5020


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("iter {step}: loss {loss:.4f}, time 12.31ms, mfu 3.1%", "nanogpt"),
        ("step {step} loss {loss:.6f}", "loop"),
        ("step {step}: loss={loss:.6f} lr=0.001", "loop"),
        ("[rank0] step {step} | loss {loss:.6f} | norm 1.5", "loop"),
    ],
)
def test_what_a_loop_prints_by_itself(line: str, name: str, tmp_path: Path) -> None:
    losses = [5.5 - 0.01 * step for step in range(40)]
    lines = [line.format(step=step, loss=loss) for step, loss in enumerate(losses)]
    lines.insert(
        10, "step 10: train loss 9.0000, val loss 9.5000" if name == "nanogpt" else "saved at step 10"
    )
    file = tmp_path / "run.log"
    file.write_text("\n".join(lines) + "\n")
    frame = read_curve(file).frame
    assert frame["step"].to_list() == list(range(40))
    assert frame["loss"].to_list() == pytest.approx(losses, abs=1e-4)


LOOPS: dict[str, Callable[[int, float, float], str]] = {
    "deepspeed": lambda step, loss, norm: f"steps: {step} loss: {loss:.4f} iter time (s): 0.5",
    "capitals": lambda step, loss, norm: f"[rank0] Iter: {step}, Loss: {loss:.4f}, LR: 1.00e-04",
    "close": lambda step, loss, norm: f"Step {step} | loss:{loss:.4f} lr:1e-04 grad_norm:{norm:.3f}",
    "json": lambda step, loss, norm: (
        f'2026-02-11 10:12:33 | INFO | train_inner | {{"num_updates": "{step}", "loss": "{loss:.4f}", '
        f'"lr": "1e-04", "gnorm": "{norm:.3f}"}}'
    ),
    "bar": lambda step, loss, norm: f"10%|██   | {step}/400 [00:10<10:00, 1.9it/s, loss={loss:.4f}]\r",
    "blocks": lambda step, loss, norm: (
        f"[2026-02-11 10:12:33] INFO [step={step}/400,epoch=0]\n    optim/total_grad_norm={norm:.3f}\n"
        f"    train/CrossEntropyLoss={loss:.4f}\n    val/CrossEntropyLoss=9.0"
    ),
    "train_loss": lambda step, loss, norm: f"INFO: step={step} train_loss={loss:.4f} grad_norm={norm:.3f}",
    "val_first": lambda step, loss, norm: f"Steps: {step} val loss: 9.0, loss: {loss:.4f}",
}


@pytest.mark.parametrize("form", LOOPS)
def test_loops_that_print_in_their_own_way(form: str, tmp_path: Path) -> None:
    losses = [4.0 - step / 200 + step % 7 / 10 for step in range(1, 401)]
    lines = [LOOPS[form](step, loss, 1 + step / 100) for step, loss in enumerate(losses, 1)]
    (tmp_path / "run.log").write_text("using 8 devices\n" + "\n".join(lines) + "\ndone\n")
    found = read_curve(tmp_path / "run.log")
    assert found.span == (1, 400)
    assert found.frame["loss"].to_list() == pytest.approx(losses, abs=1e-4)
    if form in ("close", "json", "blocks", "train_loss"):
        assert found.frame["grad_norm"].to_list() == pytest.approx(
            [1 + step / 100 for step in range(1, 401)], abs=1e-3
        )


@pytest.mark.parametrize(
    "text",
    [
        "The loss at step 3 was good.\n",
        "steps: 9 loss: 0.5\nsteps: 9 loss: 0.5\n",
        "In stage 2 the Loss: 3\nIter: 4, Loss: 2\n",
        "Iter: 9, Loss: 2\nIter: 4, Loss: 2\n",
    ],
)
def test_sentences_are_no_log(text: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text(text)
    with pytest.raises(TraceError, match="no training log of a kind"):
        read_curve(tmp_path / "notes.txt")


def test_a_log_that_begins_with_a_date_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("[2026-02-11 10:12:33] nothing here\n")
    with pytest.raises(TraceError, match="no training log of a kind"):
        read_curve(tmp_path / "a.log")
    (tmp_path / "b.json").write_text('[{"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.25}]')
    assert read_curve(tmp_path / "b.json").span == (1, 2)
