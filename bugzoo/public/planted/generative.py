"""Mistakes in diffusion models and autoencoders."""

from __future__ import annotations

from typing import Any

import torch

from bugzoo.public.entries import change


@change("snr-plus-one-twice")
def snr_plus_one_twice(run: Any) -> None:
    """One is added to the numerator's SNR, too."""
    run.weights_of = lambda snr: (snr + 1).clamp(max=run.gamma) / (snr + 1)


@change("snr-clamped-from-below")
def snr_clamped_from_below(run: Any) -> None:
    """Maximum for minimum."""
    run.weights_of = lambda snr: snr.clamp(min=run.gamma) / (snr + 1)


@change("noise-for-velocity")
def noise_for_velocity(run: Any) -> None:
    """The model predicts the velocity, the loss takes the noise for the target."""
    run.target = lambda images, noise, keeps: noise


@change("sines-before-cosines")
def sines_before_cosines(run: Any) -> None:
    """The halves of the time's embedding are swapped."""
    run.edits.append(lambda model: setattr(model.time_embedding, "flip", False))


@change("frequencies-shifted")
def frequencies_shifted(run: Any) -> None:
    """The last frequency is 1/10000 exactly: DDPM's, not Stable Diffusion's."""
    run.edits.append(lambda model: setattr(model.time_embedding, "shift", 1.0))


@change("deviation-is-variance")
def deviation_is_variance(run: Any) -> None:
    """The logarithm of the variance is not halved."""
    run.edits.append(lambda model: setattr(model, "deviation", torch.exp))


@change("divergence-averaged")
def divergence_averaged(run: Any) -> None:
    """Mean over dimensions for sum."""
    run.divergence = lambda mu, logvar: -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).mean(1)
