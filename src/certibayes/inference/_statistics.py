"""Batch norm statistics: refreshed from clean training data between epochs, constants inside a step.

Train-mode batch norm has no per-example likelihood, since each output depends on the whole batch. So the
statistics are recomputed from data with the current parameters, layer by layer in one forward pass, and held fixed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from certibayes.inference.algorithm import Sweep
from certibayes.inference.target import Target
from certibayes.networks import Graph, Node, Params
from certibayes.networks.operations import BatchNorm
from certibayes.support.stacks import count, pick, stack

EXAMPLES = 2048
"""About how many training examples the statistics are taken from."""


def has_statistics(graph: Graph) -> bool:
    """Tell whether the network holds batch norm layers whose statistics follow the data."""
    return any(_follows_data(graph, node) for node in graph.nodes)


def _follows_data(graph: Graph, node: Node) -> bool:
    """Tell whether the node is a batch norm that is not frozen; the statistics of a frozen one are constants too."""
    return isinstance(node.operation, BatchNorm) and not _is_frozen(graph, node)


def _is_frozen(graph: Graph, node: Node) -> bool:
    """Tell whether a node's weights are constants; one without weights of its own goes with the layer before it."""
    weights = [name for role, name in node.roles.items() if role in ("weight", "bias")]
    if weights:
        return not any(name in graph.parameters for name in weights)
    before = next((earlier for earlier in graph.nodes if earlier.name == node.inputs[0]), None)
    return before is not None and _is_frozen(graph, before)


@torch.no_grad()
def refresh_statistics(graph: Graph, params: Params, buffers: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
    """Return ``buffers`` with mean and variance of what each batch norm layer sees for inputs ``x``.

    Frozen layers keep theirs.
    """
    refreshed = dict(buffers)

    def normalize_afresh(node: Node, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if not _follows_data(graph, node):
            return output
        dims = [d for d in range(inputs[0].dim()) if d != 1]
        variance, mean = torch.var_mean(inputs[0], dims, correction=0)
        refreshed[node.roles["running_mean"]] = mean
        refreshed[node.roles["running_var"]] = variance
        # Later layers must see what this one gives with its new statistics.
        return node.operation.evaluate(node.weights({**refreshed, **params}), *inputs)

    graph.evaluate({**buffers, **params}, x, normalize_afresh)
    return refreshed


def with_statistics(target: Target, stacked: Params, sweep: Sweep) -> dict[str, Tensor]:
    """Give every stacked sample the statistics that belong to its own weights, where the network has any."""
    if not has_statistics(target.graph):
        return dict(stacked)
    parts: list[Tensor] = []
    for batch, _ in sweep:
        parts.append(batch.inputs)
        if sum(map(len, parts)) >= EXAMPLES:
            break
    x = torch.cat(parts)[:EXAMPLES]
    return stack(
        [
            {**sample, **refresh_statistics(target.graph, sample, target.buffers, x)}
            for sample in (pick(stacked, i) for i in range(count(stacked)))
        ]
    )
