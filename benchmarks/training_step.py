"""One training step, 784-512-10, batch 128: the robust likelihood against plain cross-entropy, same optimizer.

"Plain" is what anyone would write: ``nn.Module``, ``cross_entropy``, ``backward`` and ``torch.optim.Adam``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

import certibayes as cb
from benchmarks.timing import medians
from certibayes.inference import Target
from certibayes.likelihoods import Batch, Likelihood

BATCH = 128
BAYESIAN = {"NoisyAdam": cb.NoisyAdam(), "IVON": cb.IVON(), "BBB": cb.BBB(), "SWAG": cb.SWAG(), "VOGN": cb.VOGN()}


def steps_of(algorithm: Any, likelihood: Likelihood, net: torch.nn.Module, batch: Batch) -> Any:
    """Return a function that makes one step from where the last one ended."""
    network = cb.networks.trace(net, batch.inputs)
    precision = cb.GaussianPrior().precisions(network.graph, network.params)
    target = Target(network.graph, network.buffers, likelihood, precision, 10_000, epoch_steps=79, total_steps=20 * 79)
    state = algorithm.init(target, network.params, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)

    def step() -> None:
        nonlocal state
        noise = likelihood.draw(1.0, batch, generator)
        state, _ = algorithm.update(target, state, batch, noise, generator)

    return step


def main() -> dict[str, float]:
    x, y = cb.data.load("digits").train
    batch = Batch(x[:BATCH], y[:BATCH])
    net = cb.networks.mlp(784, [512], 10)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def plain() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(net(batch.inputs), batch.targets).backward()
        optimizer.step()

    robust = cb.RobustCategorical(cb.TwoPoint(0.11))
    times = medians(
        {
            "plain cross-entropy, torch.optim.Adam": plain,
            "MAP, standard likelihood": steps_of(cb.MAP(), cb.Categorical(), net, batch),
            "MAP, robust likelihood": steps_of(cb.MAP(), robust, net, batch),
            **{f"{name}, robust likelihood": steps_of(a, robust, net, batch) for name, a in BAYESIAN.items()},
        },
        rounds=40,
    )
    robust_map = times["MAP, robust likelihood"]
    return {
        **times,
        "ratio": robust_map / times["plain cross-entropy, torch.optim.Adam"],
        **{f"{name} / MAP": times[f"{name}, robust likelihood"] / robust_map for name in BAYESIAN},
    }
