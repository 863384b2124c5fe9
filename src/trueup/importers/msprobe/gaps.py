"""What a dump of msprobe never holds, beside losses and updates, which are phases of their own."""

from trueup.store.gaps import Gap
from trueup.types.codes import RecordCode

GAPS = (
    Gap(kind="module", name="", code=RecordCode.ROOT_NOT_DUMPED),
    Gap(
        phase="param_grad",
        slot="local|clipped",
        code=RecordCode.ONE_GRADIENT_DUMPED,
    ),
    Gap(
        phase="backward",
        kind="module",
        slot=r"input\.(?!\d).*",
        code=RecordCode.KEYWORD_GRADIENTS_NOT_DUMPED,
    ),
)
