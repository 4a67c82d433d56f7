"""Bayesian neural networks with honest uncertainty and a proof of robustness.

Certibayes infers a posterior whose likelihood accounts for the worst input within a radius, and proves for a test point
a bound that no attack can cross. See Wicker et al., "Bayesian Inference with Certifiable Adversarial
Robustness", AISTATS 2021.
"""

from certibayes import bounds, data, networks, regions
from certibayes._version import __version__
from certibayes.attacks import Attacked, attack
from certibayes.bounds import Support, supports
from certibayes.certificates import Certificate, Provenance, Radius, load_certificate
from certibayes.certification import (
    Auto,
    Best,
    Elided,
    Joint,
    Method,
    Pairwise,
    Theorem1,
    certified_radius,
    certify,
    certify_abstention,
    certify_regression,
    entropy_bounds,
)
from certibayes.checker import check_certificate
from certibayes.errors import CertibayesError
from certibayes.evaluation import Assessment, Diagnostics, Uncertainty, assess, diagnose, uncertainty
from certibayes.inference import (
    BBB,
    HMC,
    IVON,
    MAP,
    SGHMC,
    SWAG,
    VOGN,
    Algorithm,
    DeepEnsemble,
    GaussianPrior,
    Laplace,
    NoisyAdam,
    Schedule,
    fit,
)
from certibayes.likelihoods import (
    CROWNIBP,
    IBP,
    PGD,
    Categorical,
    Exponential,
    Likelihood,
    LinearRamp,
    Quantiles,
    Rayleigh,
    RobustCategorical,
    RobustGaussian,
    TwoPoint,
)
from certibayes.posteriors import (
    DiagonalGaussian,
    LastLayerGaussian,
    LowRankGaussian,
    Point,
    Posterior,
    Samples,
    load,
)
from certibayes.prediction import Predictor
from certibayes.statistical import posterior_predictive_bounds, robust_probability, samples_needed

__all__ = [
    "BBB",
    "CROWNIBP",
    "HMC",
    "IBP",
    "IVON",
    "MAP",
    "PGD",
    "SGHMC",
    "SWAG",
    "VOGN",
    "Algorithm",
    "Assessment",
    "Attacked",
    "Auto",
    "Best",
    "Categorical",
    "CertibayesError",
    "Certificate",
    "DeepEnsemble",
    "Diagnostics",
    "DiagonalGaussian",
    "Elided",
    "Exponential",
    "GaussianPrior",
    "Joint",
    "Laplace",
    "LastLayerGaussian",
    "Likelihood",
    "LinearRamp",
    "LowRankGaussian",
    "Method",
    "NoisyAdam",
    "Pairwise",
    "Point",
    "Posterior",
    "Predictor",
    "Provenance",
    "Quantiles",
    "Radius",
    "Rayleigh",
    "RobustCategorical",
    "RobustGaussian",
    "Samples",
    "Schedule",
    "Support",
    "Theorem1",
    "TwoPoint",
    "Uncertainty",
    "__version__",
    "assess",
    "attack",
    "bounds",
    "certified_radius",
    "certify",
    "certify_abstention",
    "certify_regression",
    "check_certificate",
    "data",
    "diagnose",
    "entropy_bounds",
    "fit",
    "load",
    "load_certificate",
    "networks",
    "posterior_predictive_bounds",
    "regions",
    "robust_probability",
    "samples_needed",
    "supports",
    "uncertainty",
]
