"""A callable x -> log-probabilities and one set of inputs: the worst input that was found."""

from certibayes.attacks.apgd import AutoPGD
from certibayes.attacks.attack import attack
from certibayes.attacks.base import Attack
from certibayes.attacks.ensemble import Ensemble
from certibayes.attacks.fgsm import FGSM
from certibayes.attacks.losses import LOSSES, cross_entropy_loss, dlr_loss, label_scores, margin_loss
from certibayes.attacks.methods import GROUPS, METHODS, as_attack
from certibayes.attacks.pgd import PGD, ascend, pgd
from certibayes.attacks.regression import AttackedRegression, attack_regression
from certibayes.attacks.result import Attacked
from certibayes.attacks.square import Square
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
    "AttackedRegression",
    "AutoPGD",
    "Ensemble",
    "Square",
    "as_attack",
    "ascend",
    "attack",
    "attack_regression",
    "cross_entropy_loss",
    "dlr_loss",
    "label_scores",
    "margin_loss",
    "pgd",
]
