"""Writes docs/guide.md: the accuracy guide's table of contents, each row with its command and output."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import shutil
import subprocess
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trueup.cli.app import run

DOCS = Path(__file__).parent
PAGE = DOCS / "guide.md"
WIDTH = 104
TARGET = "examples/guide/target.yaml"
REFERENCE = "examples/guide/reference.sh"
PAIR = f"{TARGET} {REFERENCE}"
RUNS, MADE = "out/guide", "out/guide-made"
ARCHIVES = ("tests/fixtures/goldens/inputs.tar.xz", "tests/fixtures/mindspore/mindspore-2.10.tar.xz")
WITH_ENVIRONMENT = f"{TARGET},examples/guide/target.env {REFERENCE}"
HEAD = f"""# The accuracy guide, row by row

Written by `python docs/make_guide.py`, which runs every command shown; a test runs them again. The pair that
is checked is in `examples/guide`: a MindFormers configuration that violates many rows, and a Megatron script.

`trueup check TARGET REFERENCE` looks at every row at once ([check.md](check.md)). The verdict has two parts:
whether both describe the same training, and whether the guide's recommendations are followed. Here the rows
are asked one by one, with `--only`; `--all` shows a row on which both sides agree.
[guide-rows.md](guide-rows.md) names the test that proves each row. Lines are {WIDTH} columns wide
(`export COLUMNS={WIDTH}`); in a narrower terminal they are broken earlier.
"""
WHOLE = f"check {WITH_ENVIRONMENT}"
SHOWN_OF_WHOLE = 12
"""lines of the check of all rows that the page shows"""
CONTENTS = """## Contents

