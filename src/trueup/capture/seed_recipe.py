"""What ``seed_all`` does, as lines for a shell and for a program that is not to import trueup."""

from __future__ import annotations

from collections.abc import Sequence

from trueup.adapters import FRAMEWORKS
from trueup.adapters.seeding import Recipe, SeedingStep, recipe, value_of
from trueup.capture.seeds import check_seed
from trueup.errors import ConfigError

_COLUMN = 60
"""where the reasons begin"""
_TITLES = {"torch": "PyTorch", "mindspore": "MindSpore"}


def seed_recipe(frameworks: Sequence[str] = FRAMEWORKS, *, seed: int = 1234, mode: bool = False) -> str:
    """The whole recipe as text, one section a framework.

    Raises:
        ConfigError: no such framework, or the seed is no whole number between 0 and 2**32 - 1.

    Example:
        >>> "torch.manual_seed(7)" in seed_recipe(["torch"], seed=7)
        True
    """
    sections = []
    for framework in frameworks:
        lines = [
            f"# {_TITLES.get(framework, framework)}: in the shell, before the program starts",
            *shell_lines(framework, seed=seed, mode=mode),
            "",
            f"# {_TITLES.get(framework, framework)}: at the top of the program",
            *python_lines(framework, seed=seed, mode=mode),
        ]
        sections.append("\n".join(lines) + "\n")
    return "\n".join(sections)


def shell_lines(framework: str, *, seed: int, mode: bool) -> list[str]:
    """``export NAME=VALUE  # why`` for every variable: libraries read them when they start.

    Raises:
        ConfigError: no such framework, or no seed.
    """
    its = _checked(framework, seed)
    lines = [_export(step, seed) for step in _steps(its, mode=mode) if step.environment is not None]
    by_hand = [_export(step, seed) for step in its.by_hand] if mode else []
    return [*lines, *(["# and, which trueup.seed_all leaves to you:", *by_hand] if by_hand else [])]


def python_lines(framework: str, *, seed: int, mode: bool) -> list[str]:
    """Lines after which a program's generators and switches are as after ``trueup.seed_all(seed, mode)``.

    Raises:
        ConfigError: no such framework, or no seed.
    """
    its = _checked(framework, seed)
    code = [_code(step, seed, mode) for step in _steps(its, mode=mode) if step.environment is None]
    return [*recipe("python").imports, "", *its.imports, "", *code]


def _checked(framework: str, seed: int) -> Recipe:
    check_seed(seed)
    if framework not in FRAMEWORKS:
        raise ConfigError(f"no recipe for {framework!r}; there is {', '.join(FRAMEWORKS)}")
    return recipe(framework)


def _steps(its: Recipe, *, mode: bool) -> list[SeedingStep]:
    """In the order ``seed_all`` takes them; cuDNN's switches are set either way."""
    return [*recipe("python").seed, *its.seed, *(its.deterministic if mode else ()), *its.cudnn]


def _export(step: SeedingStep, seed: int) -> str:
    where = f" (where there is {step.needs})" if step.needs else ""
    return _reasoned(f"export {step.environment}={str(step.to).format(seed=seed)}", step.why + where)


def _code(step: SeedingStep, seed: int, mode: bool) -> str:
    if step.call is not None:
        line = f"{step.call}({seed if step.given == 'seed' else mode})"
    else:
        line = f"{step.set} = {value_of(step, mode=True)}"
    if step.needs:
        home, _, name = step.needs.rpartition(".")
        line = f'if hasattr({home}, "{name}"): {line}'
    return _reasoned(line, step.why)


def _reasoned(line: str, why: str) -> str:
    return f"{line:<{_COLUMN}}  # {why}"
