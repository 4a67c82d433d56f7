"""Radii and domains by the names of features: what may change in a table, by how much, and within which limits."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from certibayes.errors import InvalidInput
from certibayes.regions.domain import Domain, as_domain
from certibayes.regions.radius import as_radius
from certibayes.support.names import nearest, shortened


def radii_by_name(features: Sequence[str], radii: Mapping[str, float]) -> Tensor:
    """Return a radius for each feature, (1, d) in float64; features that are not named do not change.

    Args:
        features: names of the d columns, in order.
        radii: how much some of them may change, such as ``{"bmi": 1.5, "bp": 5.0}``.

    Raises:
        InvalidInput: a name is no feature, a radius is no finite number >= 0, or nothing would change at all.
    """
    _require_known(features, radii)
    found = as_radius([_number(radii.get(name, 0.0), f"the radius of {name}") for name in features])
    assert isinstance(found, Tensor)
    if radii and not bool((found > 0).any()):
        raise InvalidInput(
            "every radius is 0: features that are not named do not change. Name those that do, or give one radius for "
            "all and name those that are fixed."
        )
    return found[None]


def fixed_by_name(features: Sequence[str], eps: Any, fixed: Collection[str]) -> Any:
    """Return radii in which some features do not change.

    Args:
        features: names of the d columns, in order.
        eps: one radius, or one for each input value, (1, d) or (B, d).
        fixed: names of the features that do not change.

    Returns:
        ``eps`` itself if nothing is fixed; else radii (1, d) or (B, d).

    Raises:
        InvalidInput: a name is no feature, or there is one radius for each point, which says nothing about features.
    """
    if not fixed:
        return eps
    _require_known(features, fixed)
    radii = as_radius(eps)
    if isinstance(radii, Tensor) and (radii.dim() != 2 or radii.shape[1] != len(features)):
        raise InvalidInput(
            f"radii of shape {tuple(radii.shape)} do not tell features apart, so that none can be fixed; give one "
            f"radius, or (1, {len(features)})."
        )
    changes = torch.tensor([[name not in fixed for name in features]], dtype=torch.float64)
    return changes * radii


def domain_by_name(features: Sequence[str], limits: Mapping[str, tuple[float, float]]) -> Domain:
    """Return a domain in which features have limits of their own, (1, d) for each end; others have none.

    Args:
        features: names of the d columns, in order.
        limits: smallest and largest value of some of them, such as ``{"age": (0, 120)}``.

    Raises:
        InvalidInput: a name is no feature, or limits are not in order.
    """
    _require_known(features, limits)
    ends = []
    for name in features:
        pair = limits.get(name, (-math.inf, math.inf))
        if not (isinstance(pair, Sequence) and len(pair) == 2 and not isinstance(pair, str)):
            raise InvalidInput(f"the limits of {name} are (smallest, largest), got {pair!r}.")
        ends.append([_number(end, f"a limit of {name}") for end in pair])
    low, high = torch.tensor(ends, dtype=torch.float64).T
    return as_domain((low[None], high[None]))


def _number(value: Any, what: str) -> float:
    if not isinstance(value, Real) or math.isnan(value):
        raise InvalidInput(f"{what} must be a number, got {value!r}.")
    return float(value)


def _require_known(features: Sequence[str], names: Collection[str]) -> None:
    if names and not features:
        raise InvalidInput("these inputs have no named features; only the columns of a table have names.")
    for name in names:
        if name not in features:
            known = shortened(features)
            raise InvalidInput(f"there is no feature {name!r}{nearest(name, features)}. The features are {known}.")
