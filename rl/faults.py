"""Faults planted in a real RL loop (rl/loop.py), and benign variants: does trueup find which is which?

    python rl/faults.py [NAME...]

Each fault is a subclass of the trainer that overrides one method. The target trains on the reference's
tokens; where ``free`` it generates its own. Held: stage, quantity and reason of the verdict.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from rl import forms, recipes  # noqa: E402
from rl.loop import Model, Settings, Trainer, shifted  # noqa: E402

from trueup.diagnosing.rl.walk import RLComparison, compare_rollouts  # noqa: E402
from trueup.types.codes import RLCode  # noqa: E402
from trueup.types.finding import Stage  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402
from trueup.wording import text  # noqa: E402

GRPO, PPO = Settings(), Settings(algorithm="ppo")
KL_REWARD = Settings(algorithm="ppo", kl_coef_in_reward=0.1)
LORA = Settings(lr=2e-2)
HOT, HOTTER = Settings(lr=5e-2), Settings(lr=0.2)  # ratios beyond the clip, and beyond the dual clip
PPO_HOT = Settings(algorithm="ppo", lr=2e-2)


class OverBatch(Trainer):
    def advantages(self, batch):
        return self.grouped(batch, torch.zeros_like(batch["group"]))


class OverNeighbours(Trainer):
    def advantages(self, batch):
        return self.grouped(batch, torch.arange(len(batch["group"])) // self.s.answers)


class NotDivided(Trainer):
    def grouped(self, batch, group):
        self.s = replace(self.s, by_std=False)
        found = super().grouped(batch, group)
        self.s = replace(self.s, by_std=True)
        return found


class LambdaOne(Trainer):
    def gae(self, batch, gamma, lam):
        return super().gae(batch, gamma, 1.0)


class WhitenedOverPadding(Trainer):
    def whitened(self, raw, mask):
        return super().whitened(raw, torch.ones_like(mask))


class K1(Trainer):
    def kl(self, now, reference):
        return now - reference


class KlSwapped(Trainer):
    def kl(self, now, reference):
        return super().kl(reference, now)


class KlCoefficient(Trainer):
    def total(self, policy_loss, entropy_loss, kl_loss):
        return super().total(policy_loss, entropy_loss, 10 * kl_loss)


class EntropySign(Trainer):
    def total(self, policy_loss, entropy_loss, kl_loss):
        return super().total(policy_loss, -entropy_loss, kl_loss)


class SequenceMean(Trainer):
    def aggregated(self, values, mask, counts):
        return self.by_mode(values, mask, counts, "seq-mean-token-mean")


class LocalCount(Trainer):
    def aggregated(self, values, mask, counts):
        return super().aggregated(values, mask, {**counts, "num_tokens": float(mask.sum())})


class SymmetricClip(Trainer):
    def clips(self):
        return self.s.clip_low, self.s.clip_low


class Stale(Trainer):
    """Old log-probs are of the policy before its last update."""

    previous: Model | None = None

    def old_log_probs(self, prompts, responses):
        return self.log_probs(self.previous or self.actor, prompts, responses)[0]

    def sync(self):
        self.previous = Model()
        self.previous.load_state_dict(self.engine.state_dict())
        super().sync()


class NoTemperature(Trainer):
    def training_temperature(self):
        return 1.0


class RolloutBehind(Trainer):
    """The engine gets the weights of the step before."""

    held: dict | None = None

    def sync(self):
        if self.held is not None:
            self.engine.load_state_dict(self.held)
        self.held = {name: one.clone() for name, one in self.actor.state_dict().items()}


class MaskOffByOne(Trainer):
    def mask(self, valid):
        return shifted(valid.float(), -1)


class MaskOffByOneInLoss(Trainer):
    def given(self, micro):
        return {**micro, "response_mask": shifted(micro["response_mask"], -1)}


class RewardOnFirst(Trainer):
    def rewards(self, prompts, responses):
        scores = super().rewards(prompts, responses)
        moved = torch.zeros_like(scores)
        moved[:, 0] = scores.sum(1)
        return moved


class RewardOfNeighbour(Trainer):
    def rewards(self, prompts, responses):
        scores = super().rewards(prompts, responses)
        sums, found = scores.sum(1).roll(1), torch.zeros_like(scores)
        found[scores != 0] = sums
        return found


class ReferenceUpdated(Trainer):
    def sync(self):
        super().sync()
        self.reference.load_state_dict(self.actor.state_dict())


class ValueClipOff(Trainer):
    def value_loss(self, now, given):
        return 0.5 * (now - given["returns"]) ** 2


class TopP(Trainer):
    """Log-probs of the rollout are of the renormalised nucleus."""

    def engine_scores(self, logits):
        order = logits.sort(-1, descending=True)
        before = order.values.softmax(-1).cumsum(-1) - order.values.softmax(-1)
        kept = torch.zeros_like(logits).scatter(-1, order.indices, (before < 0.9).float())
        return logits.log_softmax(-1) - (logits.softmax(-1) * kept).sum(-1, keepdim=True).log()


class Bfloat16Head(Trainer):
    def engine_scores(self, logits):
        return logits.bfloat16().float().log_softmax(-1)


class PackedPositions(Trainer):
    """Positions begin again where the first row's length says, in every packed row."""

    def packed_positions(self, rows):
        return torch.arange(sum(map(len, rows))) % len(rows[0])


