"""What the robust likelihoods share: their noise, and when their curvature has a closed form."""

from __future__ import annotations

import torch

from certibayes.likelihoods.adversary import Adversary
from certibayes.likelihoods.base import Batch, Gradients, Noise
from certibayes.likelihoods.curvature import Evaluate, applies_to, layer_gradients
from certibayes.likelihoods.radius import LinearRamp, RadiusDistribution
from certibayes.networks import Graph, Params


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


def closed_form_gradients(
    radius: RadiusDistribution,
    adversary: Adversary,
    graph: Graph,
    params: Params,
    batch: Batch,
    noise: Noise,
    evaluate: Evaluate,
) -> Gradients | None:
    """Return ``Gradients`` for interval boxes and a single radius, where the layers have a closed form; else None."""
    passes = (("point",) if radius.clean > 0 else ()) + (("center", "radius") if len(noise.radii) else ())
    closed = len(noise.radii) == 0 or (adversary.one_box and len(noise.radii) == 1)
    if not (closed and applies_to(graph)):
        return None
    return layer_gradients(graph, params, len(batch.inputs), evaluate, passes=passes, slope=adversary.slope)
