"""Where an error was made, what kind of error it is, and the conclusion a person can act on."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from trueup.types.confidence import Confidence, Question, Word, confidence_of
from trueup.types.reason import Reason


def each_once(value: object, *names: str) -> None:
    """Make these fields of a frozen value tuples without repetitions, at its construction."""
    for name in names:
        object.__setattr__(value, name, tuple(dict.fromkeys(getattr(value, name))))


class Stage(str, Enum):
    """Parts of a training run in the order a diagnosis walks them."""

    CONFIG = "config"
    DATA = "data"
    WEIGHTS = "weights"
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    REDUCTION = "reduction"
    """accumulation, all-reduce, clipping: from the gradient a rank computed to the one the optimizer got"""
    OPTIMIZER = "optimizer"
    RESUME = "resume"
    LONG_RUN = "long_run"
    PROMPTS = "prompts"
    ROLLOUT = "rollout"
    REWARDS = "rewards"
    OLD_LOG_PROBS = "old_log_probs"
    REFERENCE_LOG_PROBS = "reference_log_probs"
    VALUES = "values"
    ADVANTAGES = "advantages"
    POLICY_LOSS = "policy_loss"
    KL_TERM = "kl_term"
    VALUE_LOSS = "value_loss"
    UPDATE = "update"
    """from prompts on: the pipeline of reinforcement learning, between data and forward"""


class Basis(str, Enum):
    """What a finding's place rests on, strongest first."""

    RECORDED = "recorded"
    """both runs recorded the very quantity, and it differs: settings, batches, weights, gradients"""
    REPLAY = "replay"
    """the reference's own values went in"""
    FITTED = "fitted"
    """a formula fitted to what both recorded"""
    EQUAL_INPUTS = "equal_inputs"
    """traces alone: far beyond rounding, made from inputs that are bit-identical"""
    NOISE = "noise"
    """traces alone, against measured noise and gain"""
    BOUND = "bound"
    """traces alone, against a dtype-and-depth bound"""
    CURVES = "curves"
    """two loss curves diverge later than the captured steps"""
    CONFIGURATION = "configuration"
    """the configurations alone"""

    @property
    def confidence(self) -> Confidence:
        """Of the place."""
        return confidence_of(Question.PLACE, _WORDS[self])


_WORDS = {
    Basis.RECORDED: Word.CERTAIN,
    Basis.REPLAY: Word.CERTAIN,
    Basis.FITTED: Word.LIKELY,
    Basis.EQUAL_INPUTS: Word.LIKELY,
    Basis.NOISE: Word.LIKELY,
    Basis.BOUND: Word.POSSIBLE,
    Basis.CURVES: Word.POSSIBLE,
    Basis.CONFIGURATION: Word.POSSIBLE,
}


class KindClass(str, Enum):
    """The two families of causes."""

    MODEL = "model"
    """data, hyperparameters, structure, use of the framework"""
    NUMERICAL = "numerical"
    """finite word length, order of operations, dtype"""


class KindCode(str, Enum):
    """Kinds of faults. The values are part of the JSON interface: never renamed, never used for another
    meaning. What each is called in English is in ``wording/kinds.py``."""

    BIT_FLIP = "bit_flip"
    CONSTANT_ARGUMENT = "constant_argument"
    DROPPED_UPDATE = "dropped_update"
    DTYPE_OR_ROUNDING = "dtype_or_rounding"
    FROZEN_OR_MISSING_GRADIENT = "frozen_or_missing_gradient"
    MISSING_ALL_REDUCE = "missing_all_reduce"
    MISSING_OR_EXTRA_TERM = "missing_or_extra_term"
    MISSING_ZERO_GRAD = "missing_zero_grad"
    NON_DETERMINISM = "non_determinism"
    OTHER_FUNCTIONS = "other_functions"
    OVERFLOW_UNDERFLOW = "overflow_underflow"
    RANDOMNESS = "randomness"
    SHIFTED_BY_ONE = "shifted_by_one"
    STALE_VALUE = "stale_value"
    TRANSPOSED_OR_PERMUTED = "transposed_or_permuted"
    WRONG_DATA = "wrong_data"
    WRONG_MASK = "wrong_mask"
    WRONG_OPTIMIZER_SETTING = "wrong_optimizer_setting"
    WRONG_SCALE = "wrong_scale"
    WRONG_SIGN = "wrong_sign"

    def __str__(self) -> str:
        return str(self.value)


