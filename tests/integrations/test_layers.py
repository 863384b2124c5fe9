"""Layers of an inference engine beside those of its trainer: decoding with a cache against one prefill."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402

from trueup.capture import session  # noqa: E402
from trueup.capture.options import CaptureOptions, StepSet  # noqa: E402
from trueup.integrations import rollout as engines  # noqa: E402
from trueup.integrations.layers import Kept, LayerHooks, TrainerLayers, decoder_layers  # noqa: E402
from trueup.integrations.records import LogProbs, save_tokens  # noqa: E402
from trueup.integrations.rollout import RolloutRecorder, record_rollout, register, sglang_hook  # noqa: E402
from trueup.mismatch.analysis import analyse  # noqa: E402
from trueup.mismatch.pairing import paired_layers  # noqa: E402
from trueup.store.rollouts import write_batch  # noqa: E402
from trueup.store.token_layers import layer_files  # noqa: E402
from trueup.types.codes import MismatchCode  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402

LAYERS, WIDTH, PROMPT = 4, 64, 8


def model(dtype: Any = torch.float32) -> Any:
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=97,
        hidden_size=WIDTH,
        intermediate_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.1,
    )
    made = transformers.Qwen2ForCausalLM._from_config(config, attn_implementation="sdpa")
    return made.to(dtype).eval()


@pytest.fixture
def captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A process that is captured from outside, in step 1."""
    options = CaptureOptions(output=tmp_path / "run", steps=StepSet(((1, 1),)))
    monkeypatch.setenv(session.FROM_OUTSIDE, json.dumps({"options": options.to_json()}))
    return options.output


@torch.no_grad()
def sample(engine: Any, prompts: list[list[int]], length: int) -> tuple[list[list[int]], list[list[float]]]:
    """Decode each prompt with a cache; tokens and their log-probs."""
    draw = torch.Generator().manual_seed(1)
    tokens, log_probs = [], []
    for prompt in prompts:
        ids, past, own, their = torch.tensor([prompt]), None, [], []
        for _ in range(length):
            out = engine(input_ids=ids, past_key_values=past, use_cache=True)
            past = out.past_key_values
            scores = torch.log_softmax(out.logits[0, -1].float(), -1)
            token = int(torch.multinomial(scores.exp(), 1, generator=draw))
            own.append(token)
            their.append(float(scores[token]))
            ids = torch.tensor([[token]])
        tokens.append(own)
        log_probs.append(their)
    return tokens, log_probs


