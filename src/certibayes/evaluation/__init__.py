"""Uncertainty: entropies, out-of-distribution detection, calibration, selective accuracy; evidence; diagnostics."""

from certibayes.evaluation.adversarial import push_on
from certibayes.evaluation.assessment import Assessment, assess
from certibayes.evaluation.calibration import (
    Reliability,
    accuracy,
    brier_score,
    expected_calibration_error,
    negative_log_likelihood,
    reliability,
)
from certibayes.evaluation.detection import (
    SCORES,
    Detection,
    Histogram,
    aupr,
    auroc,
    detect,
    fpr_at_tpr,
    histogram,
    likelihood_ratio,
    score_of,
)
from certibayes.evaluation.diagnostics import Convergence, Diagnostics, diagnose
from certibayes.evaluation.entropy import Uncertainty, entropy, uncertainty
from certibayes.evaluation.evidence import Evidence, elbo
from certibayes.evaluation.regression import RegressionAssessment, assess_regression
from certibayes.evaluation.selective import RiskCoverage, risk_coverage

__all__ = [
    "SCORES",
    "Assessment",
    "Convergence",
    "Detection",
    "Diagnostics",
    "Evidence",
    "Histogram",
    "RegressionAssessment",
    "Reliability",
    "RiskCoverage",
    "Uncertainty",
    "accuracy",
    "assess",
    "assess_regression",
    "aupr",
    "auroc",
    "brier_score",
    "detect",
    "diagnose",
    "elbo",
    "entropy",
    "expected_calibration_error",
    "fpr_at_tpr",
    "histogram",
    "likelihood_ratio",
    "negative_log_likelihood",
    "push_on",
    "reliability",
    "risk_coverage",
    "score_of",
    "uncertainty",
]
