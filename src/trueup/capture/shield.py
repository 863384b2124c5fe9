"""The last line of defence: no error of ours goes through a public method of capture into the program."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

from trueup.errors import TrueupError

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def shielded(method: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result | None]:
    """``method``, which then returns None and says so on standard error where it fails by an error of ours.

    A person's mistake (``TrueupError``) and a warning that the program has made an error still raise.
    """

    @functools.wraps(method)
    def safe(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result | None:
        try:
            return method(*args, **kwargs)
        except (TrueupError, Warning):
            raise
        except Exception as error:
            say(f"{method.__qualname__} failed: {type(error).__name__}: {error}. Training continues.")
            return None

    return safe


def say(sentence: str) -> None:
    """One line on standard error, where there still is one: it may be closed, or a pipe that nobody reads."""
    with suppress(Exception):
        print(f"trueup: {sentence}", file=sys.stderr)
