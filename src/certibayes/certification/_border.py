"""What every certificate asks of points, radii and domain before anything is bounded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from certibayes.data.points import points_for
from certibayes.errors import InvalidInput
from certibayes.prediction import Predictor
from certibayes.regions import InputRegion, radii_by_name, require_radius_within, resolve_domain
from certibayes.support.checks import LARGEST, inputs_of
from certibayes.support.tensors import as_tensor


def asked_of(predictor: Predictor, x: Any, y: Any, eps: Any) -> tuple[Any, Any, Any]:
    """Return points, targets and radii, from whatever yields points; radii by name become one for each feature.

    Args:
        predictor: whose columns they must have, where both have names.
        x: see ``data.points_of``.
        y: likewise.
        eps: see ``InputRegion.around``; or radii by the names of columns, for points in a table of pandas.

    Raises:
        InvalidInput: they cannot be used.
    """
    points = points_for(predictor, x, y)
    if isinstance(eps, Mapping):
        if not points.features:
            raise InvalidInput(
                "radii by name need points with named columns: a table of pandas, or a data set with features. For "
                "other points certibayes.regions.radii_by_name(names, radii) makes a tensor of them."
            )
        eps = radii_by_name(points.features, eps)
    return points.x, points.y, eps


def region_for(predictor: Predictor, x: Any, eps: Any, norm: str, domain: Any) -> InputRegion:
    """Return the inputs that a certificate will be about, on the predictor's device.

    Args:
        predictor: whose inputs they are.
        x: points (B, *shape): a tensor, an array or nested lists. They stay in the precision in which they are given.
        eps: see ``InputRegion.around``.
        norm: likewise.
        domain: likewise; ``"predictor"`` for the predictor's own.

    Raises:
        InvalidInput: they cannot be used.
    """
    known = resolve_domain(domain, predictor)
    # Checked where the predictor is: a GPU takes no time for it.
    given = inputs_of(as_tensor(x, "the points").to(predictor.device), "the points")
    read = given.to(predictor.dtype)
    predictor.graph.require_input(read)
    # As the predictor reads them: a point may be the domain's end, rounded.
    region = InputRegion.around(read, eps, norm, known)
    require_radius_within(known, eps, norm)
    if read.numel() and float(torch.maximum(read.amax(), -read.amin()) + region.radius.max()) > LARGEST:
        raise InvalidInput("the points are beyond 2^30, where underflow is not accounted for. Scale them.")
    return replace(region, center=given)
