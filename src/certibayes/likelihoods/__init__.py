"""p_eps, its schedule, and the robust likelihood over bounds or attacks."""

from certibayes.likelihoods.adversary import CROWNIBP, IBP, PGD, Adversary
from certibayes.likelihoods.base import Batch, Gradients, Likelihood, Noise, per_example_gradients
from certibayes.likelihoods.categorical import Categorical, RobustCategorical
from certibayes.likelihoods.gaussian import RobustGaussian
from certibayes.likelihoods.names import as_likelihood
from certibayes.likelihoods.radius import (
    Exponential,
    LinearRamp,
    Quantiles,
    RadiusDistribution,
    Rayleigh,
    TwoPoint,
)

__all__ = [
    "CROWNIBP",
    "IBP",
    "PGD",
    "Adversary",
    "Batch",
    "Categorical",
    "Exponential",
    "Gradients",
    "Likelihood",
    "LinearRamp",
    "Noise",
    "Quantiles",
    "RadiusDistribution",
    "Rayleigh",
    "RobustCategorical",
    "RobustGaussian",
    "TwoPoint",
    "as_likelihood",
    "per_example_gradients",
]
