"""The model against Hugging Face's Llama and Mixtral, and its masks, norms and losses against plain torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.trainer.layouts import MOE, configuration, run, start
from tests.trainer.resuming import session_of, with_training
from trueup.errors import ConfigError
from trueup_gpt.config import Config, config_from
from trueup_gpt.torch.checkpoint import Checkpoints
from trueup_gpt.torch.exporting import export_hugging_face
from trueup_gpt.torch.hugging_face import check_exchangeable, hugging_face_config
from trueup_gpt.torch.model import GPTModel
from trueup_gpt.torch.model.attention import AttentionCore
from trueup_gpt.train import train

pytestmark = pytest.mark.torch
LLAMA = {"qkv_has_bias": False, "out_proj_has_bias": False, "mlp_has_bias": False}
IDS = torch.arange(24).view(2, 12) * 7 % 257


def _model(config: Config) -> GPTModel:
    return start(config.to_dict())[2].stages[0].model


def _theirs(config: Config) -> Any:
    import transformers

    facts = hugging_face_config(config)
    kind = transformers.MixtralConfig if config.moe.num_experts > 1 else transformers.LlamaConfig
    facts = {
        key: value
        for key, value in facts.items()
        if key not in ("architectures", "model_type", "torch_dtype")
    }
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(kind(**facts), attn_implementation="eager")
    return model.eval()


@pytest.mark.parametrize("sections", [{}, {"moe": MOE}], ids=["llama", "mixtral"])
def test_logits_and_weights_are_those_of_hugging_face(sections: dict[str, Any], tmp_path: Path) -> None:
    plain = configuration("float32", model=LLAMA, **sections)
    theirs = _theirs(config_from(plain))
    theirs.save_pretrained(tmp_path / "theirs")
    plain = with_training(plain, load_checkpoint=tmp_path / "theirs", output_dir=tmp_path, training_iters=1)
    session = session_of(plain)
    Checkpoints(session).resume()
    model = session.parallel.stages[0].model.eval()
    with torch.no_grad():
        assert torch.allclose(model(IDS), theirs(IDS).logits, rtol=0, atol=2e-6)


def test_an_exported_checkpoint_is_loaded_by_hugging_face(tmp_path: Path) -> None:
    import transformers

    from trueup_gpt.logs import RunLog

    plain = configuration("float32", model=LLAMA, moe=MOE)
    plain = with_training(plain, output_dir=tmp_path, training_iters=2, save_interval=2)
    session = session_of(plain)
    log = RunLog(tmp_path, 0, speaks=False, tensorboard=False)
    train(session, log)
    log.close()
    export_hugging_face(session.config, tmp_path / "out")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    model = session.parallel.stages[0].model.eval()
    with torch.no_grad():
        assert torch.allclose(model(IDS), theirs.eval()(IDS).logits, rtol=0, atol=2e-6)


def test_a_model_without_such_a_form_says_why() -> None:
    with pytest.raises(
        ConfigError, match=r"model_config\.hidden_act is 'gelu'; Llama and Mixtral have 'swiglu'"
    ):
        check_exchangeable(config_from(configuration(model={"hidden_act": "gelu"})))


def test_without_labels_logits_and_with_them_the_masked_mean() -> None:
    model = _model(config_from(configuration()))
    labels, mask = IDS.roll(-1, 1), (IDS % 3 > 0).double()
    logits = model(IDS)
    loss, again, num_tokens = model(IDS, labels_BT=labels, loss_mask_BT=mask)
    each = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(mask)
    assert torch.equal(again, logits)
    assert float(num_tokens) == float(mask.sum())
    assert torch.allclose(loss, (each * mask).sum() / mask.sum(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", ["causal", "padding", "padding_causal", "no_mask"])
@pytest.mark.parametrize("fused", [False, True])
def test_masks(kind: str, fused: bool) -> None:
    config = config_from(
        configuration(model={"encoder_attn_mask_type": kind, "use_flash_attention": fused})
    ).model
    torch.manual_seed(1)
    q, k, v = torch.randn(2, 6, 4, 8), torch.randn(2, 6, 2, 8), torch.randn(2, 6, 2, 8)
    q, k, v = q.double(), k.double(), v.double()
    valid = torch.arange(6)[None] < torch.tensor([[6], [4]])
    y = AttentionCore(config, 0)(q, k, v, None, None, valid)
    allowed = torch.ones(2, 6, 6, dtype=torch.bool)
    if "causal" in kind:
        allowed &= torch.ones(6, 6, dtype=torch.bool).tril()
    if "padding" in kind:
        allowed &= valid[:, None, :]
    scores = torch.einsum("btnd,bsnd->bnts", q, k.repeat_interleave(2, 2)) / 8**0.5
    weights = scores.masked_fill(~allowed[:, None], -torch.inf).softmax(-1)
    expected = torch.einsum("bnts,bsnd->btnd", weights, v.repeat_interleave(2, 2))
    assert torch.allclose(y, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("act", ["gelu", "fast_gelu", "swiglu", "squared_relu", "silu", "relu"])
def test_every_activation_learns(act: str) -> None:
    plain = configuration(model={"hidden_act": act, "position_embedding_type": "absolute"})
    losses = run(plain, 1).losses
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    "model",
    [
        {"use_flash_attention": True},
        {"apply_query_key_layer_scaling": True},
    ],
)
def test_what_changes_only_how_it_is_computed(model: dict[str, Any]) -> None:
    plain = _model(config_from(configuration()))(IDS)
    other = _model(config_from(configuration(model=model)))(IDS)
    assert torch.allclose(plain, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "model",
    [
        {"apply_residual_connection_post_norm": True},
        {"use_final_norm": False},
        {"normalization": "LayerNorm"},
        {"rotary_config": {"rotary_interleaved": True}},
        {"rotary_config": {"rotary_percent": 0.5}},
        {"rotary_config": {"rotary_base": 5000.0}},
        {"rotary_config": {"seq_len_interpolation_factor": 2.0}},
    ],
)
def test_what_changes_the_model_changes_its_logits(model: dict[str, Any]) -> None:
    plain = _model(config_from(configuration()))(IDS)
    other = _model(config_from(configuration(model=model)))(IDS)
    assert other.isfinite().all()
    assert not torch.allclose(plain, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("policy", ["probs", "position"])
def test_an_expert_takes_no_more_than_its_capacity(policy: str) -> None:
    """One expert a token, half of the even share: what is beyond it adds nothing."""
    moe = {"num_experts": 4, "moe_router_topk": 1}
    capped = {**moe, "moe_expert_capacity_factor": 0.5, "moe_token_drop_policy": policy}
    whole = _model(config_from(configuration(moe=moe))).layers["0"].mlp
    part = _model(config_from(configuration(moe=capped))).layers["0"].mlp
    x = torch.randn(2, 12, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logits = x.flatten(0, 1) @ whole.router.weight.T
    assert part.router(x.flatten(0, 1))[0].unique().tolist() == [1.0], "ties: the first ones stay"
    expected, taken = whole(x).flatten(0, 1).clone(), [0, 0, 0, 0]
    for token, expert in enumerate(logits.argmax(-1).tolist()):
        if taken[expert] == 3:  # 24 tokens, 4 experts, half of 6
            expected[token] = 0.0
        taken[expert] += taken[expert] < 3
    assert taken == [3, 3, 3, 3]
    assert torch.allclose(part(x).flatten(0, 1), expected, rtol=0, atol=1e-14)


def test_the_largest_weights_stay() -> None:
    moe = {**MOE, "moe_expert_capacity_factor": 0.5}
    mlp = _model(config_from(configuration(moe=moe))).layers["0"].mlp
    weights, experts = torch.rand(24, 2).double(), torch.randint(0, 4, (24, 1))
    experts = torch.cat((experts, (experts + 1) % 4), 1)
    kept = mlp._within_capacity(weights, experts)
    for expert in range(4):
        mine = weights[experts == expert]
        expected = mine.sort(descending=True).values[:6]
        assert torch.equal(weights[kept == expert].sort(descending=True).values, expected)


def test_rows_grouped_otherwise_are_the_same_mathematics() -> None:
    """Eight rows of a step as one, two, four and eight microbatches."""
    found = []
    for size in (8, 4, 2, 1):
        dataset = {"batch_size": size, "micro_batch_num": 8 // size}
        found.append(run(configuration(dataset=dataset), 1, 2))
    for other in found[1:]:
        assert np.allclose(other.losses, found[0].losses, rtol=0, atol=1e-13)
        for fqn, values in found[0].weights.items():
            assert np.allclose(other.weights[fqn], values, rtol=0, atol=1e-12), fqn


def test_tokens_first_is_the_same_model_lying_otherwise() -> None:
    rows = _model(config_from(configuration(moe=MOE)))
    tokens = _model(config_from(configuration(moe=MOE, dataset={"data_layout": "SBH"})))
    seen: list[torch.Size] = []
    tokens.layers["1"].register_forward_hook(lambda module, given, y: seen.append(y.shape))
    labels, mask = IDS.roll(-1, 1), (IDS % 3 > 0).double()
    (one, logits, _), (other, laid, _) = (
        model(IDS, labels_BT=labels, loss_mask_BT=mask) for model in (rows, tokens)
    )
    assert seen == [(12, 2, 32)]
    assert torch.allclose(laid.transpose(0, 1), logits, rtol=0, atol=1e-13)
    assert torch.allclose(one, other, rtol=0, atol=1e-13)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_compiled_layers_train_the_same() -> None:
    """What torch.compile makes of the layers, run without a compiler of machine code."""
    before = torch.nn.Module.compile
    model = {"num_layers": 1}
    with patch.object(torch.nn.Module, "compile", lambda module: before(module, backend="eager")):
        found = run(configuration(model={**model, "torch_compile": True}), 1)
    assert np.allclose(found.losses, run(configuration(model=model), 1).losses, rtol=0, atol=1e-12)


def test_weights_depend_on_seed_and_name_alone() -> None:
    small = dict(_model(config_from(configuration("float32"))).named_parameters())
    deep = dict(_model(config_from(configuration("float32", model={"num_layers": 6}))).named_parameters())
    for fqn, parameter in small.items():
        assert torch.equal(parameter, deep[fqn]), fqn
    drawn = [p.detach().flatten()[:8].numpy() for fqn, p in small.items() if p.dim() > 1]
    assert len({one.tobytes() for one in drawn}) == len(drawn)
    assert np.isclose(small["word_embeddings.weight"].detach().std(), 0.05, rtol=0.05)
