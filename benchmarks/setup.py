"""The setting of the benchmarks of certificates and attacks: 35 networks around random weights, and 500 digits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import certibayes as cb
from certibayes.prediction import Predictor

NETWORKS, IMAGES, DOMAIN = 35, 500, (0.0, 1.0)


def random_predictor(net: nn.Module, std: float, networks: int = NETWORKS) -> Predictor:
    """Return networks with weights drawn around those of ``net``."""
    params = dict(net.named_parameters())
    stds = {name: torch.full_like(p, std) for name, p in params.items()}
    return cb.DiagonalGaussian(net, params, stds).predictor(networks, seed=0)


def dense_predictor() -> Predictor:
    """Return networks of 784-512-10."""
    return random_predictor(cb.networks.mlp(784, [512], 10), 0.01)


def digits() -> Tensor:
    """Return images as rows, (500, 784)."""
    return cb.data.load("digits").test.inputs[:IMAGES].flatten(1)
