"""One algorithm per file; ``fit`` drives any of them."""

from certibayes.inference._batches import held_out
from certibayes.inference._streams import normal_like
from certibayes.inference.algorithm import Algorithm, Info, Sweep
from certibayes.inference.bbb import BBB
from certibayes.inference.ensemble import DeepEnsemble
from certibayes.inference.fit import fit
from certibayes.inference.fit_many import fit_many
from certibayes.inference.hmc import HMC
from certibayes.inference.ivon import IVON
from certibayes.inference.laplace import Laplace
from certibayes.inference.learned_prior import LearnedPrior
from certibayes.inference.map import MAP
from certibayes.inference.names import ALGORITHMS, as_algorithm
from certibayes.inference.noisy_adam import NoisyAdam
from certibayes.inference.prior import GaussianPrior
from certibayes.inference.schedule import Schedule
from certibayes.inference.sghmc import SGHMC
from certibayes.inference.snapshot import SnapshotEnsemble
from certibayes.inference.swag import SWAG
from certibayes.inference.target import Target
from certibayes.inference.vogn import VOGN

__all__ = [
    "ALGORITHMS",
    "BBB",
    "HMC",
    "IVON",
    "MAP",
    "SGHMC",
    "SWAG",
    "VOGN",
    "Algorithm",
    "DeepEnsemble",
    "GaussianPrior",
    "Info",
    "Laplace",
    "LearnedPrior",
    "NoisyAdam",
    "Schedule",
    "SnapshotEnsemble",
    "Sweep",
    "Target",
    "as_algorithm",
    "fit",
    "fit_many",
    "held_out",
    "normal_like",
]
