"""Lets an unmodified verl (0.9.x) train on CPU: VERL_USE_EXTERNAL_MODULES=verl_cpu; no file of it is edited.

Registers, through verl's own registries, a platform 'cpu' (gloo) and a rollout 'hfcpu': a Ray actor with a
HuggingFace model that decodes token by token with a KV cache, in ROLLOUT_DTYPE (bfloat16 by default: a real
train/inference mismatch against an fp32 actor).
"""

from __future__ import annotations

import os
import sys
import types
from contextlib import contextmanager

import torch
import torch.distributed as dist
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

# ---------------------------------------------------------------- platform
_cpu = types.ModuleType("verl_cpu_device")
for _n in (
    "set_device",
    "empty_cache",
    "synchronize",
    "manual_seed",
    "manual_seed_all",
    "reset_peak_memory_stats",
    "ipc_collect",
):
    setattr(_cpu, _n, lambda *a, **k: None)
for _n in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
    setattr(_cpu, _n, lambda *a, **k: 0)
_cpu.mem_get_info = lambda *a, **k: (2**34, 2**34)
_cpu.is_available = lambda: True
_cpu.device_count = lambda: 1
_cpu.current_device = lambda: torch.device("cpu")
_cpu.get_device_name = lambda *a: "cpu"
_cpu.get_rng_state = lambda *a: torch.get_rng_state()
_cpu.set_rng_state = lambda s, *a: torch.set_rng_state(s)
_cpu.is_initialized = lambda: True


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _cpu

    def is_available(self):
        return True

    def current_device(self):
        return torch.device("cpu")

    def device_count(self):
        return 1

    def set_device(self, device_index):
        pass

    def synchronize(self, device_index=None):
        pass

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    def manual_seed_all(self, seed):
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings):
        pass

    def empty_cache(self):
        pass

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg):
        yield

    def profiler_start(self):
        pass

    def profiler_stop(self):
        pass

    def ray_resource_name(self):
        return "GPU"

    def ray_noset_envvars(self):
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self):
        return False

    def cudart(self):
        return None


# verl asks for "cpu:gloo,cpu:gloo", which torch refuses as a duplicate
_init = dist.init_process_group


def _init_process_group(backend=None, *a, **k):
    return _init("gloo" if isinstance(backend, str) and "cpu:gloo,cpu" in backend else backend, *a, **k)


dist.init_process_group = torch.distributed.init_process_group = _init_process_group


# ---------------------------------------------------------------- rollout, critic
def _add_rollout(module):
    from verl.workers.rollout import base

    base._ROLLOUT_REGISTRY[("hfcpu", "async")] = "verl_cpu_rollout.ServerAdapter"

    def load():
        from verl_cpu_rollout import HFReplica

        return HFReplica

    module.RolloutReplicaRegistry.register("hfcpu", load)


def _critic_without_flash_attention(module):
    """verl 0.9.1 asks for flash_attention_2 by name when it builds a value model."""
    load = module.load_valuehead_model

    def load_valuehead_model(*a, **k):
        from transformers import AutoModelForTokenClassification as M

        old = M.from_pretrained
        M.from_pretrained = lambda *x, **y: old(*x, **{**y, "attn_implementation": "sdpa"})
        torch.manual_seed(0)  # its head is in no checkpoint
        try:
            return load(*a, **k)
        finally:
            M.from_pretrained = old

    module.load_valuehead_model = load_valuehead_model


def _fault(module):
    import verl_faults

    verl_faults.plant(module)


_AFTER = {
    "verl.workers.rollout.replica": _add_rollout,
    "verl.utils.model": _critic_without_flash_attention,
    "verl.trainer.ppo.core_algos": _fault,
}


class _Late:
    """These modules cannot be imported while verl itself is: touch them when they go by."""

    def find_spec(self, name, path=None, target=None):
        if name not in _AFTER:
            return None
        import importlib.machinery

        spec = importlib.machinery.PathFinder.find_spec(name, path)
        inner = spec.loader

        class L:
            def __getattr__(s, n):
                return getattr(inner, n)

            def create_module(s, sp):
                return inner.create_module(sp)

            def exec_module(s, m):
                inner.exec_module(m)
                _AFTER[name](m)

        spec.loader = L()
        return spec


sys.meta_path.insert(0, _Late())
torch.set_num_threads(1)
# the reference policy is offloaded to pinned memory, which needs an accelerator
torch.Tensor.pin_memory = lambda self, *a, **k: self


if os.environ.get("VERL_CPU_PIN"):
    # verl names its prompt groups by uuid4 and sorts and partitions by that name: the rows of a batch come in
    # another order in every run. Pinned, they do not.
    import random
    import uuid

    _names = random.Random(int(os.environ["VERL_CPU_PIN"]))
    uuid.uuid4 = lambda: uuid.UUID(int=_names.getrandbits(128), version=4)
