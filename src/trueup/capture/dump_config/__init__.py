"""The configuration of MindSpore's own dump: written from a person's wish, checked before it is used."""

from trueup.capture.dump_config.build import (
    DeviceTarget,
    DumpRequest,
    InputOutput,
    JitLevel,
    Kind,
    dump_settings,
    environment_lines,
)
from trueup.capture.dump_config.check import Mistake, check_dump_config

__all__ = [
    "DeviceTarget",
    "DumpRequest",
    "InputOutput",
    "JitLevel",
    "Kind",
    "Mistake",
    "check_dump_config",
    "dump_settings",
    "environment_lines",
]
