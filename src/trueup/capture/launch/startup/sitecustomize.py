"""Runs at the start of every Python process below ``trueup capture``: waits for the program's framework.

Only the standard library, and as little of it as possible: every child process of the program runs this,
compilers and package managers included. It imports no framework (that would change the program's thread
count and devices), removes its own folder from ``sys.path``, gives way to the ``sitecustomize`` it shadows,
and lets no error of its own reach the program.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_CAPTURE = "TRUEUP_CAPTURE"
_HERE = os.path.dirname(os.path.abspath(__file__))
_WATCHED = ("torch", "mindspore", "ray")
_RAY_HOOK = "RAY_RUNTIME_ENV_HOOK"
_RAY_HOOK_BEFORE = "TRUEUP_RAY_HOOK_BEFORE"
_AS = "_trueup_startup"
"""name under which Ray finds this module"""
_BORROWED = ("trueup", "numpy", "polars", "_polars_runtime", "pyarrow", "safetensors")
"""what capture needs; looked up beside trueup only where the program's own environment has none"""


class _Loader:
    """A framework's loader, telling when the module is whole; steps aside before the module can see it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if getattr(module, "__spec__", None) is not None:
            module.__spec__.loader = self._loader  # type: ignore[union-attr]
        self._loader.exec_module(module)
        _begin_once(module.__name__)


class _Finder:
    """First on ``sys.meta_path``, to see a framework go by; it stays, or other threads would skip one."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _WATCHED or name in _began:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader)  # type: ignore[assignment, arg-type]
                return spec
        return None


class _Borrow:
    """Last on ``sys.meta_path``: finds trueup and what it needs, nothing else, in trueup's own folders."""

    def __init__(self, folders: list[str]) -> None:
        self._folders = folders

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or not name.startswith(_BORROWED):
            return None
        from importlib.machinery import PathFinder

        return PathFinder.find_spec(name, self._folders, target)


_began: list[str] = []


def _begin_once(framework: str) -> None:
    if framework in _began:
        return
    _began.append(framework)
    if framework == "ray":
        _prepare_ray()
        return
    try:
        import json

        plan = json.loads(os.environ[_CAPTURE])
        if not any(isinstance(finder, _Borrow) for finder in sys.meta_path):
            sys.meta_path.append(_Borrow(plan["folders"]))
        from trueup.capture.launch.child import framework_is_ready

        framework_is_ready(framework, plan)
    except Exception as error:
        _say(f"this process is not captured: {type(error).__name__}: {error}")


def _prepare_ray() -> None:
    """Workers of a cluster that already runs inherit nothing: Ray asks a hook for what they are to get."""
    own_hook = f"{_AS}.ray_runtime_env"
    if os.environ.get(_RAY_HOOK) not in (None, "", own_hook):
        os.environ[_RAY_HOOK_BEFORE] = os.environ[_RAY_HOOK]
    os.environ[_RAY_HOOK] = own_hook


def ray_runtime_env(runtime_env: dict[str, object] | None) -> dict[str, object]:
    """What ``ray.init`` asks before it connects: the job's runtime environment, and what capture needs.

    A hook that the program had set is asked first; values that the program gives are kept.
    """
    before = os.environ.get(_RAY_HOOK_BEFORE)
    if before:
        from importlib import import_module

        module, _, name = before.rpartition(".")
        runtime_env = getattr(import_module(module), name)(runtime_env)
    try:
        return _with_capture(dict(runtime_env or {}))
    except Exception as error:
        _say(f"workers of this Ray job are not captured: {type(error).__name__}: {error}")
        return runtime_env or {}


def _with_capture(runtime_env: dict[str, object]) -> dict[str, object]:
    given = runtime_env.get("env_vars")
    variables = dict(given) if isinstance(given, dict) else {}
    for name, value in os.environ.items():
        if name.startswith("TRUEUP_"):
            variables.setdefault(name, value)
    path = [_HERE, *str(variables.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))).split(os.pathsep)]
    variables["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(part for part in path if part))
    return {**runtime_env, "env_vars": variables}


def _say(sentence: str) -> None:
    try:
        line = " ".join(str(sentence).split())
        sys.stderr.write(f"trueup: {line} (process {os.getpid()}; training continues)\n")
        sys.stderr.flush()
    except Exception:  # nowhere left to say it
        return


def _step_aside() -> None:
    """Leave ``sys.path`` as the program expects it."""
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != _HERE]


def _run_shadowed() -> None:
    """Run the ``sitecustomize`` further down the path, if there is one, under its own name."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if _CAPTURE in os.environ:
    sys.modules[_AS] = sys.modules[__name__]
    sys.meta_path.insert(0, _Finder())
_step_aside()
_run_shadowed()
