"""Branch and bound on convolutional networks that were not trained to be certified, and the price of many samples.

The network of two convolutions and two dense layers of ``benchmarks.verifiers`` is trained with PGD on CIFAR-10 at
2/255 (set ``CERTIBAYES_DATA`` to the directory of its files; without them on the digits at 0.1), and a SWAG posterior
from there. What CROWN with CROWN's intermediate bounds certifies and what the attack ``ensemble`` leaves has a gap
between them; figures are the percentages of it that ``best`` leaves open, and the time of all its stages. On a GPU
there are 200 images and 480 seconds for branch and bound, on a CPU 20 images and a minute each.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import torch
from torch import Tensor

import certibayes as cb
from benchmarks.records import Figure, Figures, ratio, seconds
from benchmarks.verifiers import convolutional
from certibayes.prediction import Predictor


class Size(NamedTuple):
    """How much there is of everything; ``samples`` of the posterior are split, ``many`` are timed."""

    trained_on: int
    epochs: int
    images: int
    budget: float
    samples: int
    many: int


SIZES = {"cpu": Size(10_000, 5, 20, 60.0, 4, 8), "cuda": Size(50_000, 20, 200, 480.0, 10, 35)}

LEFT_OF_ONE, LEFT_OF_SOME, MANY_TO_ONE = 60.0, 75.0, 5.0
"""Bars: percentages of the gap that may stay open, and the time of many samples beside that of one."""

AT_ONCE = {"domain": (0.0, 1.0)}


class Task(NamedTuple):
    """A trained network, its posterior, images with labels, and the radius."""

    one: Predictor
    posterior: cb.Posterior
    x: Tensor
    y: Tensor
    eps: float


def task(size: Size, device: str) -> Task:
    """Train a network with PGD, and SWAG from there."""
    on_cifar = cb.data.is_available("cifar10")
    data, eps = (cb.data.load("cifar10"), 2 / 255) if on_cifar else (cb.data.load("digits"), 0.1)
    x, y = (part[: size.trained_on] for part in data.train)
    torch.manual_seed(0)
    net = convolutional(*x.shape[1:3])
    net.input_shape = tuple(x.shape[1:])
    likelihood = cb.RobustCategorical(p_eps=cb.TwoPoint(eta=eps, lam=0.0), adversary=cb.PGD(steps=4))
    settings = {"likelihood": likelihood, "seed": 0, "progress": False, "device": device}
    point = cb.fit(net, (x, y), algorithm=cb.MAP(lr=1e-3), epochs=size.epochs, **settings)
    net.load_state_dict(point.params)
    algorithm = cb.SWAG(lr=3e-4, optimizer="adam", start=0.0)
    posterior = cb.fit(net, (x, y), algorithm=algorithm, epochs=max(2, size.epochs // 4), **settings)
    test = data.test
    images, labels = test.inputs[: size.images].to(device), test.targets[: size.images].to(device)
    return Task(point.predictor().to(device), posterior, images, labels, eps)


def certified(predictor: Predictor, given: Task, method: cb.certification.Method) -> tuple[int, float]:
    """Return how many images are certified, and in how many seconds."""
    if predictor.device.type == "cuda":
        torch.cuda.synchronize()
    start = time.monotonic()
    found = cb.certify(predictor, given.x, given.y, eps=given.eps, method=method, **AT_ONCE)
    return int(found.certified.sum()), time.monotonic() - start


def gap_left(predictor: Predictor, given: Task, budget: float, what: str, bar: float | None) -> Figures:
    """Measure how much of the gap between CROWN and attacks branch and bound leaves open."""
    crown, quick = certified(predictor, given, cb.Auto(intermediates="crown"))
    attacked = cb.attack(predictor, given.x, given.y, eps=given.eps, method="ensemble", **AT_ONCE)
    left = round(attacked.robust_accuracy * len(given.x))
    proved, took = certified(predictor, given, cb.Best(intermediates="crown", budget=budget))
    share = 100.0 * (left - proved) / max(1, left - crown)
    print(f"  {what}: CROWN {crown}, best {proved}, attacks leave {left} of {len(given.x)}", flush=True)
    return {
        f"gap left open, {what}": Figure("%", (share,), bar),
        f"CROWN, {what}": seconds(quick),
        f"best, {what}": seconds(took),
    }


def measure(device: str) -> Figures:
    size = SIZES[device]
    given = task(size, device)
    bars = (LEFT_OF_ONE, LEFT_OF_SOME, MANY_TO_ONE) if device == "cuda" else (None, None, None)
    some = given.posterior.predictor(size.samples, seed=1).to(device)
    found = gap_left(given.one, given, size.budget, "one sample", bars[0])
    found |= gap_left(some, given, size.budget, f"{size.samples} samples", bars[1])
    times = []
    for samples in (1, size.many):
        predictor = given.posterior.predictor(samples, seed=1).to(device)
        certified(predictor, given._replace(x=given.x[:4], y=given.y[:4]), cb.Auto(intermediates="crown"))
        times.append(certified(predictor, given, cb.Auto(intermediates="crown"))[1])
    found[f"{size.many} samples / one, CROWN"] = ratio(times[1] / times[0], bars[2])
    return found
