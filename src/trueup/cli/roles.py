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
    single trace each are one pair. Two folders with a trace for each step and stage (verl's profiler) are
    compared place by place, with the reports in folders of the same places.
    """
    from trueup.importers.opening import traces_inside
    from trueup.store.roles import traces_by_role

    inside = traces_inside(target), traces_inside(reference)
    by_place = all(inside) and max(map(len, inside)) > 1
    sides = inside if by_place else (traces_by_role(target), traces_by_role(reference))
    if max(map(len, sides)) < 2:
        return one(target, reference, output)
    codes = set()
    shared = [role for role in sides[0] if role in sides[1]]
    for number, role in enumerate(shared):
        if not quiet:
            of = role if by_place else f"processes of the {role or 'run'}"
            note_line(f"{of}: {sides[0][role]} and {sides[1][role]}")
        apart = output is not None and (number > 0 or by_place)
        into = output / role.replace(" ", "-") if apart and output is not None else output
        if apart and into is not None:
            into.mkdir(parents=True, exist_ok=True)
        codes.add(one(sides[0][role], sides[1][role], into))
    unpaired = [*sides[0].keys() - sides[1].keys(), *sides[1].keys() - sides[0].keys()]
    if unpaired:
        of = "traces" if by_place else "processes of the"
        note_line(f"in one run alone: {of} {', '.join(sorted(unpaired))}")
        codes.add(2)
    return 1 if 1 in codes else max(codes)
