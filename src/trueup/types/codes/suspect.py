"""What usually causes a difference that starts at a call of one role, in one phase."""

from trueup.types.codes.base import Code


class SuspectCode(Code):
    """Usual causes; the advice is what to check."""

    WEIGHT = "suspect.weight"
    NORM = "suspect.norm"
    ROTARY = "suspect.rotary"
    SOFTMAX = "suspect.softmax"
    EMBEDDING = "suspect.embedding"
    DROPOUT = "suspect.dropout"
    ACTIVATION = "suspect.activation"
    LINEAR = "suspect.linear"
    FORWARD = "suspect.forward"
    LOSS = "suspect.loss"
    BACKWARD = "suspect.backward"
    PARAMETER_GRADIENT = "suspect.parameter_gradient"
    COLLECTIVE = "suspect.collective"
    OPTIMIZER = "suspect.optimizer"
    OTHER = "suspect.other"
