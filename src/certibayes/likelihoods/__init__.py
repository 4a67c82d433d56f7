"""p_eps, its path through training, and the robust likelihood: network passes and a pure head."""

from certibayes.likelihoods.adversaries import CCIBP, CROWNIBP, IBP, MTLIBP, PGD, SABR, Adversary, ExpIBP, Model, Threat
from certibayes.likelihoods.base import PAIRS, Batch, Gradients, Likelihood, Noise, Outputs, per_example_gradients
from certibayes.likelihoods.categorical import Categorical
from certibayes.likelihoods.curriculum import Curriculum
from certibayes.likelihoods.description import likelihood_from
from certibayes.likelihoods.names import ADVERSARIES, LIKELIHOODS, as_likelihood
from certibayes.likelihoods.radius import MULTIPLIER, Exponential, Quantiles, RadiusDistribution, Rayleigh, TwoPoint
from certibayes.likelihoods.ramp import LinearRamp, Ramp, SmoothRamp
from certibayes.likelihoods.robust import RobustLikelihood
from certibayes.likelihoods.robust_categorical import RobustCategorical
from certibayes.likelihoods.robust_gaussian import RobustGaussian

__all__ = [
    "ADVERSARIES",
    "CCIBP",
    "CROWNIBP",
    "IBP",
    "LIKELIHOODS",
    "MTLIBP",
    "MULTIPLIER",
    "PAIRS",
    "PGD",
    "SABR",
    "Adversary",
    "Batch",
    "Categorical",
    "Curriculum",
    "ExpIBP",
    "Exponential",
    "Gradients",
    "Likelihood",
    "LinearRamp",
    "Model",
    "Noise",
    "Outputs",
    "Quantiles",
    "RadiusDistribution",
    "Ramp",
    "Rayleigh",
    "RobustCategorical",
    "RobustGaussian",
    "RobustLikelihood",
    "SmoothRamp",
    "Threat",
    "TwoPoint",
    "as_likelihood",
    "likelihood_from",
    "per_example_gradients",
]
