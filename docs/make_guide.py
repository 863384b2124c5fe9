"""Writes docs/guide.md: the accuracy guide's table of contents, each row with its command and output."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from trueup.cli.app import run

DOCS = Path(__file__).parent
PAGE = DOCS / "guide.md"
WIDTH = 100
TARGET = "examples/guide/target.yaml"
REFERENCE = "examples/guide/reference.sh"
PAIR = f"{TARGET} {REFERENCE}"
WITH_ENVIRONMENT = f"{TARGET},examples/guide/target.env {REFERENCE}"
HEAD = f"""# The accuracy guide, row by row

Written by `python docs/make_guide.py`, which runs every command shown; a test runs them again. The pair that
is checked is in `examples/guide`: a MindFormers configuration that violates many rows, and a Megatron script.

`trueup check TARGET REFERENCE` looks at every row at once ([check.md](check.md)). The verdict has two parts:
whether both describe the same training, and whether the guide's recommendations are followed. Here the rows
are asked one by one, with `--only`; `--all` shows a row on which both sides agree.

```console
$ trueup check {WITH_ENVIRONMENT}
```

## Contents

1. [Checklist](#checklist): network structure, mixture of experts, optimizer, weights, mixed precision,
   parallel strategy, other rows
2. [Pre-training preparation](#pre-training-preparation): a reduced, deterministic pair, and the way back up
3. [Acceptance over a recommendation](#acceptance-over-a-recommendation)
4. [Loss curves](#loss-curves)
5. [Steps 1 and 2: compare and diagnose](#steps-1-and-2-compare-and-diagnose)
6. [Dumps](#dumps)
7. [Weights](#weights)
"""
SECTIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "Network structure": (
        ("num_layers", "num_layers"),
        ("num_heads", "num_heads"),
        ("hidden_size", "hidden_size"),
        ("intermediate_size", "intermediate_size moe_intermediate_size"),
        ("n_kv_heads", "num_kv_heads"),
        ("Attention", "attention head_dim sliding_window qkv_bias qkv_fusion"),
        ("normalization", "normalization"),
        ("normal_eps, rms_norm_eps", "norm_eps"),
        ("dropout", "hidden_dropout attention_dropout embedding_dropout dropout_excludes_recompute"),
        ("activation function", "activation"),
        ("fusion computation", "flash_attention rope_fusion norm_fusion activation_fusion"),
        ("position code", "position_embedding rope_theta rope_scaling rope_interleaved"),
        ("vocab_size", "vocab_size padded_vocab_size"),
    ),
    "Mixture of experts": (
        ("expert_num", "num_experts"),
        ("shared_expert_num", "num_shared_experts"),
        ("num_experts_chosen", "experts_per_token"),
        ("capacity_factor", "capacity_factor capacity_in_range"),
        ("aux_loss_factor", "aux_loss_factor aux_loss_is_small"),
        ("routing_policy", "router_version"),
        ("enable_sdrop", "enable_sdrop token_drop_policy pad_to_capacity"),
        ("router_dense_type", "router_dtype"),
        ("use_fused_ops_topkrouter", "fused_router fused_router_needs_sdrop fused_router_for_alignment"),
        ("use_shared_expert_gating", "shared_expert_gate"),
    ),
    "Optimizer": (
        ("adam optimizer", "optimizer"),
        ("eps", "adam_eps"),
        ("beta1", "adam_beta1"),
        ("beta2", "adam_beta2"),
        ("weight_decay", "weight_decay weight_decay_scope"),
        ("lr", "learning_rate lr_schedule min_lr decay_steps"),
        ("warmup_ratio, lr_warmup_fraction", "warmup_steps"),
        ("clip_grad", "clip_grad"),
        ("global_batch_size", "global_batch_size batch_adds_up"),
    ),
    "Weights": (
        ("param_init_type", "param_dtype grad_comm_dtype gradients_follow_weights"),
        ("init-method-std", "init_std"),
    ),
    "Mixed precision": (
        ("compute_dtype", "compute_dtype"),
        ("layernorm_compute_type", "norm_compute_dtype"),
        ("softmax_compute_type", "softmax_compute_dtype"),
        ("rotary_dtype", "rotary_dtype"),
        ("Calculation of weights", "embedding_dtype head_dtype"),
        ("bias add", "bias_add_dtype"),
        ("residual add", "residual_dtype"),
        ("loss", "loss_dtype"),
        ("Operator High Precision Mode", "operator_precision"),
    ),
    "Parallel strategy": (
        ("data_parallel", "data_parallel"),
        ("model_parallel", "tensor_parallel"),
        ("pipeline_stage", "pipeline_parallel"),
        ("use_seq_parallel", "sequence_parallel"),
        ("enable_parallel_optimizer", "optimizer_parallel"),
        ("micro_batch_interleave_num", "micro_batch_interleave"),
    ),
    "Other rows": (
        ("Data Check", "data_files ignore_token_id decode_a_batch"),
        ("Special Words Check", "bos_token_id eos_token_id pad_token_id tokenizer"),
        ("input_ids check", "special_ids_in_range input_ids"),
        ("Overflow Detection", "overflow_mode"),
        ("Graph Operator Fusion", "graph_kernel_fusion"),
        ("Training Inference Template Consistency", "chat_template inference_template template_by_hand"),
        ("Version Check", "versions mindspore_version mindformers_version cann_version"),
        ("Differences with Open Source", "upstream"),
    ),
    "Randomness": (
        ("HCCL_DETERMINISTIC, ASCEND_LAUNCH_BLOCKING", "hccl_deterministic launch_blocking"),
        ("seed_all", "seed deterministic hash_seed"),
    ),
}
"""section -> row of the guide, and the fields and conditions of the check that serve it"""
_MORE = {
    "Training Inference Template Consistency": " --inference examples/guide/chat_template.jinja",
    "Special Words Check": " --data examples/guide/data",
    "input_ids check": " --data examples/guide/data",
}
_ENVIRONMENT = ("Overflow Detection", "Version Check", "HCCL_DETERMINISTIC, ASCEND_LAUNCH_BLOCKING")
"""rows that a file of variables and versions tells of"""
_NOTES = {
    "lr": "`-o OUT` draws learning rate and weight decay of every step.",
    "bias add": "Follows the dtype of the matrix product in both frameworks and no setting changes it: "
    "`trueup compare TARGET REFERENCE` shows it in the precision table of two captured runs.",
    "Special Words Check": "Against the other side, and the ids that begin, end and fill the documents.",
    "input_ids check": "Of a data set here; `trueup check-run` and `trueup diagnose` look at every batch.",
    "Differences with Open Source": "Give the published configuration as REFERENCE.",
}
_WITHOUT_OUTPUT = ("bias add",)
TAIL = """
## Pre-training preparation

```console
$ trueup check TARGET REFERENCE --prepare -o OUT
$ trueup check TARGET REFERENCE --expand -o OUT
```

write both sides reduced (two layers, constant learning rate, no warmup, no dropout, Adam's eps 1e-8, one
device, fixed seeds, deterministic kernels) and the way back up, one feature a rung; each rung is held against
the other side's.
See [check.md](check.md#a-first-reproduction).

## Acceptance over a recommendation

```console
$ trueup accept --config TARGET REFERENCE ... --waive clip_grad "the published recipe clips at 5" -o OUT
```

See [accept.md](accept.md). Without the waiver the sign-off stays undecided.

## Loss curves

See [curves.md](curves.md).

## Steps 1 and 2: compare and diagnose

See [diagnose.md](diagnose.md) and [matching.md](matching.md).

## Dumps

See [mindspore-dumps.md](mindspore-dumps.md) and [migration.md](migration.md).

## Weights

See [weights.md](weights.md).
"""


def page() -> str:
    """The complete page."""
    return "\n".join([HEAD, "## Checklist", *_checklist()]).rstrip("\n") + "\n" + TAIL


def _checklist() -> Iterator[str]:
    for section, rows in SECTIONS.items():
        yield f"\n### {section}\n"
        for row, keys in rows:
            yield f"#### {row}\n"
            if row in _NOTES:
                yield f"{_NOTES[row]}\n"
            if row not in _WITHOUT_OUTPUT:
                command, shown = _asked(row, keys.split())
                yield f"```console\n$ trueup {command}\n{shown}\n```\n"


def _asked(row: str, keys: list[str]) -> tuple[str, str]:
    """The command of a row and its output; with ``--all`` where both sides agree."""
    pair = WITH_ENVIRONMENT if row in _ENVIRONMENT else PAIR
    command = f"check {pair} --only {','.join(keys)}{_MORE.get(row, '')}"
    shown = output(command)
    if not any(f" {key} " in f"{line} " for line in shown.splitlines() for key in keys):
        command += " --all"
        shown = output(command)
    return command, shown


def output(command: str) -> str:
    """What a person sees who runs it in the root of the repository."""
    was, columns = Path.cwd(), os.environ.get("COLUMNS")
    shown = io.StringIO()
    os.chdir(DOCS.parent)
    os.environ["COLUMNS"] = str(WIDTH)
    try:
        with contextlib.redirect_stdout(shown):
            run(shlex.split(command))
    finally:
        os.chdir(was)
        os.environ.pop("COLUMNS") if columns is None else os.environ.update(COLUMNS=columns)
    lines = [line.rstrip() for line in shown.getvalue().splitlines()]
    return "\n".join(lines).strip("\n")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
