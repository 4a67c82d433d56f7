"""A callable x -> log-probabilities and a ball: the worst input that was found."""

from certibayes.attack.apgd import APGDSettings
from certibayes.attack.attack import attack
from certibayes.attack.ensemble import GROUPS, METHODS
from certibayes.attack.losses import LOSSES, cross_entropy_loss, dlr_loss, label_scores, margin_loss
from certibayes.attack.pgd import PGDSettings, ascend, pgd
from certibayes.attack.result import Attacked
from certibayes.attack.square import SquareSettings
from certibayes.regions import NORMS

__all__ = [
    "GROUPS",
    "LOSSES",
    "METHODS",
    "NORMS",
    "APGDSettings",
    "Attacked",
    "PGDSettings",
    "SquareSettings",
    "ascend",
    "attack",
    "cross_entropy_loss",
    "dlr_loss",
    "label_scores",
    "margin_loss",
    "pgd",
]
