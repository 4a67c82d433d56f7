"""Adversaries: what the worst input within a radius does to the outputs of one network.

``IBP`` and ``CROWNIBP`` answer with a bound that no input can cross; ``PGD`` with the worst input it finds, which
proves nothing. ``SABR``, ``CCIBP``, ``MTLIBP`` and ``ExpIBP`` lie between the two, and prove nothing either.
"""

from certibayes.likelihoods.adversaries.base import Adversary, Model, Threat
from certibayes.likelihoods.adversaries.cc_ibp import CCIBP
from certibayes.likelihoods.adversaries.crown_ibp import CROWNIBP
from certibayes.likelihoods.adversaries.exp_ibp import ExpIBP
from certibayes.likelihoods.adversaries.ibp import IBP
from certibayes.likelihoods.adversaries.mtl_ibp import MTLIBP
from certibayes.likelihoods.adversaries.pgd import PGD
from certibayes.likelihoods.adversaries.sabr import SABR

__all__ = ["CCIBP", "CROWNIBP", "IBP", "MTLIBP", "PGD", "SABR", "Adversary", "ExpIBP", "Model", "Threat"]
