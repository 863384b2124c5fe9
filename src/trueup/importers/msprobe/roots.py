"""The call of the root module, which msprobe leaves out, found again from source lines.

Without it the calls a model makes directly would stand beside the training script's own, and not pair with
a trace that has the root.
"""

from __future__ import annotations

from collections.abc import Mapping

from trueup.importers.msprobe.names import FORWARD, EntryName


def calls_of_root(
    names: Mapping[str, EntryName], construct: Mapping[str, object], frames: Mapping[str, list[str]]
) -> frozenset[str]:
    """Keys of the forward calls made by the root module itself; empty where nothing says that there is one.

    ``frames`` is the stack of a call, innermost first. The frames around the calling line are common to all
    modules called by the root; a function call below the same frames is the root's too, the others are the
    script's. One single outermost module is taken for the root, as under DistributedDataParallel.
    """
    top = {key: name for key, name in names.items() if name.phase == FORWARD and _outermost(key, construct)}
    modules = [key for key, name in top.items() if name.kind == "module"]
    if len({top[key].name for key in modules}) < 2:
        return frozenset()
    stacks = [frames[key][1:] for key in modules if frames.get(key)]
    around = _common_outer(stacks)
    if not around:
        return frozenset(modules)
    inner = [key for key in top if _is_below(frames.get(key, []), around)]
    return frozenset([*modules, *inner])


def _outermost(key: str, construct: Mapping[str, object]) -> bool:
    if key not in construct:
        return False
    parent = construct[key]
    return parent is None or (isinstance(parent, list) and (not parent or parent[0] is None))


def _common_outer(stacks: list[list[str]]) -> list[str]:
    common = stacks[0] if stacks else []
    for stack in stacks[1:]:
        length = 0
        while length < min(len(common), len(stack)) and common[-1 - length] == stack[-1 - length]:
            length += 1
        common = common[len(common) - length :]
    return common


def _is_below(stack: list[str], around: list[str]) -> bool:
    return len(stack) > len(around) and stack[-len(around) :] == around
