"""Batch norm: where its statistics come from, in training and for prediction.

    y = (x - m) / sqrt(v + eps) * weight + bias,        m, v: mean and variance of each channel.

*In training* m and v may be those of the batch itself, with gradient (Ioffe and Szegedy, 2015). A network then is no
function of one input, and only of a batch: m and v are taken from the clean inputs, and the same m and v normalize
whatever is sent through the network beside them, attacked inputs and boxes alike (Gowal et al., 2018).
``training_graph`` marks a network for it, ``clean_pass`` finds the statistics; bounds of a marked network need them
among their weights.

*For prediction* they are constants, those of the training data: ``statistics_of`` finds them. They depend on all
weights before them, so that every weight sample has its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

from certibayes.networks.graph import Graph, Node
from certibayes.networks.moments import moments
from certibayes.networks.operations import BatchNorm, Conv2d, Linear, Weights
from certibayes.support.arithmetic import direct_sums
from certibayes.support.stacks import Params

EXAMPLES = 5000
"""Training examples that the statistics of one weight sample among many are taken from, at most. The error is that of a
mean of so many: 0.014 standard deviations, and far less where a channel has many pixels."""

CHUNK = 500
"""Examples that are normalized together while statistics are found."""

BITS = 14
"""Binary digits of a statistic that are kept, relative to the channel's standard deviation. What different machines
disagree on in float64 is far below, so all of them find the same numbers; what is lost is far below the error of a
mean over ``EXAMPLES``."""

CONSTANT, BATCH = ("running_mean", "running_var"), ("batch_mean", "batch_var")
"""Roles of the statistics: constants, and those of a batch."""


class CleanPass(NamedTuple):
    """What a network makes of a clean batch.

    Attributes:
        outputs: (B, ...).
        params: parameters and buffers, with the statistics of the batch in a marked network.
    """

    outputs: Tensor
    params: Params


def has_statistics(graph: Graph) -> bool:
    """Tell whether the network holds batch norm layers whose statistics follow the data."""
    return any(follows_data(graph, node) for node in graph.nodes)


def follows_data(graph: Graph, node: Node) -> bool:
    """Tell whether the node is a batch norm that is not frozen; the statistics of a frozen one are constants too."""
    return isinstance(node.operation, BatchNorm) and not _is_frozen(graph, node)


def _is_frozen(graph: Graph, node: Node) -> bool:
    """Tell whether a node's weights are constants; one without weights of its own goes with the layer before it."""
    weights = [name for role, name in node.roles.items() if role in ("weight", "bias")]
    if weights:
        return not any(name in graph.parameters or name in graph.fitted for name in weights)
    before = next((earlier for earlier in graph.nodes if earlier.name == node.inputs[0]), None)
    return before is not None and _is_frozen(graph, before)


def statistics_depend_on(graph: Graph, names: Collection[str]) -> bool:
    """Tell whether any of these parameters lies before a batch norm whose statistics follow the data."""
    reached: set[str] = set()
    for node in graph.nodes:
        behind = not reached.isdisjoint(node.inputs)
        if behind and follows_data(graph, node):
            return True
        if behind or not set(names).isdisjoint(node.roles.values()):
            reached.add(node.name)
    return False


def training_graph(graph: Graph) -> Graph:
    """Return the network with every batch norm that follows the data marked: it takes the statistics of the batch."""

    def marked(node: Node) -> Node:
        if not follows_data(graph, node):
            return node
        roles = {role: name for role, name in node.roles.items() if role not in CONSTANT}
        # By the node's name: a layer that is used twice sees two different batches.
        return dataclasses.replace(node, roles={**roles, **{role: f"{node.name}.{role}" for role in BATCH}})

    return dataclasses.replace(graph, nodes=tuple(map(marked, graph.nodes)))


def normalizes_by_batch(graph: Graph) -> bool:
    """Tell whether a batch norm of the network is marked."""
    return any(BATCH[0] in node.roles for node in graph.nodes)


