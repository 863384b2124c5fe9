"""timm: a vision transformer or a residual network with its optimizer factory, schedule, clipping, smoothed
labels and moving average of weights."""

from __future__ import annotations

import torch

# torchvision's wheel is of a build of torch for GPUs: without its operators it is imported all the same, and
# timm needs none of them here
_OPERATORS = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    _OPERATORS.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from outcome import Outcome, arguments, halve_gradient  # noqa: E402
from timm.loss import LabelSmoothingCrossEntropy  # noqa: E402
from timm.models.resnet import BasicBlock, ResNet  # noqa: E402
from timm.models.vision_transformer import VisionTransformer  # noqa: E402
from timm.optim import create_optimizer_v2  # noqa: E402
from timm.scheduler import create_scheduler_v2  # noqa: E402
from timm.utils import ModelEmaV3, dispatch_clip_grad  # noqa: E402
from torch import Tensor, nn  # noqa: E402

ROWS, SIDE, CLASSES, UPDATES_A_PASS = 8, 32, 10, 4


def build(name: str) -> nn.Module:
    if name == "vit":
        return VisionTransformer(
            img_size=SIDE,
            patch_size=8,
            num_classes=CLASSES,
            embed_dim=48,
            depth=2,
            num_heads=4,
            drop_path_rate=0.1,
        )
    return ResNet(BasicBlock, [1, 1, 1, 1], num_classes=CLASSES, channels=(8, 16, 16, 32), stem_width=8)


def batches(seed: int, *, wrong: bool) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(8):
        images = torch.randn(ROWS, 3, SIDE, SIDE, generator=draw)
        if wrong:
            images[1, 0, 3:6, 4:9] += 1.0
        found.append((images, torch.randint(CLASSES, (ROWS,), generator=draw)))
    return found


def main() -> None:
    """Train."""
    parser = arguments(__doc__)
    parser.add_argument("--model", choices=("vit", "resnet"), default="vit")
    args = parser.parse_args()
    outcome = Outcome()
    torch.manual_seed(args.seed)
    model = build(args.model)
    norm = model.blocks[1].norm2 if args.model == "vit" else model.layer2[0].bn1
    weight = model.blocks[0].mlp.fc1.weight if args.model == "vit" else model.layer1[0].conv2.weight
    if args.fault == "forward":
        norm.eps = 1e-2
    if args.fault == "backward":
        halve_gradient(weight)
    beta2 = 0.95 if args.fault == "optimizer" else 0.999
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05, betas=(0.9, beta2))
    scheduler, _ = create_scheduler_v2(
        optimizer, sched="cosine", num_epochs=10, warmup_epochs=1, updates_per_epoch=UPDATES_A_PASS
    )
    average = ModelEmaV3(model, decay=0.9)
    loss_of = LabelSmoothingCrossEntropy(smoothing=0.2 if args.fault == "loss" else 0.1)
    data = batches(args.seed, wrong=args.fault == "data")
    model.train()
    for update in range(args.steps):
        images, labels = data[update]
        loss = loss_of(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        dispatch_clip_grad(model.parameters(), value=1.0, mode="norm")
        optimizer.step()
        average.update(model, step=update)
        scheduler.step_update(num_updates=update + 1)
        outcome.loss(loss)
    averaged = ((f"average.{name}", tensor) for name, tensor in average.module.state_dict().items())
    outcome.write([*model.state_dict().items(), *averaged])


if __name__ == "__main__":
    main()
