"""Pipeline schedules as tables: which stage runs which microbatch forward or backward, in what order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from trueup_gpt.config import Config
from trueup_gpt.parallel.stages import chunks_per_rank


@dataclass(frozen=True, slots=True)
class Action:
    """One stage, one microbatch, one direction."""

    forward: bool
    stage: int
    microbatch: int


def schedule_of(config: Config) -> str:
    """1f1b, gpipe, interleaved or zbv."""
    return config.parallel.pipeline_schedule or ("interleaved" if chunks_per_rank(config) > 1 else "1f1b")


def actions_of(config: Config, rank: int) -> list[Action]:
    """What a pipeline rank does in a step, in order; of 1f1b, gpipe and interleaved.

    Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters" (2021), section
    2.2, with the warm-up of torch.distributed.pipelining 2.13.

    Example:
        >>> config = Config.model_validate(...)                                    # doctest: +SKIP
        >>> [f"{'F' if a.forward else 'B'}{a.microbatch}" for a in actions_of(config, 0)]  # doctest: +SKIP
        ['F0', 'F1', 'B0', 'F2', 'B1', 'B2']
    """
    pp, microbatches = config.parallel.pipeline_model_parallel_size, config.dataset.micro_batch_num
    chunks, schedule = chunks_per_rank(config), schedule_of(config)
    total = chunks * microbatches
    if schedule == "gpipe":
        warmup = total
    elif chunks == 1:
        warmup = min(total, pp - rank)
    else:
        warmup = min(total, (chunks - 1) * _of_a_round(pp, microbatches) + 2 * (pp - 1 - rank))
    forward = _in_turn(range(chunks), pp, rank, microbatches, forward=True)
    backward = _in_turn(range(chunks - 1, -1, -1), pp, rank, microbatches, forward=False)
    if chunks == 1 and schedule == "1f1b":  # its last warm-up forward is followed by a backward
        return list(_alternating(forward, backward, warmup, total, backward_first=True))
    return list(_alternating(forward, backward, warmup, total, backward_first=False))


def _of_a_round(pp: int, microbatches: int) -> int:
    """Microbatches that a chunk runs before the next chunk has its turn."""
    return microbatches // max(1, microbatches // pp)


def _in_turn(chunks: range, pp: int, rank: int, microbatches: int, *, forward: bool) -> Iterator[Action]:
    done = dict.fromkeys(chunks, 0)
    for step in count():
        chunk = chunks[(step // _of_a_round(pp, microbatches)) % len(chunks)]
        yield Action(forward, chunk * pp + rank, done[chunk])
        done[chunk] += 1


def _alternating(
    forward: Iterator[Action], backward: Iterator[Action], warmup: int, total: int, *, backward_first: bool
) -> Iterator[Action]:
    for _ in range(warmup):
        yield next(forward)
    for _ in range(total - warmup):
        pair = (backward, forward) if backward_first else (forward, backward)
        yield from (next(one) for one in pair)
    for _ in range(warmup):
        yield next(backward)


def messages(config: Config, sender: int, receiver: int) -> list[Action]:
    """What one pipeline rank sends to another in a step, in order: named by the action that it is made by."""
    pp, last = config.parallel.pipeline_model_parallel_size, _num_stages(config) - 1
    found = []
    for action in actions_of(config, sender):
        there = action.stage + (1 if action.forward else -1)
        if 0 <= there <= last and there % pp == receiver:
            found.append(action)
    return found


def _num_stages(config: Config) -> int:
    return config.parallel.pipeline_model_parallel_size * chunks_per_rank(config)
