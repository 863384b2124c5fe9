"""Ids of the data against the vocabulary and the special ids; templates of training and of inference."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.checklist import fresh
from trueup.batches.indexed_dataset import write_indexed_dataset
from trueup.checklist import check
from trueup.checklist.check import Checklist
from trueup.checklist.judging import DemandRow, DemandStatus
from trueup.checklist.recommendations import Unmet
from trueup.checklist.templates import INFERENCE, same_template
from trueup.cli.app import run
from trueup.types.codes import ChecklistCode as Code

IDS = {"num_layers": 2, "vocab_size": 1008, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def _config(folder: Path, **changed: object) -> str:
    path = folder / f"config{len(list(folder.glob('config*')))}.json"
    path.write_text(json.dumps(IDS | dict(changed.items())))
    return str(path)


def _data(
    folder: Path, *, start: int = 1, end: int = 2, largest: int = 1007, num: int = 40, seed: int = 0
) -> str:
    """Documents of many lengths with a first and a last id."""
    random = np.random.default_rng(seed)
    rows = [
        np.array([start, *random.integers(3, largest + 1, 5 + at % 17), end], np.int32) for at in range(num)
    ]
    rows[0][1] = largest
    write_indexed_dataset(folder / "data", rows, dtype="int32")
    return str(folder / "data")


def _batches(folder: Path, rows: Sequence[Sequence[int]]) -> str:
    for step in range(2):
        place = folder / "batches" / f"step_{step}" / "rank_0"
        place.mkdir(parents=True)
        np.save(place / "tokens.npy", np.array(rows, np.int64))
        np.save(place / "labels.npy", np.array(rows, np.int64))
    return str(folder / "batches")


def _keys(found: Checklist) -> dict[str, Unmet]:
    return {one.key: one for one in found.unmet if one.counts}


def _label_to_ignore(folder: Path, ignored: int, data: str | None) -> DemandRow:
    """The row of two configurations of the guide's pair, of which the target ignores ``ignored``."""
    target = folder / f"target{ignored}.yaml"
    target.write_text(fresh.MINDFORMERS.replace("ignore_token_id: -100", f"ignore_token_id: {ignored}"))
    script = folder / "reference.sh"
    script.write_text(fresh.CASES[0].megatron("script"))
    found = check([str(target)], [str(script)], data=[data] if data else [])
    return next(row for row in found.rows if row.key == "ignore_token_id")


@pytest.mark.parametrize(
    ("ignored", "data", "status", "code"),
    [
        (0, False, DemandStatus.DIFFERENT, Code.DEFAULT),
        (0, True, DemandStatus.ALIGNED, Code.NO_SUCH_LABEL),  # its ids begin at 1
        (1008, True, DemandStatus.ALIGNED, Code.NO_SUCH_LABEL),
        (2, True, DemandStatus.DIFFERENT, Code.IGNORED_LABELS),
        (1007, True, DemandStatus.DIFFERENT, Code.IGNORED_LABELS),
    ],
)
def test_a_label_to_ignore_matters_where_the_data_has_it(
    ignored: int, data: bool, status: DemandStatus, code: Code, tmp_path: Path
) -> None:
    row = _label_to_ignore(tmp_path, ignored, _data(tmp_path) if data else None)
    assert (row.status, row.reason and row.reason.code) == (status, code)


def test_a_sample_without_a_label_proves_nothing(tmp_path: Path) -> None:
    row = _label_to_ignore(tmp_path, 0, _batches(tmp_path, [[1, 5, 6, 2], [1, 7, 2, 2]]))
    assert row.reason is not None
    assert (row.status, row.reason.code) == (DemandStatus.DIFFERENT, Code.NONE_IN_SAMPLE)


@pytest.mark.parametrize("seed", range(3))
def test_ids_that_fit(seed: int, tmp_path: Path) -> None:
    config = _config(tmp_path)
    found = check([config], [config], data=[_data(tmp_path, seed=seed)])
    assert (_keys(found), found.exit_code) == ({}, 0)


