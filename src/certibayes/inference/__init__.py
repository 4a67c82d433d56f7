"""One algorithm a file; ``fit`` drives any of them."""

from certibayes.inference.algorithm import Algorithm, Info
from certibayes.inference.fit import fit
from certibayes.inference.map import MAP
from certibayes.inference.prior import GaussianPrior
from certibayes.inference.schedule import Schedule
from certibayes.inference.target import Target
from certibayes.inference.vogn import VOGN

__all__ = ["MAP", "VOGN", "Algorithm", "GaussianPrior", "Info", "Schedule", "Target", "fit"]
