"""One network, one box of inputs: bounds on its outputs."""

from certibayes.bounds import rules as rules  # registers the rules of every layer
from certibayes.bounds.interval import (
    interval_bounds,
    interval_margins,
    margins_of_features,
    point_and_box,
    worst_logits,
)
from certibayes.bounds.linear import LinearBounder, LinearFunction, layer_boxes, linear_bounds, linear_margins
from certibayes.bounds.registry import Rules, register, registered, rules_for
from certibayes.bounds.relaxation import Relaxation
from certibayes.bounds.rounding import IDEAL, Rounding, by_name, outward, within_range
from certibayes.bounds.support import Support, support_table, supports
from certibayes.bounds.training import NOTHING, LayerUse, TrainingPass
from certibayes.regions import NORMS, Ball, Box, Domain, ideal_box, outward_box

__all__ = [
    "IDEAL",
    "NORMS",
    "NOTHING",
    "Ball",
    "Box",
    "Domain",
    "LayerUse",
    "LinearBounder",
    "LinearFunction",
    "Relaxation",
    "Rounding",
    "Rules",
    "Support",
    "TrainingPass",
    "by_name",
    "ideal_box",
    "interval_bounds",
    "interval_margins",
    "layer_boxes",
    "linear_bounds",
    "linear_margins",
    "margins_of_features",
    "outward",
    "outward_box",
    "point_and_box",
    "register",
    "registered",
    "rules",
    "rules_for",
    "support_table",
    "supports",
    "within_range",
    "worst_logits",
]
