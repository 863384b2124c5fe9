"""Inference engines whose models run in Python: what their layers give for the tokens that they sample.

    from trueup.integrations.rollout import record_rollout

    record_rollout(model)      # in an engine of one's own; nothing happens unless trueup captures the job

vLLM calls ``register`` in each of its processes (entry point group ``vllm.general_plugins``); layers are seen
with ``enforce_eager=True``. SGLang is told with ``forward_hooks``: ``{"target_modules": ["model"],
"hook_factory": "trueup.integrations.rollout:sglang_hook"}``, and ``disable_cuda_graph=True``.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Protocol

from trueup.capture import session
from trueup.capture.shield import say, shielded
from trueup.integrations import Watcher
from trueup.integrations.layers import LayerHooks, Torch, Writing
from trueup.integrations.records import capture_options
from trueup.store.token_layers import FOLDER, marks
from trueup.types.arrays import Array

_LOADER = "vllm.model_executor.model_loader.base_loader"
_watcher = Watcher()


class VllmConfig(Protocol):
    """As far as it is read."""

    model_config: object
    parallel_config: object


class RolloutRecorder:
    """Layer outputs of one engine's model, for the steps that are captured."""

    def __init__(self, model: Torch) -> None:
        options = capture_options()
        self._steps, self._run = options.steps, options.output
        self._writing = Writing(self._run, "rollout")
        self._seen = -1
        self._hooks = LayerHooks(model, self._add, lambda: self._writing.kept)
        model.register_forward_pre_hook(lambda *_: self._look())

    def _add(self, rows: dict[str, Array]) -> None:
        self._writing.add(rows)

    def _look(self) -> None:
        """Whether a step has ended, as its trainer's process says: what follows is of the next."""
        file = self._run / FOLDER / "steps"
        try:
            size = file.stat().st_size
        except OSError:
            size = 0
        if size != self._seen:
            self._seen = size
            last = max((step for step, _ in marks(self._run)), default=None)
            self._writing.begin(-2 - size)  # which step, only the trainer's process knows
            self._hooks.active = last is None or last + 1 in self._steps


@shielded
def record_rollout(model: Torch) -> None:
    """Keep what the layers of an inference engine's model give. Nothing where no step is captured."""
    if session.FROM_OUTSIDE not in os.environ or capture_options().steps.ranges == ():
        return
    try:
        RolloutRecorder(model)
    except ValueError as error:
        say(f"layers of the rollout are not recorded: {error}")


# -- vLLM ------------------------------------------


def register() -> None:
    """vLLM's entry point; it may be called several times in a process."""
    if session.FROM_OUTSIDE in os.environ:
        _watcher.when_imported(_LOADER, _wrap_loader)


def _wrap_loader(module: ModuleType) -> None:
    inner = module.BaseModelLoader.load_model

    @functools.wraps(inner)
    def load_model(self: object, vllm_config: VllmConfig, *args: object, **more: object) -> object:
        model = inner(self, vllm_config, *args, **more)
        _after_loading(vllm_config, model)
        return model

    module.BaseModelLoader.load_model = load_model


@shielded
def _after_loading(config: VllmConfig, model: object) -> None:
    if not getattr(config.model_config, "enforce_eager", False):
        say("layers of vLLM are not recorded: graphs run them; set enforce_eager=True")
    elif getattr(config.parallel_config, "rank", 0) == 0:  # other ranks of a layer hold the same stream
        record_rollout(model)


# -- SGLang ------------------------------------------


def sglang_hook(config: Mapping[str, object]) -> Callable[[Torch, object, object], None]:
    """SGLang's ``hook_factory`` for the module that holds the layers. Its first forward is the warm-up."""
    known: set[int] = set()

    def hook(module: Torch, _inputs: object, _output: object) -> None:
        if id(module) not in known:
            known.add(id(module))
            record_rollout(module)

    return hook
