"""What the robust likelihoods share: their noise and the check of the domain."""

from __future__ import annotations

import torch
from torch import Tensor

from certibayes.bounds import Domain
from certibayes.errors import InvalidInput
from certibayes.likelihoods.base import Batch, Noise
from certibayes.likelihoods.radius import LinearRamp, RadiusDistribution


def draw_noise(
    radius: RadiusDistribution,
    ramp: LinearRamp | None,
    needs_starts: bool,
    progress: float,
    batch: Batch,
    generator: torch.Generator | None,
) -> Noise:
    """Draw radii at this point of the ramp and, where an attack needs them, its starts."""
    nodes = radius.nodes(generator)
    scale = 1.0 if ramp is None else ramp(progress)
    starts = None
    if needs_starts:
        # Drawn on the CPU, so that a run gives the same numbers on every device.
        starts = torch.rand(batch.inputs.shape, generator=generator).mul_(2).sub_(1).to(batch.inputs)
    return Noise((nodes.radii * scale).to(batch.inputs), nodes.log_weights.to(batch.inputs), starts)


def require_domain(x: Tensor, domain: Domain) -> None:
    """Raise unless every input lies in the domain."""
    if domain is None:
        return
    low, high = domain
    if not low < high:
        raise InvalidInput(f"a domain is (smallest, largest), got {domain}.")
    if x.numel() and (float(x.min()) < low or float(x.max()) > high):
        raise InvalidInput(
            f"inputs run from {float(x.min()):.4g} to {float(x.max()):.4g}, outside the domain {domain}. Scale them, "
            "state the right domain, or pass domain=None. Put normalisation inside the network "
            "(certibayes.networks.Normalize), so that radii are in the units of the raw inputs."
        )
