"""Predictor and ball in, certificate out."""

from certibayes.certify.abstention import abstains, certify_abstention, entropy_bounds, max_confidence
from certibayes.certify.certify import certify
from certibayes.certify.judge import ALL_RULES
from certibayes.certify.network_bounds import BOUNDS, INTERMEDIATES, logit_bounds, margin_bounds
from certibayes.certify.radius import certified_radius
from certibayes.certify.regression import certify_regression
from certibayes.certify.rules import RULES, pairwise, theorem1
from certibayes.certify.shards import certify_in_shards

__all__ = [
    "ALL_RULES",
    "BOUNDS",
    "INTERMEDIATES",
    "RULES",
    "abstains",
    "certified_radius",
    "certify",
    "certify_abstention",
    "certify_in_shards",
    "certify_regression",
    "entropy_bounds",
    "logit_bounds",
    "margin_bounds",
    "max_confidence",
    "pairwise",
    "theorem1",
]
