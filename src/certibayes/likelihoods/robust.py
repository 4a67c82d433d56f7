"""What the robust likelihoods share: their noise."""

from __future__ import annotations

import torch

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
