"""CROWN beside auto_LiRPA's (Xu et al., 2020), where that can be imported: same networks, same images, one thread.

Networks of two convolutions and two dense layers, and dense ones, are trained with PGD, with the standard likelihood
and with intervals, on CIFAR-10 at 2/255 where its files are there, else on the digits at 0.1. Either side bounds the
margins of every image with CROWN and CROWN's intermediate bounds, and those of the PGD networks with optimized slopes
for both at equal iterations, in a process of its own, set-up included; ours round outwards, and theirs do not round.
auto_LiRPA is no dependency: without it there is nothing to measure. Its source runs on the path, beside appdirs, ninja,
graphviz, sortedcontainers, tqdm and psutil.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import re
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

import certibayes as cb
from benchmarks.records import Figure, Figures, ratio, seconds
from certibayes.bounds.optimize import STEPS

IMAGES, TRAINED_ON, EPOCHS = 100, 10_000, 5
BAR = 2.0

OPTIMIZED_AT_ONCE = 10
"""Images that auto_LiRPA's alpha-CROWN takes at once."""


class Case(NamedTuple):
    """A network's weights, images with labels, and the radius."""

    net: nn.Module
    x: Tensor
    y: Tensor
    eps: float


class Answer(NamedTuple):
    """Which images are certified, in how many seconds of one thread, and the peak memory of the process in GB."""

    certified: list[bool]
    seconds: float
    peak: float


def convolutional(channels: int, size: int) -> nn.Module:
    """Return conv 16 and conv 32, 4x4 with stride 2, dense 100, dense 10."""
    return nn.Sequential(
        nn.Conv2d(channels, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(32 * (size // 4) ** 2, 100), nn.ReLU(), nn.Linear(100, 10),
    )  # fmt: skip


def dense(channels: int, size: int) -> nn.Module:
    """Return three hidden layers of 100 units."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(channels * size**2, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(),
        nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10),
    )  # fmt: skip


NETWORKS: dict[str, Callable[[int, int], nn.Module]] = {"convolutions": convolutional, "dense": dense}


def trained(make: Callable[[int, int], nn.Module], likelihood: str) -> Case:
    """Train a network and return it with test images."""
    on_cifar = cb.data.is_available("cifar10")
    data, eps = (cb.data.load("cifar10"), 2 / 255) if on_cifar else (cb.data.load("digits"), 0.1)
    x, y = (part[:TRAINED_ON] for part in data.train)
    torch.manual_seed(0)
    net = make(*x.shape[1:3])
    net.input_shape = tuple(x.shape[1:])
    how: cb.likelihoods.Likelihood = cb.Categorical()
    if likelihood != "standard":
        adversary = cb.PGD(steps=4) if likelihood == "PGD" else cb.IBP()
        how = cb.RobustCategorical(p_eps=cb.TwoPoint(eta=eps, lam=0.0), adversary=adversary)
    posterior = cb.fit(net, (x, y), algorithm=cb.MAP(lr=1e-3), likelihood=how, epochs=EPOCHS, seed=0, progress=False)
    net.load_state_dict(posterior.params)
    test = data.test
    return Case(net.eval(), test.inputs[:IMAGES], test.targets[:IMAGES], eps)


def by_certibayes(case: Case, optimized: bool) -> Tensor:
    """Certify with ours."""
    method = cb.Elided("alpha-crown", "alpha-crown") if optimized else cb.Auto(intermediates="crown")
    predictor = cb.Point(case.net).predictor()
    return cb.certify(predictor, case.x, case.y, eps=case.eps, domain=(0.0, 1.0), method=method).certified


def by_auto_lirpa(case: Case, optimized: bool) -> Tensor:
    """Certify with theirs, at default settings but for the iterations, which are as many as ours."""
    from auto_LiRPA import BoundedModule, BoundedTensor
    from auto_LiRPA.perturbations import PerturbationLpNorm

    x, y, eps = case.x, case.y, case.eps
    model, every = BoundedModule(case.net, x[:1]), torch.eye(10)
    margins = (every[y][:, None] - every)[y[:, None] != torch.arange(10)].view(len(x), 9, 10)
    ball = PerturbationLpNorm(norm=torch.inf, eps=eps, x_L=(x - eps).clamp(0, 1), x_U=(x + eps).clamp(0, 1))
    if optimized:
        # All images at once take more memory than most machines have.
        certified = []
        for i in range(0, len(x), OPTIMIZED_AT_ONCE):
            few = slice(i, i + OPTIMIZED_AT_ONCE)
            some = PerturbationLpNorm(norm=torch.inf, eps=eps, x_L=ball.x_L[few], x_U=ball.x_U[few])
            model = BoundedModule(case.net, x[few])
            model.set_bound_opts({"optimize_bound_args": {"iteration": STEPS}})
            lower, _ = model.compute_bounds(
                x=(BoundedTensor(x[few], some),), C=margins[few], method="alpha-CROWN", bound_upper=False
            )
            certified.append((lower > 0).all(1))
        return torch.cat(certified)
    with torch.no_grad():
        lower, _ = model.compute_bounds(x=(BoundedTensor(x, ball),), C=margins, method="CROWN", bound_upper=False)
    return (lower > 0).all(1)


SIDES = {"certibayes": by_certibayes, "auto_LiRPA": by_auto_lirpa}


def answer(side: str, case: Case, optimized: bool) -> Answer:
    """Run one side on one thread of the process at hand; imports do not count."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if side == "auto_LiRPA":
        importlib.import_module("auto_LiRPA")
    start = time.process_time()
    certified = SIDES[side](case, optimized)
    took = time.process_time() - start
    return Answer(certified.tolist(), took, peak_memory())


def peak_memory() -> float:
    """Peak memory of this process in GB. ``getrusage`` would count what the process had that started it."""
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 2**20


def measure(device: str) -> Figures:
    found: Figures = {}
    if device != "cpu" or importlib.util.find_spec("auto_LiRPA") is None:
        return found
    for name, make in NETWORKS.items():
        for likelihood in ("PGD", "standard", "IBP"):
            case = trained(make, likelihood)
            found |= compared(case, f"{name}, {likelihood}", optimized=False)
            if likelihood == "PGD":
                found |= compared(case, f"{name}, {likelihood}, optimized", optimized=True)
    return found


def compared(case: Case, what: str, optimized: bool) -> Figures:
    """Run both sides on one network, and set them beside each other."""
    found, answers = dict[str, Figure](), dict[str, Answer]()
    for side in SIDES:
        # A process that has done nothing else, so that its peak memory is its own.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            answers[side] = pool.apply(answer, (side, case, optimized))
    ours, theirs = answers["certibayes"], answers["auto_LiRPA"]
    found[f"certibayes / auto_LiRPA, {what}"] = ratio(ours.seconds / theirs.seconds, BAR)
    for side, one in answers.items():
        missing = 100 * (1 - sum(one.certified) / len(one.certified))
        bar = 100 * (1 - sum(theirs.certified) / len(theirs.certified)) if one is ours else None
        found[f"not certified, {side}, {what}"] = Figure("%", (missing,), bar)
        found[f"{side}, {what}"] = seconds(one.seconds)
        found[f"peak memory of {side}, {what}"] = Figure("GB", (one.peak,))
    return found
