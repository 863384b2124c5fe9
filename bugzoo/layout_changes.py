"""Ways to make the reference trainer do something else than the layout it declares says.

What it declares stays right: the mistakes of the collection are in what a program does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from bugzoo.replacing import Replacing
from trueup import Placement
from trueup_gpt.config import Config
from trueup_gpt.parallel.layout import Call, Layout, layout_for


def change_table(trainer: Replacing, change: Callable[[Layout, Config], Layout]) -> None:
    """Act on another table than the one declared."""
    stages = trainer.part("parallel.stages")
    traced = stages.traced_layout

    def declared(config: Config, layout: Layout, *rest: Any) -> Any:
        return traced(config, layout_for(config), *rest)

    trainer.replace(stages, "layout_for", lambda config: change(layout_for(config), config))
    trainer.replace(stages, "traced_layout", declared)


def place(trainer: Replacing, pattern: str, axis: str, placement: Placement) -> None:
    """One row of parameters is taken to be placed otherwise along one axis."""

    def change(layout: Layout, _: Config) -> Layout:
        row = {**layout.parameters[pattern], axis: placement}
        return dataclasses.replace(layout, parameters={**layout.parameters, pattern: row})

    change_table(trainer, change)


def change_call(
    trainer: Replacing,
    pattern: str,
    change: Callable[[Call], Call | None],
    *,
    layer: int | None = None,
) -> None:
    """A call at whose border tensors move is another one or none; in one layer or in all."""

    def changed(layout: Layout, config: Config) -> Layout:
        calls: list[Call | None] = []
        for one in layout.calls:
            if one.pattern != pattern:
                calls.append(one)
            elif layer is None:
                calls.append(change(one))
            else:
                for number in range(config.model.num_layers):
                    own = dataclasses.replace(one, pattern=pattern.replace("*", str(number), 1))
                    calls.append(change(own) if number == layer else own)
        return dataclasses.replace(layout, calls=tuple(one for one in calls if one is not None))

    change_table(trainer, changed)


def before_wrapping(trainer: Replacing, pattern: str, act: Callable[[Any], None]) -> None:
    """Change the owner of a call before its tensors are moved at its border."""
    apply = trainer.part("parallel.apply")
    matching = apply.matching

    def matched(modules: Any, wanted: str, **more: Any) -> Iterator[tuple[Any, str]]:
        for owner, name in matching(modules, wanted, **more):
            if wanted == pattern:
                act(owner)
            yield owner, name

    trainer.replace(apply, "matching", matched)


def when_built(trainer: Replacing, act: Callable[[Any], None]) -> None:
    """Change this process's part of the model as soon as it is there."""
    session = trainer.part("session")
    build = session.build

    def built(*args: Any, **kwargs: Any) -> Any:
        parallel = build(*args, **kwargs)
        act(parallel)
        return parallel

    trainer.replace(session, "build", built)


def reducing(trainer: Replacing, act: Callable[[Any], None], *, first: bool) -> None:
    """Do something to the gradients before they are reduced, or after."""
    parallels = trainer.part("parallel.stages").Parallel
    reduce = parallels.reduce_gradients

    def reduced(parallel: Any, *gradients: Any) -> None:
        if first:
            act(parallel)
        reduce(parallel, *gradients)
        if not first:
            act(parallel)

    trainer.replace(parallels, "reduce_gradients", reduced)
