"""Which attributes of a module are settings of it."""

from __future__ import annotations

import pytest
from torch import nn

from trueup.adapters.torch.settings import configuration_of, settings_of

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