@torch.no_grad()
def score(trainer: Any, whole: list[list[int]], *, packed: bool) -> list[list[float]]:
    """Log-probs of the responses by one prefill of all rows, packed into one or padded on the left."""
    if packed:
        ids = torch.tensor([[token for row in whole for token in row]])
        positions = torch.cat([torch.arange(len(row)) for row in whole])[None]
        logits = trainer(input_ids=ids, position_ids=positions, use_cache=False).logits[0]
        rows = logits.split([len(row) for row in whole])
    else:
        width = max(map(len, whole)) + 3
        ids = torch.tensor([[0] * (width - len(row)) + row for row in whole])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in whole])
        positions = (mask.cumsum(-1) - 1).clip(min=0)
        logits = trainer(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
        rows = [one[width - len(row) :] for one, row in zip(logits, whole, strict=True)]
    found = []
    for row, one in zip(whole, rows, strict=True):
        scores = torch.log_softmax(one.float(), -1)
        found.append([float(scores[at - 1, row[at]]) for at in range(PROMPT, len(row))])
    return found


def step(
    run: Path, engine: Any, trainer: Any, *, packed: bool = True, length: int = 12, fault: Any = None
) -> Path:
    """One step of RL: rollout, scoring, and what verl's driver writes of it."""
    record_rollout(engine)
    if fault is not None:
        fault(engine)
    prompts = [[1, *(10 + number + at for at in range(PROMPT - 2)), 2] for number in (0, 0, 7, 7, 20, 31)]
    responses, theirs = sample(engine, prompts, length)
    whole = [a + b for a, b in zip(prompts, responses, strict=True)]
    layers = TrainerLayers(trainer, run)
    layers.begin("training", 1)
    ours = score(trainer, whole, packed=packed)
    layers.end()
    time.sleep(1.3)  # what is kept is written once nothing more comes
    LogProbs().over(1)
    write_batch(run, 1, {"prompts": np.array(prompts), "responses": np.array(responses)}, {})
    arrays = {
        "rollout_log_probs": np.float32(theirs),
        "old_log_probs": np.float32(ours),
        "response_mask": np.ones((len(prompts), length), np.int64),
        "responses": np.array(responses),
    }
    save_tokens(run / "tokens" / "step_000001.npz", arrays, 1)
    return run


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_bfloat16_decoding_is_explained_layer_by_layer(captured: Path, packed: bool) -> None:
    found = analyse([step(captured, model(torch.bfloat16), model(), packed=packed)])
    names = [one.name for one in found.layers]
    assert names == [f"layers.{n}{part}" for n in range(LAYERS) for part in (".self_attn", ".mlp", "")]
    assert min(one.num_tokens for one in found.layers) > 64
    assert all(1e-4 < one.rel_l2 < 0.05 for one in found.layers)
    reasons = [one.code for one in found.judgement.reasons]
    assert (found.judgement.outcome, reasons) == (Outcome.AGREE, [MismatchCode.ROUNDING])


def test_the_layer_that_computes_something_else_is_named(captured: Path) -> None:
    def wrong(engine: Any) -> None:
        engine.model.layers[2].self_attn.o_proj.weight.data.mul_(1.1)

    found = analyse([step(captured, model(torch.bfloat16), model(), fault=wrong)])
    (first, *_) = found.judgement.reasons
    assert found.judgement.outcome is Outcome.DIFFER
    assert (first.code, first.facts["name"]) == (MismatchCode.LAYER, "layers.2.self_attn")


def test_in_one_dtype_decoding_and_prefill_agree_within_its_rounding(captured: Path) -> None:
    found = analyse([step(captured, model(), model())])
    assert found.judgement.outcome is not Outcome.DIFFER
    assert max(one.rel_l2 for one in found.layers) < 1e-5


def test_rows_that_may_be_of_another_sequence_are_left_out(captured: Path) -> None:
    """The token at a place is the same and what came before is not, or there are more rows than sequences."""
    run = step(captured, model(), model())
    places = paired_layers(run, 1)
    usual = len(places["training"]["layers.0"])
    batch = {"prompts": np.array([[1, 10, 11, 12, 13, 14, 15, 2]]), "responses": np.array([[5, 6]])}
    write_batch(run, 1, batch, {})
    assert len(paired_layers(run, 1)["training"]["layers.0"]) < usual
    assert paired_layers(run, 2) == {}


class Engine(nn.Module):
    """Flat tokens of several requests at once, layers that hand on the residual stream in two parts: the
    interface of vLLM's and SGLang's models, on the weights of one of transformers."""

    def __init__(self, other: Any) -> None:
        super().__init__()
        self.model = EngineModel(other.model)

    def forward(self, input_ids: Any, positions: Any) -> Any:
        return self.model(input_ids, positions)


class EngineLayer(nn.Module):
    def __init__(self, other: Any) -> None:
        super().__init__()
        self.self_attn, self.mlp = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, positions: Any, hidden: Any, residual: Any) -> Any:
        residual = hidden if residual is None else hidden + residual
        hidden = self.self_attn(residual)
        residual = hidden + residual
        return self.mlp(residual), residual


class EngineModel(nn.Module):
    def __init__(self, other: Any) -> None:
        super().__init__()
        self.embed = nn.Embedding(97, WIDTH)
        self.layers = nn.ModuleList([EngineLayer(layer) for layer in other.layers])

    def forward(self, input_ids: Any, positions: Any) -> Any:
        hidden, residual = self.embed(input_ids), None
        for layer in self.layers:
            hidden, residual = layer(positions, hidden, residual)
        return hidden + residual


def rows_kept(run: Path) -> dict[str, Any]:
    time.sleep(1.3)
    return dict(next(layer_files(run, "rollout")))


def test_flat_tokens_and_streams_in_two_parts(captured: Path) -> None:
    engine = Engine(model())
    recorder = RolloutRecorder(engine)
    ids, positions = torch.tensor([5, 6, 7, 50, 90]), torch.tensor([0, 1, 2, 11, 3])
    out = engine(input_ids=ids, positions=positions)
    recorder._writing.flush()
    kept = rows_kept(captured)
    assert kept["ids"].tolist() == ids.tolist()
    assert kept["positions"].tolist() == positions.tolist()
    assert np.array_equal(kept[f"layers.{LAYERS - 1}"], out.detach().numpy())