class LoraScale(Trainer):
    """The adapter's scale is left out of the weights of the rollout."""

    def sync(self):
        super().sync()
        for one in self.engine.attention:
            one.lora_scale = 1.0


class LogProbsShifted(Trainer):
    def old_log_probs(self, prompts, responses):
        return shifted(super().old_log_probs(prompts, responses), 1)


class ValuesShifted(Trainer):
    def values(self, prompts, responses):
        return shifted(super().values(prompts, responses), 1)


class NoKlInReward(Trainer):
    def rewards_less_kl(self, batch):
        return batch["scores"].clone()


class PromptsCut(Trainer):
    def prompt(self, number):
        return super().prompt(number)[1:]


class NotZeroed(Trainer):
    """The gradients of a mini-batch are added to those of the one before."""

    def stepped(self, optimizer, role, number):
        for group in optimizer.param_groups:
            group["lr"] = self.s.lr * 3
        optimizer.step()


@dataclass(frozen=True, kw_only=True)
class Fault:
    trainer: type[Trainer]
    stage: Stage
    quantity: str
    code: RLCode
    settings: Settings = GRPO
    free: bool = False


S, C = Stage, RLCode
FAULTS = {
    one.trainer.__name__ + ("-free" if one.free else ""): one
    for one in (
        Fault(trainer=OverBatch, stage=S.ADVANTAGES, quantity="advantages", code=C.OVER_BATCH),
        Fault(trainer=OverBatch, stage=S.ADVANTAGES, quantity="advantages", code=C.OVER_BATCH, free=True),
        Fault(trainer=OverNeighbours, stage=S.ADVANTAGES, quantity="advantages", code=C.OVER_NEIGHBOURS),
        Fault(trainer=NotDivided, stage=S.ADVANTAGES, quantity="advantages", code=C.WITHOUT_STD),
        Fault(trainer=LambdaOne, stage=S.ADVANTAGES, quantity="advantages", code=C.GAMMA_LAM, settings=PPO),
        Fault(
            trainer=WhitenedOverPadding,
            stage=S.ADVANTAGES,
            quantity="advantages",
            code=C.OVER_PADDING,
            settings=PPO,
        ),
        Fault(trainer=K1, stage=S.KL_TERM, quantity="kl_loss", code=C.KL_KIND),
        Fault(trainer=K1, stage=S.KL_TERM, quantity="kl_loss", code=C.KL_KIND, free=True),
        Fault(trainer=KlSwapped, stage=S.KL_TERM, quantity="kl_loss", code=C.KL_SWAPPED),
        Fault(trainer=KlCoefficient, stage=S.POLICY_LOSS, quantity="loss", code=C.TERM_FACTOR),
        Fault(trainer=EntropySign, stage=S.POLICY_LOSS, quantity="loss", code=C.TERM_SIGN),
        Fault(trainer=SequenceMean, stage=S.POLICY_LOSS, quantity="policy_loss", code=C.AGGREGATED),
        Fault(
            trainer=SequenceMean, stage=S.POLICY_LOSS, quantity="policy_loss", code=C.AGGREGATED, free=True
        ),
        Fault(trainer=LocalCount, stage=S.POLICY_LOSS, quantity="policy_loss", code=C.LOCAL_COUNT),
        Fault(trainer=SymmetricClip, stage=S.POLICY_LOSS, quantity="policy_loss", code=C.SYMMETRIC_CLIP),
        Fault(trainer=Stale, stage=S.OLD_LOG_PROBS, quantity="old_log_probs", code=C.STALE),
        Fault(trainer=Stale, stage=S.OLD_LOG_PROBS, quantity="old_log_probs", code=C.STALE, free=True),
        Fault(trainer=NoTemperature, stage=S.OLD_LOG_PROBS, quantity="old_log_probs", code=C.STRETCHED),
        Fault(trainer=RolloutBehind, stage=S.ROLLOUT, quantity="rollout_log_probs", code=C.ROLLOUT_ONLY),
        Fault(
            trainer=RolloutBehind, stage=S.ROLLOUT, quantity="rollout_log_probs", code=C.ENGINES, free=True
        ),
        Fault(trainer=MaskOffByOne, stage=S.ADVANTAGES, quantity="response_mask", code=C.MASK_END),
        Fault(trainer=MaskOffByOneInLoss, stage=S.POLICY_LOSS, quantity="inputs", code=C.GIVEN_OTHER),
        Fault(trainer=RewardOnFirst, stage=S.REWARDS, quantity="scores", code=C.REWARD_PLACE, settings=PPO),
        Fault(trainer=RewardOnFirst, stage=S.REWARDS, quantity="scores", code=C.REWARD_PLACE, free=True),
        Fault(trainer=RewardOfNeighbour, stage=S.REWARDS, quantity="scores", code=C.REWARD_ROWS),
        Fault(trainer=ReferenceUpdated, stage=S.REFERENCE_LOG_PROBS, quantity="ref_log_probs", code=C.COPIED),
        Fault(
            trainer=ValueClipOff, stage=S.VALUE_LOSS, quantity="value_loss", code=C.NOT_CLIPPED, settings=PPO
        ),
        Fault(trainer=TopP, stage=S.ROLLOUT, quantity="rollout_log_probs", code=C.ROLLOUT_ONLY),
        Fault(trainer=Bfloat16Head, stage=S.ROLLOUT, quantity="rollout_log_probs", code=C.ROLLOUT_ONLY),
        Fault(
            trainer=PackedPositions,
            stage=S.OLD_LOG_PROBS,
            quantity="old_log_probs",
            code=C.APART,
            settings=replace(GRPO, packed=True),
        ),
        Fault(
            trainer=LoraScale,
            stage=S.ROLLOUT,
            quantity="rollout_log_probs",
            code=C.ROLLOUT_ONLY,
            settings=LORA,
        ),
        Fault(trainer=LogProbsShifted, stage=S.OLD_LOG_PROBS, quantity="old_log_probs", code=C.SHIFTED),
        Fault(trainer=ValuesShifted, stage=S.VALUES, quantity="values", code=C.SHIFTED, settings=PPO),
        Fault(
            trainer=NoKlInReward, stage=S.KL_TERM, quantity="rewards", code=C.WITHOUT_KL, settings=KL_REWARD
        ),
        Fault(trainer=PromptsCut, stage=S.PROMPTS, quantity="prompts", code=C.TRUNCATED, free=True),
        Fault(trainer=NotZeroed, stage=S.UPDATE, quantity="weights", code=C.UPDATE),
    )
}


