"""Train a GPT with the trainer's parts in one's own hands; ``trueup train`` does the same in one command.

python examples/pretrain_gpt.py --config_path tiny
torchrun --nproc-per-node 8 examples/pretrain_gpt.py --config_path pretrain_gpt_7B
"""

from __future__ import annotations

import argparse
import atexit
import os
import sys

import yaml

import trueup_gpt
from trueup.errors import TrueupError


def get_arg_parser() -> argparse.ArgumentParser:
    """The arguments of the original script."""
    parser = argparse.ArgumentParser(description="Train a GPT model")
    parser.add_argument("--config_path", default="pretrain_gpt_7B", help="YAML file, or a shipped one's name")
    parser.add_argument("--run_cmd", default="", help="noted in the log, for whoever reads it later")
    parser.add_argument("--model_type", default="gpt_config", help="the section that describes the model")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    return parser


def decays(name: str, num_dims: int) -> bool:
    """Which parameters have weight decay."""
    return "norm" not in name.lower() and "bias" not in name.lower() and num_dims > 1


def main() -> None:
    """Configuration, mesh, model, weight-decay groups, optimizer, one step, training."""
    args = get_arg_parser().parse_args()
    if args.model_type not in ("gpt_config", "model_config"):
        raise SystemExit(f"--model_type {args.model_type}: this script trains a GPT; gpt_config is wanted")
    changes = {key: yaml.safe_load(value) for key, _, value in (one.partition("=") for one in args.set)}
    config = trueup_gpt.load_config(args.config_path, changes)

    mesh = trueup_gpt.start_mesh(config)
    trueup_gpt.seed_streams(config, mesh)
    parallel = trueup_gpt.build(config, mesh)
    groups = trueup_gpt.weight_decay_groups(parallel.named(), config.optimizer.weight_decay, rule=decays)
    optimizer = trueup_gpt.build_optimizer(config.optimizer, groups)
    data, validation = trueup_gpt.open_data(config)
    num_steps = trueup_gpt.steps_of(config, data, mesh)
    step = trueup_gpt.TrainStep(parallel, optimizer, config, num_steps=num_steps)

    session = trueup_gpt.Session(config, mesh, parallel, step, data, validation, num_steps)
    log = trueup_gpt.RunLog(config.training.output_dir, mesh.rank)
    if args.run_cmd:
        log.info(f"run_cmd: {args.run_cmd}")
    trueup_gpt.train(session, log)
    log.close()


if __name__ == "__main__":
    try:
        main()
    except TrueupError as error:
        sys.exit(f"error: {error}")
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may abort a process that ends by itself