@pytest.mark.parametrize(
    ("changed", "row", "own", "wanted"),
    [
        ({"eos_token_id": 3}, "eos_token_id", 3, 2),
        ({"bos_token_id": 5}, "bos_token_id", 5, 1),
        ({"eos_token_id": 1, "bos_token_id": 2}, "eos_token_id", 1, 2),
    ],
)
def test_a_special_id_that_is_not_the_data_s(
    changed: dict[str, int], row: str, own: int, wanted: int, tmp_path: Path
) -> None:
    found = check([_config(tmp_path, **changed)], [_config(tmp_path)], data=[_data(tmp_path)])
    one = _keys(found)[row]
    assert one.sides == ("target",)
    assert one.target is not None
    assert (one.target.value, one.value) == (own, wanted)
    assert found.exit_code == 1
    assert row not in _keys(check([_config(tmp_path)], data=[str(tmp_path / "data.bin")]))


@pytest.mark.parametrize(("largest", "is_beyond"), [(1007, False), (1008, True), (4000, True)])
def test_ids_outside_the_vocabulary(largest: int, is_beyond: bool, tmp_path: Path) -> None:
    config = _config(tmp_path)
    found = check([config], [config], data=[_data(tmp_path, largest=largest)])
    assert ("input_ids" in _keys(found)) is is_beyond
    if is_beyond:
        assert _keys(found)["input_ids"].severity == "error"
        assert found.exit_code == 1


@pytest.mark.parametrize(("pad", "is_other"), [(0, False), (9, True)])
def test_padding(pad: int, is_other: bool, tmp_path: Path) -> None:
    rows = [[1, *range(20, 24 + at), 2, *[pad] * (12 - at)] for at in range(6)]
    found = check([_config(tmp_path)], data=[_batches(tmp_path, rows)])
    assert ("pad_token_id" in _keys(found)) is is_other
    assert set(_keys(found)) <= {"pad_token_id"}


