"""A denoising diffusion model and a variational autoencoder."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bugzoo.public.encoders import image
from bugzoo.public.run import Batch, Run


def timestep_embedding(times: Tensor, width: int, *, flip: bool = True, shift: float = 0.0) -> Tensor:
    """Cosines, then sines (``flip``), of frequencies from 1 down to 1/10000."""
    half = width // 2
    exponent = -math.log(10000) * torch.arange(half, dtype=torch.float32) / (half - shift)
    angles = times[:, None].float() * exponent.exp()[None, :]
    parts = [angles.cos(), angles.sin()] if flip else [angles.sin(), angles.cos()]
    return torch.cat(parts, dim=-1)


class TimeEmbedding(nn.Module):
    """Sinusoids and two layers."""

    flip, shift = True, 0.0

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.linear_1, self.linear_2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, times: Tensor) -> Tensor:
        embedded = timestep_embedding(times, self.width, flip=self.flip, shift=self.shift)
        out: Tensor = self.linear_2(F.silu(self.linear_1(embedded)))
        return out


class ResnetBlock(nn.Module):
    """Group norm, convolution, the time's embedding."""

    def __init__(self, width_in: int, width_out: int, time: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, width_in), nn.GroupNorm(4, width_out)
        self.conv1 = nn.Conv2d(width_in, width_out, 3, padding=1)
        self.conv2 = nn.Conv2d(width_out, width_out, 3, padding=1)
        self.time_emb_proj = nn.Linear(time, width_out)
        self.conv_shortcut = nn.Conv2d(width_in, width_out, 1) if width_in != width_out else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.time_emb_proj(F.silu(time))[:, :, None, None]
        out: Tensor = self.conv_shortcut(x) + self.conv2(F.silu(self.norm2(y)))
        return out


class SpatialAttention(nn.Module):
    """One head over all positions."""

    fused = False

    def __init__(self, width: int) -> None:
        super().__init__()
        self.group_norm = nn.GroupNorm(4, width)
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        rows, width, height, length = x.shape
        y = self.group_norm(x).flatten(2).transpose(1, 2)
        q, k, v = self.to_q(y), self.to_k(y), self.to_v(y)
        if self.fused:
            seen = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        else:
            weights = torch.softmax(torch.einsum("bic,bjc->bij", q, k) * width**-0.5, dim=-1)
            seen = torch.einsum("bij,bjc->bic", weights, v)
        return x + self.to_out(seen).transpose(1, 2).reshape(rows, width, height, length)


class UNet(nn.Module):
    """One level down and up."""

    def __init__(self) -> None:
        super().__init__()
        self.time_embedding = TimeEmbedding(32)
        self.conv_in = nn.Conv2d(3, 16, 3, padding=1)
        self.down = ResnetBlock(16, 16, 32)
        self.downsample = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.mid = ResnetBlock(32, 32, 32)
        self.attention = SpatialAttention(32)
        self.upsample = nn.Conv2d(32, 16, 3, padding=1)
        self.up = ResnetBlock(32, 16, 32)
        self.conv_norm_out = nn.GroupNorm(4, 16)
        self.conv_out = nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, sample: Tensor, timestep: Tensor) -> Tensor:
        time = self.time_embedding(timestep)
        kept = self.down(self.conv_in(sample), time)
        x = self.attention(self.mid(self.downsample(kept), time))
        x = self.upsample(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        x = self.up(torch.cat([x, kept], dim=1), time)
        out: Tensor = self.conv_out(F.silu(self.conv_norm_out(x)))
        return out


class Unet(Run):
    """Velocity prediction with min-SNR weights."""

    rows = 6
    gamma = 5.0
    steps = 1000

    def make_model(self) -> nn.Module:
        return UNet()

    def betas_of(self) -> Tensor:
        """The noise schedule, scaled linear."""
        return torch.linspace(0.00085**0.5, 0.012**0.5, self.steps) ** 2

    def whole_batch(self, step: int) -> Batch:
        generator = torch.Generator().manual_seed(17 * step + 9)
        images = image(step, self.rows, size=8) * 2 - 1
        return {
            "images": images,
            "noise": torch.randn(images.shape, generator=generator),
            "times": torch.randint(self.steps, (self.rows,), generator=generator),
        }

    def target(self, images: Tensor, noise: Tensor, keeps: Tensor) -> Tensor:
        """The velocity."""
        return keeps.sqrt() * noise - (1 - keeps).sqrt() * images

    def weights_of(self, snr: Tensor) -> Tensor:
        """min(SNR, gamma) / (SNR + 1)."""
        return snr.clamp(max=self.gamma) / (snr + 1)

    def loss(self, batch: Batch) -> Tensor:
        keeps = torch.cumprod(1 - self.betas_of(), 0)[batch["times"]][:, None, None, None]
        noisy = keeps.sqrt() * batch["images"] + (1 - keeps).sqrt() * batch["noise"]
        predicted = self.wrapped(noisy, batch["times"])
        target = self.target(batch["images"], batch["noise"], keeps)
        each = F.mse_loss(predicted.float(), target, reduction="none").mean((1, 2, 3))
        snr = (keeps / (1 - keeps)).flatten()
        return (each * self.weights_of(snr)).mean() / self.accumulation


class UnetBf16(Unet):
    """bfloat16 autocast."""

    precision = "bf16"


class Autoencoder(nn.Module):
    """Two layers each way; the noise comes with the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.Linear(192, 64)
        self.mu, self.logvar = nn.Linear(64, 8), nn.Linear(64, 8)
        self.dec1, self.dec2 = nn.Linear(8, 64), nn.Linear(64, 192)

    def deviation(self, logvar: Tensor) -> Tensor:
        """Of the latent."""
        return torch.exp(0.5 * logvar)

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = F.relu(self.enc(x))
        mu, logvar = self.mu(hidden), self.logvar(hidden)
        z = mu + noise * self.deviation(logvar)
        return self.dec2(F.relu(self.dec1(z))), mu, logvar


class Vae(Run):
    """Binary cross-entropy and the divergence, summed over dimensions, averaged over rows."""

    rows = 8

    def make_model(self) -> nn.Module:
        return Autoencoder()

    def whole_batch(self, step: int) -> Batch:
        generator = torch.Generator().manual_seed(19 * step + 8)
        pictures = image(step, self.rows, size=8).flatten(1)
        return {"x": pictures, "noise": torch.randn(self.rows, 8, generator=generator)}

    def divergence(self, mu: Tensor, logvar: Tensor) -> Tensor:
        """From the standard normal distribution, one number a row."""
        return -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1)

    def reconstruction(self, logits: Tensor, x: Tensor) -> Tensor:
        """One number a row."""
        return F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(1)

    def loss(self, batch: Batch) -> Tensor:
        logits, mu, logvar = self.wrapped(batch["x"], batch["noise"])
        return (self.reconstruction(logits, batch["x"]) + self.divergence(mu, logvar)).mean()
