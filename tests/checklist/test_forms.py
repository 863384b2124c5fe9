"""One setting in the forms real files write it in: no difference, nothing left open, no refusal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.checklist.guided import HF, MEGATRON, MINDFORMERS
from trueup.checklist import check
from trueup.checklist.configuration import Configuration, configured
from trueup.checklist.fields import canonical, fields
from trueup.checklist.judging import DemandStatus
from trueup.checklist.readers import environment, read_side

LOG = "------------ arguments ------------\n{}------- end of arguments -------\n"
HEAD = "  num_layers ......... 4\n  hidden_size ........ 512\n  num_attention_heads . 8\n"
MASKS = ("reset_attention_mask", "reset_position_ids", "eod_mask_loss")
WINDOWS = {
    "log tuple": (LOG.format(HEAD + "  window_size ........ (1024, 0)\n"), 1024),
    "log list": (LOG.format(HEAD + "  window_size ........ [512, 0]\n"), 512),
    "log open": (LOG.format(HEAD + "  window_size ........ (-1, -1)\n"), 0),
    "log none": (LOG.format(HEAD + "  window_size ........ None\n"), 0),
    "script": ("torchrun pretrain_gpt.py --num-layers 4 --hidden-size 8 --window-size 1024,0\n", 1024),
    "script blank": ("torchrun p.py --num-layers 4 --hidden-size 8 --window-size 1024, 0 --bf16\n", 1024),
    "script two words": ("torchrun p.py --num-layers 4 --hidden-size 8 --window-size 128 0\n", 128),
    "script quoted": ('torchrun p.py --num-layers 4 --hidden-size 8 --window-size "(256, 0)"\n', 256),
    "script variable": (
        'W="(127,0)"\ntorchrun p.py --num-layers 4 --hidden-size 8 --window-size "$W"\n',
        127,
    ),
    "yaml": (
        "num_layers: 4\nhidden_size: 8\nnum_attention_heads: 2\nffn_hidden_size: 16\nwindow_size: [64, 0]\n",
        64,
    ),
}


def _side(folder: Path, name: str, text: str) -> Configuration:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    return configured(read_side([str(folder / name)]))


@pytest.mark.parametrize("loader", ["BlendedMegatronDatasetDataLoader", "MindDataset", "NumpyDataloader"])
def test_reading_in_order_against_megatron(loader: str, tmp_path: Path) -> None:
    text = MINDFORMERS.replace("BlendedMegatronDatasetDataLoader", loader)
    (tmp_path / "a.yaml").write_text(text)
    (tmp_path / "b.sh").write_text(MEGATRON)
    found = check([str(tmp_path / "a.yaml")], [str(tmp_path / "b.sh")])
    wrong = [row.key for row in found.rows if row.key == "shuffle" and row.status is DemandStatus.DIFFERENT]
    assert wrong == []
    assert "shuffle" not in [one.key for one in found.unmet]


@pytest.mark.parametrize("form", WINDOWS)
def test_window_sizes(form: str, tmp_path: Path) -> None:
    text, tokens = WINDOWS[form]
    side = _side(tmp_path, "nameless", text)
    assert "sliding_window" not in side.unreadable
    assert side.values["sliding_window"].value == tokens


@pytest.mark.parametrize(
    ("megatron", "other", "is_same"),
    [("1024,0", "1024", True), ("1023,0", "1024", True), ("512,0", "1024", False)],
)
def test_a_window_against_another_framework(megatron: str, other: str, is_same: bool, tmp_path: Path) -> None:
    """Megatron counts the tokens before, others the token itself as well."""
    (tmp_path / "a.sh").write_text(
        f"torchrun p.py --num-layers 2 --hidden-size 8 --seq-length 4096 --window-size {megatron}\n"
    )
    (tmp_path / "b.json").write_text(f'{{"model_type": "mistral", "sliding_window": {other}}}')
    (tmp_path / "c.sh").write_text(
        "torchrun p.py --num-layers 2 --hidden-size 8 --seq-length 4096 --window-size 1025,0\n"
    )
    found = {row.key: row.status for row in check([str(tmp_path / "a.sh")], [str(tmp_path / "b.json")]).rows}
    assert (found["sliding_window"] is DemandStatus.DIFFERENT) is not is_same
    own = {row.key: row.status for row in check([str(tmp_path / "a.sh")], [str(tmp_path / "c.sh")]).rows}
    assert own["sliding_window"] is DemandStatus.DIFFERENT


FILES = [
    (["1", "/data/wiki_text_document"], ["/other/wiki_text_document"], True),
    ("1,/data/wiki_text_document", "/data/wiki_text_document", True),
    (["1,", "/data/wiki_text_document"], [1.0, "/x/wiki.bin"], True),
    ("1, /data/wiki_text_document", ["/data/wiki.mindrecord"], True),
    ("0.3 /a/x 0.7 /a/y", ["3", "/b/x", "7", "/b/y"], True),
    (["0.5,/a/x", "0.5,/a/y"], ["1", "/a/x", "1", "/a/y"], True),
    ("0.3 /a/x 0.7 /a/y", ["7", "/b/x", "3", "/b/y"], False),
    (["1", "/data/wiki_text_document"], ["1", "/data/books_text_document"], False),
    ("/data/my corpus/wiki.jsonl", "/mnt/wiki.jsonl", True),
]


@pytest.mark.parametrize(("one", "other", "is_same"), FILES)
def test_data_files_and_their_weights(one: object, other: object, is_same: bool, tmp_path: Path) -> None:
    import json

    for name, value in (("a", one), ("b", other)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"num_layers": 2, "data_files": value}))
    found = check([str(tmp_path / "a.json")], [str(tmp_path / "b.json")])
    row = next(row for row in found.rows if row.key == "data_files")
    assert (row.status is not DemandStatus.DIFFERENT) is is_same
    assert (found.exit_code == 0) is is_same


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("1,0,0", "1, 0, 0", True),
        ("949,50,1", " 949, 50 ,1 ", True),
        ("98,2,0", [0.98, 0.02, 0], True),
        ("969, 30, 1", ["969,", "30,", 1], True),
        ("100", "1,0,0", True),
        ("98/2/0", "98,2,0", True),
        ("98,2,0", "95,5,0", False),
    ],
)
def test_splits(one: object, other: object, is_same: bool) -> None:
    spec = fields().spec("data_split")
    assert (canonical(one, spec) == canonical(other, spec)) is is_same


def test_what_mindformers_states_and_megatron_has_no_word_for(tmp_path: Path) -> None:
    """`shuffle: False` against Megatron's sampler, `ignore_token_id`, a tokenizer's class against a path."""
    config = MINDFORMERS.replace("    num_layers: 4\n", "    num_layers: 4\n    ignore_token_id: -100\n")
    config = config.replace(" deterministic: 'ON',", "")
    config += "processor: {tokenizer: {type: LlamaTokenizer}}\n"
    script = MEGATRON.replace(
        "--bf16", "--bf16 --tokenizer-type Llama2Tokenizer --tokenizer-model /m/t.model"
    )
    (tmp_path / "a.yaml").write_text(config)
    (tmp_path / "b.sh").write_text(script)
    found = check([str(tmp_path / "a.yaml")], [str(tmp_path / "b.sh")])
    assert [row.key for row in found.rows if row.matters or row in found.undecided] == []
    assert found.exit_code == 0, found.unmet
    keys = {row.key: row.status for row in found.rows}
    for key in ("shuffle", "ignore_token_id", "tokenizer"):
        assert keys.get(key) is not DemandStatus.DIFFERENT


def test_a_sampler_that_shuffles_is_a_difference(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(MINDFORMERS.replace("BlendedMegatronDatasetDataLoader", "MindDataset"))
    (tmp_path / "b.sh").write_text(MEGATRON.replace("--bf16", "--bf16 --dataloader-type cyclic"))
    found = check([str(tmp_path / "a.yaml")], [str(tmp_path / "b.sh")])
    assert "shuffle" in [row.key for row in found.rows if row.matters]


FREE: dict[str, tuple[str, str, object]] = {
    "packages": ("packages of node 7\ntorch==2.7.1\nmindspore==2.6.0\n", "mindspore_version", "2.6.0"),
    "variables": (
        "export HCCL_DETERMINISTIC=true\nset on every node by the admin\nPYTHONHASHSEED=7\nA=1\n",
        "hash_seed",
        "7",
    ),
    "flags": ("Flags of our May run\n--num-layers 4\n--hidden-size 64 --bf16\n--lr 1e-4\n", "num_layers", 4),
    "flags with a backslash": ("--num-layers 4 \\\n--hidden-size 64 \\\n--lr 1e-4\n", "learning_rate", 1e-4),
    "arguments": (
        "copied from the log\n  num_layers ...... 4\n  hidden_size ...... 64\n  lr ....... 0.001\n",
        "num_layers",
        4,
    ),
    "yaml": (
        "our llama run\nmodel_config:\n  num_layers: 4\n  hidden_size: 64\ntraining_config:\n  seed: 3\n",
        "num_layers",
        4,
    ),
    "yaml, last line": (
        "training_config:\n  seed: 3\nmodel_config:\n  num_layers: 4\n  hidden_size: 64\nend of file\n",
        "num_layers",
        4,
    ),
    "yaml, a sentence": (
        "Run of Tuesday, 2nd try at 10:30, it's fine\nmodel_config:\n  num_layers: 4\n  hidden_size: 64\n",
        "num_layers",
        4,
    ),
    "yaml, a sentence within": (
        "model_config:\n  num_layers: 4\n  betas: [0.9,\n    0.95]\n"
        "the optimizer, as in the paper\ntraining_config:\n  seed: 3\n",
        "num_layers",
        4,
    ),
    "toml": ("a run at night, the second\n[model]\nnum_layers = 4\nhidden_size = 64\n", "num_layers", 4),
    "json": (
        'run of May\n{"num_hidden_layers": 4, "model_type": "llama",\n "hidden_size": 64}\n',
        "num_layers",
        4,
    ),
    "script": (
        "#!/bin/bash\nTraining of llama on node 7\ntorchrun p.py --num-layers 4 --hidden-size 64 --lr 1e-4\n",
        "num_layers",
        4,
    ),
    "log": (
        "hello from node 7\n" + LOG.format(HEAD + "  this line is no argument\n"),
        "num_layers",
        4,
    ),
}


@pytest.mark.parametrize("form", FREE)
def test_one_line_of_free_text(form: str, tmp_path: Path) -> None:
    text, field, value = FREE[form]
    assert _side(tmp_path, "nameless", text).values[field].value == value


@pytest.mark.parametrize(("text", "is_on"), [("true", True), ("strict", True), ("1", True), ("false", False)])
def test_deterministic_collectives(text: str, is_on: bool, tmp_path: Path) -> None:
    side = _side(tmp_path, "env.sh", f"export HCCL_DETERMINISTIC={text}\nexport PYTHONHASHSEED=1\n")
    assert side.values["hccl_deterministic"].value is is_on


def test_how_a_variable_is_set_is_its_own_spelling(tmp_path: Path) -> None:
    (tmp_path / "env.sh").write_text(
        "export HCCL_DETERMINISTIC=false\nexport MS_ASCEND_CHECK_OVERFLOW_MODE=SATURATION_MODE\n"
    )
    found = {one.key: dict(one.how) for one in check([str(tmp_path / "env.sh")]).unmet}
    assert found["overflow_mode"]["target"] == "export MS_ASCEND_CHECK_OVERFLOW_MODE=INFNAN_MODE"
    assert found["hccl_deterministic"]["target"] == "export HCCL_DETERMINISTIC=true"


VERSIONS: dict[str, tuple[str, str, str]] = {
    "pip list": (
        "Package      Version\n------------ -------\nmindformers  1.3.2\nmindspore    2.4.10\nnumpy 1.26.4\n",
        "mindspore_version",
        "2.4.10",
    ),
    "conda list": (
        "# packages in environment:\n# Name Version Build\ntorch 2.6.0 pypi_0 pypi\npip 24.0 py311_0\n",
        "torch_version",
        "2.6.0",
    ),
    "by hand": (
        "CANN version: 8.1.RC1\nAscend driver 25.0.RC1\nMindSpore 2.6.0\n",
        "cann_version",
        "8.1.RC1",
    ),
    "the driver by hand": ("CANN: 8.1.RC1\nAscend driver 25.0.RC1\n", "driver_version", "25.0.RC1"),
    "beside variables": (
        "HCCL_DETERMINISTIC=true\nMS_ASCEND_CHECK_OVERFLOW_MODE=INFNAN_MODE\nCANN version: 8.0.RC3\n",
        "cann_version",
        "8.0.RC3",
    ),
    "joined by semicolons": (
        "export ASCEND_LAUNCH_BLOCKING=1; export PYTHONHASHSEED=11;\nexport HCCL_DETERMINISTIC=true;\n",
        "hash_seed",
        "11",
    ),
    "joined by an and": ("export PYTHONHASHSEED=3 && export HCCL_DETERMINISTIC=true\n", "hash_seed", "3"),
}


@pytest.mark.parametrize("form", VERSIONS)
def test_versions_and_variables_as_tools_and_people_write_them(form: str, tmp_path: Path) -> None:
    text, field, value = VERSIONS[form]
    side = _side(tmp_path, "nameless.txt", text)
    assert side.values[field].value == value
    assert not side.unreadable


@pytest.mark.parametrize(
    "text", ["learning_rate 0.001\nn_layers 4.5\n", "num_layers: 4\nhidden_size: 8\nnum_attention_heads: 2\n"]
)
def test_columns_without_a_package_are_no_versions(text: str) -> None:
    assert not environment.looks_like(text)


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("reset_attention_mask: True", "reset_attention_mask"),
        ("reset_position_ids: True", "reset_position_ids"),
        ("eod_mask_loss: True", "eod_mask_loss"),
    ],
)
def test_a_complete_log_against_a_file_that_leaves_the_data_set_s_masks_out(
    line: str, key: str, tmp_path: Path
) -> None:
    """Megatron's log states every argument; a MindFormers file that does not is at its default."""
    log = LOG.format(HEAD + "".join(f"  {name} ..... False\n" for name in MASKS))
    (tmp_path / "log").write_text(log)
    text = MINDFORMERS
    (tmp_path / "a.yaml").write_text(text)
    found = check([str(tmp_path / "a.yaml")], [str(tmp_path / "log")])
    assert {row.key for row in found.undecided} & set(MASKS) == set()
    (tmp_path / "a.yaml").write_text(text.replace("config: {", f"config: {{{line}, "))
    found = check([str(tmp_path / "a.yaml")], [str(tmp_path / "log")])
    assert key in [row.key for row in found.rows if row.matters]