1. [Overview](#overview): which command for which problem
2. [Checklist](#checklist): network structure, mixture of experts, optimizer, weights, mixed precision,
   parallel strategy, other rows, randomness
3. [Accuracy debugging tools](#accuracy-debugging-tools): dumps of MindSpore, weights
4. [Generalized process](#generalized-process): the order of the stages
5. [Stage 1: pre-training preparation](#stage-1-pre-training-preparation): parameters, weights, data
   (with the guide's appendix), randomness
6. [Stage 2: basic problem identification](#stage-2-basic-problem-identification): steps 1 and 2
7. [Stage 3: long and stable training](#stage-3-long-and-stable-training): learning rate 0, repeats, scenario
   expansion
8. [Accuracy standard for migrated models](#accuracy-standard-for-migrated-models)
9. [Case details](#case-details)

## Overview

The guide's common problems, and what answers each.

| problem | command |
|---|---|
| does not converge, or poorly: [checklist](#checklist), first | `trueup check`, `trueup diagnose` |
| runs away, or differs, late: [stage 3](#stage-3-long-and-stable-training) | `trueup curves` |
| overflow, NaN: [check-run.md](check-run.md) | `trueup capture --task overflow_check` |
| does not fit the benchmark: [stage 2](#stage-2-basic-problem-identification) | `trueup diagnose` |
| is it noise? [Repeats](#benchmark-error-confirmation) of the reference | `trueup curves`, `trueup noise` |
| downstream tasks: [standard](#accuracy-standard-for-migrated-models) | `trueup accept --eval` |
"""
STAGES = f"""The runs and logs below are small ones that the tests keep, with one fault each.

```console
$ mkdir -p {RUNS}
$ for a in {" ".join(ARCHIVES)}; do tar -xf $a -C {RUNS}; done
```
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
        ("bias add", "compute_dtype"),
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
    "bias add": "Follows the dtype of the matrix product in both frameworks, so the row of that dtype "
    "answers; `trueup compare TARGET REFERENCE` names the additions of two captured runs that compute in "
    "other dtypes.",
    "Special Words Check": "Against the other side, and the ids that begin, end and fill the documents.",
    "input_ids check": "Of a data set here; `trueup check-run` and `trueup diagnose` look at every batch.",
    "Differences with Open Source": "Give the published configuration as REFERENCE.",
}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A row of the guide's later chapters: what serves it, and what that prints."""

    row: str
    said: str
    commands: tuple[str, ...] = ()
    shown: bool = True
    """whether the commands are run here; else they need a program of the reader's own"""


REPEATS = f"--reference {RUNS}/gpu1.log {RUNS}/gpu2.log"
CHAPTERS: dict[str, tuple[Asked, ...]] = {
    "Accuracy debugging tools": (
        Asked(
            row="Dump of graph mode, O0/O1 and O2",
            said="Writes the JSON of the guide and the environment for it; `--check` reads one that is there "
            "as MindSpore would. [mindspore-dumps.md](mindspore-dumps.md) has every field.",
            commands=(
                f"dump-config --kind full --path /dump --iteration '0|5-8|100-120' -o {MADE}/dump.json "
                f"--overwrite",
                f"dump-config --check {RUNS}/mindspore-2.10/cfg_full.json",
            ),
        ),
        Asked(
            row="Partial, overflow and conditional dump",
            said="The same with another `--kind`.",
            commands=(
                f"dump-config --kind overflow --path /dump -o {MADE}/overflow.json --overwrite",
                f"dump-config --kind condition --path /dump --kernel MatMul -o {MADE}/condition.json "
                f"--overwrite",
            ),
        ),
        Asked(
            row="Reading a dump: statistic.csv, .npy, .bin",
            said="A dump is given wherever a trace is; the article's `config.json` and `compare.json` are "
            "read "
            "as well ([dump-article.md](dump-article.md)).",
            commands=(
                f"inspect {RUNS}/mindspore-2.10/graph_O0",
                f"compare {RUNS}/mindspore-2.10/graph_O0 {RUNS}/mindspore-2.10/graph_O0",
            ),
        ),
        Asked(
            row="TroubleShooter: weight conversion and comparison",
            said="[weights.md](weights.md) lists the files and the layouts.",
            commands=(f"compare-weights {RUNS}/two-at-once {RUNS}/reference",),
        ),
    ),
    "Generalized process": (
        Asked(
            row="The order of the stages",
            said="Where the checklist is in order and the problem remains: a small model on one device "
            "(stage 1), steps 1 and 2 (stage 2), the long run (stage 3). `trueup diagnose TARGET REFERENCE` "
            "goes through data, weights, forward, loss, backward, reduction, optimizer and next step in this "
            "order and says at which one the runs diverge ([diagnose.md](diagnose.md)).",
        ),
    ),
    "Stage 1: pre-training preparation": (
        Asked(
            row="Aligning parameters",
            said="Both sides reduced, each in its own format: two layers, constant learning rate, no "
            "warmup, no "
            "dropout, Adam's eps 1e-8, one device ([check.md](check.md#a-first-reproduction)).",
            commands=(f"check {PAIR} --prepare -o {MADE}/reduced",),
        ),
        Asked(
            row="Weight conversion",
            said="Names, fused matrices, layouts: `--to mindformers-mcore-1.7`, `--to megatron` and others "
            "([weights.md](weights.md)); `--like` writes the plan for a port that nobody described yet. "
            "Here the initial weights of a captured run, as MindSpore names them.",
            commands=(
                f"convert-weights {RUNS}/reference {MADE}/weights.ckpt --to mindspore",
                f"compare-weights {MADE}/weights.ckpt {RUNS}/reference",
            ),
        ),
        Asked(
            row="The same data at every step (appendix)",
            said="The appendix's folders from a captured run, without an edit of its program; the "
            "configuration "
            "of MindFormers that reads them is printed. [batches.md](batches.md) has Megatron's side.",
            commands=(f"export --format batches --per row {RUNS}/reference {MADE}/batches",),
        ),
        Asked(
            row="Fixed randomness and deterministic computation",
            said="The lines to add, each with its reason; `trueup capture --deterministic` needs none.",
            commands=("seed-all --framework mindspore",),
        ),
    ),
    "Stage 2: basic problem identification": (
        Asked(
            row="Comparison of step 1 losses",
            said="Where the first difference begins, by maximum, minimum, norm or values.",
            commands=(f"compare {RUNS}/norm-eps {RUNS}/reference",),
        ),
        Asked(
            row="Finding the correspondence of layers",
            said="Across frameworks too ([matching.md](matching.md)).",
            commands=(f"match {RUNS}/transposed {RUNS}/reference",),
        ),
        Asked(
            row="Local norms of step 1",
            said="Every weight's gradient against the reference's; logs of MindFormers' `local_norm` and "
            "of the "
            "edited Megatron are read by `trueup curves`.",
            commands=(f"diagnose {RUNS}/gradient-scale {RUNS}/reference -o {MADE}/local-norms",),
        ),
        Asked(
            row="Optimizer computation",
            said="The reference's gradients put into the target's optimizer: `--replay COMMAND` runs it, "
            "`--gradients` takes a run made so. `trueup export --format grads` writes them as the guide's "
            ".npy.",
            commands=(
                f"diagnose {RUNS}/rate {RUNS}/reference-of-two --gradients {RUNS}/rate.gradients "
                f"-o {MADE}/optimizer",
            ),
        ),
    ),
    "Stage 3: long and stable training": (
        Asked(
            row="Weights not updated",
            said="`trueup capture --learning-rate 0` trains any program so.",
            commands=(f"curves {RUNS}/still.log --reference {RUNS}/still0.log",),
        ),
        Asked(
            row="Benchmark error confirmation",
            said="Two runs of the reference with determinism off give the band; [curves.md](curves.md) "
            "says how, and "
            "[curves-accuracy.md](curves-accuracy.md) how accurate the numbers are.",
            commands=(f"curves {RUNS}/good.log {REPEATS} --assume all",),
        ),
        Asked(
            row="Loss diffusion",
            said="The step, and the commands around it: capture, skip the batch, look for overflow.",
            commands=(f"curves {RUNS}/parted.log {REPEATS}",),
        ),
        Asked(
            row="Loss varies greatly in the later stages",
            said="Learning rate and weight decay step by step are `trueup check`'s; a small late gap goes to "
            "downstream tasks.",
            commands=(f"curves {RUNS}/offset.log {REPEATS}",),
        ),
        Asked(
            row="Scenario expansion",
            said="The way back up, one feature a rung; with REFERENCE each is held against the other side's.",
            commands=(f"check {TARGET} --expand -o {MADE}/ladder",),
        ),
    ),
    "Accuracy standard for migrated models": (
        Asked(
            row="Indicators and default configuration",
            said="First loss, mean loss, global norm, repeats, 1,000 steps; what no log proves stays "
            "open, or is vouched "
            "for and said so ([accept.md](accept.md)). Without the waiver the sign-off stays undecided.",
            commands=(
                f"accept {RUNS}/repeat {RUNS}/reference --config {RUNS}/settings.json {RUNS}/settings.json "
                f"--curves {RUNS}/good.log {RUNS}/gpu1.log {RUNS}/gpu2.log "
                f"--learning-rate-0 {RUNS}/still.log {RUNS}/still0.log "
                f"--eval {RUNS}/good-eval.json {RUNS}/eval.json "
                f'--waive adam_beta2 "the published recipe" -o {MADE}/sign-off',
            ),
        ),
    ),
    "Case details": (
        Asked(
            row="Problem phenomenon",
            said="A loss about 0.1 higher late in the run: the log under "
            "[loss varies greatly in the later stages](#loss-varies-greatly-in-the-later-stages) has one.",
        ),
        Asked(
            row="Problem location process",
            said="The checklist; [step 1's loss](#comparison-of-step-1-losses); "
            "[local norms](#local-norms-of-step-1), which differ at the embedding; "
            "[the optimizer](#optimizer-computation); [learning rate 0](#weights-not-updated); "
            "[the long run](#loss-varies-greatly-in-the-later-stages); "
            "[repeats of the reference](#benchmark-error-confirmation).",
        ),
        Asked(
            row="The case with real programs",
            said="`make demo-migration` tells it with a PyTorch program and its MindSpore port: embedding "
            "in another dtype, "
            "then weight decay ([migration.md](migration.md)). `make demo-guide` walks through the three "
            "stages "
            "in two minutes.",
        ),
        Asked(
            row="Local norm of the embedding",
            said="From two configurations alone the dtype of the embedding is a row to verify.",
            commands=(f"check {PAIR} --only embedding_dtype,head_dtype",),
        ),
    ),
}
"""chapter after the checklist -> its rows"""


def page() -> str:
    """The complete page."""
    unpack()
    shutil.rmtree(DOCS.parent / MADE, ignore_errors=True)
    whole = "\n".join(output(WHOLE).splitlines()[:SHOWN_OF_WHOLE])
    first = f"```console\n$ trueup {WHOLE} | head -n {SHOWN_OF_WHOLE}\n{whole}\n```\n"
    runs = ("## Runs used below\n", STAGES)
    parts = [HEAD, first, CONTENTS, "## Checklist", *_checklist(), *runs, *_chapters()]
    return "\n".join(parts).rstrip("\n") + "\n"


def unpack() -> None:
    """The captured runs and logs, as the page says; whole or not at all."""
    folder = DOCS.parent / RUNS
    if folder.exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        for archive in ARCHIVES:
            subprocess.run(["tar", "-xf", DOCS.parent / archive, "-C", made], check=True)
        with contextlib.suppress(OSError):
            Path(made).chmod(0o755)
            shutil.copytree(made, folder)


def _chapters() -> Iterator[str]:
    for chapter, rows in CHAPTERS.items():
        yield f"## {chapter}\n"
        for asked in rows:
            said = textwrap.fill(asked.said, 110, break_long_words=False, break_on_hyphens=False)
            yield f"### {asked.row}\n\n{said}\n"
            for command in asked.commands:
                shown = f"\n{output(command)}" if asked.shown else ""
                yield f"```console\n$ trueup {command}{shown}\n```\n"


def _checklist() -> Iterator[str]:
    for section, rows in SECTIONS.items():
        yield f"\n### {section}\n"
        for row, keys in rows:
            yield f"#### {row}\n"
            if row in _NOTES:
                yield f"{_NOTES[row]}\n"
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
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
            run(shlex.split(command))
    finally:
        os.chdir(was)
        os.environ.pop("COLUMNS") if columns is None else os.environ.update(COLUMNS=columns)
    lines = [line.rstrip() for line in shown.getvalue().replace(f"{DOCS.parent}/", "$PWD/").splitlines()]
    return "\n".join(lines).strip("\n")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
