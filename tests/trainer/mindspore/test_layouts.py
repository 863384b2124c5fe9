"""Every layout on MindSpore against one process of it, in float64: losses, gradients, norms, weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.layouts import MOE, Run, cut, differences
from tests.trainer.mindspore.runs import ALL, in_world, reference

pytestmark = [
    pytest.mark.mindspore,
    pytest.mark.distributed,
    pytest.mark.slow,
    pytest.mark.xdist_group("mindspore worlds"),
]

MOST = 1e-10
FOUR = {"num_layers": 4}


def _parallel(**sizes: Any) -> dict[str, dict[str, Any]]:
    short = {"tp": "tensor_model", "pp": "pipeline_model", "cp": "context", "ep": "expert_model"}
    long = {f"{short[key]}_parallel_size" if key in short else key: value for key, value in sizes.items()}
    return {"parallel": long}


LAYOUTS: dict[int, dict[str, dict[str, dict[str, Any]]]] = {
    2: {
        "dp2": {},
        "tp2": _parallel(tp=2),
        "tp2 sp": _parallel(tp=2, sequence_parallel=True),
        "pp2 1f1b": _parallel(pp=2),
        "pp2 gpipe": _parallel(pp=2, pipeline_schedule="gpipe"),
        "pp2 interleaved": {**_parallel(pp=2, virtual_pipeline_model_parallel_size=2), "model": FOUR},
        "pp2 tied": {**_parallel(pp=2), "model": {"untie_embeddings_and_output_weights": False}},
        "cp2": _parallel(cp=2),
        "ep2": {**_parallel(ep=2), "moe": MOE},
        "tp2 sp experts": {**_parallel(tp=2, sequence_parallel=True), "moe": MOE},
        "dp2 zero1": _parallel(zero_level="z1"),
        "ep2 zero1": {**_parallel(ep=2, zero_level="z1"), "moe": MOE},
    },
    4: {
        "dp2 tp2 sp zero1": _parallel(tp=2, sequence_parallel=True, zero_level="z1"),
        "pp2 tp2 sp": _parallel(pp=2, tp=2, sequence_parallel=True),
        "tp4": {**_parallel(tp=4), "model": {"num_query_groups": 4}},
        "ep4": {**_parallel(ep=4), "moe": MOE},
        "pp4": {**_parallel(pp=4), "model": FOUR},
        "dp2 pp2 interleaved zero1": {
            **_parallel(pp=2, virtual_pipeline_model_parallel_size=2, zero_level="z1"),
            "model": FOUR,
        },
    },
}
SIZES = (2, 4) if ALL else (2,)
ALIKE = ("dp2", "pp2 1f1b", "pp2 gpipe", "pp2 interleaved", "pp4", "dp2 zero1")
"""one process adds the same numbers in the same order: bit for bit"""


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Run | str]]:
    """All layouts of one size run in processes that are started once: that is what takes the time."""
    return {
        size: in_world(
            size, {name: cut(some, size) for name, some in cases.items()}, _folder(tmp_path_factory, size)
        )
        for size, cases in LAYOUTS.items()
        if size in SIZES
    }


def _folder(factory: pytest.TempPathFactory, size: int) -> Path:
    return factory.mktemp(f"world{size}")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("size", "name"), [(size, name) for size in SIZES for name in LAYOUTS[size]])
def test_a_layout_is_the_same_mathematics(
    size: int, name: str, worlds: dict[int, dict[str, Run | str]]
) -> None:
    found = worlds[size][name]
    assert isinstance(found, Run), found
    apart = differences(found, reference(cut(LAYOUTS[size][name], size)))
    most = 0.0 if name in ALIKE else MOST
    norms = 1e-15  # added up over processes in another order
    assert all(value <= (max(most, norms) if "norm" in what else most) for what, value in apart.items()), (
        apart
    )
