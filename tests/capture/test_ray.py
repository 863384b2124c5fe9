"""What capture asks of Ray: the hook that workers of a cluster get their environment from."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from types import ModuleType

import pytest

from tests.capture.programs import environment, python, write
from trueup.capture import launch
from trueup.capture.options import CaptureOptions

STARTUP = Path(launch.__file__).parent / "startup"
RAY = """
import os
def init():
    path = os.environ.get("RAY_RUNTIME_ENV_HOOK")
    if path is None:
        return None
    import importlib
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)({"env_vars": {"MINE": "1"}})
"""


@pytest.fixture
def startup(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.delenv("TRUEUP_CAPTURE", raising=False)
    spec = importlib.util.spec_from_file_location("startup_under_test", STARTUP / "sitecustomize.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_workers_get_what_capture_needs_and_keep_their_own(
    startup: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRUEUP_CAPTURE", "{}")
    given = {"env_vars": {"PYTHONPATH": "/mine", "A": "1"}, "pip": ["x"]}
    found = startup.ray_runtime_env(given)
    assert found["pip"] == ["x"]
    assert found["env_vars"]["A"] == "1"
    assert found["env_vars"]["TRUEUP_CAPTURE"] == "{}"
    assert found["env_vars"]["PYTHONPATH"].split(os.pathsep) == [str(STARTUP), "/mine"]
    assert given == {"env_vars": {"PYTHONPATH": "/mine", "A": "1"}, "pip": ["x"]}
    assert startup.ray_runtime_env(None)["env_vars"]["TRUEUP_CAPTURE"] == "{}"


def test_a_hook_that_the_program_has_set_is_asked_first(
    startup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "their_hook.py", "def hook(env):\n    return {**(env or {}), 'theirs': True}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TRUEUP_CAPTURE", "{}")
    monkeypatch.setenv("RAY_RUNTIME_ENV_HOOK", "their_hook.hook")
    startup._prepare_ray()
    assert os.environ["RAY_RUNTIME_ENV_HOOK"] == "_trueup_startup.ray_runtime_env"
    found = startup.ray_runtime_env({})
    assert found["theirs"] is True
    assert "TRUEUP_CAPTURE" in found["env_vars"]


@pytest.mark.parametrize("captured", [True, False])
def test_the_hook_is_there_once_ray_is_imported_under_capture(tmp_path: Path, captured: bool) -> None:
    """With a module named ray in the place of Ray: which hook ``ray.init`` would find. ``make rl`` has the real one."""  # noqa: E501
    write(tmp_path / "ray.py", RAY)
    script = write(tmp_path / "job.py", "import json, ray\nprint(json.dumps(ray.init()))\n")
    plain = environment(PYTHONPATH=str(tmp_path))
    options = CaptureOptions(output=tmp_path / "run")
    env = launch.environment_from_options(options, base=plain) if captured else plain
    done = python(script, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    if not captured:
        assert found is None
        return
    variables = found["env_vars"]
    assert variables["MINE"] == "1"
    assert {"TRUEUP_CAPTURE", "TRUEUP_LAUNCH_ID"} <= set(variables)
    assert variables["PYTHONPATH"].split(os.pathsep)[0] == str(STARTUP)