def _of_forms(stage: Stage, quantity: str, codes: dict[str, RLCode], **more: object) -> dict[str, Fault]:
    """Faults of rl/forms.py that show in one quantity."""
    return {
        name + ("-free" if more.get("free") else ""): Fault(
            trainer=getattr(forms, name, None) or getattr(recipes, name),
            stage=stage,
            quantity=quantity,
            code=code,
            **more,
        )
        for name, code in codes.items()
    }


FAULTS |= _of_forms(
    S.ADVANTAGES,
    "advantages",
    {
        "HalfGroups": C.OVER_PART,
        "ByLength": C.BY_LENGTH,
        "BeforeFiltering": C.OTHER_MOMENTS,
        "WhitenedAgain": C.WHITENED_AGAIN,
        "LargeEpsilon": C.EPSILON,
        "AdvantagesClipped": C.ADVANTAGES_CLIPPED,
    },
)
FAULTS |= _of_forms(
    S.ADVANTAGES,
    "advantages",
    {"OtherLambda": C.GAMMA_LAM, "Bootstrapped": C.BOOTSTRAPPED, "PaddingCounts": C.PADDING_COUNTS},
    settings=PPO,
)
FAULTS |= _of_forms(
    S.ADVANTAGES,
    "returns",
    {"ReturnsOfWhitened": C.RETURNS_WHITENED, "ReturnsOfLambdaOne": C.GAMMA_LAM},
    settings=PPO,
)
FAULTS |= _of_forms(
    S.POLICY_LOSS,
    "policy_loss",
    {
        "NoLowerClip": C.ONE_SIDED_CLIP,
        "NoUpperClip": C.ONE_SIDED_CLIP,
        "OtherClip": C.CLIP_RANGE,
        "SmallerLoss": C.SMALLER_LOSS,
        "ClippedAlone": C.CLIPPED_ONLY,
        "DualClipOfAll": C.DUAL_OF_ALL,
        "SequenceRatio": C.SEQUENCE_RATIO,
        "RatioToReference": C.RATIO_TO_OTHER,
        "RatioInverted": C.RATIO_INVERTED,
        "AdvantageSign": C.SIGN,
    },
    settings=HOT,
)
FAULTS |= _of_forms(S.POLICY_LOSS, "policy_loss", {"NoDualClip": C.NO_DUAL_CLIP}, settings=HOTTER)
FAULTS |= _of_forms(S.POLICY_LOSS, "inputs", {"OldOfNow": C.GIVEN_OTHER})
FAULTS |= _of_forms(S.POLICY_LOSS, "entropy", {"EntropyOfLogits": C.APART})
FAULTS |= _of_forms(S.KL_TERM, "kl_loss", {"KlToOld": C.KL_TO_OTHER})
FAULTS |= _of_forms(
    S.KL_TERM, "rewards", {"KlOnLast": C.KL_ON_LAST, "KlTwice": C.TERM_FACTOR}, settings=KL_REWARD
)
FAULTS |= _of_forms(
    S.VALUE_LOSS,
    "value_loss",
    {"ValueSmaller": C.SMALLER_LOSS, "ValueClippedAlone": C.CLIPPED_ONLY},
    settings=PPO_HOT,
)
FAULTS |= _of_forms(S.VALUE_LOSS, "inputs", {"CriticOnRewards": C.GIVEN_OTHER}, settings=PPO)
FAULTS |= _of_forms(S.REWARDS, "scores", {"RewardOnEvery": C.REWARD_REPEATED, "OtherTokenizer": C.APART})
FAULTS |= _of_forms(S.ADVANTAGES, "response_mask", {"WithoutEnd": C.MASK_ID})
FAULTS |= _of_forms(S.ROLLOUT, "responses", {"Repeated": C.REPEATED}, free=True)
FAULTS |= _of_forms(S.REFERENCE_LOG_PROBS, "ref_log_probs", {"ReferenceLate": C.REFERENCE_CHANGED})
FAULTS |= _of_forms(
    S.OLD_LOG_PROBS, "old_log_probs", {"TemperatureTwice": C.STRETCHED, "PaddingSeen": C.APART}
)
FAULTS |= _of_forms(S.UPDATE, "weights", {"HalfOfGradient": C.UPDATE})
RLOO, REMAX = Settings(algorithm="rloo"), Settings(algorithm="remax")
REINFORCE = Settings(algorithm="reinforce_plus_plus", kl_coef_in_reward=0.05)
BASELINE = Settings(algorithm="reinforce_plus_plus_baseline")
GSPO = Settings(loss_mode="gspo", clip_low=3e-3, clip_high=4e-3, loss_agg_mode="seq-mean-token-mean", lr=2e-2)
TIS = Settings(weights_cap=1.004, engine_dtype="bfloat16", lr=2e-2)
OVERLONG = Settings(overlong=6)
HORIZON = Settings(loss_agg_mode="seq-mean-token-sum-norm", horizon=20.0)
FAULTS |= _of_forms(
    S.ADVANTAGES,
    "advantages",
    {
        "BaselineWithOwn": C.OTHER_ESTIMATOR,
        "BaselineOfBatch": C.OVER_BATCH,
        "DividedByStd": C.OTHER_ESTIMATOR,
    },
    settings=RLOO,
)
FAULTS |= _of_forms(
    S.ADVANTAGES,
    "advantages",
    {"NotDiscounted": C.GAMMA_LAM, "DiscountedRaw": C.NOT_WHITENED},
    settings=REINFORCE,
)
FAULTS |= _of_forms(
    S.ADVANTAGES,
    "advantages",
    {"BaselineLeftOut": C.WITHOUT_BASELINE, "MeanNotWhitened": C.NOT_WHITENED},
    settings=BASELINE,
)
FAULTS |= _of_forms(
    S.ADVANTAGES, "advantages", {"GreedyOfNeighbour": C.APART, "GreedyLeftOut": C.APART}, settings=REMAX
)
FAULTS |= _of_forms(
    S.POLICY_LOSS,
    "policy_loss",
    {"TokenRatio": C.TOKEN_RATIO, "RatioSummed": C.RATIO_SUMMED, "ClipOfTokens": C.CLIP_RANGE},
    settings=GSPO,
)
FAULTS |= _of_forms(
    S.POLICY_LOSS,
    "policy_loss",
    {"NoWeights": C.WEIGHTS_IGNORED, "WeightsTwice": C.FORMULA_FAILS},
    settings=TIS,
)
FAULTS |= _of_forms(
    S.POLICY_LOSS,
    "rollout_weights",
    {
        "WeightsInverted": C.WEIGHTS_INVERTED,
        "WeightsOfSequences": C.WEIGHTS_OF_SEQUENCES,
        "WeightsNotCapped": C.WEIGHTS_NOT_CAPPED,
    },
    settings=TIS,
)
FAULTS |= _of_forms(
    S.REWARDS, "scores", {"NotPunished": C.REWARD_OF_LONG, "Rewarded": C.REWARD_OF_LONG}, settings=OVERLONG
)
FAULTS |= _of_forms(S.REWARDS, "scores", {"RewardsBounded": C.REWARD_BOUNDED})
FAULTS |= _of_forms(S.POLICY_LOSS, "policy_loss", {"HorizonOfBatch": C.HORIZON}, settings=HORIZON)
FAULTS |= _of_forms(S.POLICY_LOSS, "policy_loss", {"DualBound": C.CLIP_RANGE}, settings=HOTTER)
FAULTS |= _of_forms(S.POLICY_LOSS, "loss", {"EntropyTenfold": C.TERM_FACTOR})
BENIGN = {
    "rloo, packed": (RLOO, replace(RLOO, packed=True)),
    "reinforce++, microbatches": (REINFORCE, replace(REINFORCE, micro_batches=4)),
    "reinforce++ with a baseline, padding": (BASELINE, replace(BASELINE, padding=3)),
    "remax, row order": (REMAX, replace(REMAX, shuffled=True)),
    "gspo, microbatches and padding": (GSPO, replace(GSPO, micro_batches=1, padding=4)),
    "importance weights, two workers": (TIS, replace(TIS, workers=2)),
    "punished length, packed": (OVERLONG, replace(OVERLONG, packed=True)),
    "a fixed horizon, microbatches": (HORIZON, replace(HORIZON, micro_batches=4)),
    "packing": (GRPO, replace(GRPO, packed=True)),
    "two workers": (GRPO, replace(GRPO, workers=2)),
    "microbatches": (PPO, replace(PPO, micro_batches=4)),
    "eager attention": (PPO, replace(PPO, attention="eager")),
    "row order": (PPO, replace(PPO, shuffled=True)),
    "padding": (GRPO, replace(GRPO, padding=3)),
    "all of them": (
        KL_REWARD,
        replace(KL_REWARD, packed=True, workers=2, micro_batches=1, shuffled=True, padding=5),
    ),
    "again": (PPO, PPO),
    "again, ratios far from 1": (HOTTER, HOTTER),
    "eager and padding, ratios beyond the clip": (HOT, replace(HOT, attention="eager", padding=4)),
    "four workers": (GRPO, replace(GRPO, workers=4)),
    "packing and row order with a KL in the reward": (
        KL_REWARD,
        replace(KL_REWARD, packed=True, shuffled=True, micro_batches=4),
    ),
}
"""reference and target: AGREE is expected"""


