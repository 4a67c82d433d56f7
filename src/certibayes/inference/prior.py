"""Priors over weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from certibayes.errors import InvalidInput
from certibayes.networks import Graph, Params
from certibayes.networks.operations import AFFINE


@dataclass(frozen=True)
class GaussianPrior:
    """Zero-mean normal prior with one variance per layer: variance_scale / fan_in, as in the paper.

    With ``l1`` the prior is that density times exp(-N l1 |w|) for every weight of a linear or convolutional layer, N
    the number of training examples (an elastic net). Methods that read off a variance from the prior's precision and
    the curvature see the normal part alone.

    Attributes:
        variance_scale: multiplies the variance 1 / fan_in ("prior scaling" in the supplement). Weak by default: a prior
            that pulls the means to 0 costs certificates.
        std: one standard deviation for every weight instead.
        l1: weight of the sum of |w| in the mean loss, as certified training has it; 0 for none.
    """

    variance_scale: float = 300.0
    std: float | None = None
    l1: float = 0.0

    def __post_init__(self) -> None:
        value = self.variance_scale if self.std is None else self.std
        if not (math.isfinite(value) and value > 0):
            raise InvalidInput(f"a prior's scale must be positive, got {value}.")
        if not (math.isfinite(self.l1) and self.l1 >= 0.0):
            raise InvalidInput(f"l1 is a weight in the loss, a finite number >= 0, got {self.l1}.")

    def precisions(self, graph: Graph, params: Params) -> dict[str, Tensor]:
        """Return 1 / variance for every parameter, as 0-d tensors.

        Args:
            graph: the network.
            params: all weights of its layers by name, constants too: a layer with a fixed matrix may have a bias.
        """
        precisions = {}
        for name in graph.parameters:
            value = _fan_in(graph, params, name) / self.variance_scale if self.std is None else self.std**-2
            precisions[name] = torch.full((), value, dtype=params[name].dtype, device=params[name].device)
        return precisions

    def l1_weights(self, graph: Graph, params: Params) -> dict[str, Tensor]:
        """Return ``l1`` for the weights of linear and convolutional layers and 0 for other parameters, as 0-d tensors.

        Args:
            graph: the network.
            params: as ``precisions`` takes them.

        Returns:
            By parameter; empty where ``l1`` is 0.
        """
        if self.l1 == 0.0:
            return {}
        layers = [node for node in graph.nodes if isinstance(node.operation, AFFINE)]
        chosen = {node.roles["weight"] for node in layers}
        return {name: params[name].new_tensor(self.l1 * (name in chosen)) for name in graph.parameters}

    def describe(self) -> dict[str, Any]:
        """Return what goes into a posterior's metadata."""
        scale = {"variance_scale": self.variance_scale} if self.std is None else {"std": self.std}
        return {"name": "GaussianPrior", **scale, **({"l1": self.l1} if self.l1 else {})}


def _fan_in(graph: Graph, params: Params, name: str) -> float:
    """Inputs of the layer a parameter belongs to; a bias has its layer's, anything else has 1."""
    for node in graph.nodes:
        if name in node.roles.values() and "weight" in node.roles:
            return node.operation.fan_in(params[node.roles["weight"]])
    return 1.0
