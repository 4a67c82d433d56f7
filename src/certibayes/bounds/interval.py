"""Interval bound propagation: one network, one batch of boxes, bounds on its outputs.

Pure functions of (graph, params, box). See Gowal et al. (2018) and Section 4 of Wicker et al. (2021).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from certibayes.bounds._pullback import points_and_centers, with_points
from certibayes.bounds.registry import rules_for
from certibayes.bounds.rounding import IDEAL, Rounding
from certibayes.bounds.training import apply_rule
from certibayes.networks import Graph, Node, Params
from certibayes.networks.batch_norm import weights_in_pass
from certibayes.networks.graph import INPUT
from certibayes.networks.operations import Linear, Reshape, Weights
from certibayes.regions import Box

Observer = Callable[[Node, tuple[Box, ...], Box], Box]


def interval_bounds(
    graph: Graph, params: Params, box: Box, rounding: Rounding = IDEAL, observe: Observer | None = None
) -> Box:
    """Bound the network's outputs over a batch of input boxes.

    Args:
        graph: the network.
        params: parameters and buffers of one sample.
        box: inputs, center and radius of shape (B, *input_shape).
        rounding: ``IDEAL``, or ``outward(dtype)`` for bounds on the float program.
        observe: see ``Graph.fold``.

    Returns:
        A box of shape (B, outputs).
    """
    return graph.fold(
        box,
        lambda node, boxes: rules_for(node.operation).interval(node.operation, node.weights(params), boxes, rounding),
        observe,
    )


def prepared_inputs(graph: Graph, stacked: Params, box: Box, rounding: Rounding) -> Box:
    """Return the box of inputs as the first layer of every network widens it, so that it is done once for all of them.

    Args:
        graph: the network.
        stacked: parameters and buffers of N samples.
        box: inputs.
        rounding: of the program that runs; nothing is to be done in ideal arithmetic, nor where the inputs go to
            anything but one linear layer, or carry a ball, whose bounds would lose by it.
    """
    if not rounding.outward or box.ball is not None:
        return box
    reshaped = {INPUT}
    readers = []
    for node in graph.nodes:
        if reshaped.intersection(node.inputs):
            if isinstance(node.operation, Reshape):
                reshaped.add(node.name)
            else:
                readers.append(node)
    if len(readers) != 1 or not isinstance(readers[0].operation, Linear):
        return box
    fraction = rounding.widening(readers[0].weights(stacked)["weight"].shape[-1])
    return box._replace(radius=rounding.widened_by(box, fraction), allowance=fraction)


def point_and_box(graph: Graph, params: Params, x: Tensor, box: Box, rounding: Rounding = IDEAL) -> tuple[Tensor, Box]:
    """Compute the network's outputs (B, outputs) at points and bound them over boxes, in one pass.

    Affine layers do the same to a point as to the center of a box, so that both take one product, forward and backward.
    All other layers treat the two apart. A batch norm that takes the statistics of the batch takes those of the points,
    for boxes too. For training.

    Args:
        graph: the network.
        params: parameters and buffers of one sample.
        x: points, (B, *input_shape).
        box: B boxes of inputs, without balls.
        rounding: ideal, or smoothed.
    """

    def rule(node: Node, values: tuple[Box, ...]) -> Box:
        weights = weights_in_pass(node, params, values[0].center[: len(x)])
        return apply_rule(rules_for(node.operation), node.operation, weights, values, rounding)

    both = graph.fold(with_points(x, box), rule)
    point, center = points_and_centers(both)
    return point, Box(center, both.radius)


def worst_logits(box: Box, labels: Tensor) -> Tensor:
    """Return f_LB of the paper: the lower bound for the label's class, the upper bound for all others.

    Args:
        box: bounds on the logits, (B, C).
        labels: (B,).
    """
    # Not one_hot, which fails under vmap(grad(...)).
    is_label = labels[:, None] == torch.arange(box.center.shape[-1], device=labels.device)
    return torch.addcmul(box.center, box.radius, torch.where(is_label, -1.0, 1.0).to(box.radius))


def interval_margins(graph: Graph, params: Params, box: Box, labels: Tensor, rounding: Rounding = IDEAL) -> Tensor:
    """Bound the margins m_j = z_y - z_j from below, with the last linear layer folded in.

    Bounding the difference (W_y - W_j) φ + b_y - b_j at once instead of z_y and z_j apart is never looser
    (Gowal et al., 2018, elision of the last layer). Where the last layer is not linear, it is L_y - U_j.

    Args:
        graph: the network.
        params: parameters and buffers of one sample.
        box: inputs.
        labels: class y of each input, (B,).
        rounding: with outward rounding the result is float64 and holds for the exact difference of the
            float logits that run.

    Returns:
        Lower bounds (B, C); 0 for the label itself.
    """
    last = graph.nodes[-1]
    if not isinstance(last.operation, Linear):
        is_label = labels[:, None] == torch.arange(graph.classes, device=labels.device)
        logits = interval_bounds(graph, params, box, rounding)
        lower, upper = logits.ends() if rounding.outward else (logits.lower, logits.upper)
        own = torch.where(is_label, lower, torch.zeros_like(lower)).sum(-1, keepdim=True)
        return torch.where(is_label, torch.zeros_like(lower), own - upper)
    features = interval_bounds(graph.body, params, box, rounding) if graph.body.nodes else box
    return margins_of_features(last, last.weights(params), features, labels, rounding)


def margins_of_features(
    last: Node, weights: Weights, features: Box, labels: Tensor, rounding: Rounding = IDEAL
) -> Tensor:
    """Bound the margins from below, given bounds on what the last layer reads; see ``interval_margins``.

    Args:
        last: the last layer, a linear one.
        weights: of it, by role.
        features: what it reads, (B, features).
        labels: class y of each input, (B,).
        rounding: see ``interval_margins``.

    Returns:
        Lower bounds (B, C); 0 for the label itself.
    """
    if rounding.outward:
        # The layer is C wide, so float64 costs little and leaves only the runtime's rounding error.
        features = Box(features.center.double(), features.radius.double())
        weights = {role: weight.double() for role, weight in weights.items()}
    weight = weights["weight"]
    classes, width = weight.shape
    is_label = labels[:, None] == torch.arange(classes, device=labels.device)
    center = last.operation.evaluate(weights, features.center)
    own = torch.where(is_label, center, torch.zeros_like(center)).sum(-1, keepdim=True)
    if rounding.outward or classes > len(labels):
        differences = rounding.magnitude(weight[labels][:, None, :] - weight)
        radius = torch.einsum("bjn,bn->bj", differences, features.radius)
    else:
        # In training: one product for all pairs of classes. Rows of the weights, picked by label, would have to be
        # added up again in the backward pass, one by one.
        differences = rounding.magnitude(weight[:, None] - weight).flatten(0, 1)
        every = (features.radius @ differences.T).unflatten(-1, (classes, classes))
        radius = torch.where(is_label[..., None], every, torch.zeros_like(every)).sum(1)
    margins = own - center - radius
    if rounding.outward:
        magnitude = (features.center.abs() + features.radius) @ rounding.magnitude(weight).T
        if "bias" in weights:
            magnitude = magnitude + weights["bias"].abs()
        error = magnitude * rounding.widening(width) + rounding.underflow
        own_error = torch.where(is_label, error, torch.zeros_like(error)).sum(-1, keepdim=True)
        margins = margins - error - own_error
    return torch.where(is_label, torch.zeros_like(margins), margins)