@pytest.mark.parametrize(("end", "is_other"), [(2, False), (77, True)])
def test_padded_rows_end_with_the_end_of_a_document(end: int, is_other: bool, tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    rows = [[1, *random.integers(100, 900, 8 + at % 9).tolist(), end] for at in range(24)]
    padded = [[*row, *[0] * (26 - len(row))] for row in rows]
    found = _keys(check([_config(tmp_path)], data=[_batches(tmp_path, padded)]))
    assert ("eos_token_id" in found) is is_other
    assert set(found) <= {"eos_token_id"}
    if is_other:
        assert found["eos_token_id"].value == end


def test_a_line_break_before_the_padding_is_no_end(tmp_path: Path) -> None:
    """Conversations end with an end of turn and a line break, which is all over the text as well."""
    random = np.random.default_rng(6)
    rows = [
        [*random.integers(100, 900, 5).tolist(), 10, 200 + at, 10, *range(300, 304 + at % 5), 2, 10]
        for at in range(24)
    ]
    padded = [[*row, *[0] * (26 - len(row))] for row in rows]
    assert "eos_token_id" not in _keys(check([_config(tmp_path)], data=[_batches(tmp_path, padded)]))


@pytest.mark.parametrize(("pad", "is_other"), [(0, False), (7, True)])
def test_padding_in_front(pad: int, is_other: bool, tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    rows = [[0] * (10 + at) + random.integers(8, 900, 40 - at).tolist() for at in range(20)]
    assert (
        "pad_token_id" in _keys(check([_config(tmp_path, pad_token_id=pad)], data=[_batches(tmp_path, rows)]))
    ) is is_other


def test_places_of_an_image_in_front_are_no_padding(tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    rows = [[1000] * 16 + random.integers(8, 900, 40).tolist() for _ in range(20)]
    assert not _keys(check([_config(tmp_path)], data=[_batches(tmp_path, rows)]))


@pytest.mark.parametrize(("end", "is_other"), [(2, False), (5, True)])
def test_a_line_break_after_every_end(end: int, is_other: bool, tmp_path: Path) -> None:
    """Also where no other line break is in the text."""
    random = np.random.default_rng(5)
    rows = [[*random.integers(20, 900, 10 + at).tolist(), 2, 13, *[0] * (40 - at)] for at in range(20)]
    found = _keys(check([_config(tmp_path, eos_token_id=end)], data=[_batches(tmp_path, rows)]))
    assert ("eos_token_id" in found) is is_other
    write_indexed_dataset(
        tmp_path / "d", [np.array(row[: 12 + at]) for at, row in enumerate(rows)], dtype="int32"
    )
    found = _keys(check([_config(tmp_path, eos_token_id=end)], data=[str(tmp_path / "d")]))
    assert ("eos_token_id" in found) is is_other


@pytest.mark.parametrize(("turns", "is_other"), [(1, True), (2, False), (3, False)])
def test_a_mark_of_every_turn_is_no_start_of_documents(turns: int, is_other: bool, tmp_path: Path) -> None:
    random = np.random.default_rng(6)
    rows = [
        np.concatenate([[50, *random.integers(60, 900, 5 + at), 2] for _ in range(turns)]) for at in range(20)
    ]
    write_indexed_dataset(tmp_path / "data", rows, dtype="int32")
    found = _keys(check([_config(tmp_path)], data=[str(tmp_path / "data")]))
    assert ("bos_token_id" in found) is is_other


def test_packed_rows_have_no_end_to_judge_by(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    rows = random.integers(3, 900, (4, 32)).tolist()
    assert _keys(check([_config(tmp_path)], data=[_batches(tmp_path, rows)])) == {}


@pytest.mark.parametrize(("end", "in_text", "is_other"), [(2, 0, False), (7, 0, True), (7, 6, False)])
def test_packed_rows_that_begin_with_a_document(
    end: int, in_text: int, is_other: bool, tmp_path: Path
) -> None:
    """What stands before each later beginning ends a document, unless it stands in the text as well."""
    random = np.random.default_rng(3)
    rows = random.integers(10, 1000, (8, 64))
    rows[:, [0, 16, 40]], rows[:, [15, 39]] = 1, end
    rows[:, 50 : 50 + in_text] = end
    found = check([_config(tmp_path)], data=[_batches(tmp_path, rows.tolist())])
    assert ("eos_token_id" in _keys(found)) is is_other


def test_documents_without_an_end(tmp_path: Path) -> None:
    """Data made without --append-eod: no end is shared, and none is claimed."""
    random = np.random.default_rng(2)
    rows = [random.integers(3, 900, 9 + at % 5).astype(np.int32) for at in range(60)]
    write_indexed_dataset(tmp_path / "data", rows)
    assert _keys(check([_config(tmp_path)], data=[str(tmp_path / "data")])) == {}


def test_what_the_tokenizer_does_not_know(tmp_path: Path) -> None:
    config = _config(tmp_path, unk_token_id=3)
    rows = [np.array([1, *[3, 40 + at] * (5 + at % 3), 2], np.int32) for at in range(20)]
    write_indexed_dataset(tmp_path / "data", rows)
    found = check([config], data=[str(tmp_path / "data")])
    assert set(_keys(found)) == {"unk_token_id"}
    other = _config(tmp_path, unk_token_id=700)
    assert _keys(check([other], data=[str(tmp_path / "data")])) == {}


@pytest.mark.parametrize(("unk", "pad", "found"), [(9, 9, {"pad_token_id"}), (2, 0, set()), (1, 0, set())])
def test_padding_and_ends_are_not_what_the_tokenizer_does_not_know(
    unk: int, pad: int, found: set[str], tmp_path: Path
) -> None:
    """One id may pad, begin or end a document and stand for unknown words: GPT-2 has one for all of them."""
    rows = [[1, *range(20, 24 + at), 2, *[pad] * (12 - at)] for at in range(6)]
    checked = check([_config(tmp_path, unk_token_id=unk)], data=[_batches(tmp_path, rows)])
    assert set(_keys(checked)) == found


def test_the_command_takes_data_and_inference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = _config(tmp_path, eos_token_id=7)
    assert run(["check", config, "--data", _data(tmp_path)]) == 1
    assert "documents end with 2" in " ".join(capsys.readouterr().out.split())
    assert run(["check", config, "--data", str(tmp_path / "none")]) == 2


CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
CHATML_AGAIN = (
    "{%- for m in messages -%}\n<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML
PLAIN = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (CHATML, CHATML, True),
        (CHATML, f"\n{CHATML}  ", True),
        (CHATML, PLAIN, False),
        (CHATML, NO_SYSTEM, False),
        (CHATML, CHATML.replace("<|im_end|>\\n", "<|im_end|>"), False),
        (CHATML, CHATML.replace("message[", "m[").replace("for message", "for m"), True),
        ("qwen", "qwen", True),
        ("qwen", "llama3", False),
        ("qwen", CHATML, None),
        ("{{ broken", CHATML, False),
        ("{{ broken", "{{ broken too", None),
        ("{{ raise_exception('a') }}", "{{ raise_exception('b') }}", None),
        (f"{{% set date = strftime_now('%d') %}}{CHATML}", CHATML, True),
        (CHATML.replace("+ message['content']", "}}{% generation %}{{ message['content']"), PLAIN, False),
        (
            CHATML.replace("{{ '<", "{% generation %}{{ '<", 1).replace(
                "{% endfor", "{% endgeneration %}{% endfor", 1
            ),
            CHATML,
            True,
        ),
        (CHATML.replace("%}{{ '<", "%}{% if loop.index > 9 %}{% break %}{% endif %}{{ '<", 1), CHATML, True),
        (f"{{% if tools is not none %}}{{{{ 'tools' }}}}{{% endif %}}{CHATML}", CHATML, True),
    ],
)
def test_templates(one: str, other: str, is_same: bool | None) -> None:
    assert same_template(one, other) is is_same
    assert same_template(other, one) is is_same


MINDFORMERS = """\
runner_config: {{batch_size: 1}}
model: {{model_config: {{type: LlamaConfig, num_layers: 2, param_init_type: float32}}}}
train_dataset:
  data_loader:
    map_function_kwargs: {{user_prompt: "{user}", assistant_prompt: "{assistant}"}}
"""
TURNS = "{% for m in messages %}<{{m.role}}>\n{{m.content}}</s>\n{% endfor %}"
HEAD = "{{% if add_generation_prompt %}}<assistant>\n{}{{% endif %}}"
PREFIXES = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ 'Q: ' + m['content'] }}"
    "{% else %}{{ ' A: ' + m['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %} A: {% endif %}"
)


