"""Attacks at the largest radii that are certified: whether any proof of small trained networks is false.

``python -m tests.largest_radii 100000`` makes so many trials. Networks with
convolutions and dense ones are trained on small digits by the standard likelihood, PGD and intervals; single networks
and SWAG posteriors of several samples are certified as far as each method reaches, and every point is attacked at its
own largest radius. A trial is one attack on one point at one such radius: four of them, from several seeds, each of
which projects into ball and domain; the predictor itself decides. ``100000 dense`` has the dense networks alone.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

import certibayes as cb
from certibayes.attacks import as_attack
from certibayes.attacks.ensemble import Ensemble
from certibayes.prediction import Predictor

SIZE, TRAINED_ON, EPOCHS, EPS = 7, 4000, 15, 0.06
SAMPLES = 3
SEEDS = 4
LARGEST, TOLERANCE = 0.5, 5e-4
ATTACKS = as_attack("ensemble", steps=40, restarts=2, queries=200)
IN_PART, IN_WHOLE = 24, 220
"""Points of costly methods and of the others, for 100,000 trials."""


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(128, 24), nn.ReLU(), nn.Linear(24, 10),
    )  # fmt: skip


def dense() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(SIZE**2, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 10)
    )


NETWORKS = {"convolutions": convolutional, "dense": dense}

LIKELIHOODS = {
    "standard": cb.Categorical(),
    "PGD": cb.RobustCategorical(p_eps=cb.TwoPoint(eta=EPS, lam=0.0), adversary=cb.PGD(steps=4)),
    "intervals": cb.RobustCategorical(p_eps=cb.TwoPoint(eta=EPS, lam=0.0), adversary=cb.IBP()),
}

METHODS = {
    "elided, crown": (cb.Elided("crown", "crown"), IN_WHOLE),
    "elided, alpha-crown": (cb.Elided("alpha-crown", "alpha-crown"), IN_WHOLE),
    "best, crown": (cb.Best("crown", "crown"), IN_WHOLE),
    "best, alpha-crown": (cb.Best("alpha-crown", "crown"), IN_PART),
    "best, alpha-crown, splitting": (cb.Best("alpha-crown", "crown", budget=3.0), IN_PART),
}


class Case(NamedTuple):
    """A predictor by its name, and its points with labels."""

    name: str
    predictor: Predictor
    x: Tensor
    y: Tensor


def small_digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test images of 7 x 7 pixels, with labels."""
    digits = cb.data.load("digits")

    def small(part: tuple[Tensor, Tensor], most: int | None) -> tuple[Tensor, Tensor]:
        x, y = (tensor[:most] for tensor in part)
        return functional.avg_pool2d(x.view(-1, 1, 28, 28), 28 // SIZE), y

    return small(digits.train, TRAINED_ON), small(digits.test, None)


def cases(networks: Iterable[str]) -> Iterator[Case]:
    """Train a posterior for every network and likelihood, and yield predictors of one and of several samples."""
    train, (x, y) = small_digits()
    for name in networks:
        for likelihood, how in LIKELIHOODS.items():
            torch.manual_seed(0)
            net = NETWORKS[name]()
            net.input_shape = (1, SIZE, SIZE)
            posterior = cb.fit(
                net, train, algorithm=cb.SWAG(lr=2e-3, optimizer="adam", start=0.5), likelihood=how, epochs=EPOCHS,
                seed=0, progress=False,
            )  # fmt: skip
            for samples in (1, SAMPLES):
                yield Case(f"{name}, {likelihood}, {samples}", posterior.predictor(samples, seed=1), x, y)


def trials_at_largest_radii(case: Case, method: cb.certification.Method) -> tuple[Tensor, int, int]:
    """Return the radii that are certified, how many attacks were made at them, and how many succeeded."""
    radius = cb.certified_radius(
        case.predictor, case.x, case.y, method=method, domain=(0.0, 1.0), largest=LARGEST, tolerance=TOLERANCE
    )
    reached = radius.certified & (radius.radius > 0)
    trials = succeeded = 0
    assert isinstance(ATTACKS, Ensemble)
    for one in ATTACKS.attacks if bool(reached.any()) else ():
        for seed in range(SEEDS):
            found = cb.attack(
                case.predictor, case.x[reached], case.y[reached], eps=radius.radius[reached], domain=(0.0, 1.0),
                method=one, seed=seed,
            )  # fmt: skip
            trials += int(reached.sum())
            succeeded += int(found.success.sum())
    return radius.radius[reached], trials, succeeded


def main(wanted: int, networks: Iterable[str]) -> int:
    """Make about so many trials, were it with all networks, print what came of them, and return how many succeeded."""
    total = succeeded = 0
    for case in cases(networks):
        for name, (method, points) in METHODS.items():
            few = slice(0, math.ceil(points * wanted / 100_000))
            radii, trials, broken = trials_at_largest_radii(case._replace(x=case.x[few], y=case.y[few]), method)
            total, succeeded = total + trials, succeeded + broken
            mean = float(radii.mean()) if len(radii) else 0.0
            print(f"{case.name}, {name}: {len(radii)} radii, mean {mean:.4f}, {trials} trials, {broken}", flush=True)
    print(f"{total:,} trials, {succeeded} succeeded")
    return succeeded


if __name__ == "__main__":
    sys.exit(1 if main(int(sys.argv[1]), sys.argv[2:] or NETWORKS) else 0)
