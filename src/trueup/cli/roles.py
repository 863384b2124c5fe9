"""Two jobs of several process groups (a critic beside an actor): each with its counterpart, role by role."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trueup.cli.printing import note_line

OneRole = Callable[[Path, Path, "Path | None"], int]
"""target, reference and folder of the reports -> exit status"""


def by_role(target: Path, reference: Path, output: Path | None, one: OneRole, *, quiet: bool) -> int:
    """Run ``one`` on each pair of traces; the exit status of all: 1 where one differs, else the largest.

    The first pair's reports are in ``output``, those of others in a folder of their role in it. Runs with a
    single trace each are one pair.
    """
    from trueup.store.roles import traces_by_role

    sides = traces_by_role(target), traces_by_role(reference)
    if max(map(len, sides)) < 2:
        return one(target, reference, output)
    codes = set()
    shared = [role for role in sides[0] if role in sides[1]]
    for number, role in enumerate(shared):
        if not quiet:
            note_line(f"processes of the {role or 'run'}: {sides[0][role]} and {sides[1][role]}")
        into = output / role.replace(" ", "-") if number and output is not None else output
        codes.add(one(sides[0][role], sides[1][role], into))
    alone = [*sides[0].keys() - sides[1].keys(), *sides[1].keys() - sides[0].keys()]
    if alone:
        note_line(f"in one run alone: processes of the {', '.join(sorted(alone))}")
        codes.add(2)
    return 1 if 1 in codes else max(codes)