def judged(folder: Path, fault: Fault, references: dict[Settings, Path]) -> RLComparison:
    """The target against its reference, which is run once."""
    reference = run_once(folder, fault.settings, references)
    place = folder / f"target-{fault.trainer.__name__}-{fault.free}"
    target = fault.trainer(place, fault.settings, None if fault.free else reference).run()
    found = compare_rollouts(target, reference)
    assert found is not None
    return found


def run_once(folder: Path, settings: Settings, references: dict[Settings, Path]) -> Path:
    if settings not in references:
        references[settings] = Trainer(folder / f"reference-{len(references)}", settings).run()
    return references[settings]


def main() -> int:
    torch.set_num_threads(1)
    asked, references, counts = sys.argv[1:], {}, {"stage": 0, "site": 0, "reason": 0, "false alarms": 0}
    with tempfile.TemporaryDirectory(prefix="rl-faults-") as place:
        folder, faults = Path(place), {n: f for n, f in FAULTS.items() if not asked or n in asked}
        for name, fault in faults.items():
            found = judged(folder, fault, references).failed
            first = found[0] if found else None
            held = {
                "stage": first is not None and first.stage is fault.stage,
                "site": first is not None and (first.stage, first.quantity) == (fault.stage, fault.quantity),
                "reason": first is not None and first.conclusion.code is fault.code,
            }
            counts.update({key: counts[key] + value for key, value in held.items()})
            said = (
                "nothing"
                if first is None
                else f"step {first.step} {first.quantity}: {text(first.conclusion)}"
            )
            print(f"{'ok  ' if all(held.values()) else 'FAIL'} {name}: {said}", flush=True)
        benign = {name: pair for name, pair in BENIGN.items() if not asked or name in asked}
        for name, (reference, target) in benign.items():
            held = run_once(folder, reference, references)
            found = compare_rollouts(Trainer(folder / name, target, held).run(), held)
            alarms = [] if found is None else [f"{one.step} {text(one.conclusion)}" for one in found.failed]
            counts["false alarms"] += bool(alarms)
            agrees = found is not None and found.outcome is Outcome.AGREE
            print(
                f"{'ok  ' if agrees else 'FAIL'} benign, {name}: {alarms or found.outcome.value}", flush=True
            )
    print(f"{len(faults)} faults, {len(benign)} benign variants: {counts}")
    bars = counts["stage"] >= 0.95 * len(faults) and counts["site"] >= 0.9 * len(faults)
    return 0 if bars and not counts["false alarms"] else 1


if __name__ == "__main__":
    sys.exit(main())
