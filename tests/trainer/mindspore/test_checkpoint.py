"""Checkpoints: a run that continues has the bits of one that did not stop, also from the other framework."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trueup_gpt
from tests.trainer.layouts import MOE, configuration
from trueup.errors import ConfigError
from trueup_gpt.config import Config, config_from
from trueup_gpt.logs import RunLog
from trueup_gpt.mindspore.session import Session, prepare
from trueup_gpt.train import train

pytestmark = [pytest.mark.mindspore, pytest.mark.torch]


def _config(folder: Path, steps: int, *, resume: bool = False, **sections: Any) -> Config:
    training = {
        "training_iters": steps,
        "output_dir": str(folder),
        "save_interval": 2,
        "resume_training": resume,
        "tensorboard": False,
        **sections.pop("training", {}),
    }
    return config_from(configuration("float32", training=training, **sections))


def _losses(session: Any, config: Config) -> list[float]:
    log = RunLog(config.training.output_dir, 0, speaks=False, tensorboard=False)
    try:
        return train(session, log).losses
    finally:
        log.close()


def _here(config: Config) -> tuple[Session, list[float]]:
    session = prepare(config, device="cpu")
    return session, _losses(session, config)


def _on_torch(config: Config) -> tuple[Any, list[float]]:
    session = trueup_gpt.prepare(config, device="cpu")
    return session, _losses(session, config)


def _weights(session: Session) -> dict[str, np.ndarray[Any, Any]]:
    return {fqn: one.asnumpy().copy() for fqn, one in session.parallel.parameters.items()}


CASES: dict[str, dict[str, Any]] = {
    "AdamW": {},
    "SGD": {"optimizer": {"optimizer_type": "SGD", "momentum": 0.9}},
    "Came": {"optimizer": {"optimizer_type": "Came", "betas": [0.9, 0.999, 0.9999], "eps": [1e-30, 1e-16]}},
    "experts": {"moe": MOE},
    "safetensors": {"training": {"ckpt_format": "safetensors"}},
    "a scaled loss": {"training": {"loss_scale_value": 1024.0, "loss_scale_window": 3}},
}


@pytest.mark.parametrize("name", CASES)
def test_a_run_that_continues_has_the_bits_of_one_that_does_not_stop(name: str, tmp_path: Path) -> None:
    sections = CASES[name]
    whole, losses = _here(_config(tmp_path / "whole", 4, **sections))
    _here(_config(tmp_path / "cut", 2, **sections))
    again, rest = _here(_config(tmp_path / "cut", 4, resume=True, **sections))
    assert rest == losses[2:]
    assert again.step.scale.state_dict() == whole.step.scale.state_dict()
    expected = _weights(whole)
    assert all(np.array_equal(value, expected[fqn]) for fqn, value in _weights(again).items())


@pytest.mark.parametrize("name", CASES)
def test_a_run_of_torch_continues_here_and_back(name: str, tmp_path: Path) -> None:
    sections = CASES[name]
    first, losses = _on_torch(_config(tmp_path, 2, **sections))
    frozen = _config(tmp_path, 2, resume=True, **sections)
    session = prepare(frozen, device="cpu")
    assert session.checkpoints(lambda message: None).resume() is not None
    for fqn, parameter in first.parallel.parameters.items():
        assert np.array_equal(session.parallel.parameters[fqn].asnumpy(), parameter.detach().numpy()), fqn
    for piece in first.parallel.engine.pieces:
        state = first.step.optimizer.state[piece.parameter]
        mine = next(one for one in session.parallel.engine.pieces if one.fqn == piece.fqn)
        held = session.step.optimizer.state_of(session.step.index_of(mine))
        assert held.keys() == state.keys()
        for key, value in state.items():
            assert np.array_equal(held[key].asnumpy(), value.numpy()), (piece.fqn, key)
    _, straight = _on_torch(_config(tmp_path / "straight", 6, **sections))
    _, here = _here(_config(tmp_path, 4, resume=True, **sections))
    back, there = _on_torch(_config(tmp_path, 6, resume=True, **sections))
    assert [*losses, *here, *there] == pytest.approx(straight, abs=1e-4)
    assert back.step.number == 6


def test_a_distributed_checkpoint_of_torch_is_refused_with_what_would_do(tmp_path: Path) -> None:
    config = _config(tmp_path, 2, training={"ckpt_format": "torch_dist"})
    _on_torch(config)
    with pytest.raises(ConfigError, match="ckpt_format"):
        _here(_config(tmp_path, 4, resume=True))


def test_a_checkpoint_without_a_part_names_what_it_lacks(tmp_path: Path) -> None:
    _here(_config(tmp_path, 2))
    part = next(tmp_path.glob("checkpoints/*/part_0.ckpt"))
    part.rename(part.with_name("part_0.away"))
    (part.with_name("part_1.safetensors")).write_bytes(_empty())
    with pytest.raises(ConfigError, match=r"model\.word_embeddings\.weight"):
        _here(_config(tmp_path, 4, resume=True))


def _empty() -> bytes:
    from safetensors.numpy import save

    return save({"other@0": np.zeros(1, np.float32)})


def test_another_model_is_refused(tmp_path: Path) -> None:
    _here(_config(tmp_path, 2))
    config = _config(tmp_path, 4, resume=True, model={"ffn_hidden_size": 64})
    with pytest.raises(ConfigError, match=r"mlp\.gate"):
        _here(config)
