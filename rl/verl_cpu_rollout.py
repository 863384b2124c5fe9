from __future__ import annotations

import asyncio
import os

import ray
import torch
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput


class HFServer:
    """Decodes with a KV cache, one request at a time; the numbers come from another path than training's."""

    def __init__(self, model_path, dtype, seed, replica_rank):
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self.model = AutoModelForCausalLM.from_pretrained(
            model_path, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        ).eval()
        try:
            from trueup.integrations.rollout import record_rollout
        except ImportError:  # without trueup capture
            pass
        else:
            record_rollout(self.model)
        self.seed, self.replica_rank, self.global_steps, self.profiling = seed, replica_rank, None, False
        self.lock = asyncio.Lock()

    async def load_weights(self, named):
        state = self.model.state_dict()
        with torch.no_grad():
            for name, value in named.items():
                state[name].copy_(value.to(state[name].dtype))
        return len(named)

    async def set_global_steps(self, n):
        self.global_steps = n

    async def sleep(self, *a, **k):
        pass

    async def wake_up(self, *a, **k):
        pass

    async def clear_kv_cache(self):
        pass

    async def abort_all_requests(self, **k):
        return {"aborted_count": 0, "request_ids": []}

    async def resume_generation(self):
        pass

    async def start_profile(self, **k):
        self.profiling = True
        print("rollout start_profile", k)

    async def stop_profile(self, **k):
        self.profiling = False

    async def generate(self, prompt_ids, sampling_params, request_id, **_):
        async with self.lock:
            return self._generate(list(prompt_ids), dict(sampling_params))

    @torch.no_grad()
    def _generate(self, prompt, sampling):
        import zlib

        limit = (
            sampling.get("max_tokens")
            or sampling.get("max_new_tokens")
            or int(os.environ.get("ROLLOUT_TOKENS", 12))
        )
        key = (self.seed, self.global_steps, tuple(prompt))
        seen = self.__dict__.setdefault("seen", {})
        seen[key] = nth = seen.get(key, -1) + 1  # the n-th answer to a prompt is the same in every run
        g = torch.Generator().manual_seed(zlib.crc32(repr((key, nth)).encode()))
        ids, past, tokens, logps = torch.tensor([prompt]), None, [], []
        temperature = sampling.get("temperature", 1.0)
        eos = self.model.config.eos_token_id
        for _ in range(limit):
            out = self.model(input_ids=ids, past_key_values=past, use_cache=True)
            past = out.past_key_values
            logits = out.logits[0, -1].float()
            logp = torch.log_softmax(logits / max(temperature, 1e-6) if temperature else logits, -1)
            token = (
                int(logits.argmax())
                if not temperature
                else int(torch.multinomial(logp.exp(), 1, generator=g))
            )
            tokens.append(token)
            logps.append(float(logp[token]))
            ids = torch.tensor([[token]])
            if token == eos:
                break
        return TokenOutput(
            token_ids=tokens,
            log_probs=logps,
            stop_reason="completed",
            num_preempted=0,
            extra_fields={"global_steps": self.global_steps},
        )


class HFReplica(RolloutReplica):
    async def launch_servers(self):
        name = f"hfcpu_server_{self.replica_rank}_0"
        server = (
            ray.remote(HFServer)
            .options(name=name, num_cpus=0, max_concurrency=64)
            .remote(
                self.model_config.path,
                os.environ.get("ROLLOUT_DTYPE", "bfloat16"),
                self.config.seed,
                self.replica_rank,
            )
        )
        self.servers = [server]
        self._server_handle, self._server_address = server, f"hfcpu-{self.replica_rank}"

    async def sleep(self):
        await asyncio.gather(*[s.sleep.remote() for s in self.servers])


class ServerAdapter(BaseRollout):
    def __init__(self, config, model_config, device_mesh, replica_rank=-1):
        super().__init__(config, model_config, device_mesh)
        self.replica_rank = int(os.environ["RANK"]) if replica_rank == -1 else replica_rank
        self._server = None

    @property
    def server(self):
        if self._server is None:
            self._server = ray.get_actor(f"hfcpu_server_{self.replica_rank}_0")
        return self._server

    async def resume(self, tags):
        pass

    async def release(self):
        pass

    async def update_weights(self, weights, global_steps=None, wire_format="named_tensors", **_):
        named = {}
        for name, value in weights:
            value = value.full_tensor() if hasattr(value, "full_tensor") else value
            named[name] = value.detach().cpu().clone()
        await self.server.load_weights.remote(named)
        if global_steps is not None:
            await self.server.set_global_steps.remote(global_steps)
