"""A callable x -> log-probabilities and a ball: the worst input that was found."""

from certibayes.attack.pgd import PGDSettings, ascend, cross_entropy_loss, label_scores, margin_loss, pgd

__all__ = ["PGDSettings", "ascend", "cross_entropy_loss", "label_scores", "margin_loss", "pgd"]