@pytest.mark.parametrize(
    ("training", "inference", "is_unlike"),
    [
        ({"chat_template": CHATML}, ("chat_template.jinja", CHATML), False),
        ({"chat_template": CHATML}, ("chat_template.jinja", PLAIN), True),
        ({"chat_template": CHATML}, ("tokenizer_config.json", json.dumps({"chat_template": CHATML})), False),
        (
            {"chat_template": CHATML},
            (
                "tokenizer_config.json",
                json.dumps(
                    {
                        "chat_template": [
                            {"name": "tool", "template": PLAIN},
                            {"name": "default", "template": CHATML},
                        ]
                    }
                ),
            ),
            False,
        ),
        ({"chat_template": CHATML}, ("tokenizer_config.json", json.dumps({"chat_template": PLAIN})), True),
        (
            {"chat_template": PREFIXES},
            ("predict.yaml", MINDFORMERS.format(user="Q: ", assistant=" A: ")),
            False,
        ),
        (
            {"chat_template": PREFIXES},
            ("predict.yaml", MINDFORMERS.format(user="H: ", assistant=" A: ")),
            True,
        ),
        (
            {"chat_template": TURNS},
            ("chat_template.jinja", TURNS.replace("{{m.role}}", "{{ m.role }}")),
            False,
        ),
        ({"chat_template": TURNS}, ("chat_template.jinja", TURNS + HEAD.format("")), False),
        ({"chat_template": TURNS}, ("chat_template.jinja", TURNS + HEAD.format("<think>\n")), True),
        ({"chat_template": TURNS + HEAD.format("<think>\n")}, ("chat_template.jinja", TURNS), False),
        ({"chat_template": "qwen"}, ("chat_template.jinja", CHATML), False),
        ({}, ("chat_template.jinja", CHATML), False),
    ],
)
def test_training_against_inference(
    training: dict[str, str], inference: tuple[str, str], is_unlike: bool, tmp_path: Path
) -> None:
    (tmp_path / "train.json").write_text(json.dumps({"num_layers": 2, **training}))
    name, text = inference
    (tmp_path / name).write_text(text)
    found = check([str(tmp_path / "train.json")], inference=[str(tmp_path / name)])
    assert (INFERENCE in _keys(found)) is is_unlike
    assert found.exit_code == int(is_unlike)


INST = (
    "{% for m in messages %}{% if m.role == 'user' %}BOS[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }}EOS{% endif %}{% endfor %}"
)
WRITTEN = INST.replace("BOS", "<s>").replace("EOS", "</s>")
TAKEN = INST.replace("BOS", "{{ bos_token }}").replace("EOS", "{{ eos_token }}")


