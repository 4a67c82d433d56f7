"""Predictor and ball in, certificate out."""

from certibayes.certify.abstention import Abstention, abstains, certify_abstention, entropy_bounds, max_confidence
from certibayes.certify.certificate import Certificate
from certibayes.certify.certify import ALL_RULES, certify
from certibayes.certify.concentration import samples_needed
from certibayes.certify.network_bounds import BOUNDS, logit_bounds, margin_bounds
from certibayes.certify.regression import RegressionCertificate, certify_regression
from certibayes.certify.rules import RULES, pairwise, theorem1
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
    "RULES",
    "Abstention",
    "Certificate",
    "FreshPredictorBounds",
    "PredictiveBounds",
    "RegressionCertificate",
    "RobustProbability",
    "abstains",
    "certify",
    "certify_abstention",
    "certify_regression",
    "entropy_bounds",
    "logit_bounds",
    "margin_bounds",
    "max_confidence",
    "pairwise",
    "posterior_predictive_bounds",
    "robust_probability",
    "samples_needed",
    "theorem1",
]
