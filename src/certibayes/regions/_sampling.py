"""Random points of a region."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from certibayes.regions.region import InputRegion


def sample(region: InputRegion, generator: torch.Generator) -> Tensor:
    """Return random points of the region, (B, *shape): uniform in the ball, then projected onto the domain.

    Args:
        region: of B points.
        generator: on the device of the points.
    """
    x = region.center
    if region.norm == "linf":
        lower, upper = region.limits
        noise = torch.rand(x.shape, generator=generator, dtype=x.dtype, device=x.device)
        return torch.clamp(lower + noise * (upper - lower), lower, upper)
    flat = (len(x), x[0].numel()) if len(x) else (0, 1)
    if region.norm == "l2":
        noise = torch.randn(flat, generator=generator, dtype=torch.float64, device=x.device)
        fraction = torch.rand((len(x), 1), generator=generator, dtype=torch.float64, device=x.device)
        noise = noise / noise.norm(dim=-1, keepdim=True) * fraction ** (1.0 / flat[1])
    else:
        # n exponentials over the sum of n + 1 are uniform in the simplex; signs make it the l1 ball.
        lengths = torch.empty((flat[0], flat[1] + 1), dtype=torch.float64, device=x.device)
        lengths.exponential_(generator=generator)
        signs = torch.rand(flat, generator=generator, dtype=torch.float64, device=x.device) < 0.5
        noise = lengths[:, :-1] / lengths.sum(-1, keepdim=True) * torch.where(signs, -1.0, 1.0)
    return region.project((x.double() + region.radius * noise.view(x.shape)).to(x.dtype))
