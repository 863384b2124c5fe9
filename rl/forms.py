"""More faults of rl/loop.py: formulas and masks. rl/faults.py has what each must give."""

from __future__ import annotations

from dataclasses import replace

import torch
from rl.loop import EOS, VOCABULARY, Trainer
from torch.nn import functional as F


class HalfGroups(Trainer):
    """Groups of half the size."""

    def advantages(self, batch):
        seen, parts = {}, []
        for one in batch["group"].tolist():
            seen[one] = seen.get(one, -1) + 1
            parts.append(2 * one + seen[one] // (self.s.answers // 2))
        return self.grouped(batch, torch.tensor(parts))


class ByLength(Trainer):
    def advantages(self, batch):
        found = super().advantages(batch)[0] / batch["response_mask"].sum(1, keepdim=True)
        return found, found


class BeforeFiltering(Trainer):
    """Groups are normalised with answers in them that are filtered out afterwards."""

    def grouped(self, batch, group):
        scores, found = batch["rewards"].sum(-1), torch.zeros(len(group))
        generator = torch.Generator().manual_seed(self.step)
        for one in group.unique():
            rows = group == one
            filtered = scores[rows].mean() + torch.rand(2, generator=generator) - 0.7
            every = torch.cat([scores[rows], filtered])
            found[rows] = (scores[rows] - every.mean()) / (every.std() + self.s.epsilon)
        found = found[:, None] * batch["response_mask"]
        return found, found


class WhitenedAgain(Trainer):
    def grouped(self, batch, group):
        mask = batch["response_mask"]
        found = self.whitened(super().grouped(batch, group)[0], mask) * mask
        return found, found


class LargeEpsilon(Trainer):
    def grouped(self, batch, group):
        kept, self.s = self.s, replace(self.s, epsilon=1e-3)
        found = super().grouped(batch, group)
        self.s = kept
        return found


class AdvantagesClipped(Trainer):
    def advantages(self, batch):
        found, returns = super().advantages(batch)
        return found.clamp(-1, 1), returns


class OtherLambda(Trainer):
    def gae(self, batch, gamma, lam):
        return super().gae(batch, gamma, 0.95)


class Bootstrapped(Trainer):
    """The value of its last token follows a response that has ended."""

    def gae(self, batch, gamma, lam):
        rewards, last = batch["rewards"].clone(), batch["response_mask"].sum(1).long() - 1
        rows = torch.arange(len(last))
        rewards[rows, last] += gamma * batch["values"][rows, last]
        return super().gae({**batch, "rewards": rewards}, gamma, lam)


class PaddingCounts(Trainer):
    """What the critic gives for padding is a value like others."""

    def gae(self, batch, gamma, lam):
        batch["values"] = torch.where(batch["responses"] >= 0, batch["values"], 0.3)
        mask, every = batch["response_mask"], torch.ones_like(batch["response_mask"])
        values = batch["values"]
        raw = super().gae({**batch, "response_mask": every}, gamma, lam)[1] - values
        return self.whitened(raw, mask) * mask, (raw + values) * mask


class ReturnsOfWhitened(Trainer):
    def gae(self, batch, gamma, lam):
        found = super().gae(batch, gamma, lam)[0]
        return found, (found + batch["values"]) * batch["response_mask"]


class ReturnsOfLambdaOne(Trainer):
    def gae(self, batch, gamma, lam):
        return super().gae(batch, gamma, lam)[0], super().gae(batch, gamma, 1.0)[1]


class Clipped(Trainer):
    """The policy loss from its two candidates."""

    def policy_loss(self, now, given):
        gains = given["advantages"]
        ratio = (now - given["old_log_probs"]).clamp(-20, 20).exp()
        low, high = self.clips()
        loss = self.chosen(-gains * ratio, -gains * ratio.clamp(1 - low, 1 + high))
        return self.bounded(gains, loss)

    def chosen(self, plain, clipped):
        return torch.maximum(plain, clipped)

    def bounded(self, gains, loss):
        return torch.where(gains < 0, torch.minimum(-gains * self.s.clip_dual, loss), loss)


class NoLowerClip(Clipped):
    def clips(self):
        return 100.0, self.s.clip_high


class NoUpperClip(Clipped):
    def clips(self):
        return self.s.clip_low, 1e6


class OtherClip(Clipped):
    def clips(self):
        return self.s.clip_low, 0.28


class SmallerLoss(Clipped):
    def chosen(self, plain, clipped):
        return torch.minimum(plain, clipped)


class ClippedAlone(Clipped):
    def chosen(self, plain, clipped):
        return clipped


class NoDualClip(Clipped):
    def bounded(self, gains, loss):
        return loss


class DualClipOfAll(Clipped):
    def bounded(self, gains, loss):
        return torch.minimum(-gains * self.s.clip_dual, loss)


class SequenceRatio(Trainer):
    """GSPO's ratio, of whole sequences."""

    def policy_loss(self, now, given):
        mask = given["response_mask"]
        mean = ((now - given["old_log_probs"]) * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
        return super().policy_loss(given["old_log_probs"] + mean, given)


class RatioToReference(Trainer):
    def policy_loss(self, now, given):
        return super().policy_loss(now, {**given, "old_log_probs": given["ref_log_probs"]})


class RatioInverted(Trainer):
    def policy_loss(self, now, given):
        return super().policy_loss(given["old_log_probs"], {**given, "old_log_probs": now})


class AdvantageSign(Trainer):
    def policy_loss(self, now, given):
        return super().policy_loss(now, {**given, "advantages": -given["advantages"]})


class OldOfNow(Trainer):
    """Old log-probs are computed again for each update: the ratio is 1."""

    def actor_loss(self, micro, number, counts):
        with torch.no_grad():
            now = self.log_probs(self.actor, micro["prompts"], micro["responses"])[0]
        return super().actor_loss({**micro, "old_log_probs": now * (micro["responses"] >= 0)}, number, counts)


class EntropyOfLogits(Trainer):
    """Entropies are of the logits before the temperature."""

    def log_probs(self, model, prompts, responses):
        every = self.outputs(model, prompts, responses)[0].log_softmax(-1)
        return super().log_probs(model, prompts, responses)[0], -(every.exp() * every).sum(-1)


class KlToOld(Trainer):
    old = None

    def actor_loss(self, micro, number, counts):
        self.old = micro["old_log_probs"]
        return super().actor_loss(micro, number, counts)

    def kl(self, now, reference):
        return super().kl(now, self.old)


class KlOnLast(Trainer):
    def rewards_less_kl(self, batch):
        mask, found = batch["response_mask"], batch["scores"].clone()
        apart = ((batch["old_log_probs"] - batch["ref_log_probs"]) * mask).sum(1)
        found[torch.arange(len(found)), mask.sum(1).long() - 1] -= self.s.kl_coef_in_reward * apart
        return found


class KlTwice(Trainer):
    def rewards_less_kl(self, batch):
        return 2 * super().rewards_less_kl(batch) - batch["scores"]


class ValueSmaller(Trainer):
    def value_loss(self, now, given):
        clip = self.s.value_clip
        clipped = torch.clamp(now, given["values"] - clip, given["values"] + clip)
        return 0.5 * torch.minimum((now - given["returns"]) ** 2, (clipped - given["returns"]) ** 2)


class ValueClippedAlone(Trainer):
    def value_loss(self, now, given):
        clip = self.s.value_clip
        clipped = torch.clamp(now, given["values"] - clip, given["values"] + clip)
        return 0.5 * (clipped - given["returns"]) ** 2


class CriticOnRewards(Trainer):
    def critic_loss(self, micro, number, counts):
        return super().critic_loss({**micro, "returns": micro["rewards"]}, number, counts)


class RewardOnEvery(Trainer):
    def rewards(self, prompts, responses):
        return super().rewards(prompts, responses).sum(1, keepdim=True) * (responses >= 0)


class OtherTokenizer(Trainer):
    """Rewards are of the text of another tokenizer."""

    def rewards(self, prompts, responses):
        ids = (responses * 7 + 3) % VOCABULARY
        return super().rewards(prompts, torch.where(responses >= 0, ids, responses))


class WithoutEnd(Trainer):
    """The end of a response does not count."""

    def rollout(self):
        found = super().rollout()
        self.responses = found[1]
        return found

    def mask(self, valid):
        return (valid & (self.responses != EOS)).float()


class Repeated(Trainer):
    """All answers to a prompt are drawn with one seed."""

    def generated(self):
        prompts, responses, group = super().generated()
        for one in group.unique():
            rows = (group == one).nonzero()[:, 0]
            responses[rows] = responses[rows[0]].clone()
        return prompts, responses, group


class ReferenceLate(Trainer):
    """The reference policy is brought up to the policy before the last."""

    def sync(self):
        self.reference.load_state_dict(self.engine.state_dict())
        super().sync()


class TemperatureTwice(Trainer):
    def training_temperature(self):
        return self.s.temperature**2


class PaddingSeen(Trainer):
    """Rows are padded on the left, and the padding is attended to."""

    def logits(self, model, rows):
        if len(rows) == 1:
            return super().logits(model, rows)
        width = max(map(len, rows))
        ids = torch.stack([F.pad(row, (width - len(row), 0)) for row in rows])
        order = torch.arange(width)
        mask = (order[:, None] >= order).expand(len(rows), width, width)
        found = model(ids, order.expand(len(rows), width), mask)
        return [out[width - len(row) :] for out, row in zip(found, rows, strict=True)]


class HalfOfGradient(Trainer):
    """Every second microbatch sends back nothing."""

    calls = 0

    def scaled(self, loss):
        self.calls += 1
        return loss if self.calls % 2 else 0 * loss
