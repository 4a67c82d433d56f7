"""Small networks and batches that several tests share; float64 unless a test is about float32."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

import certibayes as cb
from certibayes.likelihoods import Batch, Likelihood, Model, Noise, Threat
from certibayes.networks import Graph, trace
from certibayes.regions import Domain, InputRegion

CLASSES = 3


class Case(NamedTuple):
    """A traced network and a batch for it."""

    graph: Graph
    params: dict[str, Tensor]
    buffers: dict[str, Tensor]
    batch: Batch

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {**self.buffers, **self.params}

    @property
    def model(self) -> Model:
        return Model(self.graph, self.tensors)

    def threat(self, radius: float, domain: Domain = None, starts: Tensor | None = None) -> Threat:
        return Threat(InputRegion(self.batch.inputs, self.batch.inputs.new_tensor(radius), domain=domain), starts)

    def log_likelihood(self, likelihood: Likelihood, noise: Noise | None = None) -> Tensor:
        noise = full_noise(likelihood, self.batch) if noise is None else noise
        return likelihood.log_likelihood(self.graph, self.tensors, self.batch, noise)

    def gradient(self, likelihood: Likelihood, noise: Noise | None = None) -> dict[str, Tensor]:
        """Of the summed log-likelihood, by plain autograd."""
        noise = full_noise(likelihood, self.batch) if noise is None else noise
        leaves = {name: p.clone().requires_grad_(True) for name, p in self.params.items()}
        total = likelihood.log_likelihood(self.graph, {**self.buffers, **leaves}, self.batch, noise).sum()
        return dict(zip(leaves, torch.autograd.grad(total, list(leaves.values())), strict=True))


def full_noise(likelihood: Likelihood, batch: Batch, seed: int = 0) -> Noise:
    """Noise at the end of the ramp."""
    return likelihood.draw(1.0, batch, torch.Generator().manual_seed(seed))


def images(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def labels(size: int, classes: int = CLASSES) -> Tensor:
    return torch.arange(size) % classes


def case_of(net: nn.Module, inputs: Tensor, targets: Tensor | None = None) -> Case:
    network = trace(net.to(inputs.dtype), inputs)
    targets = labels(len(inputs), network.graph.classes) if targets is None else targets
    return Case(network.graph, network.params, network.buffers, Batch(inputs, targets))


def mlp_case(*hidden: int, size: int = 7, dtype: torch.dtype = torch.float64, seed: int = 0) -> Case:
    return case_of(cb.networks.mlp(6, hidden or (8,), CLASSES, seed=seed), images(size, 6, dtype=dtype, seed=seed))


def conv_net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, CLASSES))


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], **tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, **tolerance)
