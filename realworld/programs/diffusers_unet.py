"""diffusers: a UNet learns to predict noise, with its scheduler and its EMA of weights."""

from __future__ import annotations

import torch
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from diffusers.training_utils import EMAModel
from outcome import Outcome, arguments, halve_gradient
from torch.nn import functional as F


def main() -> None:
    """Train."""
    args = arguments(__doc__).parse_args()
    outcome = Outcome()
    torch.manual_seed(args.seed)
    model = UNet2DModel(
        sample_size=16,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(16, 32),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
        attention_head_dim=8,
    )
    ema = EMAModel(model.parameters(), decay=0.99)
    scheduler = DDPMScheduler(num_train_timesteps=100, beta_schedule="linear")
    images = torch.randn(32, 3, 16, 16, generator=torch.Generator().manual_seed(args.seed))
    if args.fault == "data":
        images[:, 0, 3, 3] += 1.0
    if args.fault == "forward":
        model.mid_block.resnets[0].norm1.eps = 1e-1
    if args.fault == "backward":
        halve_gradient(model.down_blocks[0].resnets[0].conv1.weight)
    beta2 = 0.95 if args.fault == "optimizer" else 0.999
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, beta2))
    schedule = get_cosine_schedule_with_warmup(optimizer, 2, 10)
    for step in range(args.steps):
        clean = images[4 * step : 4 * step + 4]
        noise = torch.randn(clean.shape)
        timesteps = torch.randint(0, scheduler.config.num_train_timesteps, (4,))
        noisy = scheduler.add_noise(clean, noise, timesteps)
        predicted = model(noisy, timesteps, return_dict=False)[0]
        loss = F.huber_loss(predicted, noise) if args.fault == "loss" else F.mse_loss(predicted, noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        ema.step(model.parameters())
        outcome.loss(loss)
    outcome.write(model.state_dict().items())


if __name__ == "__main__":
    main()
