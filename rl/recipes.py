"""Faults of other recipes than GRPO and PPO: estimators, sequence ratios, importance weights of the rollout,
punishment of length. rl/faults.py has what each must give."""

from __future__ import annotations

from dataclasses import replace

import torch
from rl.loop import Trainer


class BaselineWithOwn(Trainer):
    """RLOO's baseline counts the sequence itself."""

    def leave_one_out(self, batch):
        scores, mean, _ = self.means(batch)
        found = (scores - mean)[:, None] * batch["response_mask"]
        return found, found


class BaselineOfBatch(Trainer):
    """RLOO's baseline is of the whole batch."""

    def leave_one_out(self, batch):
        return super().leave_one_out({**batch, "group": torch.zeros_like(batch["group"])})


class DividedByStd(Trainer):
    """RLOO, divided by the group's deviation as GRPO is."""

    def leave_one_out(self, batch):
        return self.grouped(batch, batch["group"])


class NotDiscounted(Trainer):
    """REINFORCE++ with gamma 1."""

    def discounted(self, batch):
        kept, self.s = self.s, replace(self.s, gamma=1.0)
        found = super().discounted(batch)
        self.s = kept
        return found


class DiscountedRaw(Trainer):
    """REINFORCE++ without whitening."""

    def discounted(self, batch):
        returns = super().discounted(batch)[1]
        return returns * batch["response_mask"], returns


class BaselineLeftOut(Trainer):
    """REINFORCE++ with a baseline: no group's mean is taken off."""

    def means(self, batch):
        scores, mean, size = super().means(batch)
        return scores, torch.zeros_like(mean), size


class MeanNotWhitened(Trainer):
    """REINFORCE++ with a baseline, not whitened."""

    def whitened(self, raw, mask):
        return raw


class GreedyOfNeighbour(Trainer):
    """ReMax's baseline is another prompt's."""

    def baselines(self, batch):
        return super().baselines(batch).roll(1)


class GreedyLeftOut(Trainer):
    """ReMax without its baseline."""

    def baselines(self, batch):
        return torch.zeros(len(batch["group"]))


class TokenRatio(Trainer):
    """GSPO with a ratio of each token."""

    def of_sequences(self, now, given):
        return self.clipped(given["advantages"], (now - given["old_log_probs"]).exp())


class RatioSummed(Trainer):
    """GSPO's ratio of a sequence is not brought to its length."""

    def of_sequences(self, now, given):
        apart = ((now - given["old_log_probs"]) * given["response_mask"]).sum(1, keepdim=True)
        return self.clipped(given["advantages"], apart.clamp(max=10).exp().expand(now.shape))


class ClipOfTokens(Trainer):
    """GSPO with the range of a token's ratio."""

    def clips(self):
        return 0.2, 0.28


class NoWeights(Trainer):
    """The rollout's importance weights are not used."""

    def policy_loss(self, now, given):
        return super().policy_loss(
            now, {name: one for name, one in given.items() if name != "rollout_weights"}
        )


class WeightsInverted(Trainer):
    def rollout_weights(self, batch):
        return (batch["rollout_log_probs"] - batch["old_log_probs"]).exp().clamp(max=self.s.weights_cap)


class WeightsOfSequences(Trainer):
    """One weight a sequence, its tokens' ratios multiplied."""

    def rollout_weights(self, batch):
        apart = ((batch["old_log_probs"] - batch["rollout_log_probs"]) * batch["response_mask"]).sum(1)
        return apart.exp().clamp(max=self.s.weights_cap)[:, None].expand(batch["old_log_probs"].shape)


class WeightsNotCapped(Trainer):
    def rollout_weights(self, batch):
        return (batch["old_log_probs"] - batch["rollout_log_probs"]).exp()


class WeightsTwice(Trainer):
    """The loss multiplies by the weights, and so did the advantages."""

    def policy_loss(self, now, given):
        return super().policy_loss(now, given) * given["rollout_weights"]


class NotPunished(Trainer):
    """Long responses are not punished."""

    def punishment(self, responses):
        return 0 * super().punishment(responses)


class Rewarded(Trainer):
    """The punishment of length has the other sign."""

    def punishment(self, responses):
        return -super().punishment(responses)


class HorizonOfBatch(Trainer):
    """Dr. GRPO's constant is the longest response of the call."""

    def aggregated(self, values, mask, counts):
        self.longest = float(mask.sum(1).max())
        return super().aggregated(values, mask, counts)

    def horizon(self):
        return self.longest


class DualBound(Trainer):
    """The dual bound is 2, not 3."""

    def of_tokens(self, now, given):
        kept, self.s = self.s, replace(self.s, clip_dual=2.0)
        found = super().of_tokens(now, given)
        self.s = kept
        return found


class EntropyTenfold(Trainer):
    def total(self, policy_loss, entropy_loss, kl_loss):
        return super().total(policy_loss, 10 * entropy_loss, kl_loss)


class RewardsBounded(Trainer):
    """Rewards are clipped."""

    def rewards(self, prompts, responses):
        scores = super().rewards(prompts, responses)
        return scores.clamp(max=float(scores.sum(1).median()))
