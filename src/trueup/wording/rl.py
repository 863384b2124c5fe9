"""English of two reinforcement learning runs."""

from __future__ import annotations

from collections.abc import Mapping

from trueup.types.codes import RLCode as R
from trueup.types.reason import reason
from trueup.wording.phrase import Phrase, ReasonFacts, Template, clause

QUANTITIES = {
    "prompts": "prompts",
    "responses": "generated tokens",
    "scores": "rewards",
    "rewards": "rewards less KL",
    "response_mask": "the response mask",
    "rollout_log_probs": "rollout log-probs",
    "old_log_probs": "old log-probs",
    "ref_log_probs": "reference log-probs",
    "values": "values",
    "returns": "returns",
    "advantages": "advantages",
    "entropy": "entropies",
    "rollout_weights": "importance weights of the rollout",
    "log_probs": "the present policy's log-probs",
    "predictions": "the critic's present values",
    "inputs": "inputs of the loss",
    "policy_loss": "the policy loss",
    "entropy_loss": "the entropy term",
    "kl_loss": "the KL term",
    "loss": "the total loss",
    "value_loss": "the value loss",
    "weights": "what updated weights give",
}
_SINGULAR = ("response_mask", "policy_loss", "entropy_loss", "kl_loss", "loss", "value_loss", "weights")
_SIGNED = ("kl", "k1")
"""estimates of KL that change their sign with the two policies"""
_APART = {"quantity": "old_log_probs", "rms": 0.12, "allowed": 4e-6, "tokens": 96, "different": 90}
_SETTINGS = {
    "loss_agg_mode": "loss_agg_mode",
    "estimator": "advantage estimator",
    "by_std": "division of advantages by their standard deviation",
    "clip_low": "lower clip ratio",
    "clip_high": "upper clip ratio",
    "clip_dual": "dual clip ratio",
    "kl_loss_type": "KL estimator",
    "kl_coef": "KL coefficient",
    "entropy_coef": "entropy coefficient",
    "value_clip": "value clip range",
}


def _heading(template: Template, *samples: Mapping[str, object]) -> Phrase:
    """Evidence as it is, a headline with a capital."""

    return Phrase(sentence=template, headline=_capital(template), samples=samples or ({},))


def _capital(template: Template) -> Template:
    def capital(facts: ReasonFacts) -> str:
        text = facts.fill(template) if isinstance(template, str) else template(facts)
        return text[:1].upper() + text[1:]

    return capital


def quantity(facts: ReasonFacts) -> str:
    """What a quantity is called."""
    return QUANTITIES.get(str(facts["quantity"]), str(facts["quantity"]))


def _of(template: str) -> Template:
    """Of a quantity, with ``{what}`` and the verbs that follow it."""

    def filled(facts: ReasonFacts) -> str:
        is_one = str(facts["quantity"]) in _SINGULAR
        verbs = {"differ": "differs" if is_one else "differ", "are": "is" if is_one else "are"}
        return facts.fill(template, what=quantity(facts), **verbs)

    return filled


def _sentence(template: str) -> Template:
    return _capital(_of(template))


def _given(facts: ReasonFacts) -> str:
    return quantity(facts).removeprefix("the ")


def _by(facts: ReasonFacts) -> str:
    return "next" if facts["by"] < 0 else "previous"


def _setting(facts: ReasonFacts) -> str:
    name = _SETTINGS.get(str(facts["name"]), str(facts["name"]))
    return f"{name} differs: {facts['target']} (target), {facts['reference']} (reference)"


def _fails(facts: ReasonFacts) -> str:
    whose = "" if facts["side"] == "target" else " (reference)"
    return facts.fill(
        "{what}{whose}: not what its own inputs and settings give ({error:.3g} x rounding)",
        what=quantity(facts),
        whose=whose,
    )


def _local(facts: ReasonFacts) -> str:
    return facts.fill(
        "the loss is divided by {told:.0f} {unit}, the mini-batch has {actual:.0f}"
        if facts["actual"]
        else "the loss is divided by the {told:.0f} {unit} of its microbatch",
        unit=facts.get("unit") or "tokens",
    )


def _discounts(facts: ReasonFacts) -> str:
    if facts.get("gamma") is None:
        return facts.fill(
            "{what} are not those of gamma {wanted_gamma:g} and lambda {wanted_lam:g}", what=quantity(facts)
        )
    return facts.fill(
        "{what} are those of gamma {gamma:g} and lambda {lam:g}, not {wanted_gamma:g} and {wanted_lam:g}",
        what=quantity(facts),
    )


