"""The tables of pipeline schedules against those that torch computes."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest

from tests.trainer.layouts import configuration
from trueup_gpt.config import Config, config_from
from trueup_gpt.parallel.schedules import Action, actions_of, messages

pytestmark = pytest.mark.torch


def _config(pp: int, microbatches: int, chunks: int | None = None, schedule: str | None = None) -> Config:
    parallel = {"pipeline_model_parallel_size": pp, "virtual_pipeline_model_parallel_size": chunks}
    return config_from(
        configuration(
            parallel={**parallel, "pipeline_schedule": schedule},
            model={"num_layers": pp * (chunks or 1)},
            dataset={"micro_batch_num": microbatches},
        )
    )


def _text(actions: list[Action]) -> list[str]:
    return [f"{one.stage}{'F' if one.forward else 'B'}{one.microbatch}" for one in actions]


def _of_torch(kind: Any, rank: int, pp: int, microbatches: int, chunks: int) -> list[str]:
    """The order of one rank, without the pauses."""
    stages = []
    for chunk in range(chunks):
        stage = MagicMock(group_size=pp, group_rank=rank, num_stages=pp * chunks, has_backward=True)
        stage.stage_index = chunk * pp + rank
        stages.append(stage)
    schedule = kind(stages, n_microbatches=microbatches, loss_fn=lambda a, b: a)
    return [str(one) for one in schedule.pipeline_order[rank] if one is not None]


@pytest.mark.parametrize(("pp", "microbatches", "chunks"), [(2, 4, 2), (4, 8, 2), (2, 6, 3)])
def test_interleaved_is_that_of_torch(pp: int, microbatches: int, chunks: int) -> None:
    from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B

    for rank in range(pp):
        found = _text(actions_of(_config(pp, microbatches, chunks), rank))
        assert found == _of_torch(ScheduleInterleaved1F1B, rank, pp, microbatches, chunks)


def test_one_forward_one_backward_after_a_warm_up() -> None:
    config = _config(2, 3)
    assert _text(actions_of(config, 0)) == ["0F0", "0F1", "0B0", "0F2", "0B1", "0B2"]
    assert _text(actions_of(config, 1)) == ["1F0", "1B0", "1F1", "1B1", "1F2", "1B2"]


def test_all_forwards_before_all_backwards() -> None:
    config = _config(2, 2, schedule="gpipe")
    assert _text(actions_of(config, 0)) == ["0F0", "0F1", "0B0", "0B1"]


@pytest.mark.parametrize(
    ("pp", "microbatches", "chunks"), [(2, 2, None), (4, 4, 2), (3, 5, None), (4, 1, None)]
)
def test_no_rank_waits_for_one_that_waits_for_it(pp: int, microbatches: int, chunks: int | None) -> None:
    """Whoever can go on does; a message is there once its sender has made it."""
    config = _config(pp, microbatches, chunks)
    last = pp * (chunks or 1) - 1
    todo = {rank: actions_of(config, rank) for rank in range(pp)}
    sent = {(a, b): messages(config, a, b) for a in range(pp) for b in range(pp)}
    assert sum(map(len, sent.values())) == 2 * last * microbatches
    done: set[Action] = set()
    while any(todo.values()):
        ready = [
            rank
            for rank, actions in todo.items()
            if actions and (_needs(actions[0], last) is None or _needs(actions[0], last) in done)
        ]
        assert ready, todo
        for rank in ready:
            done.add(todo[rank].pop(0))


def _needs(action: Action, last: int) -> Action | None:
    """What another stage must have done."""
    if action.forward:
        return None if action.stage == 0 else Action(True, action.stage - 1, action.microbatch)
    return None if action.stage == last else Action(False, action.stage + 1, action.microbatch)
