"""Which attributes of a module are settings of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import trueup
from trueup.adapters.torch.settings import configuration_of, settings_of
from trueup.importers import open_trace

pytestmark = pytest.mark.torch


class Layer(nn.Module):
    """Carries a setting, and where it was read from."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.activation = "gelu"
        self.pattern = "a/b"
        self.weights_from = f"{folder}/model"
        self.name_or_path = "a-model"
        self.config = type("Config", (), {"hidden": 8, "files": f"{folder}/config.json", "cap": None})()
        vars(self.config).update(vars(type(self.config)))


def test_where_files_lie_is_no_setting() -> None:
    found = settings_of(Layer("/somewhere"), "")
    assert found == {"": {"activation": "gelu", "pattern": "a/b"}}
    assert found == settings_of(Layer("/elsewhere"), "")


def test_a_configuration_is_read_without_the_places_of_files() -> None:
    assert configuration_of(Layer("/somewhere")) == {"hidden": 8, "cap": None}


class Adapted(nn.Module):
    """Keeps what it is set to under the names of adapters."""

    def __init__(self) -> None:
        super().__init__()
        self.scaling = {"default": 4.0, "other": None}
        self.lora_alpha = {"default": 16}
        self.cache: dict[object, object] = {0: 1, "kept": nn.Linear(2, 2)}
        self._own = {"default": 1}


def test_values_under_keys_are_settings() -> None:
    assert settings_of(Adapted(), "") == {"": {"scaling.default": 4.0, "lora_alpha.default": 16}}


@pytest.mark.parametrize("mode", [True, False])
def test_the_mode_of_modules_that_ask_for_it(mode: bool, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.0))
    model[1].train(mode)
    with trueup.Tracer(tmp_path / "run", level="L0", steps="0", store_values_of=frozenset({"configuration"})):
        model(torch.ones(3, 4)).sum().backward()
        model.eval()
    settings = open_trace(tmp_path / "run").rank_facts(0)["settings"]
    assert [settings[name].get("training") for name in ("0", "1", "2")] == [None, mode, True]
