"""Adversaries: what the worst input within a radius does to the outputs of one network.

``IBP`` and ``CROWNIBP`` answer with a bound that no input can cross; ``PGD`` with the worst input it finds, which
proves nothing.
"""

from certibayes.likelihoods.adversaries.base import Adversary, Model, Threat
from certibayes.likelihoods.adversaries.crown_ibp import CROWNIBP
from certibayes.likelihoods.adversaries.ibp import IBP
from certibayes.likelihoods.adversaries.pgd import PGD

__all__ = ["CROWNIBP", "IBP", "PGD", "Adversary", "Model", "Threat"]
