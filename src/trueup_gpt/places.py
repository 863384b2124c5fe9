"""What a run reads is not written: places of the configuration held against each other before it starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trueup.errors import ConfigError
from trueup_gpt.config import Config

_OF_A_CHECKPOINT = "run.json"


def check_places(config: Config, export: Path | None = None) -> None:
    """Raise where ``output_dir`` or ``export`` is a folder that the run reads, or lies in a checkpoint.

    A folder below the data is apart from it.

    Args:
        config: of the run.
        export: the folder of ``--export``.

    Raises:
        ConfigError: naming both places.
    """
    output = config.training.output_dir
    written = [("training_config.output_dir", output)] if export is None else [("--export", export)]
    for name, place in written:
        if place.exists() and not place.is_dir():
            kind = "a file" if place.is_file() else "a device"
            raise ConfigError(f"{name}: expected a folder, or a name for a new one (got {place}, {kind})")
        around = next((one for one in (place, *place.parents) if (one / _OF_A_CHECKPOINT).is_file()), None)
        if around is not None:
            raise ConfigError(f"{name}: expected a folder outside checkpoints (got {place}; {around} is one)")
        for what, read in _read(config):
            if place.resolve() == read.resolve():
                raise ConfigError(
                    f"{name}: expected a folder of its own (got {place}, which is {what}, and is only read)"
                )
    if export is not None and export.resolve() == output.resolve():
        raise ConfigError(f"--export: expected a folder of its own (got {export}, which is output_dir)")


def _read(config: Config) -> Iterator[tuple[str, Path]]:
    data = config.dataset
    for name, place in (("dataset_dir", data.dataset_dir), ("validation_dir", data.validation_dir)):
        if place is not None and place.is_dir():
            yield f"dataset_config.{name}", place
