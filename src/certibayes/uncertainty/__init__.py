"""Entropy and disagreement of Bayesian predictors, and whether the Markov chains behind them have mixed."""

from certibayes.uncertainty.diagnostics import Convergence, Diagnostics, diagnose
from certibayes.uncertainty.entropy import Uncertainty, entropy, uncertainty

__all__ = ["Convergence", "Diagnostics", "Uncertainty", "diagnose", "entropy", "uncertainty"]
