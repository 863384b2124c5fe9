"""The loop of rl/loop.py with a policy of Hugging Face's model under FSDP2, or of Megatron-core's: the same
weights on the same tokens.

    two_engines.py hf|megatron OUTPUT [TOKENS [FAULT]]

Needs the environment ``light`` of realworld/setup.sh. TOKENS is a run to train on; FAULT ``eps`` or ``rope``.
verl's own Megatron engine needs Transformer Engine's layers, and those a GPU.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "realworld/programs")]
os.environ |= {"MASTER_ADDR": "127.0.0.1", "TORCH_COMPILE_DISABLE": "1"}

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from rl.loop import VOCABULARY, Settings, Trainer  # noqa: E402
from torch import Tensor, nn  # noqa: E402

WIDTH, INNER, LAYERS, HEADS, GROUPS, LENGTH, EPS, BASE = 32, 64, 2, 4, 2, 32, 1e-6, 10000.0


class Hugging(nn.Module):
    """A Llama."""

    def __init__(self) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        super().__init__()
        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            intermediate_size=INNER,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=GROUPS,
            max_position_embeddings=LENGTH,
            rms_norm_eps=EPS,
            initializer_range=0.2,
            tie_word_embeddings=False,
        )
        self.model = LlamaForCausalLM(config)

    def forward(self, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Rows are padded behind their tokens, which a causal model does not see."""
        return self.model(input_ids=ids, position_ids=positions, use_cache=False).logits


class Megatron(nn.Module):
    """The same weights in Megatron-core's GPT."""

    def __init__(self, weights: dict[str, Tensor], fault: str) -> None:
        import megatron_cpu  # noqa: F401  (before Megatron)
        from megatron.core.models.gpt import GPTModel
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
        from megatron.core.transformer import TransformerConfig

        super().__init__()
        config = TransformerConfig(
            num_layers=LAYERS,
            hidden_size=WIDTH,
            ffn_hidden_size=INNER,
            num_attention_heads=HEADS,
            num_query_groups=GROUPS,
            normalization="RMSNorm",
            layernorm_epsilon=1e-3 if fault == "eps" else EPS,
            gated_linear_unit=True,
            activation_func=nn.functional.silu,
            add_bias_linear=False,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            use_cpu_initialization=True,
            bias_dropout_fusion=False,
            bias_activation_fusion=False,
            masked_softmax_fusion=False,
            gradient_accumulation_fusion=False,
        )
        self.model = GPTModel(
            config=config,
            transformer_layer_spec=get_gpt_layer_local_spec(normalization="RMSNorm"),
            vocab_size=VOCABULARY,
            max_sequence_length=LENGTH,
            position_embedding_type="rope",
            rotary_base=100.0 if fault == "rope" else BASE,
            share_embeddings_and_output_weights=False,
        )
        self.model.load_state_dict(megatron_weights(weights), strict=False)

    def forward(self, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Megatron's mask says what is hidden."""
        return self.model(ids, positions, ~mask[:1, None])


def megatron_weights(held: dict[str, Tensor]) -> dict[str, Tensor]:
    """Hugging Face's weights by Megatron's names; queries, keys and values group by group."""
    found = {
        "embedding.word_embeddings.weight": held["model.embed_tokens.weight"],
        "decoder.final_layernorm.weight": held["model.norm.weight"],
        "output_layer.weight": held["lm_head.weight"],
    }
    for layer in range(LAYERS):
        own, other = f"model.layers.{layer}", f"decoder.layers.{layer}"
        q, k, v = (
            held[f"{own}.self_attn.{one}_proj.weight"].view(GROUPS, -1, WIDTH) for one in ("q", "k", "v")
        )
        gate, up = (held[f"{own}.mlp.{one}_proj.weight"] for one in ("gate", "up"))
        found |= {
            f"{other}.self_attention.linear_qkv.weight": torch.cat([q, k, v], 1).flatten(0, 1),
            f"{other}.self_attention.linear_proj.weight": held[f"{own}.self_attn.o_proj.weight"],
            f"{other}.mlp.linear_fc1.weight": torch.cat([gate, up]),
            f"{other}.mlp.linear_fc2.weight": held[f"{own}.mlp.down_proj.weight"],
            f"{other}.input_layernorm.weight": held[f"{own}.input_layernorm.weight"],
            f"{other}.pre_mlp_layernorm.weight": held[f"{own}.post_attention_layernorm.weight"],
        }
    return found


class Engines(Trainer):
    """The trainer with a policy of one of the two; its reference and rollout are copies."""

    def __init__(self, kind: str, fault: str, output: Path, settings: Settings, replay: Path | None) -> None:
        super().__init__(output, settings, replay)
        torch.manual_seed(settings.seed)
        weights = Hugging().model.state_dict()
        self.actor, self.reference, self.engine = (self.made(kind, fault, weights) for _ in range(3))
        if kind == "hf":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh("cpu", (1,))
            for module in (*self.actor.model.model.layers, self.actor.model):
                fully_shard(module, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.actor.parameters(), lr=settings.lr)

    def made(self, kind: str, fault: str, weights: dict[str, Tensor]) -> nn.Module:
        if kind == "megatron":
            return Megatron(weights, fault)
        model = Hugging()
        model.model.load_state_dict(weights)
        return model

    def old_log_probs(self, prompts: Tensor, responses: Tensor) -> Tensor:
        found = super().old_log_probs(prompts, responses)
        if hasattr(self.actor.model, "reshard"):  # as verl does: a root stays whole after a forward
            self.actor.model.reshard()
        return found

    def sync(self) -> None:
        held = {
            name: one.full_tensor() if hasattr(one, "full_tensor") else one
            for name, one in self.actor.state_dict().items()
        }
        self.engine.load_state_dict(held)


def main() -> None:
    """Train on the tokens of another run, or generate them."""
    kind, output, *more = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    if kind == "megatron":
        import megatron_cpu  # noqa: F401
        from megatron.core import parallel_state
        from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

        parallel_state.initialize_model_parallel()
        model_parallel_cuda_manual_seed(0)
    settings = Settings(steps=2, prompts=2, lr=5e-3)
    tokens = Path(more[0]) if more else None
    Engines(kind, more[1] if len(more) > 1 else "", Path(output), settings, tokens).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
