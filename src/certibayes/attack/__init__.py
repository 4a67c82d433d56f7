"""A callable x -> log-probabilities and a ball: the worst input that was found."""

from certibayes.attack.attack import Attacked, attack
from certibayes.attack.pgd import PGDSettings, ascend, cross_entropy_loss, label_scores, margin_loss, pgd

__all__ = [
    "Attacked",
    "PGDSettings",
    "ascend",
    "attack",
    "cross_entropy_loss",
    "label_scores",
    "margin_loss",
    "pgd",
]
