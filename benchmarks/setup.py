"""What several benchmarks work on: random networks, images, and the bare products of a step.

Inputs of certificates and attacks are digits; where a GPU wants more of them, or other shapes, they are random, which
takes as long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import certibayes as cb
from certibayes.prediction import Predictor

NETWORKS, IMAGES, CLASSES, DOMAIN = 35, 500, 10, (0.0, 1.0)
MNIST = 55_000
"""Images of MNIST without those held out for validation."""


def random_predictor(net: nn.Module, std: float, networks: int = NETWORKS) -> Predictor:
    """Return networks with weights drawn around those of ``net``."""
    params = dict(net.named_parameters())
    stds = {name: torch.full_like(p, std) for name, p in params.items()}
    return cb.DiagonalGaussian(net, params, stds).predictor(networks, seed=0)


def dense_predictor(device: str = "cpu") -> Predictor:
    """Return networks of 784-512-10."""
    return random_predictor(cb.networks.mlp(784, [512], CLASSES), 0.01).to(device)


def digits(device: str = "cpu", count: int = IMAGES) -> Tensor:
    """Return images as rows, (count, 784); the digits again from the start where there are not so many."""
    x = cb.data.load("digits").test.inputs.flatten(1)
    return x.repeat(-(-count // len(x)), 1)[:count].to(device)


def random_images(count: int, shape: tuple[int, ...], device: str) -> tuple[Tensor, Tensor]:
    """Return inputs in [0, 1] and labels."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(count, *shape, generator=generator)
    return x.to(device), torch.randint(0, CLASSES, (count,), generator=generator).to(device)


def products_of_a_step(x: Tensor) -> Callable[[], object]:
    """Return the matrix products of a robust step on inputs (B, 784), 784-512-10, and nothing else.

    Clean inputs and the centers of boxes share theirs, radii have their own; each has both layers forward, both
    gradients of weights, and the last layer's gradient of its input.
    """
    both = torch.cat([x, x])
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(512, 784, generator=generator).to(x)
    last = torch.randn(CLASSES, 512, generator=generator).to(x)

    @torch.no_grad()
    def products() -> None:
        for inputs in (both, x):
            hidden = inputs @ first.T
            outputs = hidden @ last.T
            _ = outputs @ last, outputs.T @ hidden, hidden.T @ inputs

    return products


def seconds_per_epoch(net: nn.Module, data: Any, epochs: int, **settings: Any) -> float:
    """Return the shortest epoch of ``fit`` after the first, in which kernels are loaded and a step is recorded."""
    seconds: list[float] = []
    cb.fit(net, data, epochs=epochs, progress=False, callbacks=[lambda r: seconds.append(r["seconds"])], **settings)
    return min(seconds[1:])
