"""Predictor and ball in, certificate out."""

from certibayes.certify.abstention import Abstention, abstains, certify_abstention, entropy_bounds, max_confidence
from certibayes.certify.certificate import Certificate
from certibayes.certify.certify import certify
from certibayes.certify.check import Check, check_certificate, read_certificate
from certibayes.certify.concentration import samples_needed
from certibayes.certify.judge import ALL_RULES
from certibayes.certify.network_bounds import BOUNDS, INTERMEDIATES, logit_bounds, margin_bounds
from certibayes.certify.radius import Radius, certified_radius
from certibayes.certify.regression import RegressionCertificate, certify_regression
from certibayes.certify.rules import RULES, pairwise, theorem1
from certibayes.certify.shards import certify_in_shards
from certibayes.certify.statistical import (
    FreshPredictorBounds,
    PredictiveBounds,
    RobustProbability,
    posterior_predictive_bounds,
    robust_probability,
)

__all__ = [
    "ALL_RULES",
    "BOUNDS",
    "INTERMEDIATES",
    "RULES",
    "Abstention",
    "Certificate",
    "Check",
    "FreshPredictorBounds",
    "PredictiveBounds",
    "Radius",
    "RegressionCertificate",
    "RobustProbability",
    "abstains",
    "certified_radius",
    "certify",
    "certify_abstention",
    "certify_in_shards",
    "certify_regression",
    "check_certificate",
    "entropy_bounds",
    "logit_bounds",
    "margin_bounds",
    "max_confidence",
    "pairwise",
    "posterior_predictive_bounds",
    "read_certificate",
    "robust_probability",
    "samples_needed",
    "theorem1",
]
