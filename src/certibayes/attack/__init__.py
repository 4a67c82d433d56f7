"""A callable x -> log-probabilities and a ball: the worst input that was found."""

from certibayes.attack.apgd import AutoPGD
from certibayes.attack.attack import attack
from certibayes.attack.base import Attack
from certibayes.attack.ensemble import Ensemble
from certibayes.attack.fgsm import FGSM
from certibayes.attack.losses import LOSSES, cross_entropy_loss, dlr_loss, label_scores, margin_loss
from certibayes.attack.methods import GROUPS, METHODS, as_attack
from certibayes.attack.pgd import PGD, ascend, pgd
from certibayes.attack.result import Attacked
from certibayes.attack.square import Square
from certibayes.regions import NORMS

__all__ = [
    "FGSM",
    "GROUPS",
    "LOSSES",
    "METHODS",
    "NORMS",
    "PGD",
    "Attack",
    "Attacked",
    "AutoPGD",
    "Ensemble",
    "Square",
    "as_attack",
    "ascend",
    "attack",
    "cross_entropy_loss",
    "dlr_loss",
    "label_scores",
    "margin_loss",
    "pgd",
]
