"""Megatron-core: GPTModel with the local spec, its schedules, DDP and optimizer, in one or two processes."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from functools import partial

import megatron_cpu  # noqa: F401  (before Megatron)
import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module
from outcome import Outcome, arguments, halve_gradient
from torch import Tensor

VOCABULARY, LENGTH, ROWS = 128, 16, 2


def config_of(args: object, optimizer: object) -> TransformerConfig:
    return TransformerConfig(
        num_layers=2,
        hidden_size=32,
        ffn_hidden_size=64,
        num_attention_heads=4,
        num_query_groups=2,
        normalization=args.norm,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=args.tp,
        pipeline_model_parallel_size=args.pp,
        expert_model_parallel_size=args.ep,
        sequence_parallel=args.sp,
        num_moe_experts=args.experts or None,
        moe_token_dispatcher_type="allgather",
        moe_router_load_balancing_type="aux_loss",
        moe_aux_loss_coeff=0.01 if args.experts else 0.0,
        bf16=args.bf16,
        params_dtype=torch.bfloat16 if args.bf16 else torch.float32,
        pipeline_dtype=torch.bfloat16 if args.bf16 else torch.float32,
        use_cpu_initialization=True,
        bias_dropout_fusion=False,
        bias_activation_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        finalize_model_grads_func=finalize_model_grads,
    )


def draw_by_name(model: GPTModel, seed: int) -> None:
    """Weights by their names in the whole model, as a checkpoint would give them; of whole tensors alone."""
    for number, layer in enumerate(model.decoder.layers):
        layer.own_number = f"decoder.layers.{number}.", f"decoder.layers.{layer.layer_number - 1}."
    names = dict(layer.own_number for layer in model.decoder.layers)
    for name, weight in model.named_parameters():
        whole = next((new + name[len(own) :] for own, new in names.items() if name.startswith(own)), name)
        if weight.dim() > 1:
            draw = torch.Generator().manual_seed(seed + zlib.crc32(whole.encode()))
            weight.data.normal_(0.0, 0.02, generator=draw)


def batches(seed: int, *, wrong: bool) -> Iterator[dict[str, Tensor]]:
    """The batches of this data-parallel rank, of a stream that does not depend on the layout."""
    draw = torch.Generator().manual_seed(seed)
    rank, size = mpu.get_data_parallel_rank(), mpu.get_data_parallel_world_size()
    while True:
        ids = torch.randint(VOCABULARY, (2 * ROWS, LENGTH + 1), generator=draw)
        if wrong:
            ids[:, 5] = (ids[:, 5] + 1) % VOCABULARY
        for own in ids.chunk(2)[rank::size]:
            yield {"tokens": own[:, :-1].contiguous(), "labels": own[:, 1:].contiguous()}


def forward_step(scale: float, data: Iterator[dict[str, Tensor]], model: torch.nn.Module) -> tuple:
    batch = next(data)
    positions = torch.arange(LENGTH).unsqueeze(0).expand(ROWS, -1)
    mask = torch.ones(1, 1, LENGTH, LENGTH).tril() < 0.5
    output = model(batch["tokens"], positions, mask, labels=batch["labels"])

    def loss_func(output: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        losses = output.float()
        loss_mask = torch.ones_like(losses)
        loss = torch.sum(losses.view(-1) * loss_mask.view(-1)) / loss_mask.sum()
        loss = loss * scale if scale != 1.0 else loss
        averaged = loss.detach().clone()
        dist.all_reduce(averaged, group=mpu.get_data_parallel_group())
        return loss, {"lm loss": averaged / mpu.get_data_parallel_world_size()}

    return output, loss_func


def main() -> None:
    """Train."""
    parser = arguments(__doc__)
    for axis in ("tp", "pp", "ep"):
        parser.add_argument(f"--{axis}", type=int, default=1)
    parser.add_argument("--experts", type=int, default=0)
    parser.add_argument("--sp", action="store_true", help="sequence parallel")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--distributed-optimizer", action="store_true")
    parser.add_argument("--norm", default="RMSNorm")
    parser.add_argument("--drawn-by-name", action="store_true", help="weights that no pipeline changes")
    args = parser.parse_args()
    outcome = Outcome()
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    mpu.initialize_model_parallel(args.tp, args.pp, expert_model_parallel_size=args.ep)
    torch.manual_seed(args.seed)
    model_parallel_cuda_manual_seed(args.seed)
    beta2 = 0.99 if args.fault == "optimizer" else 0.95
    settings = OptimizerConfig(
        optimizer="adam",
        lr=1e-3,
        weight_decay=0.1,
        adam_beta2=beta2,
        bf16=args.bf16,
        params_dtype=torch.bfloat16 if args.bf16 else torch.float32,
        use_distributed_optimizer=args.distributed_optimizer,
        clip_grad=1.0,
    )
    config = config_of(args, settings)
    inner = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(
            num_experts=args.experts or None, moe_grouped_gemm=False, normalization=args.norm
        ),
        vocab_size=VOCABULARY,
        max_sequence_length=LENGTH,
        pre_process=mpu.is_pipeline_first_stage(),
        post_process=mpu.is_pipeline_last_stage(),
        position_embedding_type="rope",
    )
    layers = inner.decoder.layers
    if args.drawn_by_name:
        draw_by_name(inner, args.seed)
    if args.fault == "forward" and mpu.is_pipeline_last_stage():
        layers[-1].pre_mlp_layernorm.eps = 1e-2
    if args.fault == "backward" and mpu.is_pipeline_first_stage():
        halve_gradient(layers[0].self_attention.linear_proj.weight)
    model = Float16Module(config, inner) if args.bf16 else inner
    ddp = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=False,
        use_distributed_optimizer=args.distributed_optimizer,
    )
    model = DistributedDataParallel(config, ddp, model)
    model.broadcast_params()
    optimizer = get_megatron_optimizer(settings, [model])
    data = batches(args.seed, wrong=args.fault == "data")
    train = get_forward_backward_func()
    scale = 1.01 if args.fault == "loss" else 1.0
    microbatches = 2 // mpu.get_data_parallel_world_size()
    for _ in range(args.steps):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        reduced = train(
            forward_step_func=partial(forward_step, scale),
            data_iterator=data,
            model=[model],
            num_microbatches=microbatches,
            seq_length=LENGTH,
            micro_batch_size=ROWS,
            forward_only=False,
        )
        optimizer.step()
        losses = [one["lm loss"] for one in reduced]
        outcome.loss(torch.stack(losses).mean() if losses else 0.0)
    outcome.write((name, tensor) for name, tensor in inner.state_dict().items() if isinstance(tensor, Tensor))
    mpu.destroy_model_parallel()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