def without_effect(graph: Graph) -> frozenset[str]:
    """Return the names of layers whose biases marked batch norms take out again, with the mean of the batch."""
    readers: dict[str, list[Node]] = {node.name: [] for node in graph.nodes}
    for node in graph.nodes:
        for name in set(node.inputs) & readers.keys():
            readers[name].append(node)
    return frozenset(
        node.name
        for node in graph.nodes
        if isinstance(node.operation, (Linear, Conv2d)) and "bias" in node.roles and readers[node.name]
        and all(BATCH[0] in reader.roles for reader in readers[node.name])
    )  # fmt: skip


def weights_in_pass(node: Node, params: Params, clean: Tensor) -> Weights:
    """Return a node's weights by role, those of a marked batch norm with the statistics of what it sees.

    Args:
        node: any node.
        params: parameters and buffers.
        clean: its first input in the clean pass, (B, ...).
    """
    own = learned_weights(node, params)
    return {**own, **dict(zip(BATCH, moments(clean), strict=True))} if BATCH[0] in node.roles else own


def learned_weights(node: Node, params: Params) -> Weights:
    """Return a node's weights by role, those of a marked batch norm without any statistics."""
    return {role: params[name] for role, name in node.roles.items() if role not in BATCH}


def clean_pass(graph: Graph, params: Params, x: Tensor) -> CleanPass:
    """Evaluate the network on a clean batch (B, *input_shape), and find the statistics for all other passes."""
    if not normalizes_by_batch(graph):
        return CleanPass(graph.evaluate(params, x), params)
    found: dict[str, Tensor] = {}

    def rule(node: Node, inputs: tuple[Tensor, ...]) -> Tensor:
        weights = weights_in_pass(node, params, inputs[0])
        found.update({name: weights[role] for role, name in node.roles.items() if role in BATCH})
        return node.operation.evaluate(weights, *inputs)

    outputs = graph.fold(x, rule)
    return CleanPass(outputs, {**params, **found})


def evenly_spaced(x: Tensor, number: int) -> Tensor:
    """Return ``number`` examples from all over the data, which may be sorted; all of them, if there are no more."""
    if len(x) <= number:
        return x
    return x[torch.arange(number, device=x.device) * len(x) // number]


@torch.no_grad()
def statistics_of(graph: Graph, params: Params, x: Tensor) -> dict[str, Tensor]:
    """Return the statistics of every batch norm that follows the data, by name, for one weight sample.

    As in training, about ``CHUNK`` examples are normalized together, by their own statistics. Means and variances are
    those of all examples: for up to ``CHUNK`` of them, exactly what torch's batch norm computes in training mode.

    Computed in float64 and rounded to ``BITS`` digits, so that the same data and weights have the same statistics on
    every machine and device, and so a predictor the same digest.

    Args:
        graph: the network, not marked.
        params: parameters and buffers of one weight sample.
        x: training inputs, (N, *input_shape).
    """
    marked, exact = training_graph(graph), {name: tensor.double() for name, tensor in params.items()}
    layers = [(node, own) for node, own in zip(marked.nodes, graph.nodes, strict=True) if BATCH[0] in node.roles]
    totals = {node.name: (torch.zeros(()), torch.zeros(())) for node, _ in layers}
    for part in x.tensor_split(-(-len(x) // CHUNK)):
        # cuDNN has no fast convolutions in float64; products of patches are as fast as any.
        with direct_sums():
            found = clean_pass(marked, exact, part.double()).params
        for node, _ in layers:
            mean, variance = (found[node.roles[role]] for role in BATCH)
            first, second = (total.to(mean) for total in totals[node.name])
            share = len(part) / len(x)
            totals[node.name] = (first + share * mean, second + share * (variance + mean.square()))
    statistics = {}
    for node, own in layers:
        mean, second = totals[node.name]
        assert isinstance(node.operation, BatchNorm)
        rounded = _rounded(mean, (second - mean.square()).clamp(min=0.0), node.operation.eps)
        for role, value in zip(CONSTANT, rounded, strict=True):
            statistics[own.roles[role]] = value.to(params[own.roles[role]])
    return statistics


def _rounded(mean: Tensor, variance: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Round to whole multiples of 2⁻ᴮᴵᵀˢ of the standard deviation, and of the variance."""
    exponent = torch.frexp(variance + eps).exponent
    fine, coarse = (torch.ldexp(torch.ones_like(mean), e - BITS) for e in (exponent // 2, exponent))
    return torch.round(mean / fine) * fine, torch.round(variance / coarse) * coarse
