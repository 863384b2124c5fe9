"""``trueup convert-weights`` and ``trueup compare-weights`` as a person runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.capture.programs import TRAIN, python, run_trueup, write
from trueup.cli import app
from trueup.weights.opening import open_weights
from trueup.weights.plan_file import read_plan
from trueup.weights.weight_set import MemoryWeights, same_bits
from trueup.weights.writing import write_weights

Captured = pytest.CaptureFixture[str]


def run(*argv: object, capsys: Captured, status: int = 0) -> str:
    """What the command says on either stream."""
    found = app.run([str(word) for word in argv])
    said = capsys.readouterr()
    assert found == status, said.out + said.err
    return said.out + said.err


def tiny_llama(folder: Path, *, dtype: str = "bfloat16") -> Any:
    """A Hugging Face Llama with grouped query attention, saved in ``folder``."""
    torch = pytest.importorskip("torch")
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=101,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).to(getattr(torch, dtype))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.02)  # norms are ones, biases zeros otherwise
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama") / "hf"
    tiny_llama(folder)
    return folder


HEADS = ("--num-heads", 4, "--num-kv-heads", 2)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("to", "name"),
    [
        ("megatron", "model.ckpt"),
        ("megatron", "model.pth"),
        ("torchtitan-llama", "model.safetensors"),
        ("mindformers-llama", "shards"),
        ("mindformers-llama-fused", "model.ckpt"),
    ],
)
def test_a_hugging_face_model_there_and_back_is_bit_exact(
    llama: Path, tmp_path: Path, capsys: Captured, to: str, name: str
) -> None:
    run("convert-weights", llama, tmp_path / name, "--to", to, "--shard-size", "20k", capsys=capsys)
    run("convert-weights", tmp_path / name, tmp_path / "back", "--to", "hf-llama", *HEADS, capsys=capsys)
    said = run("compare-weights", tmp_path / "back", llama, capsys=capsys)
    assert "21 bit-identical" in said
    assert open_weights(llama).table["lm_head.weight"].dtype == "bfloat16"


@pytest.mark.torch
def test_a_model_of_converted_weights_has_the_same_loss(tmp_path: Path, capsys: Captured) -> None:
    torch = pytest.importorskip("torch")
    from transformers import LlamaForCausalLM

    model = tiny_llama(tmp_path / "hf", dtype="float32")
    run("convert-weights", tmp_path / "hf", tmp_path / "m.ckpt", "--to", "megatron", capsys=capsys)
    run("convert-weights", tmp_path / "m.ckpt", tmp_path / "back", "--to", "hf-llama", *HEADS, capsys=capsys)
    (tmp_path / "back/config.json").write_text((tmp_path / "hf/config.json").read_text())
    again = LlamaForCausalLM.from_pretrained(tmp_path / "back", dtype=torch.float32)
    ids = torch.arange(24).reshape(2, 12)
    with torch.no_grad():
        losses = [m.eval()(input_ids=ids, labels=ids).loss.item() for m in (model, again)]
    assert losses[0] == losses[1]


@pytest.mark.torch
def test_other_names_are_paired_by_maps(llama: Path, tmp_path: Path, capsys: Captured) -> None:
    run("convert-weights", llama, tmp_path / "m.ckpt", "--to", "mindformers-llama", capsys=capsys)
    said = run("compare-weights", tmp_path / "m.ckpt", llama, capsys=capsys)
    assert "paired by the maps hf-llama and mindformers-llama" in said
    assert "21 bit-identical" in said
    by_name = run("compare-weights", tmp_path / "m.ckpt", llama, "--by", "name", capsys=capsys, status=2)
    assert "1 bit-identical" in by_name, "lm_head.weight alone is called the same"
    assert "target only" in by_name
    assert "reference only" in by_name


@pytest.mark.torch
def test_a_padded_vocabulary_and_its_plan_turned_round(llama: Path, tmp_path: Path, capsys: Captured) -> None:
    plan = tmp_path / "plan.yaml"
    words = ("--to", "megatron", "--pad-vocab", 16, "--save-plan", plan)
    said = run("convert-weights", llama, tmp_path / "m.ckpt", *words, capsys=capsys)
    assert "output_layer.weight padded by 11 rows of zeros" in said
    padded = open_weights(tmp_path / "m.ckpt").read("output_layer.weight")
    assert padded.shape == (112, 32)
    assert not padded[101:].any()
    assert {entry.padding for entry in read_plan(plan).entries} == {0, 11}
    back = tmp_path / "back.safetensors"
    run(
        "convert-weights",
        tmp_path / "m.ckpt",
        back,
        "--plan",
        plan,
        "--inverse",
        "--like",
        llama,
        capsys=capsys,
    )
    run("compare-weights", back, llama, capsys=capsys)
    again = tmp_path / "again.ckpt"
    run("convert-weights", llama, again, "--plan", plan, capsys=capsys)
    assert again.read_bytes() == (tmp_path / "m.ckpt").read_bytes()
    said = run("compare-weights", again, llama, "--plan", plan, capsys=capsys)
    assert "15 bit-identical" in said


def save(path: Path, **arrays: Any) -> Path:
    write_weights(MemoryWeights(arrays), path)
    return path


@pytest.fixture
def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {"fc.weight": rng.standard_normal((4, 3)), "fc.bias": rng.standard_normal(4)}


def test_torch_and_mindspore_names(tmp_path: Path, capsys: Captured) -> None:
    arrays = {"ln.weight": np.ones(3), "ln.bias": np.zeros(3), "embed.weight": np.ones((5, 3))}
    torch = save(tmp_path / "t.safetensors", **arrays)
    run("convert-weights", torch, tmp_path / "m.ckpt", "--to", "mindspore", capsys=capsys)
    assert set(open_weights(tmp_path / "m.ckpt").table) == {"ln.gamma", "ln.beta", "embed.embedding_table"}
    assert "paired by torch's names" in run("compare-weights", torch, tmp_path / "m.ckpt", capsys=capsys)
    assert "paired by mindspore's names" in run("compare-weights", tmp_path / "m.ckpt", torch, capsys=capsys)
    run("convert-weights", tmp_path / "m.ckpt", tmp_path / "b.safetensors", "--to", "torch", capsys=capsys)
    run("compare-weights", tmp_path / "b.safetensors", torch, "--by", "name", capsys=capsys)


def test_a_difference_is_shown_and_told_by_the_status(
    arrays: dict[str, Any], tmp_path: Path, capsys: Captured
) -> None:
    one = save(tmp_path / "one.ckpt", **arrays)
    changed = arrays | {"fc.bias": arrays["fc.bias"] * (1 + 1e-6)}
    two = save(tmp_path / "two.safetensors", **changed)
    said = run("compare-weights", two, one, capsys=capsys, status=1)
    row = next(line for line in said.splitlines() if "≠ fc.bias" in line)
    assert "1.0e-6" in row
    assert "different" in row
    assert "fc.weight" not in said
    assert "1 within tolerance" in run("compare-weights", two, one, "--rtol", 1e-5, capsys=capsys)
    assert run("compare-weights", two, one, "-q", capsys=capsys, status=1) == ""


def test_json(arrays: dict[str, Any], tmp_path: Path, capsys: Captured) -> None:
    one = save(tmp_path / "one.ckpt", **arrays)
    two = save(tmp_path / "two.ckpt", **(arrays | {"fc.bias": np.zeros(4), "more": np.ones(1)}))
    document = json.loads(run("compare-weights", one, two, "--json", capsys=capsys, status=1))
    assert document["exit_code"] == 1
    assert document["counts"]["different"] == document["counts"]["equal"] == 1
    assert document["only_reference"] == ["more"]
    bias = next(pair for pair in document["pairs"] if pair["name"] == "fc.bias")
    assert bias["metrics"]["rel_l2"] is None, "infinite: the reference is all zeros"
    assert bias["metrics"]["max_abs_diff"] == np.abs(arrays["fc.bias"]).max()
    done = json.loads(run("convert-weights", one, tmp_path / "three", "--json", capsys=capsys))
    assert done["num_weights"] == 2
    assert done["format"] == "hf"


def test_two_folders_of_npy_files(tmp_path: Path, capsys: Captured) -> None:
    for side, last in (("a", 1.0), ("b", 2.0)):
        (tmp_path / side).mkdir()
        np.save(tmp_path / side / "layer0.out.npy", np.ones(5))
        np.save(tmp_path / side / "layer1.out.npy", np.array([1.0, last]))
    said = run("compare-weights", tmp_path / "a", tmp_path / "b", capsys=capsys, status=1)
    assert "layer1.out" in said
    assert "layer0.out" not in said
    run("compare-weights", tmp_path / "a", tmp_path / "a", capsys=capsys)


def test_unmatched_weights(arrays: dict[str, Any], tmp_path: Path, capsys: Captured) -> None:
    one = save(tmp_path / "one.ckpt", **arrays)
    two = save(tmp_path / "two.ckpt", **(arrays | {"steps": np.ones(1)}))
    assert "reference only  steps" in run("compare-weights", one, two, capsys=capsys, status=2)
    run("compare-weights", one, two, "--allow-unmatched", capsys=capsys)


def test_what_does_not_fit_the_target_is_not_written(
    arrays: dict[str, Any], tmp_path: Path, capsys: Captured
) -> None:
    source = save(tmp_path / "one.ckpt", **arrays)
    target = save(
        tmp_path / "like.ckpt", **{"fc.weight": arrays["fc.weight"].T, "fc.bias": arrays["fc.bias"]}
    )
    out = tmp_path / "out.ckpt"
    said = run("convert-weights", source, out, "--to", "torch", "--like", target, capsys=capsys, status=2)
    assert "fc.weight: made [4, 3], wanted [3, 4]" in said
    plan = tmp_path / "plan.yaml"
    plan.write_text("version: 1\nnames: {fc.weight: fc.weight}\n")
    said = run("convert-weights", source, out, "--plan", plan, capsys=capsys, status=2)
    assert "no entry of the plan takes fc.bias. Complete the plan" in said
    assert not out.exists()
    run("convert-weights", source, out, "--plan", plan, "--allow-unmatched", capsys=capsys)
    assert list(open_weights(out).table) == ["fc.weight"]
    entry = "{target: fc.weight, pieces: [fc.weight], confidence: 0.75}"
    plan.write_text(f"version: 1\nentries: [{entry}]\nonly_source: [fc.bias]\n")
    said = run("convert-weights", source, out, "--plan", plan, capsys=capsys)
    assert "lowest confidence of the plan 0.75" in said
    assert "not converted: fc.bias" in said
    plan.write_text("version: 1\nnames: {fc.weight: fc.wieght}\n")
    said = run("convert-weights", source, out, "--plan", plan, capsys=capsys, status=2)
    assert "did you mean fc.weight?" in said


def test_a_weight_that_inference_does_not_find_is_named_by_a_person(
    arrays: dict[str, Any], tmp_path: Path, capsys: Captured
) -> None:
    """The plan so far is kept, completed by hand and given back."""
    rng = np.random.default_rng(1)
    source = save(tmp_path / "one.ckpt", **arrays, old=rng.standard_normal((3, 3)))
    target = save(tmp_path / "like.ckpt", **arrays, new=rng.standard_normal((3, 3)))
    plan, out = tmp_path / "plan.yaml", tmp_path / "out.ckpt"
    words = ("convert-weights", source, out, "--like", target)
    said = run(*words, "--save-plan", plan, capsys=capsys, status=2)
    assert "new: wanted, and nothing makes it. Left over in the source: old." in said
    assert f"Complete the plan (in {plan})" in said.replace("\n", " ")
    assert "--allow-unmatched" in said
    assert not out.exists()
    said = run(*words, "--allow-unmatched", capsys=capsys)
    assert "not produced: new" in said
    assert set(open_weights(out).table) == set(arrays)
    run(*words, "--plan", plan, capsys=capsys)  # what a plan says is left over is known to be
    text = plan.read_text().replace("only_target:\n- new\n", "").replace("only_source:\n- old\n", "")
    plan.write_text(text + "names: {new: old}\n")
    run(*words, "--plan", plan, capsys=capsys)
    assert np.array_equal(open_weights(out).read("new"), open_weights(source).read("old"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--to", "llama"), "no naming map 'llama'"),
        (("--to", "torch", "--plan", "p.yaml"), "--to torch and --plan p.yaml: one of them"),
        (("--inverse",), "--inverse needs --plan FILE and --like ORIGINAL"),
        (("--format", "onnx"), "there is safetensors"),
        (("--shard-size", "big"), "--shard-size: expected a number of bytes"),
        (("--to", "megatron"), "no naming map reads these weights"),
        (("--plan", "none.yaml"), "no such file: none.yaml"),
        (("--pad-vocab", "16"), "needs one token embedding"),
    ],
)
def test_options_that_make_no_sense(
    arrays: dict[str, Any], tmp_path: Path, capsys: Captured, words: tuple[str, ...], said: str
) -> None:
    source = save(tmp_path / "one.ckpt", **arrays)
    assert said in run("convert-weights", source, tmp_path / "out.ckpt", *words, capsys=capsys, status=2)


def test_comparing_what_has_no_pair(arrays: dict[str, Any], tmp_path: Path, capsys: Captured) -> None:
    one = save(tmp_path / "one.ckpt", **arrays)
    two = save(tmp_path / "two.ckpt", other=np.ones(3))
    assert "no naming map leads from" in run("compare-weights", one, two, capsys=capsys, status=2)
    said = run("compare-weights", one, two, "--by", "name", capsys=capsys, status=2)
    assert "no weight of" in said
    assert "how weights are paired" in said
    assert "--by: expected one of: auto" in run(
        "compare-weights", one, two, "--by", "x", capsys=capsys, status=2
    )
    said = run("compare-weights", one, two, "--by", "map", "--plan", "p", capsys=capsys, status=2)
    assert "--plan and --by exclude each other" in said
    said = run("compare-weights", tmp_path / "none.ckpt", two, capsys=capsys, status=2)
    assert "no such file or folder" in said


@pytest.mark.torch
def test_the_initial_weights_of_a_trace(runs: Path, tmp_path: Path, capsys: Captured) -> None:
    said = run("convert-weights", runs / "reference", tmp_path / "w.ckpt", capsys=capsys, status=2)
    assert "holds no values of parameters; capture with --preset diagnose" in said
    write(tmp_path / "train.py", TRAIN)
    interpreter = python("-c", "import sys; print(sys.executable)", cwd=tmp_path).stdout.strip()
    made = run_trueup(
        "capture", "-o", "run", "--preset", "diagnose", "--", interpreter, "train.py", cwd=tmp_path
    )
    assert made.returncode == 0, made.stderr
    run("convert-weights", tmp_path / "run", tmp_path / "w.ckpt", capsys=capsys)
    run("compare-weights", tmp_path / "w.ckpt", tmp_path / "run", capsys=capsys)
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1))
    weights = open_weights(tmp_path / "w.ckpt")
    begun = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    assert set(weights.table) == set(begun)
    assert all(same_bits(weights.read(name), begun[name]) for name in begun)
