"""Other float programs for the same operations: any order of summation and any textbook formula."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from certibayes.networks import operations as ops
from certibayes.networks.operations.norms import grouped

from ..curves import textbook


def _sequential_dot(x: Tensor, weight: Tensor, bias: Tensor | None, order: Tensor) -> Tensor:
    """Multiply, round, and add one term after the other in the given order."""
    products = (x[..., None, :] * weight)[..., order]
    total = torch.zeros_like(products[..., 0])
    for index in range(products.shape[-1]):
        total = total + products[..., index]
    return total if bias is None else total + bias


def _other_linear(operation, weights, x, order):
    return _sequential_dot(x, weights["weight"], weights.get("bias"), order(weights["weight"].shape[1]))


def _other_conv(operation, weights, x, order):
    weight, bias = weights["weight"], weights.get("bias")
    patches = nn.functional.unfold(x, weight.shape[2:], operation.dilation, operation.padding, operation.stride)
    shape = operation.evaluate(weights, x).shape
    results = []
    per_group = weight.shape[0] // operation.groups
    for group, part in enumerate(patches.chunk(operation.groups, 1)):
        rows = slice(group * per_group, (group + 1) * per_group)
        flat = part.transpose(1, 2).reshape(-1, part.shape[1])
        own = None if bias is None else bias[rows]
        result = _sequential_dot(flat, weight[rows].flatten(1), own, order(part.shape[1]))
        results.append(result.view(len(x), -1, per_group).transpose(1, 2))
    return torch.cat(results, 1).reshape(shape)


def _other_conv1d(operation, weights, x, order):
    images = {**weights, "weight": weights["weight"].unsqueeze(2)}
    return _other_conv(operation.on_images, images, x.unsqueeze(2), order).squeeze(2)


def _other_conv_transpose(operation, weights, x, order):
    """One input channel and one place of the kernel after the other."""
    weight, total = weights["weight"], 0.0
    per_channel = weight[0, 0].numel()
    # Outputs of a group see its own channels alone; others add exact zeros.
    for index in order(len(weight) * per_channel).tolist():
        alone = torch.zeros_like(weight).flatten(2)
        channel, place = divmod(index, per_channel)
        alone[channel, :, place] = weight.flatten(2)[channel, :, place]
        total = total + operation.convolve(x, alone.view_as(weight), None)
    return total + weights["bias"].view(-1, 1, 1) if "bias" in weights else total


def _other_sum(operation, weights, x, order):
    dims = operation.dims
    moved = x.movedim(dims, tuple(range(-len(dims), 0))).flatten(-len(dims))
    if isinstance(operation, ops.Mean):
        moved = moved / moved.shape[-1]
    total = torch.zeros_like(moved[..., 0])
    for index in order(moved.shape[-1]).tolist():
        total = total + moved[..., index]
    return total.view_as(operation.evaluate(weights, x))


def _other_batch_norm(operation, weights, x, order):
    def shaped(value):
        return value.view((-1,) + (1,) * (x.dim() - 2))

    result = (x - shaped(weights["running_mean"])) / shaped(torch.sqrt(weights["running_var"] + operation.eps))
    return result * shaped(weights["weight"]) + shaped(weights["bias"]) if "weight" in weights else result


def _other_normalize(operation, weights, x, order):
    shape = (-1,) + (1,) * (x.dim() - 2)
    return (x - weights["mean"].view(shape)) * (1 / weights["std"]).view(shape)


def _other_divide(operation, weights, x, order):
    """CUDA divides by a number by multiplying with its reciprocal."""
    divisor = weights["divisor"] if operation.constant is None else torch.tensor(operation.constant)
    return x * (1 / divisor.float())


def _other_average(operation, weights, x, order):
    """Divide first, add then."""
    if operation.divisor is None:
        return operation.evaluate(weights, x)
    windows = nn.functional.unfold(x.flatten(0, 1)[:, None], operation.kernel, 1, operation.padding, operation.stride)
    total = torch.zeros_like(windows[:, 0])
    for index in order(windows.shape[1]).tolist():
        total = total + windows[:, index] / operation.divisor
    return total.view_as(operation.evaluate(weights, x))


def _mean_in_order(x, order):
    """Mean over the last dimension, one number after the other."""
    total = torch.zeros_like(x[..., 0])
    for index in order(x.shape[-1]).tolist():
        total = total + x[..., index]
    return (total / x.shape[-1])[..., None]


def _other_center(operation, weights, x, order):
    groups = grouped(x, operation.groups)
    return (groups - _mean_in_order(groups, order)).view_as(x)


def _other_norm(operation, weights, x, order):
    """Multiply by the reciprocal of the root, and by that times the weight where it can be drawn together."""
    groups = grouped(x, operation.groups)
    scale = 1 / torch.sqrt(_mean_in_order(groups * groups, order) + operation.eps)
    wide = {role: operation.wide(weight, x) for role, weight in weights.items()}
    scales = scale.expand_as(groups).reshape(x.shape) * wide.get("weight", 1.0)
    return x * scales + wide.get("bias", 0.0)


OTHER_PROGRAMS: dict[type, Callable] = {
    ops.Linear: _other_linear,
    ops.MatMul: lambda operation, weights, x, order: _sequential_dot(
        x, weights["weight"].mT, None, order(len(weights["weight"]))
    ),
    ops.Conv2d: _other_conv,
    ops.Conv1d: _other_conv1d,
    ops.ConvTranspose2d: _other_conv_transpose,
    ops.Sum: _other_sum,
    ops.Mean: _other_sum,
    ops.BatchNorm: _other_batch_norm,
    ops.Normalize: _other_normalize,
    ops.Divide: _other_divide,
    ops.AvgPool2d: _other_average,
    ops.Tanh: lambda operation, weights, x, order: torch.tanh(x.double()).float(),
    ops.Sigmoid: lambda operation, weights, x, order: torch.sigmoid(x.double()).float(),
    ops.Center: _other_center,
    ops.RootMeanSquareNorm: _other_norm,
    **{
        kind: lambda operation, weights, x, order: textbook(operation, x)
        for kind in (ops.ELU, ops.Softplus, ops.GELU, ops.SiLU, ops.Hardswish)
    },
}


def run_otherwise(graph, params, x, order):
    """Evaluate a graph with other programs where there are any; ``order`` makes the order of a sum from its length."""

    def rule(node, values):
        weights = node.weights(params)
        other = OTHER_PROGRAMS.get(type(node.operation))
        if other is None:
            return node.operation.evaluate(weights, *values)
        return other(node.operation, weights, values[0], order)

    return graph.fold(x, rule)
