"""A small real RL trainer: GRPO, or PPO with a critic, of a transformer with rotary positions.

It records what trueup compares (``trueup.store.rollouts``). Every part is a method, so that a fault is a
subclass that overrides one (rl/faults.py). With ``replay`` it trains on another run's tokens, scored by its
own rollout.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trueup.store.rollouts import read_rollouts, write_batch, write_loss

VOCABULARY, WIDTH, HEADS, LAYERS, PROMPT, RESPONSE, EOS = 48, 32, 4, 2, 6, 14, 1


@dataclass(frozen=True)
class Settings:
    algorithm: str = "grpo"
    """grpo, ppo, or verl's name of another estimator"""
    loss_mode: str = "vanilla"
    """or gspo: the ratio of whole sequences"""
    weights_cap: float | None = None
    """of importance weights of the rollout's tokens (TIS); None: none"""
    engine_dtype: str = "float32"
    """of the inference engine's logits"""
    overlong: int = 0
    """tokens before the end of a response in which its length is punished (DAPO)"""
    steps: int = 3
    prompts: int = 4
    answers: int = 4
    mini_batches: int = 2
    micro_batches: int = 2
    workers: int = 1
    packed: bool = False
    attention: str = "sdpa"
    shuffled: bool = False
    padding: int = 0
    """more columns than needed"""
    temperature: float = 0.8
    loss_agg_mode: str = "token-mean"
    clip_low: float = 0.1
    clip_high: float = 0.2
    clip_dual: float = 3.0
    kl_loss_type: str = "k3"
    kl_coef: float = 0.1
    entropy_coef: float = 0.02
    value_clip: float = 0.05
    horizon: float = float(RESPONSE)
    """what Dr. GRPO divides a sequence's loss by"""
    gamma: float = 0.98
    lam: float = 0.9
    by_std: bool = True
    epsilon: float = 1e-6
    kl_coef_in_reward: float = 0.0
    lr: float = 5e-3
    seed: int = 0

    @property
    def has_critic(self) -> bool:
        return self.algorithm == "ppo"


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.lora_a, self.lora_b = nn.Linear(WIDTH, 4, bias=False), nn.Linear(4, WIDTH, bias=False)
        self.lora_scale, self.kind = 2.0, "sdpa"

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        rows, tokens, _ = x.shape
        q, k, v = (one.view(rows, tokens, HEADS, -1).transpose(1, 2) for one in self.qkv(x).chunk(3, dim=-1))
        q, k = rotated(q, positions), rotated(k, positions)
        if self.kind == "sdpa":
            seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None])
        else:
            scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
            seen = scores.masked_fill(~mask[:, None], float("-inf")).softmax(-1) @ v
        seen = seen.transpose(1, 2).reshape(rows, tokens, WIDTH)
        return self.out(seen) + self.lora_scale * self.lora_b(self.lora_a(x))


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    angles = positions[:, None, :, None] / 100.0 ** (torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


class Model(nn.Module):
    """Logits, or a value, of every token."""

    def __init__(self, outputs: int = VOCABULARY) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.attention = nn.ModuleList(Attention() for _ in range(LAYERS))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
            for _ in range(LAYERS)
        )
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, outputs)

    def forward(self, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        x = self.embed(ids)
        for attention, mlp in zip(self.attention, self.mlp, strict=True):
            x = x + attention(F.layer_norm(x, (WIDTH,)), positions, mask)
            x = x + mlp(F.layer_norm(x, (WIDTH,)))
        return self.head(self.norm(x))


class Trainer:
    """One run."""

    def __init__(self, output: Path, settings: Settings, replay: Path | None = None) -> None:
        torch.manual_seed(settings.seed)
        self.output, self.s = output, settings
        self.replay = {} if replay is None else read_rollouts(replay)
        self.actor = Model()
        for one in self.actor.attention:
            one.kind = settings.attention
        nn.init.normal_(self.actor.head.weight, std=0.5)
        self.reference, self.engine = copy.deepcopy(self.actor), copy.deepcopy(self.actor)
        self.critic = Model(outputs=1)
        self.optimizer = torch.optim.AdamW(self.actor.parameters(), lr=settings.lr)
        self.critic_optimizer = torch.optim.AdamW(self.critic.parameters(), lr=settings.lr)
        self.step = 0

    def run(self) -> Path:
        for step in range(1, self.s.steps + 1):
            self.step = step
            batch = self.batch()
            self.record(batch)
            self.update(batch)
            self.sync()
        return self.output

    # -- the batch ------------------------------------------

    def batch(self) -> dict[str, Tensor]:
        prompts, responses, group = self.rollout()
        valid = responses >= 0
        batch = {"prompts": prompts, "responses": responses, "group": group}
        batch["response_mask"] = self.mask(valid)
        with torch.no_grad():
            batch["rollout_log_probs"] = self.engine_log_probs(prompts, responses) * valid
            batch["old_log_probs"] = self.old_log_probs(prompts, responses) * valid
            batch["ref_log_probs"] = self.log_probs(self.reference, prompts, responses)[0] * valid
            if self.s.weights_cap is not None:
                batch["rollout_weights"] = self.rollout_weights(batch) * valid
            batch["scores"] = self.rewards(prompts, responses) + self.punishment(responses)
            if self.s.has_critic:
                batch["values"] = self.values(prompts, responses) * valid
            batch["rewards"] = self.rewards_less_kl(batch)
            batch["advantages"], returns = self.advantages(batch)
            if self.s.has_critic:
                batch["returns"] = returns
        return batch

    def prompt(self, number: int) -> list[int]:
        generator = torch.Generator().manual_seed(1000 + number)
        size = 3 + number % (PROMPT - 2)
        return torch.randint(2, VOCABULARY, (size,), generator=generator).tolist()

    def rollout(self) -> tuple[Tensor, Tensor, Tensor]:
        if self.step in self.replay:
            held = self.replay[self.step].batch
            arrays = {name: torch.as_tensor(held.arrays[name]) for name in ("prompts", "responses", "group")}
            prompts, responses, group = arrays["prompts"], arrays["responses"], arrays["group"]
        else:
            prompts, responses, group = self.generated()
        if self.s.shuffled:
            order = torch.randperm(len(group), generator=torch.Generator().manual_seed(self.step))
            half = len(group) // self.s.mini_batches  # the same mini-batches, in another order inside
            order = torch.cat([order[order // half == part] for part in range(self.s.mini_batches)])
            prompts, responses, group = prompts[order], responses[order], group[order]
        wide = (self.s.padding, 0), (0, self.s.padding)
        return F.pad(prompts, wide[0], value=-1), F.pad(responses, wide[1], value=-1), group

    def generated(self) -> tuple[Tensor, Tensor, Tensor]:
        prompts, responses, group = [], [], []
        for number in range(self.s.prompts):
            prompt = self.prompt(number + self.s.prompts * self.step)
            for answer in range(self.s.answers):
                seed = (self.s.seed * 7 + self.step) * 1000 + number * 100 + answer
                generator = torch.Generator().manual_seed(seed)
                found: list[int] = []
                while len(found) < RESPONSE and EOS not in found:
                    given = torch.tensor([prompt + found])
                    logits = self.logits(self.engine, [given[0]])[0][-1] / self.s.temperature
                    found.append(int(torch.multinomial(logits.softmax(-1), 1, generator=generator)))
                prompts.append([-1] * (PROMPT - len(prompt)) + prompt)
                responses.append(found + [-1] * (RESPONSE - len(found)))
                group.append(number)
        order = torch.randperm(len(group), generator=torch.Generator().manual_seed(77))
        return torch.tensor(prompts)[order], torch.tensor(responses)[order], torch.tensor(group)[order]

    def mask(self, valid: Tensor) -> Tensor:
        return valid.float()

    # -- models ------------------------------------------

    def logits(self, model: Model, rows: list[Tensor]) -> list[Tensor]:
        """Of sequences without padding: each in a row of its own, or all packed into one."""
        if self.s.packed and len(rows) > 1:
            ids = torch.cat(rows)[None]
            number = torch.cat([torch.full((len(row),), at) for at, row in enumerate(rows)])[None]
            positions = self.packed_positions(rows)[None]
            order = torch.arange(ids.shape[1])
            mask = (number[:, :, None] == number[:, None]) & (order[:, None] >= order)
            return list(model(ids, positions, mask)[0].split([len(row) for row in rows]))
        width = max(map(len, rows))
        ids = torch.stack([F.pad(row, (0, width - len(row))) for row in rows])
        order = torch.arange(width)
        mask = (order[:, None] >= order).expand(len(rows), width, width)
        positions = order.expand(len(rows), width)
        return [out[: len(row)] for out, row in zip(model(ids, positions, mask), rows, strict=True)]

    def packed_positions(self, rows: list[Tensor]) -> Tensor:
        return torch.cat([torch.arange(len(row)) for row in rows])

    def outputs(self, model: Model, prompts: Tensor, responses: Tensor) -> tuple[Tensor, Tensor]:
        """What is given for each token of the responses, padded; and the ids there."""
        rows = [torch.cat([p[p >= 0], r[r >= 0]]) for p, r in zip(prompts, responses, strict=True)]
        found = [
            out[len(row) - int((r >= 0).sum()) - 1 : -1]
            for out, row, r in zip(self.logits(model, rows), rows, responses, strict=True)
        ]
        width = responses.shape[1]
        return torch.stack([F.pad(one, (0, 0, 0, width - len(one))) for one in found]), responses.clamp(min=0)

    def log_probs(self, model: Model, prompts: Tensor, responses: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies of response tokens."""
        logits, ids = self.outputs(model, prompts, responses)
        logits = logits / self.training_temperature()
        every = logits.log_softmax(-1)
        return every.gather(-1, ids[..., None])[..., 0], -(every.exp() * every).sum(-1)

    def training_temperature(self) -> float:
        return self.s.temperature

    def engine_log_probs(self, prompts: Tensor, responses: Tensor) -> Tensor:
        """One sequence at a time, as the inference engine decodes."""
        found = []
        for prompt, response in zip(prompts.split(1), responses.split(1), strict=True):
            logits, ids = self.outputs(self.engine, prompt, response)
            found.append(self.engine_scores(logits / self.s.temperature).gather(-1, ids[..., None])[..., 0])
        return torch.cat(found)

    def engine_scores(self, logits: Tensor) -> Tensor:
        return logits.to(getattr(torch, self.s.engine_dtype)).float().log_softmax(-1)

    def rollout_weights(self, batch: dict[str, Tensor]) -> Tensor:
        """Trainer to rollout, truncated."""
        return (batch["old_log_probs"] - batch["rollout_log_probs"]).exp().clamp(max=self.s.weights_cap)

    def old_log_probs(self, prompts: Tensor, responses: Tensor) -> Tensor:
        return self.log_probs(self.actor, prompts, responses)[0]

    def values(self, prompts: Tensor, responses: Tensor) -> Tensor:
        return self.outputs(self.critic, prompts, responses)[0][..., 0]

    # -- rewards and advantages ------------------------------------------

    def rewards(self, prompts: Tensor, responses: Tensor) -> Tensor:
        """How many different tokens, and how near to the end the sequence ended; on its last token."""
        scores = torch.zeros(responses.shape)
        for at, row in enumerate(responses):
            ids = row[row >= 0]
            scores[at, len(ids) - 1] = len(set(ids.tolist())) / 7 + float((ids.float() / VOCABULARY).mean())
        return scores

    def punishment(self, responses: Tensor) -> Tensor:
        """Of length: from 0 to -1 over the last tokens that a response may have."""
        lengths = (responses >= 0).sum(1)
        found = torch.zeros(responses.shape)
        if self.s.overlong:
            over = (lengths - (RESPONSE - self.s.overlong)).clamp(min=0) / self.s.overlong
            found[torch.arange(len(lengths)), lengths - 1] = -over
        return found

    def rewards_less_kl(self, batch: dict[str, Tensor]) -> Tensor:
        apart = batch["old_log_probs"] - batch["ref_log_probs"]
        return batch["scores"] - self.s.kl_coef_in_reward * apart * batch["response_mask"]

    def advantages(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        if self.s.has_critic:
            return self.gae(batch, self.s.gamma, self.s.lam)
        named = {
            "rloo": self.leave_one_out,
            "reinforce_plus_plus": self.discounted,
            "reinforce_plus_plus_baseline": self.less_mean,
            "remax": self.less_greedy,
        }
        if self.s.algorithm in named:
            return named[self.s.algorithm](batch)
        return self.grouped(batch, batch["group"])

    def means(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Scores, their group's mean and size, of each sequence."""
        scores = batch["rewards"].sum(-1)
        same = (batch["group"][:, None] == batch["group"]).float()
        return scores, same @ scores / same.sum(1), same.sum(1)

    def leave_one_out(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        scores, mean, size = self.means(batch)
        found = ((scores - mean) * size / (size - 1))[:, None] * batch["response_mask"]
        return found, found

    def discounted(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        rewards, mask = batch["rewards"], batch["response_mask"]
        last, found = torch.zeros(len(rewards)), []
        for at in reversed(range(rewards.shape[1])):
            last = rewards[:, at] + self.s.gamma * last
            found.append(last)
            last = last * mask[:, at]
        returns = torch.stack(found[::-1], 1)
        return self.whitened(returns, mask) * mask, returns

    def less_mean(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        scores, mean, _ = self.means(batch)
        mask = batch["response_mask"]
        found = self.whitened((scores - mean)[:, None] * mask, mask) * mask
        return found, found

    def less_greedy(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        mask = batch["response_mask"]
        returns = (batch["rewards"] * mask).flip(1).cumsum(1).flip(1)
        return returns - self.baselines(batch)[:, None] * mask, returns

    def baselines(self, batch: dict[str, Tensor]) -> Tensor:
        """What the greedy answer of each prompt earns."""
        answers = []
        for row in batch["prompts"]:
            ids = row[row >= 0].tolist()
            found: list[int] = []
            while len(found) < RESPONSE and EOS not in found:
                found.append(int(self.logits(self.engine, [torch.tensor(ids + found)])[0][-1].argmax()))
            answers.append(found + [-1] * (RESPONSE - len(found)))
        answered = torch.tensor(answers)
        return (self.rewards(batch["prompts"], answered) + self.punishment(answered)).sum(-1)

    def grouped(self, batch: dict[str, Tensor], group: Tensor) -> tuple[Tensor, Tensor]:
        scores, found = batch["rewards"].sum(-1), torch.zeros(len(group))
        for one in group.unique():
            rows = group == one
            found[rows] = scores[rows] - scores[rows].mean()
            if self.s.by_std:
                found[rows] = found[rows] / (scores[rows].std() + self.s.epsilon)
        found = found[:, None] * batch["response_mask"]
        return found, found

    def gae(self, batch: dict[str, Tensor], gamma: float, lam: float) -> tuple[Tensor, Tensor]:
        rewards, values, mask = batch["rewards"], batch["values"], batch["response_mask"]
        following, last, found = torch.zeros(len(values)), torch.zeros(len(values)), []
        for at in reversed(range(values.shape[1])):
            step = rewards[:, at] + gamma * following - values[:, at]
            following = torch.where(mask[:, at] > 0, values[:, at], following)
            last = torch.where(mask[:, at] > 0, step + gamma * lam * last, last)
            found.append(last)
        raw = torch.stack(found[::-1], 1)
        return self.whitened(raw, mask) * mask, (raw + values) * mask

    def whitened(self, raw: Tensor, mask: Tensor) -> Tensor:
        mean = (raw * mask).sum() / mask.sum()
        variance = ((raw - mean) ** 2 * mask).sum() / (mask.sum() - 1)
        return (raw - mean) * (variance + 1e-8).rsqrt()

    # -- the update ------------------------------------------

    def update(self, batch: dict[str, Tensor]) -> None:
        for number, mini in enumerate(self.cut(batch, self.s.mini_batches)):
            counts = {"num_tokens": float(mini["response_mask"].sum()), "num_sequences": len(mini["group"])}
            for role, optimizer, loss in self.roles():
                optimizer.zero_grad()
                for worker in self.cut(mini, self.s.workers):
                    for micro in self.cut(worker, self.s.micro_batches):
                        self.scaled(
                            loss(micro, number, {**counts, "num_replicas": self.s.workers})
                        ).backward()
                for one in optimizer.param_groups[0]["params"]:
                    if one.grad is not None:
                        one.grad /= self.s.workers
                self.stepped(optimizer, role, number)

    def roles(self) -> list[tuple]:
        actor = ("actor", self.optimizer, self.actor_loss)
        return [("critic", self.critic_optimizer, self.critic_loss), actor] if self.s.has_critic else [actor]

    def scaled(self, loss: Tensor) -> Tensor:
        return loss

    def stepped(self, optimizer: torch.optim.Optimizer, role: str, number: int) -> None:
        optimizer.step()

    def cut(self, batch: dict[str, Tensor], parts: int) -> list[dict[str, Tensor]]:
        size = len(batch["group"]) // parts
        return [{n: t[at * size : (at + 1) * size] for n, t in batch.items()} for at in range(parts)]

    def actor_loss(self, micro: dict[str, Tensor], number: int, counts: dict[str, float]) -> Tensor:
        given = self.given(micro)
        now, entropy = self.log_probs(self.actor, micro["prompts"], micro["responses"])
        valid = micro["responses"] >= 0
        now, entropy = now * valid, entropy * valid
        mask = given["response_mask"]
        parts = {
            "policy_loss": self.aggregated(self.policy_loss(now, given), mask, counts),
            "entropy_loss": self.aggregated(entropy, mask, counts),
            "kl_loss": self.aggregated(self.kl(now, given["ref_log_probs"]), mask, counts),
        }
        loss = self.total(**parts)
        arrays = {**given, "log_probs": now.detach(), "entropy": entropy.detach()}
        self.record_loss("actor", number, arrays, {**parts, "loss": loss}, counts)
        return loss

    def given(self, micro: dict[str, Tensor]) -> dict[str, Tensor]:
        return micro

    def policy_loss(self, now: Tensor, given: dict[str, Tensor]) -> Tensor:
        loss = self.of_sequences(now, given) if self.s.loss_mode == "gspo" else self.of_tokens(now, given)
        return loss * given["rollout_weights"] if "rollout_weights" in given else loss

    def of_tokens(self, now: Tensor, given: dict[str, Tensor]) -> Tensor:
        gains = given["advantages"]
        ratio = (now - given["old_log_probs"]).clamp(-20, 20).exp()
        loss = self.clipped(gains, ratio)
        return torch.where(gains < 0, torch.minimum(-gains * self.s.clip_dual, loss), loss)

    def of_sequences(self, now: Tensor, given: dict[str, Tensor]) -> Tensor:
        """verl's GSPO: no dual clip."""
        mask = given["response_mask"]
        apart = ((now - given["old_log_probs"]) * mask).sum(1) / mask.sum(1).clamp(min=1)
        ratio = (now - now.detach() + apart.detach()[:, None]).clamp(max=10).exp()
        return self.clipped(given["advantages"], ratio)

    def clipped(self, gains: Tensor, ratio: Tensor) -> Tensor:
        low, high = self.clips()
        return torch.maximum(-gains * ratio, -gains * ratio.clamp(1 - low, 1 + high))

    def clips(self) -> tuple[float, float]:
        return self.s.clip_low, self.s.clip_high

    def aggregated(self, values: Tensor, mask: Tensor, counts: dict[str, float]) -> Tensor:
        return self.by_mode(values, mask, counts, self.s.loss_agg_mode)

    def by_mode(self, values: Tensor, mask: Tensor, counts: dict[str, float], mode: str) -> Tensor:
        scale = counts["num_replicas"]
        if mode == "token-mean":
            return (values * mask).sum() / counts["num_tokens"] * scale
        rows = (values * mask).sum(1)
        if mode == "seq-mean-token-mean":
            rows = rows / (mask.sum(1) + 1e-8)
        if mode == "seq-mean-token-sum-norm":
            rows = rows / self.horizon()
        return rows.sum() / counts["num_sequences"] * scale

    def horizon(self) -> float:
        return self.s.horizon

    def kl(self, now: Tensor, reference: Tensor) -> Tensor:
        apart = (reference - now).clamp(-20, 20)
        return (apart.exp() - apart - 1).clamp(-10, 10) if self.s.kl_loss_type == "k3" else now - reference

    def total(self, policy_loss: Tensor, entropy_loss: Tensor, kl_loss: Tensor) -> Tensor:
        return policy_loss - self.s.entropy_coef * entropy_loss + self.s.kl_coef * kl_loss

    def critic_loss(self, micro: dict[str, Tensor], number: int, counts: dict[str, float]) -> Tensor:
        now = self.values(micro["prompts"], micro["responses"]) * (micro["responses"] >= 0)
        loss = self.aggregated(self.value_loss(now, micro), micro["response_mask"], counts)
        self.record_loss(
            "critic", number, {**micro, "predictions": now.detach()}, {"value_loss": loss}, counts
        )
        return loss

    def value_loss(self, now: Tensor, given: dict[str, Tensor]) -> Tensor:
        clip = self.s.value_clip
        clipped = torch.clamp(now, given["values"] - clip, given["values"] + clip)
        return 0.5 * torch.maximum((now - given["returns"]) ** 2, (clipped - given["returns"]) ** 2)

    def sync(self) -> None:
        """The engine's weights are the actor's."""
        self.engine.load_state_dict(self.actor.state_dict())

    # -- what is recorded ------------------------------------------

    def declared(self) -> dict[str, object]:
        held = vars(self.s)
        return {
            **{name: held[name] for name in ("gamma", "lam", "by_std", "epsilon", "temperature")},
            "estimator": "gae" if self.s.has_critic else self.s.algorithm,
            "use_kl_in_reward": self.s.kl_coef_in_reward > 0,
            "kl_penalty": "kl",
            "kl_coef_in_reward": self.s.kl_coef_in_reward,
            "dtype": "float32",
        }

    def record(self, batch: dict[str, Tensor]) -> None:
        write_batch(self.output, self.step, {n: t.numpy() for n, t in batch.items()}, self.declared())

    def record_loss(
        self,
        role: str,
        number: int,
        arrays: dict[str, Tensor],
        numbers: dict[str, Tensor],
        counts: dict[str, float],
    ) -> None:
        names = (
            "loss_mode",
            "loss_agg_mode",
            "clip_low",
            "clip_high",
            "clip_dual",
            "kl_loss_type",
            "kl_coef",
        )
        settings = {name: vars(self.s)[name] for name in (*names, "entropy_coef", "value_clip")}
        write_loss(
            self.output,
            self.step,
            {name: tensor.numpy() for name, tensor in arrays.items()},
            {**settings, **counts, "horizon": self.s.horizon},
            {name: float(value.detach()) for name, value in numbers.items()},
            role=role,
            number=number,
        )


def shifted(values: Tensor, by: int) -> Tensor:
    """By tokens, zero where nothing comes in."""
    found = torch.roll(values, by, 1)
    found[:, slice(0, by) if by > 0 else slice(by, None)] = 0
    return found


def identical(one: Path, other: Path) -> bool:
    """Whether two runs recorded the same bits."""
    sides = read_rollouts(one), read_rollouts(other)
    return all(
        np.array_equal(sides[0][step].batch.arrays[name], array)
        for step, held in sides[1].items()
        for name, array in held.batch.arrays.items()
    )
