"""Checks at the borders: what must hold before anything is bounded, attacked or trained on."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from certibayes.bounds.box import Domain
from certibayes.bounds.norms import require_norm
from certibayes.errors import InvalidInput


def require_finite(x: Tensor, what: str) -> None:
    """Raise if a float tensor holds NaN or infinite values."""
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        raise InvalidInput(f"{what} hold NaN or infinite values. Clean the data first.")


def require_floats(x: Tensor, what: str) -> None:
    """Raise unless a tensor holds finite floats."""
    if not x.is_floating_point():
        raise InvalidInput(f"{what} are {x.dtype}; floats are needed. For images: x.float() / 255.")
    require_finite(x, what)


def require_count(value: int, what: str) -> None:
    """Raise unless ``value`` is at least 1."""
    if value < 1:
        raise InvalidInput(f"{what} must be at least 1, got {value}.")


def require_domain(x: Tensor, domain: Domain) -> None:
    """Raise unless every input lies in the domain."""
    if domain is None:
        return
    low, high = domain
    if not low < high:
        raise InvalidInput(f"a domain is (smallest, largest), got {domain}.")
    # Compared in the inputs' own precision: float32(0.6) is a little more than 0.6 and still the domain's end.
    ends = torch.tensor([low, high], dtype=x.dtype)
    if x.numel() and (float(x.min()) < float(ends[0]) or float(x.max()) > float(ends[1])):
        raise InvalidInput(
            f"inputs run from {float(x.min()):.4g} to {float(x.max()):.4g}, outside the domain {domain}. Scale them, "
            "state the right domain, or pass domain=None. Normalisation belongs inside the network "
            "(certibayes.networks.Normalize), so that radii are in the units of the raw inputs."
        )


def require_radius(eps: float) -> None:
    """Raise unless eps is a finite number >= 0."""
    if not (math.isfinite(eps) and eps >= 0):
        raise InvalidInput(f"eps must be a finite radius >= 0, got {eps}.")


def radius_for(eps: float | Tensor, x: Tensor, norm: str = "linf") -> Tensor:
    """Return radii in float64 that broadcast against ``x`` (B, ...), with a batch dimension of their own.

    Args:
        eps: one radius, one for each point (B,), or, in l-infinity, one for each input value.
        x: the points.
        norm: in which the radii are meant.
    """
    require_norm(norm)
    if not isinstance(eps, Tensor):
        require_radius(eps)
        return torch.full((len(x), *[1] * (x.dim() - 1)), float(eps), dtype=torch.float64, device=x.device)
    radius = eps.detach().to(x.device, torch.float64)
    if not bool((torch.isfinite(radius) & (radius >= 0)).all()):
        raise InvalidInput("eps must hold finite radii >= 0.")
    if radius.dim() == 1 and len(radius) == len(x):
        radius = radius.view(-1, *[1] * (x.dim() - 1))
    elif norm != "linf" and any(size != 1 for size in radius.shape[-(x.dim() - 1) :]):
        raise InvalidInput(
            f"eps has shape {tuple(eps.shape)}: a radius for each input value, which only the norm linf can take. In "
            f"{norm} give one number, or one for each of the {len(x)} points."
        )
    try:
        return radius.expand(x.shape)
    except RuntimeError:
        raise InvalidInput(
            f"eps has shape {tuple(eps.shape)}, which fits neither the number of points ({len(x)}) nor their shape "
            f"{tuple(x.shape)}."
        ) from None


def require_labels(labels: Tensor, classes: int, count: int | None = None) -> None:
    """Raise unless ``labels`` are integers of shape (N,) from 0 to ``classes`` - 1."""
    if labels.is_floating_point() or labels.dtype == torch.bool or labels.dim() != 1:
        raise InvalidInput(
            f"labels must be integers of shape (N,), got {labels.dtype} of shape {tuple(labels.shape)}. "
            "For regression use RobustGaussian."
        )
    if count is not None and len(labels) != count:
        raise InvalidInput(f"there are {count} inputs but {len(labels)} labels.")
    if labels.numel() and not (int(labels.min()) >= 0 and int(labels.max()) < classes):
        raise InvalidInput(
            f"labels run from {int(labels.min())} to {int(labels.max())}, but the network has {classes} classes, "
            f"0 to {classes - 1}."
        )
