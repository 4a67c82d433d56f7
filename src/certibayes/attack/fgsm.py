"""The fast gradient sign method (Goodfellow et al., 2015): one step from the point, as long as the ball allows.

x + r sign(∇ loss(x))  for l-infinity, and the steepest direction of the same length for l2 and l1, projected.
"""

from __future__ import annotations

from certibayes.attack.losses import LOSSES
from certibayes.attack.search import Search


def fast_gradient(search: Search, loss: str = "cross-entropy") -> None:
    """Make one step from every point that stands."""
    index = search.standing()
    if index.numel() == 0:
        return
    place = search.region.take(index)
    _, gradient = search.climb(index, place.center, LOSSES[loss])
    search.look(index, place.project(place.center + place.steepest_step(place.center, gradient, 1.0)))
