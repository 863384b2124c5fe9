"""The loss on data that is not trained on."""

from __future__ import annotations

import torch
import torch.distributed as dist

from trueup_gpt.parallel.mesh import DATA
from trueup_gpt.parallel.pipeline import runner_for
from trueup_gpt.session import Session


def evaluate(session: Session) -> float:
    """Mean loss over the first ``eval_iters`` steps of the validation data; alike in every process."""
    assert session.validation is not None
    runner, mesh = runner_for(session.parallel), session.mesh
    count = session.config.dataset.micro_batch_num
    total = torch.zeros(1, dtype=torch.float64 if mesh.device.type != "npu" else torch.float32)
    for stage in session.parallel.stages:
        stage.eval()
    with torch.no_grad():
        for number in range(session.config.training.eval_iters):
            batches = [batch.to(mesh.device) for batch in session.validation.read(session.portion(number))]
            losses = runner.run(batches, [1.0] * count, backward=False)
            if losses and not mesh.coordinate("tp"):
                total += sum(float(loss) for loss in losses)
    for stage in session.parallel.stages:
        stage.train()
    total = total.to(mesh.device)
    if dist.is_initialized():
        dist.all_reduce(total)
    return float(total) / (session.config.training.eval_iters * count * mesh.size(*DATA))