def _moments(facts: ReasonFacts) -> str:
    divided = " and standard deviation {std:.3g}" if facts.get("std") is not None else ""
    own = " and {own_std:.3g}" if divided else ""
    return facts.fill(
        "advantages take their group's mean as {mean:.3g}" + divided + ", not {own_mean:.3g}" + own
    )


def _clip_range(facts: ReasonFacts) -> str:
    name = _SETTINGS[str(facts["name"])]
    if facts.get("used") is None:
        return facts.fill("the {name} is not {wanted:g}", name=name)
    return facts.fill("the {name} is {used:g}, not {wanted:g}", name=name)


def _epsilon(facts: ReasonFacts) -> str:
    used = "{used:g}, not {wanted:g}" if facts.get("used") is not None else "not {wanted:g}"
    return facts.fill(f"the epsilon of the advantages' standard deviation is {used}")


_TERMS = {
    "policy_loss": "policy loss",
    "entropy_loss": "entropy",
    "kl_loss": "KL",
    "kl_in_reward": "KL-in-reward",
}


def _term(template: str) -> Template:
    return lambda facts: facts.fill(template, name=_TERMS.get(str(facts["term"]), str(facts["term"])))


PHRASES = {
    R.AGREES: _heading(
        "The RL pipelines agree: {quantities:count quantity} in {steps:count step}",
        {"quantities": 16, "steps": 2},
    ),
    R.EQUAL: clause(_sentence("{what}: bit-identical"), {"quantity": "scores"}),
    R.WITHIN: clause(_sentence("{what}: equal within rounding"), {"quantity": "old_log_probs"}),
    R.WITHIN_GROWN: clause(
        _sentence("{what}: equal within rounding that training has carried on"), {"quantity": "old_log_probs"}
    ),
    R.WITHIN_ENGINES: clause(
        _sentence(
            "{what}: no further apart than {times:g} times what rollout and trainer are in the reference"
        ),
        {"quantity": "rollout_log_probs", "times": 4.0},
    ),
    R.ALL_COUNT: clause(
        _sentence("{what}: every token of a response counts, in both runs"), {"quantity": "response_mask"}
    ),
    R.GIVEN_HELD: clause(_sentence("{what}: in both runs what the batch holds"), {"quantity": "inputs"}),
    R.GIVEN_ALIKE: clause(
        _sentence("{what}: in both runs other numbers than the batch holds"), {"quantity": "inputs"}
    ),
    R.IN_DOUBT: clause(
        _sentence(
            "{what} {differ} by {rms:.3g} (RMS of {tokens:count token}), rounding explains {allowed:.2g}: "
            "no proof of a fault"
        ),
        _APART,
    ),
    R.APART: _heading(
        _of("{what} {differ} by {rms:.3g} (RMS), rounding explains {allowed:.2g}"),
        _APART,
    ),
    R.NOT_FINITE: _heading(_of("{what} {are} not finite on one side"), {"quantity": "values"}),
    R.FOLLOWS: clause(
        _sentence("{what} {differ}, as numbers that go before or with them do"), {"quantity": "advantages"}
    ),
    R.FORMULA_HOLDS: clause(
        _sentence("{what}: in both runs what its own inputs and settings give"), {"quantity": "policy_loss"}
    ),
    R.FORMULA_FAILS: _heading(
        _fails,
        {"quantity": "advantages", "side": "target", "error": 2e4},
        {"quantity": "loss", "side": "reference", "error": 30.0},
    ),
    R.BOTH_FAIL: clause(
        _sentence("{what}: the formula is another in both runs; the numbers were compared"),
        {"quantity": "policy_loss"},
    ),
    R.GIVEN_OTHER: Phrase(
        sentence=lambda facts: (
            f"the loss is given other {_given(facts)} than the batch holds: {facts.parts[0]}"
        ),
        headline=lambda facts: f"The loss is given other {_given(facts)} than the batch holds",
        samples=({"quantity": "response_mask", "parts": (reason(R.MASK, num=3, total=90),)},),
    ),
    R.SETTING: _heading(
        _setting, {"name": "loss_agg_mode", "target": "token-mean", "reference": "token-sum"}
    ),
    R.NOT_RECORDED: clause(
        _sentence("{what}: cannot be compared; not recorded of the same tokens in both runs"),
        {"quantity": "advantages"},
    ),
    R.NO_SHARED: clause(
        _sentence("{what}: no sequence is in both runs, so nothing was given the same tokens"),
        {"quantity": "values"},
    ),
    R.PROMPTS: _heading("{num} of {total} prompts are not in the target", {"num": 3, "total": 8}),
    R.MORE_PROMPTS: _heading("{num} of {total} prompts are not in the reference", {"num": 3, "total": 8}),
    R.PROMPT_COUNTS: _heading(
        "{num} of {total} prompts have another number of sequences than in the reference",
        {"num": 3, "total": 8},
    ),
    R.TRUNCATED: _heading("{num} of {total} prompts are truncated in the target", {"num": 3, "total": 8}),
    R.ROLLOUTS: Phrase(
        sentence="the rollouts differ: {shared} of {total} sequences are in both runs; what both give the "
        "same tokens is compared",
        advice="replay the reference's rollouts in the target to compare the same tokens (docs/rl.md)",
        samples=({"shared": 2, "total": 8},),
    ),
    R.SAME_SEQUENCES: clause("The same sequences in every step, in another order or in other mini-batches"),
    R.ROLLOUT_ONLY: _heading(
        "rollout log-probs differ by {rms:.3g} (RMS) on the same tokens; those of the trainer agree",
        {"rms": 0.1, "policy": 0.0, "mismatch": 1e-6},
    ),
    R.ENGINES: _heading(
        "rollout and trainer differ by {target:.3g} (RMS), in the reference by {reference:.2g}",
        {"target": 0.1, "reference": 1e-6},
    ),
    R.REWARD_PLACE: _heading(
        "{share:percent} of the rewards are on another token than in the reference", {"share": 1.0}
    ),
    R.REWARD_ROWS: _heading(
        "{num} of {total} sequences have the reward of another sequence", {"num": 6, "total": 8}
    ),
    R.REWARD_BOUNDED: _heading("rewards are clipped to {low:.3g} and {high:.3g}", {"low": 0.0, "high": 1.5}),
    R.REWARD_OF_LONG: _heading(
        "rewards differ for responses of {tokens} tokens or more alone: {num} of {total}",
        {"tokens": 512, "num": 3, "total": 16},
    ),
    R.REWARD_REPEATED: _heading("the reward of a sequence is on each of its tokens"),
    R.REPEATED: _heading(
        "{num} of {total} answers repeat another to the same prompt; independent draws give {expected:.2g}",
        {"num": 12, "total": 16, "expected": 1e-9},
    ),
    R.REWARD_LINE: _heading(
        "rewards are {factor:.3g} times the reference's, plus {offset:.3g}", {"factor": 2.0, "offset": 0.0}
    ),
    R.SHIFTED: _heading(
        lambda facts: facts.fill(
            "{what} are shifted by one token: they are those of the {by} token",
            what=quantity(facts),
            by=_by(facts),
        ),
        {"quantity": "old_log_probs", "by": 1},
        {"quantity": "values", "by": -1},
    ),
    R.STRETCHED: _heading(
        _of("{what} are spread {factor:.3g} times as wide as the reference's, as by a temperature"),
        {"quantity": "old_log_probs", "factor": 1.4, "correlation": 0.99},
    ),
    R.COPIED: _heading(
        lambda facts: facts.fill(
            "{what} {are} a copy of {of}",
            what=quantity(facts),
            are="is" if str(facts["quantity"]) in _SINGULAR else "are",
            of=QUANTITIES.get(str(facts["of"]), facts["of"]),
        ),
        {"quantity": "old_log_probs", "of": "rollout_log_probs"},
    ),
    R.COARSE: _heading(
        _of("{what} are rounded to {target}; the reference's to {reference}"),
        {"quantity": "old_log_probs", "target": "bfloat16", "reference": "float32"},
    ),
    R.STALE: Phrase(
        sentence="old log-probs are not what the policy gives in its first update: RMS difference {rms:.3g}, "
        "in the reference {reference:.2g}",
        headline="Old log-probs are not what the policy gives before its first update",
        advice="check that they are computed with the weights, temperature and packing of the update",
        samples=({"rms": 0.1, "reference": 0.0, "tokens": 96},),
    ),
    R.REFERENCE_CHANGED: _heading(
        "the reference policy changes after step {step}: its log-probs agree until then",
        {"step": 2, "rms": 0.1, "allowed": 1e-6},
    ),
    R.MASK_END: _heading("the response mask leaves out the last token of each response", {"num": 16}),
    R.MASK_START: _heading("the response mask leaves out the first token of each response", {"num": 16}),
    R.MASK_ID: _heading(
        "the response mask leaves out the token id {id}: {num:count token}", {"id": 2, "num": 4, "total": 90}
    ),
    R.MASK_SHIFTED: _heading(
        lambda facts: f"the response mask is shifted: each token has the mask of the {_by(facts)} one",
        {"by": 1, "num": 16},
    ),
    R.MASK: _heading(
        "the response mask differs on {num:count token}", {"num": 4, "total": 90}, {"num": 1, "total": 9}
    ),
    R.OVER_BATCH: _heading("advantages are normalised over the whole batch, not over each prompt's group"),
    R.OVER_NEIGHBOURS: _heading(
        "advantages are normalised over {size} neighbouring rows, not over each prompt's group", {"size": 4}
    ),
    R.WITHOUT_STD: _heading("advantages are not divided by their group's standard deviation"),
    R.WITH_STD: _heading("advantages are divided by their group's standard deviation"),
    R.POPULATION_STD: _heading(
        "advantages are divided by the standard deviation of a population, not of a sample"
    ),
    R.BATCH_STD: _heading(
        "advantages are divided by the standard deviation of the batch, not of their group"
    ),
    R.GROUP_STD: _heading(
        "advantages are divided by the standard deviation of their group, not of the batch"
    ),
    R.NOT_WHITENED: _heading("advantages are not whitened"),
    R.OVER_PADDING: _heading("advantages are whitened over tokens that do not count"),
    R.GAMMA_LAM: _heading(
        _discounts,
        {"gamma": 1.0, "lam": 1.0, "wanted_gamma": 0.99, "wanted_lam": 0.95, "quantity": "advantages"},
        {"gamma": None, "lam": None, "wanted_gamma": 0.99, "wanted_lam": 0.95, "quantity": "returns"},
    ),
    R.WITHOUT_KL: _heading(
        lambda facts: (
            "rewards are without their KL term"
            if facts.get("quantity") is None
            else f"{quantity(facts)} are made from the scores, not from the rewards"
        ),
        {},
        {"quantity": "advantages"},
    ),
    R.VALUES_SHIFTED: _heading(
        lambda facts: f"{quantity(facts)} are made from the values of the {_by(facts)} token",
        {"by": 1, "quantity": "advantages"},
    ),
    R.OVER_PART: _heading(
        "advantages are normalised over {size} of the {group} answers to a prompt", {"size": 2, "group": 4}
    ),
    R.BY_LENGTH: _heading("advantages are divided by the number of tokens of their response"),
    R.WHITENED_AGAIN: _heading("normalised advantages are whitened over the batch, too"),
    R.EPSILON: _heading(_epsilon, {"used": 1e-4, "wanted": 1e-6}, {"used": None, "wanted": 1e-4}),
    R.OTHER_ESTIMATOR: _heading(
        "advantages are those of {used}, not of {wanted}", {"used": "grpo", "wanted": "rloo"}
    ),
    R.WITHOUT_BASELINE: _heading("no group's mean is taken off advantages"),
    R.ADVANTAGES_SCALED: _heading(
        "advantages are {used:g} times what the run's own rewards give", {"used": 0.5}
    ),
    R.ADVANTAGES_CLIPPED: _heading("advantages are clipped at {used:g}", {"used": 1.0}),
    R.OTHER_MOMENTS: _heading(
        _moments,
        {"mean": 0.6, "own_mean": 0.5, "std": 0.3, "own_std": 0.2},
        {"mean": 0.6, "own_mean": 0.5, "std": None, "own_std": None},
    ),
    R.BOOTSTRAPPED: _heading(
        _of("{what} take the value of the last token for that after the response, not 0"),
        {"quantity": "advantages"},
    ),
    R.PADDING_COUNTS: _heading(
        _of("{what} are made from the values of tokens that do not count, too"), {"quantity": "returns"}
    ),
    R.RETURNS_WHITENED: _heading("returns are made from advantages after whitening"),
    R.KL_ON_LAST: _heading("the KL of a response is taken from the reward of its last token"),
    R.AGGREGATED: _heading(
        "the loss is aggregated by {mode}, not {wanted}",
        {"mode": "seq-mean-token-mean", "wanted": "token-mean"},
    ),
    R.LOCAL_COUNT: _heading(
        _local,
        {"told": 20.0, "actual": 90.0, "calls": 4},
        {"told": 4.0, "actual": None, "calls": 1, "unit": "sequences"},
    ),
    R.NOT_CLIPPED: _heading("the loss is not clipped"),
    R.SYMMETRIC_CLIP: _heading("the ratio is clipped at {used:g} on both sides", {"used": 0.2}),
    R.NO_DUAL_CLIP: _heading("the loss of negative advantages has no upper bound (dual clip)"),
    R.ONE_SIDED_CLIP: _heading(
        "the ratio is not clipped {side} at {bound:g}", {"side": "below", "bound": 0.8}
    ),
    R.CLIP_RANGE: _heading(
        _clip_range,
        {"name": "clip_high", "used": 0.28, "wanted": 0.2},
        {"name": "clip_low", "used": None, "wanted": 0.2},
    ),
    R.SMALLER_LOSS: _heading("of the losses with and without clipping the smaller counts, not the larger"),
    R.CLIPPED_ONLY: _heading("the clipped loss counts alone, not the larger of clipped and unclipped"),
    R.DUAL_OF_ALL: _heading("the dual clip at {bound:g} holds for positive advantages, too", {"bound": 3.0}),
    R.RATIO_INVERTED: _heading("the ratio is that of the old policy to the new"),
    R.RATIO_TO_OTHER: _heading(
        lambda facts: f"the ratio is to {QUANTITIES[str(facts['to'])]}, not to old log-probs",
        {"to": "ref_log_probs"},
    ),
    R.SEQUENCE_RATIO: _heading("the ratio is that of whole sequences, not of tokens"),
    R.TOKEN_RATIO: _heading("the ratio is that of tokens, not of whole sequences"),
    R.RATIO_SUMMED: _heading("the ratio of a sequence is not brought to its number of tokens"),
    R.HORIZON: _heading("the loss is divided by the longest response of a call, not by a constant"),
    R.WEIGHTS_IGNORED: _heading("the loss leaves the rollout's importance weights out"),
    R.WEIGHTS_INVERTED: _heading("importance weights are those of the rollout over the trainer"),
    R.WEIGHTS_OF_SEQUENCES: _heading("importance weights are those of sequences, not of tokens"),
    R.WEIGHTS_NOT_CAPPED: _heading(
        "importance weights reach {used:.3g}, the reference's end at {wanted:.3g}",
        {"used": 2.4, "wanted": 2.0},
    ),
    R.SIGN: _heading("the term has the opposite sign"),
    R.MASK_IGNORED: _heading("tokens that the mask leaves out count"),
    R.MASK_MOVED: _heading(
        lambda facts: f"the loss takes for each token the mask of the {_by(facts)} one",
        {"by": 1},
    ),
    R.KL_KIND: _heading("the KL is estimated by {kind}, not {wanted}", {"kind": "k1", "wanted": "k3"}),
    R.KL_SWAPPED: _heading(
        lambda facts: (
            "the KL has the opposite sign, as with policy and reference swapped"
            if str(facts["kind"]).removesuffix("+") in _SIGNED
            else "the KL has policy and reference swapped"
        ),
        {"kind": "k3"},
        {"kind": "k1"},
    ),
    R.KL_TO_OTHER: _heading(
        lambda facts: f"the KL is to {QUANTITIES[str(facts['to'])]}, not to those of the reference",
        {"to": "old_log_probs"},
    ),
    R.TERM_SIGN: _heading(
        _term("the {name} term has the opposite sign in the total loss"), {"term": "entropy_loss"}
    ),
    R.TERM_MISSING: _heading(_term("the {name} term is missing in the total loss"), {"term": "kl_loss"}),
    R.TERM_FACTOR: _heading(
        _term("the coefficient of the {name} term is {used:g}, not {wanted:g}"),
        {"term": "kl_loss", "used": 0.01, "wanted": 0.001},
    ),
    R.NOT_HALVED: _heading("the value loss is not halved"),
    R.OTHER_ROWS: clause(
        "mini-batches of the {role} hold other sequences: single updates cannot be compared",
        {"role": "actor"},
    ),
    R.UPDATE: Phrase(
        sentence="the losses of step {step} agree; after its update the {role} gives numbers that differ by "
        "{rms:.3g} (RMS), rounding explains {allowed:.2g}",
        headline="The update of the {role} differs in step {step}, its losses agree",
        advice="check learning rate, clipping, weight decay and gradient accumulation of the {role}",
        samples=({"step": 1, "role": "actor", "rms": 0.02, "allowed": 1e-6},),
    ),
}
