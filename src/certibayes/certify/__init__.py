"""Predictor and ball in, certificate out."""

from certibayes.certify.certificate import Certificate
from certibayes.certify.certify import certify, logit_bounds
from certibayes.certify.rules import RULES, pairwise, theorem1

__all__ = ["RULES", "Certificate", "certify", "logit_bounds", "pairwise", "theorem1"]
