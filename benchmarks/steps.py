"""One robust training step, 784-512-10, batch 128, against a plain one and against bare products.

"Plain" is what anyone would write: ``nn.Module``, ``cross_entropy``, ``backward`` and ``torch.optim.Adam``, with Adam
as it comes on this device. "Bare products" are the matrix products of the robust step on tensors that are already
there. On a CPU single updates are timed, in turns with the plain step; on a GPU epochs of ``fit``, which records a step
and replays it, beside the same steps launched one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import certibayes as cb
from benchmarks.records import Figures, ratio, seconds
from benchmarks.setup import CLASSES, MNIST, products_of_a_step, random_images, seconds_per_epoch
from benchmarks.timing import medians
from certibayes.inference import Target, loop
from certibayes.inference._capture import made
from certibayes.likelihoods import Batch, Likelihood

BATCH, EPS, FEW = 128, 0.1, 20
ALGORITHMS = {
    "MAP": cb.MAP(),
    "SWAG": cb.SWAG(),
    "NoisyAdam": cb.NoisyAdam(),
    "IVON": cb.IVON(),
    "BBB": cb.BBB(),
    "VOGN": cb.VOGN(),
}
ON_A_GPU = {**ALGORITHMS, "SGHMC": cb.SGHMC(samples=4), "ensemble of 3": cb.DeepEnsemble(members=3)}
AGAINST_PLAIN = {"MAP": 2.4, "NoisyAdam": 2.9, "IVON": 3.0, "BBB": 3.15, "VOGN": 4.4}
"""Bars on a CPU."""
SECONDS = {"MAP": 2e-4, "NoisyAdam": 2e-4, "BBB": 2e-4, "IVON": 2e-4, "SWAG": 2e-4, "VOGN": 3e-4}
"""Bars on a GPU."""


def plain_steps(batch: Batch) -> Callable[[], object]:
    """Return a function that makes one plain step."""
    net = cb.networks.mlp(784, [512], CLASSES).to(batch.inputs.device)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(net(batch.inputs), batch.targets).backward()
        optimizer.step()

    return step


def steps_of(algorithm: Any, likelihood: Likelihood, batch: Batch, net: nn.Module) -> Callable[[], object]:
    """Return a function that makes one step from where the last one ended."""
    device = batch.inputs.device
    network = cb.networks.trace(net, batch.inputs)
    precision = cb.GaussianPrior().precisions(network.graph, network.params)
    target = Target(network.graph, network.buffers, likelihood, precision, 10_000, epoch_steps=79, total_steps=20 * 79)
    state = algorithm.init(target, network.params, torch.Generator(device).manual_seed(0))
    generator, noises = torch.Generator(device).manual_seed(0), torch.Generator().manual_seed(0)

    def step() -> None:
        nonlocal state
        noise = likelihood.draw(1.0, batch, noises)
        state, _ = algorithm.update(target, state, batch, noise, generator)

    return step


def on_a_cpu() -> Figures:
    x, y = cb.data.load("digits").train
    batch = Batch(x[:BATCH], y[:BATCH])
    net, robust = cb.networks.mlp(784, [512], CLASSES), cb.RobustCategorical(cb.TwoPoint(0.11))
    times = medians(
        {
            "plain step": plain_steps(batch),
            "bare products": products_of_a_step(batch.inputs.flatten(1)),
            "MAP, standard likelihood": steps_of(cb.MAP(), cb.Categorical(), batch, net),
            **{name: steps_of(algorithm, robust, batch, net) for name, algorithm in ALGORITHMS.items()},
        },
        rounds=100,
    )
    plain, bare = times["plain step"], times["bare products"]
    return {
        "MAP, standard likelihood / plain step": ratio(times["MAP, standard likelihood"] / plain),
        **{f"{name} / plain step": ratio(times[name] / plain, AGAINST_PLAIN.get(name)) for name in ALGORITHMS},
        **{f"{name} / bare products": ratio(times[name] / bare) for name in ALGORITHMS},
        **{name: seconds(value) for name, value in times.items()},
    }


class Uncaptured:
    """Steps as they stand, in the place of recorded ones."""

    def __init__(self, algorithm: Any, generator: Any, order: Any):
        self.algorithm, self.generator = algorithm, generator

    def __call__(self, target: Any, state: Any, steps: Any) -> Any:
        """Make them one by one."""
        return made(self.algorithm, target, state, steps, self.generator)


def fitted(algorithm: Any, data: Any, epochs: int) -> float:
    """Return seconds per step of ``fit``."""
    net, likelihood = cb.networks.mlp(784, [512], CLASSES).cuda(), cb.RobustCategorical(eps=EPS)
    epoch = seconds_per_epoch(net, data, epochs, algorithm=algorithm, likelihood=likelihood, batch_size=BATCH)
    return epoch / (len(data[0]) // BATCH)


def on_a_gpu() -> Figures:
    data = random_images(MNIST, (1, 28, 28), "cuda")
    few = tuple(part[: FEW * BATCH] for part in data)
    batch = Batch(*(part[:BATCH] for part in data))
    compared = {"plain step": plain_steps(batch), "bare products": products_of_a_step(batch.inputs.flatten(1))}
    times = medians(compared, 100, "cuda")
    found: Figures = {name: seconds(value) for name, value in times.items()}
    for name, algorithm in ON_A_GPU.items():
        step = fitted(algorithm, data, 4)
        real, loop.CapturedUpdate = loop.CapturedUpdate, Uncaptured  # type: ignore[misc, assignment]
        try:
            launched = fitted(algorithm, few, 6)
        finally:
            loop.CapturedUpdate = real  # type: ignore[misc]
        found[name] = seconds(step, SECONDS.get(name))
        found[f"{name}, launched one by one"] = seconds(launched)
        found[f"{name} / plain step"] = ratio(step / times["plain step"])
        found[f"{name} / bare products"] = ratio(step / times["bare products"])
    return found


def measure(device: str) -> Figures:
    return on_a_gpu() if device == "cuda" else on_a_cpu()