def test_the_older_name_of_the_data_set_s_seed(tmp_path: Path) -> None:
    side = _side(tmp_path, "a.yaml", MINDFORMERS.replace("config: {seed: 1234", "config: {random_seed: 91"))
    assert side.values["data_order_seed"].value == 91


def test_label_smoothing_of_one_side_is_another_loss(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(HF)
    (tmp_path / "b.sh").write_text(MEGATRON)
    found = check([str(tmp_path / "a.json")], [str(tmp_path / "b.sh")])
    assert "label_smoothing" not in [row.key for row in found.rows]
    (tmp_path / "a.json").write_text(
        HF.replace('"bf16": true', '"bf16": true, "label_smoothing_factor": 0.1')
    )
    found = check([str(tmp_path / "a.json")], [str(tmp_path / "b.sh")])
    assert "label_smoothing" in [row.key for row in found.rows if row.matters]


def test_the_dtype_of_a_checkpoint_has_two_names(tmp_path: Path) -> None:
    """transformers 5 writes ``dtype``, versions before it ``torch_dtype``."""
    sides = []
    for name, key, value in (
        ("old", "torch_dtype", "bfloat16"),
        ("new", "dtype", "bfloat16"),
        ("other", "dtype", "float32"),
    ):
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps({"model_type": "qwen2", "hidden_size": 64, key: value}))
        sides.append([str(file)])
    old, new, other = sides
    assert check(old, new).exit_code == 0
    assert check(old, other).exit_code == check(new, other).exit_code == 2
