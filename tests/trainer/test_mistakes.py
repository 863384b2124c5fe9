"""Known mistakes of parallel trainers: each is made on purpose, and the comparison goes red."""

from __future__ import annotations

from typing import Any

import pytest

from tests.trainer.breakages import BREAKAGES
from tests.trainer.layouts import MOE, configuration, reference
from tests.trainer.worlds import world
from trueup_gpt.config import config_from
from trueup_gpt.data.batch import Batch
from trueup_gpt.torch.parallel.mesh import Mesh
from trueup_gpt.torch.parallel.stages import build

pytestmark = [pytest.mark.torch, pytest.mark.distributed, pytest.mark.xdist_group("worlds")]
TP, PP, CP, EP = (
    f"{word}_size"
    for word in (
        "tensor_model_parallel",
        "pipeline_model_parallel",
        "context_parallel",
        "expert_model_parallel",
    )
)
SP = {TP: 2, "sequence_parallel": True}
TIED = {"untie_embeddings_and_output_weights": False}
STEPS = 2
CASES: dict[str, dict[str, dict[str, Any]]] = {
    "norm gradients not summed over tp": {"parallel": SP},
    "router gradient not summed over tp": {"parallel": SP, "moe": MOE},
    "tied gradient not summed over stages": {"parallel": {PP: 2}, "model": TIED},
    "router losses counted by every tp rank": {"parallel": {TP: 2}, "moe": MOE},
    "loss divided by own tokens": {"parallel": {CP: 2}},
    "keys of own tokens only": {"parallel": {CP: 2}},
    "attention output not summed": {"parallel": {TP: 2}},
    "expert gradients summed over ep": {"parallel": {EP: 2}, "moe": MOE},
    "replicas counted in the norm": {},
    "data-parallel ranks read the same rows": {},
}
OVERFLOW = {"loss_scale_value": 1024.0, "loss_scale_window": 100}


def test_every_mistake_has_a_case() -> None:
    assert CASES.keys() | {"finite decided alone"} == BREAKAGES.keys()


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_seen(name: str) -> None:
    plain = configuration(**CASES[name])
    losses, norms = world(2).run("tests.trainer.breakages:train", plain, name, STEPS)[0]
    expected = reference(plain)
    far = max(
        *(abs(a - b) for a, b in zip(losses, expected.losses, strict=False)),
        *(abs(a - b) for a, b in zip(norms, expected.norms, strict=False)),
    )
    assert far > 1e-4, "the layouts' bound of 1e-10 would not see it"


@pytest.mark.parametrize("rank", [0, 1])
def test_an_overflow_in_one_process_skips_the_step_in_all(rank: int) -> None:
    plain = configuration("float32", training=OVERFLOW, parallel={TP: 2})
    found = world(2).run("tests.trainer.breakages:overflow", plain, None, rank)
    assert found[0] == found[1] == [(True, 1024.0), (False, 512.0), (True, 512.0)]


def test_an_overflow_judged_by_each_process_alone_parts_them() -> None:
    plain = configuration("float32", training=OVERFLOW, parallel={TP: 2})
    found = world(2).run("tests.trainer.breakages:overflow", plain, "finite decided alone", 1)
    assert found[0][1] != found[1][1]


def test_gloo_scales_no_sums() -> None:
    """Which FSDP2 asks of it for any gradient in float32, unless it is told to divide by itself."""
    plain = configuration("float32", parallel={"zero_level": "z3"})
    said = world(2).run("tests.trainer.breakages:scaled_sums", plain)
    assert all("PREMUL" in one or "reduce op" in one.lower() for one in said), said


def test_no_forward_runs_only_to_find_shapes() -> None:
    plain = configuration(parallel={PP: 2}, dataset={"micro_batch_num": 4})
    assert world(2).run("tests.trainer.breakages:forward_calls", plain) == [4, 4]


def test_tied_weights_stay_one_parameter_when_they_are_cut() -> None:
    import torch

    plain = configuration(model=TIED, parallel={TP: 2})
    mesh = Mesh({"pp": 1, "edp": 1, "ep": 1, "cp": 1, "tp": 1}, 0, torch.device("cpu"))
    model = build(config_from(plain), mesh).stages[0].model
    assert model.output.weight is model.word_embeddings.weight


def test_a_pipeline_refuses_rows_of_another_length() -> None:
    plain = configuration(parallel={PP: 2})
    with pytest.raises(
        RuntimeError, match=r"a microbatch of \(2, 8\) tokens in a pipeline that was made for"
    ):
        world(2).run("tests.trainer.test_mistakes:shorter_rows", plain)


def shorter_rows(plain: dict[str, Any]) -> None:
    """In every process: one step with rows half as long."""
    import torch

    from tests.trainer.layouts import start

    step = start(plain)[3]
    ids = torch.zeros((2, 8), dtype=torch.int64)
    batch = Batch(tokens=ids, labels=ids, loss_mask=torch.ones(2, 8))
    step([batch, batch])
