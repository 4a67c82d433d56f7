"""Entropy and disagreement of Bayesian predictors."""

from certibayes.uncertainty.entropy import Uncertainty, entropy, uncertainty

__all__ = ["Uncertainty", "entropy", "uncertainty"]
