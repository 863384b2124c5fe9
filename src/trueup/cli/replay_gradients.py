"""``trueup replay --gradients``: the target's clipping and optimizer with the reference's gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from trueup.errors import ConfigError

OF_REFERENCE = "reference"
"""what ``--gradients`` alone stands for: those of the reference's own trace"""


def with_gradients_named(argv: list[str]) -> list[str]:
    """``--gradients`` without a folder as ``--gradients=reference``, before the command begins.

    Example:
        >>> with_gradients_named(["replay", "--gradients", "--reference", "run", "--", "x", "--gradients"])
        ['replay', '--gradients=reference', '--reference', 'run', '--', 'x', '--gradients']
    """
    end = argv.index("--") if "--" in argv else len(argv)
    if "--gradients" not in argv[:end]:
        return argv
    at = argv.index("--gradients")
    alone = at + 1 == end or argv[at + 1].startswith("-")
    return [*argv[:at], f"--gradients={OF_REFERENCE}", *argv[at + 1 :]] if alone else argv


def replay_gradients(
    gradients: str,
    *,
    reference: Path | None,
    output: Path | None,
    target: Path | None,
    command: Sequence[str],
    overwrite: bool,
    say: Callable[[str], None],
) -> int:
    """Run it, and return the exit status: the program's own, 2 where it left no step.

    Raises:
        ConfigError: an option is missing, or the folder of files does not fit.
    """
    from trueup.diagnosing.gradients import run_gradient_replay
    from trueup.importers import open_trace

    if reference is None:
        raise ConfigError(
            "say which run is trusted, also where files are given (its updated weights are what is compared "
            "with): trueup replay --gradients --reference RUN -o OUT -- python train.py"
        )
    if output is None:
        raise ConfigError("say where the replay is to go: add -o OUT")
    files = None if gradients == OF_REFERENCE else Path(gradients)
    if files is not None and not files.is_dir():
        raise ConfigError(
            f"--gradients {files}: no such folder; one with grad_1.npy, grad_2.npy, ... is wanted"
        )
    status = run_gradient_replay(
        command,
        reference=open_trace(reference),
        target=None if target is None else open_trace(target),
        output=output,
        files=files,
        overwrite=overwrite,
        say=lambda _: None,
    )
    trace = open_trace(output)
    for sentence in _said(trace.rank_facts(min(r for ranks in trace.steps().values() for r in ranks))):
        say(sentence)
    own = target if target is not None else output / "free"
    say(f"next: trueup diagnose {own} {reference} --gradients {output} -o OUT")
    return status


def _said(facts: dict[str, object]) -> list[str]:
    """How many gradients were put in, and which were not and why."""
    from trueup.store.left_free import left_free_from_plain
    from trueup.wording import text

    given = facts.get("given_gradients")
    if not isinstance(given, dict):
        return ["no gradient was put in: no backward of a captured step ended"]
    said = [f"{len(given['replaced'])} gradients were put in before clipping"]
    kept = [(left["fqn"], text(left_free_from_plain(left["reason"]))) for left in given["free"][:4]]
    return said + [f"{fqn} keeps its own gradient: {why}" for fqn, why in kept]
