"""What a run reads is not written, and ``--set`` is read or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from trueup.errors import ConfigError
from trueup_gpt.config import Config, load_config
from trueup_gpt.places import check_places


def config(folder: Path, **changes: object) -> Config:
    """Of a run on ``data`` that writes ``out``, where a checkpoint lies."""
    for name in ("data/below", "valid", "out/checkpoints/network_00000001"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "out/checkpoints/network_00000001/run.json").write_text("{}")
    (folder / "run.yaml").write_text("")
    places = {
        "dataset_config.dataset_dir": folder / "data",
        "dataset_config.validation_dir": folder / "valid",
        "training_config.output_dir": folder / "out",
    }
    return load_config("tiny", {key: str(value) for key, value in {**places, **changes}.items()})


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("data", r"which is dataset_config\.dataset_dir"),
        ("data/below/..", r"which is dataset_config\.dataset_dir"),
        ("valid", r"which is dataset_config\.validation_dir"),
        ("run.yaml", "a file"),
        ("out/checkpoints/network_00000001", "outside checkpoints"),
        ("out/checkpoints/network_00000001/new", "outside checkpoints"),
    ],
)
def test_places_that_are_read(output: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"training_config\.output_dir: .*{message}"):
        check_places(config(tmp_path, **{"training_config.output_dir": tmp_path / output}))
    with pytest.raises(ConfigError, match=rf"--export: .*{message}"):
        check_places(config(tmp_path), tmp_path / output)


@pytest.mark.parametrize("output", ["out", "new", "data2", "data/below", "."])
def test_places_of_their_own(output: str, tmp_path: Path) -> None:
    check_places(config(tmp_path, **{"training_config.output_dir": tmp_path / output}))
    if output != "out":
        check_places(config(tmp_path), tmp_path / output)
    else:
        with pytest.raises(ConfigError, match="which is output_dir"):
            check_places(config(tmp_path), tmp_path / output)


def test_text_that_comes_with_python_is_no_folder(tmp_path: Path) -> None:
    check_places(config(tmp_path, **{"dataset_config.dataset_dir": "pydoc:topics"}))


@pytest.mark.parametrize("key", ["training_config.seed.x", "model_config.hidden_size.y"])
def test_a_number_has_no_keys(key: str) -> None:
    with pytest.raises(ConfigError, match="has no keys of its own"):
        load_config("tiny", {key: 1})


def test_a_section_without_a_value_takes_keys(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    text = (Path(__file__).parents[2] / "src/trueup_gpt/configs/tiny.yaml").read_text()
    file.write_text(text.replace("{grad_clip_type: ClipGlobalNorm, clip_value: 1.0}", ""))
    found = load_config(file, {"training_config.grad_clip_kwargs.clip_value": 0.5})
    assert found.training.grad_clip_kwargs is not None
    assert found.training.grad_clip_kwargs.clip_value == 0.5
