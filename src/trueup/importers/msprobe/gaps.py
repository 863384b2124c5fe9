"""What a dump of msprobe never holds, beside losses and updates, which are phases of their own."""

from trueup.store.gaps import Gap

GAPS = (
    Gap(kind="module", name="", reason="msprobe leaves out the outermost module"),
    Gap(
        phase="param_grad",
        slot="local|clipped",
        reason="msprobe keeps one gradient of each weight: .grad, after backward",
    ),
    Gap(
        phase="backward",
        kind="module",
        slot=r"input\.(?!\d).*",
        reason="msprobe sees no gradients of a module's keyword arguments",
    ),
)
