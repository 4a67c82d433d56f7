"""A predictor and a region of inputs in, a certificate out."""

from certibayes.certification.abstention import abstains, certify_abstention, entropy_bounds, max_confidence
from certibayes.certification.certify import certify
from certibayes.certification.methods import (
    METHODS,
    Auto,
    Best,
    Elided,
    Joint,
    Method,
    Pairwise,
    Theorem1,
    as_method,
)
from certibayes.certification.network_bounds import BOUNDS, INTERMEDIATES, logit_bounds, margin_bounds
from certibayes.certification.radius import certified_radius
from certibayes.certification.regression import certify_regression
from certibayes.certification.scores import CertifiedScores, certified_scores
from certibayes.certification.shards import certify_in_shards
from certibayes.certification.unsafe_outputs import UnsafeOutputs

__all__ = [
    "BOUNDS",
    "INTERMEDIATES",
    "METHODS",
    "Auto",
    "Best",
    "CertifiedScores",
    "Elided",
    "Joint",
    "Method",
    "Pairwise",
    "Theorem1",
    "UnsafeOutputs",
    "abstains",
    "as_method",
    "certified_radius",
    "certified_scores",
    "certify",
    "certify_abstention",
    "certify_in_shards",
    "certify_regression",
    "entropy_bounds",
    "logit_bounds",
    "margin_bounds",
    "max_confidence",
]
