"""One process of ``test_half``: trains every base on MindSpore, as it is and with each of its entries."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
from bugzoo.bases import Base, bases
from bugzoo.entries import entries, planted_by

from trueup_gpt.launching import place_in_world, report_to_launcher, schedule


def trained(base: Base, name: str | None, num_steps: int) -> list[dict[str, Any]]:
    """Loss, norm and a digest of weights and gradients of every step, and whether all of them are finite."""
    from bugzoo.half.trainer import MindSporeTrainer

    trainer = MindSporeTrainer(base)
    if name is not None:
        planted_by(name)(trainer, **entries()[name].arguments)
    try:
        return [_step(trainer) for _ in range(num_steps)]
    finally:
        trainer.close()


def _step(trainer: Any) -> dict[str, Any]:
    result, parallel = trainer.step(), trainer.session.parallel
    held = [one.asnumpy() for one in parallel.parameters.values()]
    for piece in parallel.engine.pieces:
        held += [piece.parameter.asnumpy(), piece.gradient.asnumpy()]
    digest = hashlib.sha256(b"".join(one.tobytes() for one in held)).hexdigest()
    finite = all(np.isfinite(one).all() for one in (result.loss, result.grad_norm, *held))
    return {"loss": result.loss, "norm": result.grad_norm, "digest": digest, "finite": bool(finite)}


def main(folder: Path) -> None:
    """Every base in turn; an error ends all."""
    if os.environ.get("MS_ROLE") == "MS_SCHED":
        schedule("cpu")
        return
    from bugzoo.half import changes  # noqa: F401

    rank, _ = place_in_world(os.environ)
    found: dict[str, Any] = {}
    try:
        for base in (one for one in bases().values() if one.framework == "mindspore"):
            steps = {name: entry.step + 1 for name, entry in entries().items() if entry.base == base.name}
            found[base.name] = trained(base, None, max(steps.values()))
            for name, num_steps in steps.items():  # up to the one that it is to change: each takes a second
                found[name] = trained(base, name, num_steps)
    except Exception:
        report_to_launcher(rank, traceback.format_exc())
        sys.exit(1)
    (folder / f"found_{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
