"""What inference returns: sample, predictor, save, load."""

from certibayes.posteriors.posterior import (
    FILE_NAME,
    DiagonalGaussian,
    LowRankGaussian,
    Point,
    Posterior,
    Samples,
    load,
    versions,
)

__all__ = ["FILE_NAME", "DiagonalGaussian", "LowRankGaussian", "Point", "Posterior", "Samples", "load", "versions"]