@pytest.mark.parametrize(
    ("tokens", "is_unlike"),
    [
        ({}, False),
        ({"bos_token": "<s>", "eos_token": "</s>"}, False),
        ({"bos_token": {"content": "<s>"}, "eos_token": {"content": "</s>"}}, False),
        ({"bos_token": "<s>", "eos_token": "<|end|>"}, True),
        ({"bos_token": "<s>"}, False),
        ({"bos_token": "<|begin|>"}, True),
    ],
)
def test_tokens_that_one_template_writes_out(
    tokens: dict[str, object], is_unlike: bool, tmp_path: Path
) -> None:
    (tmp_path / "train.json").write_text(json.dumps({"num_layers": 2, "chat_template": WRITTEN}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TAKEN, **tokens}))
    found = check([str(tmp_path / "train.json")], inference=[str(tmp_path / "tokenizer_config.json")])
    assert (INFERENCE in _keys(found)) is is_unlike


def test_a_token_without_a_text_is_the_same_one_throughout() -> None:
    assert same_template(WRITTEN, TAKEN) is same_template(TAKEN, WRITTEN) is True
    both = TAKEN.replace("eos", "bos")
    assert same_template(WRITTEN, both) is same_template(both, WRITTEN) is False
    assert same_template(WRITTEN.replace("<s>", "word"), TAKEN) is False


def test_a_template_that_was_compared_is_not_left_to_a_person(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text(json.dumps({"num_layers": 2, "chat_template": CHATML}))
    (tmp_path / "chat_template.jinja").write_text(
        CHATML_AGAIN.replace("{%- for m in messages -%}\n", "{% for m in messages %}")
    )
    by_hand = "template_by_hand"
    alone = check([str(tmp_path / "train.json")])
    seen = check([str(tmp_path / "train.json")], inference=[str(tmp_path / "chat_template.jinja")])
    assert by_hand in [row.key for row in alone.rows]
    assert (by_hand in [row.key for row in seen.rows]) is False
    assert seen.exit_code == 0


@pytest.mark.torch
def test_a_trace_among_the_sides_is_looked_at(tmp_path: Path) -> None:
    import torch

    import trueup

    model = torch.nn.Sequential(torch.nn.Embedding(1200, 4), torch.nn.Linear(4, 1200))
    ids = torch.randint(3, 1007, (4, 12))
    ids[:, 8:] = 9
    ids[0, 0] = 1100
    kept = ["labels", "integers", "module"]
    with trueup.Tracer(tmp_path / "run", level="L0", steps="0", store_values_of=kept):
        out = model(ids)
        torch.nn.functional.cross_entropy(out.flatten(0, 1), ids.flatten()).backward()
    config = _config(tmp_path)
    found = _keys(check([f"{config},{tmp_path / 'run'}"], [config]))
    assert {"input_ids", "pad_token_id"} <= set(found)
    assert found["input_ids"].sides == ("target", "reference")


def _packed(folder: Path, *, end: int, start: int | None, firsts: int = 60) -> str:
    """Documents end to end, cut into rows anywhere; ``start`` begins each, then one of ``firsts`` words."""
    random = np.random.default_rng(5)
    stream: list[int] = []
    for _ in range(400):
        own = [] if start is None else [start]
        words = random.integers(200, 1000, 6 + int(random.integers(0, 40)))
        words[0] = 200 + int(random.integers(0, firsts))
        stream += [*own, *words.tolist(), end]
    return _batches(folder, [stream[at * 128 : at * 128 + 128] for at in range(len(stream) // 128)])


@pytest.mark.parametrize(
    ("start", "firsts", "wrong"),
    [(7, 60, True), (1, 60, False), (None, 60, False), (7, 3, False)],
    ids=["another", "its own", "none", "marks of turns, with roles behind them"],
)
def test_the_start_of_packed_documents(start: int | None, firsts: int, wrong: bool, tmp_path: Path) -> None:
    data = _packed(tmp_path, end=2, start=start, firsts=firsts)
    found = _keys(check([_config(tmp_path)], data=[data]))
    assert ("bos_token_id" in found) is wrong
    if wrong:
        assert found["bos_token_id"].value == 7
        assert "bos_token_id" not in _keys(check([_config(tmp_path, bos_token_id=7)], data=[data]))
