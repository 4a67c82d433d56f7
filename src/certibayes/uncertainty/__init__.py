"""Entropy, calibration and disagreement of Bayesian predictors, and whether the chains behind them have mixed."""

from certibayes.uncertainty.calibration import expected_calibration_error
from certibayes.uncertainty.diagnostics import Convergence, Diagnostics, diagnose
from certibayes.uncertainty.entropy import Uncertainty, entropy, uncertainty

__all__ = [
    "Convergence",
    "Diagnostics",
    "Uncertainty",
    "diagnose",
    "entropy",
    "expected_calibration_error",
    "uncertainty",
]
