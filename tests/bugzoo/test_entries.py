"""Every fault changes a run in the step its entry says, and in none before; what is no fault, by rounding."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from bugzoo.bases import bases  # noqa: E402
from bugzoo.entries import HELD_OUT, TUNING, Entry, entries, plants  # noqa: E402
from bugzoo.proof import prove  # noqa: E402
from bugzoo.trainer import make_model  # noqa: E402

from tests.trainer.worlds import world  # noqa: E402
from trueup.types.finding import KindClass, Stage  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step():UserWarning"),
]
OWN = {name: base for name, base in bases().items() if not base.ported and base.framework == "pytorch"}
"""the collection's own programs; those on MindSpore are tested where that is"""
ENTRIES = {name: entry for name, entry in entries().items() if entry.base in OWN}
ALONE = [name for name, base in OWN.items() if base.ranks == 1]
TOGETHER = [name for name, base in OWN.items() if base.ranks > 1]
MOST = {"fp32": {"loss": 1e-6, "gradients": 1e-5}, "bf16": {"loss": 1e-3, "gradients": 5e-2}}
"""relative differences rounding may make in the first step"""
KINDS = frozenset(
    """
    wrong_scale wrong_sign transposed_or_permuted shifted_by_one dtype_or_rounding missing_all_reduce
    missing_zero_grad missing_or_extra_term wrong_mask stale_value dropped_update constant_argument randomness
    non_determinism overflow_underflow bit_flip wrong_optimizer_setting frozen_or_missing_gradient wrong_data
    """.split()  # noqa: SIM905
)


def wrong(said: dict[str, Any], base: str) -> list[str]:
    """What does not hold of a base's entries."""
    found = [] if said[""]["first"] is None else [f"{base} is not the same twice"]
    for entry in (entry for entry in entries().values() if entry.base == base):
        of = said[entry.name]
        if not of["finite"]:
            found.append(f"{entry.name}: the loss is not finite")
        if entry.is_benign:
            most = MOST[entry.precision]
            apart = {
                name: of["in_first_step"][name] for name in most if of["in_first_step"][name] > most[name]
            }
            found += [f"{entry.name}: more than rounding, {apart}"] if apart else []
        elif of["first"] != entry.step:
            found.append(f"{entry.name}: first differs in step {of['first']}, not {entry.step}")
    return found


@pytest.mark.parametrize("base", ALONE)
def test_entries_of_one_process(base: str) -> None:
    threads = torch.get_num_threads()
    try:
        said = prove(bases()[base])
    finally:
        torch.set_num_threads(threads)
    assert wrong(said, base) == []


@pytest.mark.distributed
@pytest.mark.xdist_group("worlds")
@pytest.mark.parametrize("base", TOGETHER)
def test_entries_of_several_processes(base: str) -> None:
    said = world(bases()[base].ranks).run("tests.bugzoo.test_entries:proved", base)
    assert wrong(said[0], base) == []


def proved(base: str) -> dict[str, Any]:
    """In every process."""
    return prove(bases()[base])


def test_a_wrong_step_and_a_large_difference_are_found() -> None:
    said = {
        entry.name: {"first": 1, "finite": True, "in_first_step": {"loss": 0.1}}
        for entry in entries().values()
    }
    said = {name: {**of, "in_first_step": {"loss": 0.1, "gradients": 0.1}} for name, of in said.items()}
    said[""] = {"first": None}
    found = wrong(said, "gpt")
    assert "norm-eps: first differs in step 1, not 0" in found
    assert any(line.startswith("repeat: more than rounding") for line in found)


def test_the_collection_is_large_and_of_every_stage() -> None:
    faults = [entry for entry in entries().values() if not entry.is_benign]
    assert len(faults) >= 60
    assert len(entries()) - len(faults) >= 12
    assert {entry.stage for entry in faults} >= {
        "data",
        "weights",
        "forward",
        "loss",
        "backward",
        "reduction",
        "optimizer",
    }
    assert {entry.base for entry in faults} >= set(bases()) - {"gpt-wide", "gpt-wide-bf16"}
    assert {entry.part for entry in faults} == {TUNING, HELD_OUT}


@pytest.mark.parametrize("entry", entries().values(), ids=entries())
def test_what_is_expected_is_said_in_the_words_of_a_finding(entry: Entry) -> None:
    assert (entry.code or entry.name) in plants() or entry.base not in OWN
    if not entry.is_benign:
        for stage in (entry.stage, *entry.also_stages):
            Stage(stage)
        if entry.axes is not None or entry.ranks is not None:
            assert bases()[entry.base].ranks > max(entry.ranks or [1])
        KindClass(entry.family)
        assert entry.kinds
        assert set(entry.kinds) <= KINDS


def test_every_plant_is_used() -> None:
    assert set(plants()) == {entry.code or entry.name for entry in ENTRIES.values()}


@pytest.mark.parametrize("base", [name for name, base in OWN.items() if base.model.parallel != "tensor"])
def test_sites_are_modules_of_the_base(base: str) -> None:
    """A pattern that names nothing could never be right."""
    modules = list(dict(make_model(bases()[base]).named_modules()))
    names = [*modules, *(name + end for name in modules for end in (".weight", ".bias"))]
    for entry in (entry for entry in entries().values() if entry.base == base):
        if entry.sites is not None:
            assert any(entry.is_site(name) for name in names), entry.name
            assert not all(entry.is_site(name) for name in names), entry.name


def test_a_weight_names_its_module() -> None:
    entry = entries()["frozen"]
    assert entry.is_site("layers.1.mlp.down")
    assert entry.is_site("layers.1.mlp.down.weight")
    assert not entry.is_site("layers.1.mlp")
    assert not entry.is_site(None)
    assert entries()["clip-off"].is_site(None)