def test_what_other_steps_sample_is_not_kept(captured: Path) -> None:
    """Step 1 is captured; its trainer's process says when its rollout is over."""
    engine = Engine(model())
    record_rollout(engine)
    ids = torch.tensor([5, 6])
    engine(ids, torch.tensor([0, 1]))
    LogProbs().over(1)
    engine(torch.tensor([8, 9]), torch.tensor([0, 1]))
    assert rows_kept(captured)["ids"].tolist() == [5, 6]
    assert len(list(layer_files(captured, "rollout"))) == 1


def test_nothing_happens_in_a_process_that_is_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(session.FROM_OUTSIDE, raising=False)
    engine = Engine(model())
    record_rollout(engine)
    register()
    assert not engine._forward_pre_hooks
    assert not engine.model._forward_pre_hooks


def test_a_model_without_layers_goes_on(captured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record_rollout(nn.Linear(2, 2))
    assert "layers of the rollout are not recorded" in capsys.readouterr().err


def test_sglang_is_given_a_forward_hook(captured: Path) -> None:
    """Registered on the module that holds the layers, before the first forward, which is a warm-up."""
    engine = Engine(model())
    engine.model.register_forward_hook(sglang_hook({}))
    given = torch.tensor([5, 6]), torch.tensor([0, 1])
    expected = engine.model(*given)
    assert torch.equal(engine.model(*given), expected)
    assert rows_kept(captured)["ids"].tolist() == [5, 6]


@pytest.mark.parametrize("eager", [True, False])
def test_vllm_loads_its_model(
    captured: Path, eager: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plugin is called in every process, maybe twice, before the loader is imported."""
    name = "vllm.model_executor.model_loader.base_loader"
    module = ModuleType(name)
    engine = Engine(model())

    class BaseModelLoader:
        def load_model(self, vllm_config: object, model_config: object) -> object:
            return engine

    module.BaseModelLoader = BaseModelLoader  # type: ignore[attr-defined]
    monkeypatch.setattr(engines, "_watcher", engines.Watcher())
    monkeypatch.setitem(sys.modules, name, module)
    register()
    register()
    config = SimpleNamespace(
        model_config=SimpleNamespace(enforce_eager=eager), parallel_config=SimpleNamespace(rank=0)
    )
    assert BaseModelLoader().load_model(config, model_config=None) is engine
    assert bool(engine.model._forward_pre_hooks) is eager
    assert ("set enforce_eager=True" in capsys.readouterr().err) is not eager


def test_what_is_kept_is_bounded_and_the_same_everywhere() -> None:
    kept = [Kept(most_bytes=40_000), Kept(most_bytes=40_000)]
    positions = np.arange(5000)
    for number in range(0, 5000, 500):
        for one, at in zip(
            kept, (slice(number, number + 500), slice(4500 - number, 5000 - number)), strict=True
        ):
            ids = positions[at] % 89
            chosen = one.chosen(ids, positions[at])
            rows = {"ids": ids[chosen], "positions": positions[at][chosen]}
            one.add({**rows, "layers.0": np.ones((int(chosen.sum()), 8), np.float32)})
    held = [set(one.arrays()["positions"].tolist()) for one in kept]
    assert all(500 < len(one) < 1000 for one in held)
    assert len(held[0] & held[1]) > 500


def test_the_layers_of_a_model_are_found() -> None:
    owner, layers = decoder_layers(model())
    assert (type(owner).__name__, len(layers)) == ("Qwen2Model", LAYERS)
    with pytest.raises(ValueError, match="no list of layers"):
        decoder_layers(nn.Sequential(nn.Linear(1, 1)))


def test_hooks_change_nothing_and_see_a_transposed_output_as_none() -> None:
    """Outputs of other shape than the ids (tokens first) are not rows in the order of the ids."""
    seen: list[dict[str, Any]] = []
    usual, watched = model(), model()
    kept = Kept()
    hooks = LayerHooks(watched, seen.append, lambda: kept)
    ids = torch.tensor([[5, 6, 7], [8, 9, 10]])
    assert torch.equal(usual(input_ids=ids).logits, watched(input_ids=ids).logits)
    assert len(seen) == 1
    watched.model.layers[0].self_attn.register_forward_hook(
        lambda module, args, out: (out[0].transpose(0, 1), *out[1:]), prepend=True
    )
    with pytest.raises(RuntimeError):
        watched(input_ids=ids)
    assert len(seen) == 1
    assert hooks.active
