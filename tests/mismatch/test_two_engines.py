"""A real model twice: bfloat16 decoding with a cache against a float32 prefill. Faults are named, benign
variants stay quiet."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from tests.mismatch.batches import write
from trueup.mismatch.analysis import analyse
from trueup.types.codes import MismatchCode as M
from trueup.types.status import Outcome

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.fixture(scope="module")
def demo():
    import importlib.util
    from pathlib import Path

    path = Path(__file__).parents[2] / "examples" / "demo_rl.py"
    spec = importlib.util.spec_from_file_location("demo_rl", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def trainer(demo):
    return demo.small_model()


def judged(tmp_path, arrays, **options):
    return analyse([write(tmp_path / "tokens.npz", arrays)], **options).judgement


def changed(model, name, change):
    """The model with one module changed in place."""
    with torch.no_grad():
        change(model.get_submodule(name))
    return model


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("model.layers.2.mlp.down_proj", lambda m: m.weight.mul_(0.8)),
        ("model.layers.1.self_attn.o_proj", lambda m: m.weight.mul_(1.3)),
        ("model.layers.1.self_attn.v_proj", lambda m: m.bias.add_(0.1)),
        ("model.layers.3.post_attention_layernorm", lambda m: setattr(m, "variance_epsilon", 0.3)),
        ("model.layers.0.input_layernorm", lambda m: m.weight.mul_(1.2)),
        ("model.embed_tokens", lambda m: m.weight.copy_(m.weight.roll(1, 0))),
    ],
)
def test_a_layer_that_is_served_otherwise_is_named(name, change, demo, trainer, tmp_path):
    server = changed(demo.server_of(trainer), name, change)
    found = judged(tmp_path, demo.scored(trainer, demo.rollout(server)))
    assert (found.outcome, found.reasons[-1].code) == (Outcome.DIFFER, M.LAYER)
    watched = [part for part in name.split(".") if not part.endswith("_proj")]
    assert found.reasons[-1].place("name") == ".".join(watched)


def test_rotary_positions_of_sampled_tokens_that_are_late(demo, trainer, tmp_path):
    found = judged(tmp_path, demo.scored(trainer, demo.rollout(demo.server_of(trainer), late=3)))
    assert found.reasons[-1].code is M.LAYER
    assert found.reasons[-1].place("name") == "model.layers.0.self_attn"


@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_a_temperature_of_the_rollout_alone(temperature, demo, trainer, tmp_path):
    batch = demo.rollout(demo.server_of(trainer), temperature=temperature)
    found = judged(tmp_path, demo.scored(trainer, batch))
    assert found.outcome is Outcome.DIFFER
    assert {M.HEAD, M.SPREAD} & {one.code for one in found.reasons}


def test_top_k_of_the_rollout_alone(demo, trainer, tmp_path):
    found = judged(tmp_path, demo.scored(trainer, demo.rollout(demo.server_of(trainer), top_k=20)))
    assert found.reasons[0].code is M.NOT_SAMPLED


def test_log_probs_one_token_off(demo, trainer, tmp_path):
    arrays = demo.scored(trainer, demo.rollout(demo.server_of(trainer)))
    arrays["training_log_probs"] = np.roll(arrays["training_log_probs"], 1, axis=1)
    assert judged(tmp_path, arrays).reasons[0].code is M.SHIFTED


def test_sequences_in_another_order(demo, trainer, tmp_path):
    arrays = demo.scored(trainer, demo.rollout(demo.server_of(trainer)))
    arrays["training_log_probs"] = arrays["training_log_probs"][::-1]
    assert judged(tmp_path, arrays).reasons[0].code is M.REORDERED


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_rounding_explains_a_server_of_another_dtype(dtype, seed, demo, tmp_path):
    trainer = demo.small_model(seed + 10)
    batch = demo.rollout(demo.server_of(trainer, getattr(torch, dtype)), seed=seed)
    found = judged(tmp_path, demo.scored(trainer, batch))
    assert (found.outcome, [one.code for one in found.reasons]) == (Outcome.AGREE, [M.ROUNDING])


@pytest.mark.parametrize("rows", [1, 5])
def test_micro_batches_of_another_size_are_benign(rows, demo, trainer, tmp_path):
    arrays = demo.scored(trainer, demo.rollout(demo.server_of(trainer)), rows=rows)
    assert judged(tmp_path, arrays).outcome is Outcome.AGREE


def test_another_attention_kernel_is_benign(demo, trainer, tmp_path):
    eager = copy.deepcopy(trainer)
    eager.set_attn_implementation("eager")
    found = judged(tmp_path, demo.scored(eager, demo.rollout(demo.server_of(trainer))))
    assert found.outcome is Outcome.AGREE


def test_certificate_of_zero_names_the_first_layer(demo, trainer, tmp_path):
    """The same model scores its own batch twice: bit-identical; decoding with a cache is not."""
    arrays = demo.scored(trainer, demo.rollout(trainer))
    twice = dict(arrays, rollout_log_probs=arrays["training_log_probs"])
    twice |= {
        name.replace("training/", "rollout/"): one for name, one in arrays.items() if "training/" in name
    }
    assert judged(tmp_path, twice, exact=True).outcome is Outcome.AGREE
    found = judged(tmp_path, arrays, exact=True)
    assert (found.outcome, found.reasons[0].code) == (Outcome.DIFFER, M.NOT_IDENTICAL)
    assert found.reasons[0].place("name").startswith("model.layers.0.")