class EvidenceRank(str, Enum):
    """What the evidence for a kind amounts to, strongest first: the order of the members is the first thing
    that orders kinds (docs/decisions/0023-order-of-kinds.md)."""

    STATED = "stated"
    """both programs state it: arguments of this very call, settings of this parameter's group"""
    EVERY_ELEMENT = "every_element"
    """every element of the target follows from the reference's, without a free constant"""
    SKETCH = "sketch"
    """so does every number of the sketch; values were not kept"""
    STATED_NEARBY = "stated_nearby"
    """both programs state it of another call of the module, or of the forward of what is sent back"""
    FITTED = "fitted"
    """every element follows with a constant that was fitted, or with a symptom that has several causes"""
    MOST = "most"
    """most of the difference is explained"""
    CONSISTENT = "consistent"
    """statistics or the size of the error agree with it, as they may with other kinds"""
    SOME = "some"
    """more of the difference is explained than chance would"""
    GUESS = "guess"
    """it looks like it"""
    BY_ELIMINATION = "by_elimination"
    """no other kind is seen"""

    @property
    def place(self) -> int:
        """0 is the strongest."""
        return _PLACES[self]

    @property
    def is_named(self) -> bool:
        """Whether it is strong enough for the kind to stand in a headline."""
        return self.place <= EvidenceRank.CONSISTENT.place

    @property
    def confidence(self) -> Confidence:
        """Of the kind."""
        certain, likely = self.place <= EvidenceRank.SKETCH.place, self.place <= EvidenceRank.FITTED.place
        word = Word.CERTAIN if certain else Word.LIKELY if likely else Word.POSSIBLE
        return confidence_of(Question.KIND, word)


_PLACES = {rank: place for place, rank in enumerate(EvidenceRank)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A named kind of fault, and what the evidence for it amounts to."""

    name: KindCode
    family: KindClass
    rank: EvidenceRank
    measure: float = 1.0
    """share of the difference that it explains, 0 to 1"""
    sentence: Reason
    """what it says of this case, with its numbers"""
    causes: tuple[Reason, ...] = ()
    """likely ones, most likely first"""
    next: Reason | None = None
    """what to do about it"""
    factor: float | None = None
    """target over reference, of a wrong scale"""
    over: tuple[int, ...] = ()
    """ranks that together hold the reference's value, where a sum is missing"""
    confidence: Confidence = field(init=False)

    def __post_init__(self) -> None:
        each_once(self, "causes")
        object.__setattr__(self, "confidence", self.rank.confidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """One place whose own code made an error, as attribution sees it."""

    stage: Stage
    module: str
    """fqn of the module whose own code made it ("" is the root); in optimizer and reduction the parameter"""
    site: str
    """what a person reads: ``layers.0.attn, torch.matmul[1], output.0``"""
    phase: str
    slot: str
    step: int
    rank: int
    microbatch: int | None
    order: int
    """execution order in the target"""
    score: float
    """error over what was allowed; infinite where nothing was"""
    rel_l2: float | None
    tolerance: float | None
    bias_z: float | None = None
    """how many standard errors the scale ``a = <t,r>/<r,r>`` is from 1"""
    from_equals: bool = False
    """its inputs, weights included, are bit-identical"""
    basis: Basis
    target_record: int | None
    """row of the target's ``records`` in that step and rank"""
    reference_record: int | None
    source: str | None = None
    """``file:line`` in the target"""
    reference_source: str | None = None
    evidence: tuple[Reason, ...] = ()
    counter_evidence: tuple[Reason, ...] = ()
    """what speaks for everything else being right: "everything before it is bit-identical" """
    ranks: tuple[int, ...] = ()
    """all that show it; empty: only ``rank`` is known of"""
    sent_back: float | None = None
    """of a loss: the factor between it and the gradients that it sends back, nothing is left over"""

    def __post_init__(self) -> None:
        each_once(self, "evidence", "counter_evidence")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A conclusion: stage, place, kind, confidence, why, and what to do next."""

    stage: Stage
    headline: Reason
    module: str | None
    site: str | None
    phase: str | None = None
    step: int | None = None
    rank: int | None = None
    """where it was first seen"""
    axis: str | None = None
    """of the mesh, along which processes do not agree as they should"""
    ranks: tuple[int, ...] = ()
    """the only processes that err; empty: not some alone"""
    source: str | None = None
    kinds: tuple[Kind, ...] = ()
    """most likely first"""
    basis: Basis
    """what the place rests on"""
    evidence: tuple[Reason, ...] = ()
    counter_evidence: tuple[Reason, ...] = ()
    causes: tuple[Reason, ...] = ()
    next: Reason | None = None
    """command to try"""
    next_note: Reason | None = None
    origin: Origin | None = None
    confidence: Confidence = field(init=False)

    def __post_init__(self) -> None:
        each_once(self, "evidence", "counter_evidence", "causes")
        object.__setattr__(self, "confidence", self.basis.confidence)
