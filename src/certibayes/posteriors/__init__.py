"""What inference returns: sample, predictor, save, load."""

from certibayes.posteriors.gaussian import DiagonalGaussian, LowRankGaussian
from certibayes.posteriors.last_layer import LastLayerGaussian
from certibayes.posteriors.mixture import GaussianMixture
from certibayes.posteriors.point import Point
from certibayes.posteriors.posterior import FILE_NAME, Posterior, load, versions
from certibayes.posteriors.samples import Samples

__all__ = [
    "FILE_NAME",
    "DiagonalGaussian",
    "GaussianMixture",
    "LastLayerGaussian",
    "LowRankGaussian",
    "Point",
    "Posterior",
    "Samples",
    "load",
    "versions",
]
