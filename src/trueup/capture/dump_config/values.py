"""Values that MindSpore 2.10 takes in the file ``MINDSPORE_DUMP_CONFIG`` names, and characters it allows."""

from __future__ import annotations

import re

PATH = re.compile(r"[A-Za-z0-9_/-]*")
NET_NAME = re.compile(r"[A-Za-z0-9_-]+")
"""MindSpore stops at any other character in ``path`` and ``net_name``"""
DEFAULT_STATISTICS = ("max", "min", "l2norm")
DEVICE_STATISTICS = ("max", "min", "avg", "l2norm")
STATISTICS = (
    "max",
    "min",
    "avg",
    "count",
    "negative zero count",
    "positive zero count",
    "nan count",
    "negative inf count",
    "positive inf count",
    "zero count",
    "md5",
    "l2norm",
    "hash",
    "hash:md5",
    "hash:sha1",
)
"""``statistic_category``: what the host can compute; ``DEVICE_STATISTICS`` is what the device can"""
ALL_OPERATORS, NAMED_OPERATORS, SET_DUMP = 0, 1, 2
"""values of ``dump_mode``"""
NO_DEBUG, OVERFLOW, EXCEPTION = 0, 3, 4
"""values of ``op_debug_mode``"""
REQUIRED = ("dump_mode", "net_name", "iteration", "input_output", "kernels", "support_device")
"""keys of ``common_dump_settings`` without which MindSpore stops"""
