"""The formulas that run as kernels, and arguments for them."""

import torch

from certibayes.bounds.rounding import smoothed
from certibayes.bounds.rules import affine
from certibayes.inference import _kink as kink
from certibayes.inference import _meanfield as meanfield
from certibayes.inference import bbb, ivon, noisy_adam, sghmc, vogn
from certibayes.likelihoods import _curvature as curvature
from certibayes.likelihoods import _regularizers as regularizers
from certibayes.likelihoods import robust_categorical
from certibayes.regions import box
from certibayes.support import adam, descent
from certibayes.support.fused import fused

NUMBERS = {
    "beta1": 0.9,
    "beta2": 0.99,
    "data_size": 100,
    "temperature": 0.5,
    "size": 32,
    "damping": 0.1,
    "entropy": 0.3,
}
NUMBERS |= {
    "halvings": 5,
    "n": 200.0,
    "momentum": 0.9,
    "friction": 0.1,
    "decay": 0.9,
    "weight": -0.1,
    "factor": 2.0,
    "scale": -0.1,
}
NUMBERS |= {"scale": -0.1, "rounding": smoothed(0.1)}
FORMULAS = [
    adam.corrections,
    adam.corrected_rate,
    adam._step,
    descent._descend,
    kink._curvature,
    meanfield._sample,
    noisy_adam._move,
    vogn._move,
    vogn._running_sum,
    ivon._move,
    bbb._sample,
    bbb._move,
    sghmc._move,
    affine._with_radii,
    curvature._combined,
    curvature._products,
    regularizers._slope,
    box._between_corners,
    robust_categorical._slopes,
]


@fused
def every_function(a, b, c):
    """Use everything that a formula may use."""
    results = [
        torch.add(a, b, alpha=0.5), torch.sub(a, b, alpha=0.5), torch.mul(a, b), torch.div(a, b), torch.square(a),
        torch.sqrt(a), torch.rsqrt(a), torch.sigmoid(a), torch.nn.functional.softplus(a), torch.lerp(a, b, 0.3),
        torch.lerp(a, b, c), torch.addcmul(a, b, c, value=2.0), torch.addcdiv(a, b, c, value=-2.0),
        a + b, a - b, 1.0 - a, a * b, a / b, 2.0 / a, 2.0 + a, 2.0 * a, 0.9**a, -a, a * (a > b), torch.maximum(a, b),
        torch.abs(a - b), torch.sign(a - b), torch.neg(a), torch.relu(a - b), torch.exp(a), torch.where(a > b, b, c),
        torch.clamp_min(a, b), torch.clamp_max(a, 0.4),
        (a + 0.0).add_(b, alpha=3.0).sub_(c).mul_(b).div_(c).square_().sqrt_().rsqrt_(),
        (a + 0.0).gt_(b), torch.reciprocal(a), (a + 0.0).exp_().gt_(1.5),
        (a + 0.0).addcmul_(b, c, value=0.1).addcdiv_(b, c).lerp_(b, 0.9),
    ]  # fmt: skip
    return tuple(results)


def names_of(formula):
    return formula.__wrapped__.__code__.co_varnames[: formula.__wrapped__.__code__.co_argcount]


def arguments_of(formula, without=()):
    generator = torch.Generator().manual_seed(1)
    drawn = {name: torch.rand(7, generator=generator, dtype=torch.float64) + 0.1 for name in names_of(formula)}
    given = formula.__wrapped__.__annotations__
    numbers = {name: NUMBERS[name] for name in drawn if given.get(name) in ("float", "int", "Rounding")}
    return [None if name in without else numbers.get(name, drawn[name]) for name in drawn]


def name_of(formula):
    return f"{formula.__module__}.{formula.__name__}"
