"""The set of inputs that a statement is about."""

from certibayes.regions.ball import Ball
from certibayes.regions.box import Box
from certibayes.regions.domain import (
    Domain,
    as_domain,
    domain_to_json,
    ends_like,
    require_domain,
    require_radius_within,
    resolve_domain,
    take_domain,
)
from certibayes.regions.features import domain_by_name, fixed_by_name, radii_by_name
from certibayes.regions.minimum import lowest_point
from certibayes.regions.radius import NORMS, as_radius, radii_for, require_norm, require_radius
from certibayes.regions.region import InputRegion, ideal_box, outward_box

__all__ = [
    "NORMS",
    "Ball",
    "Box",
    "Domain",
    "InputRegion",
    "as_domain",
    "as_radius",
    "domain_by_name",
    "domain_to_json",
    "ends_like",
    "fixed_by_name",
    "ideal_box",
    "lowest_point",
    "outward_box",
    "radii_by_name",
    "radii_for",
    "require_domain",
    "require_norm",
    "require_radius",
    "require_radius_within",
    "resolve_domain",
    "take_domain",
]
