"""``InputRegion``: the set of inputs that a statement is about.

R(x) = { z : ‖z - x‖ <= r, low <= z <= high },   ‖.‖ one of l-infinity, l2, l1.

Whoever asks something of such a set asks it here: attacks project onto it and step inside it, bounds enclose it in
boxes, certificates state it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from certibayes.regions._projection import limits_of, project, steepest_step
from certibayes.regions._sampling import sample
from certibayes.regions.box import Box, corners, ideal_enclosure, outward_enclosure
from certibayes.regions.domain import Domain, as_domain, require_domain, take_domain
from certibayes.regions.minimum import lowest_point, lowest_value
from certibayes.regions.radius import radii_for


@dataclass(frozen=True, eq=False)
class InputRegion:
    """All inputs within a radius of a point that lie in the domain, for each of B points.

    ``InputRegion.around`` makes one of what a user gives, and checks it. Made directly nothing is checked, as inside
    ``torch.vmap`` nothing can be.

    Attributes:
        center: the points, (B, *shape), inside the domain.
        radius: in float64, (B, 1, ...); or in l-infinity anything that broadcasts against the points.
        norm: ``"linf"``, ``"l2"`` or ``"l1"``.
        domain: smallest and largest value of an input, or None.
    """

    center: Tensor
    radius: Tensor
    norm: str = "linf"
    domain: Domain = None

    @classmethod
    def around(cls, x: Tensor, eps: Any, norm: str = "linf", domain: Any = None) -> InputRegion:
        """Return the inputs within ``eps`` of ``x`` that lie in the domain.

        Args:
            x: points (B, *shape), inside the domain.
            eps: a number; one per point, (B,); or, in l-infinity, one per input value, (1, *shape) or (B, *shape).
            norm: ``"linf"``, ``"l2"`` or ``"l1"``.
            domain: None, or a pair (smallest, largest) of numbers or of tensors of shape (1, *shape) or (B, *shape).

        Raises:
            InvalidInput: the norm is not known, a shape does not fit, or points lie outside the domain.
        """
        known = as_domain(domain)
        radius = radii_for(eps, x, norm)
        require_domain(x, known)
        return cls(x, radius, norm, known)

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.center)

    def take(self, index: Tensor | slice) -> InputRegion:
        """Return the regions of some of the points."""
        radius = self.radius[index] if self.radius.dim() and len(self.radius) == len(self) else self.radius
        some = InputRegion(self.center[index], radius, self.norm, take_domain(self.domain, index))
        if "limits" in self.__dict__:
            # Kept, since an attack takes fewer points whenever some are broken.
            lower, upper = self.limits
            some.__dict__["limits"] = lower[index], upper[index]
        return some

    def to(self, dtype: torch.dtype) -> InputRegion:
        """Return the regions around the points as a program of this precision reads them."""
        return self if self.center.dtype == dtype else replace(self, center=self.center.to(dtype))

    def ideal_box(self) -> Box:
        """Return the box around the region in exact arithmetic; for l2 and l1 it carries the ball.

        Differentiable in center and, for l-infinity, radius.
        """
        return ideal_enclosure(self)

    def outward_box(self, dtype: torch.dtype | None = None) -> Box:
        """Return a box that holds every float input of the region, also as float arithmetic computes it.

        For l2 and l1 it carries a ball that does, too. See ``regions.box.outward_enclosure``.

        Args:
            dtype: precision of the network that reads the inputs; that of the points by default.
        """
        return outward_enclosure(self, dtype)

    def corners(self) -> tuple[Tensor, Tensor]:
        """Return the smallest and the largest value of each coordinate, (B, *shape), in floats; differentiable."""
        return corners(self)

    def minimum(self, coefficients: Tensor) -> Tensor:
        """Return the smallest value of A x over the region, in float64, (B, S), by Hölder's inequality and duality.

        It is not rounded outwards; bounds that must hold for floats are in ``certibayes.bounds``.

        Args:
            coefficients: A, (B, S, *shape).
        """
        return lowest_value(coefficients, self.to(torch.float64).ideal_box())

    def minimizer(self, coefficients: Tensor) -> Tensor:
        """Return where A x is smallest over the region, up to rounding, in float64, (B, *shape).

        Args:
            coefficients: A, (B, *shape).
        """
        return lowest_point(coefficients, self.to(torch.float64).ideal_box())

    @cached_property
    def limits(self) -> tuple[Tensor, Tensor]:
        """Smallest and largest floats allowed, (B, *shape) each: the domain, and in l-infinity the ball as well."""
        return limits_of(self.center, self.radius if self.norm == "linf" else None, self.domain)

    def distance(self, z: Tensor) -> Tensor:
        """Return how far each of ``z`` (B, *shape) is from its point, in float64, (B,)."""
        away = (z.double() - self.center.double()).abs().flatten(1)
        if self.norm == "linf":
            return away.amax(-1) if away.shape[-1] else away.sum(-1)
        return away.sum(-1) if self.norm == "l1" else away.square().sum(-1).sqrt()

    def project(self, z: Tensor) -> Tensor:
        """Return the point of the region nearest to each of ``z`` (B, *shape), by Euclidean distance."""
        return project(self, z)

    def sample(self, generator: torch.Generator) -> Tensor:
        """Return random points of the region, (B, *shape): uniform in the ball, then projected onto the domain."""
        return sample(self, generator)

    def steepest_step(self, z: Tensor, gradient: Tensor, fraction: float | Tensor) -> Tensor:
        """Return the step from ``z`` of length ``fraction`` times the radius along which a loss grows fastest.

        ``project`` is to follow.

        Args:
            z: where the step begins, (B, *shape), inside the domain.
            gradient: of the loss there, (B, *shape).
            fraction: a number, or one per point, (B, 1, ...).
        """
        return steepest_step(self, z, gradient, fraction)


def ideal_box(x: Tensor, eps: Any, domain: Any = None, norm: str = "linf") -> Box:
    """Return the box around the inputs within ``eps`` of ``x``, in exact arithmetic; differentiable in ``x``.

    Args:
        x: see ``InputRegion.around``.
        eps: likewise.
        domain: likewise.
        norm: likewise.
    """
    return InputRegion.around(x, eps, norm, domain).ideal_box()


def outward_box(x: Tensor, eps: Any, domain: Any = None, dtype: torch.dtype | None = None, norm: str = "linf") -> Box:
    """Return a box that holds every float input within ``eps`` of ``x``, also as float arithmetic computes it.

    Args:
        x: see ``InputRegion.around``.
        eps: likewise.
        domain: likewise.
        dtype: precision of the network that reads the inputs; that of ``x`` by default.
        norm: likewise.
    """
    return InputRegion.around(x, eps, norm, domain).outward_box(dtype)
