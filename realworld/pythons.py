"""A Python of each environment that has imported what its programs need, made once."""

from __future__ import annotations

from contextlib import ExitStack

from tests.warm import OF_TRUEUP, TRUEUP, warm_python

from realworld.commands import SETTINGS
from realworld.entries import Program


class Pythons:
    """The commands that look like ``python``, as long as ``closing`` is open."""

    def __init__(self, closing: ExitStack) -> None:
        self._closing = closing
        self._known: dict[tuple[object, ...], str] = {}

    def of(self, program: Program) -> str:
        """The one that a program runs in.

        Raises:
            FileNotFoundError: its environment is not there; says what makes it.
        """
        if not program.python.exists():
            how = f"bash realworld/setup.sh {program.environment} makes it"
            raise FileNotFoundError(f"{program.python} is not there: {how}")
        settings = SETTINGS | program.settings
        key = (program.environment, *program.imports, *settings.items())
        if key not in self._known:
            warm = warm_python(str(program.python), *OF_TRUEUP, *TRUEUP, *program.imports, settings=settings)
            self._known[key] = self._closing.enter_context(warm)
        return self._known[key]
