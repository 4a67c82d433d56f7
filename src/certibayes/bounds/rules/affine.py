"""Linear and convolutional layers: two products, one for the center and one for the radius.

    c' = W c + b,     r' = |W| r                              (Gowal et al., 2018)

with the widening of ``bounds.rounding`` folded into the radius. Where the box carries a ball of another norm, the
result is intersected with what that allows; see ``bounds._ball_box``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from certibayes.bounds._backward import Backward, Step
from certibayes.bounds._ball_box import intersect_affine
from certibayes.bounds._pullback import MAGNITUDE, Pullback, Wanted
from certibayes.bounds.registry import register
from certibayes.bounds.rounding import Rounding
from certibayes.bounds.sums import LONG
from certibayes.networks import operations as ops
from certibayes.networks.operations import Weights
from certibayes.regions import Box
from certibayes.support.arithmetic import half_convolutions
from certibayes.support.fused import fused, is_fused
from certibayes.support.stacks import add_product

MANY = 16
"""Quantities, or outputs of a layer, with which a product for the layer's rounding error takes no time."""

SMALL = 1024
"""Rows up to which a GPU adds a bias faster after the product than in it. On a CPU the product takes it along: a pass
of its own costs 2% more at 256 rows of 784 x 512, and no less at any larger number."""

FEW_CHANNELS = 16
"""Channels below which a convolution is not worth rounding to bfloat16, and its filters are better learned by patches:
cuDNN's kernels take as long for three channels as for sixty-four."""


def linear_interval(operation: ops.Linear, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding) -> Box:
    """Bound y = x Wᵀ + b."""
    weight, bias = weights["weight"], weights.get("bias")
    terms = weight.shape[1]
    center = functional.linear(boxes[0].center, weight, bias)
    widened = rounding.widened_radius(boxes[0], terms)
    radius = functional.linear(widened, rounding.magnitude(weight), _bias_error(weight, bias, terms, rounding))
    output = Box(center, radius)
    if boxes[0].ball is None:
        return output
    scale = boxes[0].ball.scale.flatten(0, -2).amax(0)
    return intersect_affine(output, boxes[0], functional.linear, weight, bias, scale, rounding)


def conv2d_interval(operation: ops.Conv2d, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding) -> Box:
    """Bound a convolution; every output is a dot product of (channels / groups) x kernel terms."""
    weight, bias = weights["weight"], weights.get("bias")
    terms = weight[0].numel()
    center = operation.convolve(boxes[0].center, weight, bias)
    widened = rounding.widened_radius(boxes[0], terms)
    radius = operation.convolve(widened, rounding.magnitude(weight), _bias_error(weight, bias, terms, rounding))
    output = Box(center, radius)
    if boxes[0].ball is None:
        return output
    # Each output channel sees the input channels of its own group.
    scale = boxes[0].ball.scale.amax((0, 2, 3)).view(operation.groups, 1, -1)
    scale = scale.expand(-1, len(weight) // operation.groups, -1).reshape(len(weight), -1, 1, 1)
    return intersect_affine(output, boxes[0], operation.convolve, weight, bias, scale, rounding)


def _bias_error(weight: Tensor, bias: Tensor | None, terms: int, rounding: Rounding) -> Tensor | None:
    """Return g |b| plus what underflow can cost, or None in ideal arithmetic."""
    if not rounding.outward:
        return None
    if bias is None:
        return weight.new_full((weight.shape[0],), rounding.underflow)
    return bias.abs().mul_(rounding.widening(terms)).add_(rounding.underflow)


def linear_training(
    operation: ops.Linear, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding, wanted: Wanted
) -> tuple[Box, Pullback]:
    """Bound y = x Wᵀ + b, and differentiate.

    With derivatives d and f of the output's center and radius, those of the input are d W and f |W|, and that of the
    weights is dᵀ c + s(W) * (fᵀ r), s the slope of |.|.
    """
    weight, bias = weights["weight"], weights.get("bias")
    # Convolutions may have made them in bfloat16.
    stored = boxes[0].center.dtype
    box = Box(boxes[0].center.to(weight.dtype), boxes[0].radius.to(weight.dtype))
    magnitude = rounding.magnitude(weight)

    def pullback(derivative: Box) -> tuple[tuple[Box, ...], Weights]:
        d, f = derivative.center, derivative.radius
        slopes = {}
        if "weight" in wanted.weights:
            slopes["weight"] = _outer(d, box.center)
            if len(f):
                slopes[MAGNITUDE] = _outer(f, box.radius)
                (slopes["weight"],) = _with_radii(slopes["weight"], slopes[MAGNITUDE], weight, rounding)
        if "bias" in wanted.weights:
            slopes["bias"] = d.flatten(0, -2).sum(0)
        return (Box((d @ weight).to(stored), (f @ magnitude).to(stored)),) if wanted.inputs else (), slopes

    return Box(_linear(box.center, weight, bias), box.radius @ magnitude.mT), pullback


@fused
def _with_radii(slope: Any, by_magnitude: Any, weight: Any, rounding: Rounding) -> tuple[Any, ...]:
    """Return ``slope`` + s(W) ``by_magnitude``, in the memory of the former."""
    return (add_product(slope, by_magnitude, rounding.slope(weight)),)


def conv2d_training(
    operation: ops.Conv2d, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding, wanted: Wanted
) -> tuple[Box, Pullback]:
    """Bound a convolution, and differentiate, as ``linear_training`` does.

    Where convolutions may be in bfloat16, so are all values and derivatives from here to the next linear layer.
    """
    box, weight, bias = boxes[0], weights["weight"], weights.get("bias")
    half = half_convolutions() and weight.is_cuda
    # Images of few channels take little time, and their small radii stand beside centers of full size.
    few = weight.shape[1] < FEW_CHANNELS
    within, out = torch.bfloat16 if half and not few else weight.dtype, torch.bfloat16 if half else weight.dtype
    center, radius = box.center.to(within), box.radius.to(within)
    filters, magnitudes = (_filters(w, operation).to(within) for w in (weight, rounding.magnitude(weight)))
    mask = [wanted.inputs, "weight" in wanted.weights, False]

    def pulled(derivative: Tensor, x: Tensor, filters: Tensor) -> tuple[Any, Any]:
        if few and mask == [False, True, False] and _rounds(weight):
            return x, operation.filter_slope(derivative.to(within), x, filters)
        settings = (operation.stride, operation.padding, operation.dilation, False, (0, 0), operation.groups)
        into, slope, _ = torch.ops.aten.convolution_backward(derivative.to(within), x, filters, None, *settings, mask)
        return into if into is None else into.to(box.center.dtype), slope if slope is None else slope.to(weight.dtype)

    def pullback(derivative: Box) -> tuple[tuple[Box, ...], Weights]:
        into, slope = pulled(derivative.center, center, filters)
        into_radius, slopes = box.radius, {"weight": slope} if mask[1] else {}
        if len(box.radius):
            into_radius, by_magnitude = pulled(derivative.radius, radius, magnitudes)
            if mask[1]:
                slopes |= {"weight": add_product(slope, by_magnitude, rounding.slope(weight)), MAGNITUDE: by_magnitude}
        if "bias" in wanted.weights:
            slopes["bias"] = _channel_sum(derivative.center).to(weight.dtype)
        return (Box(into, into_radius),) if wanted.inputs else (), slopes

    middle = operation.convolve(center, filters, bias if bias is None else bias.to(within))
    return Box(middle.to(out), operation.convolve(radius, magnitudes, None).to(out)), pullback


def _filters(weight: Tensor, operation: ops.Conv2d) -> Tensor:
    """Return the filters in an order in memory that makes images have their channels last, where TF32 wants that.

    Images and filters of a single channel have it last or not, as one likes, and cuDNN likes the order in which the
    batch norm and the convolutions that follow take twice the time.
    """
    alike = _rounds(weight) and weight.shape[1] == operation.groups == 1
    return weight.squeeze(1).unsqueeze(-1).permute(0, 3, 1, 2) if alike else weight


def _rounds(weight: Tensor) -> bool:
    """Tell whether products with these weights may round their factors, as in training if the user allows."""
    return weight.is_cuda and torch.backends.cudnn.allow_tf32


def _channel_sum(x: Tensor) -> Tensor:
    """Sum over all but the channels; on a GPU, where these are last in memory, as a product, which takes less time."""
    if is_fused(x) and x.is_contiguous(memory_format=torch.channels_last):
        return x.permute(1, 0, 2, 3).flatten(1) @ x.new_ones(x.numel() // x.shape[1])
    return x.sum((0, 2, 3))


def _outer(derivative: Tensor, value: Tensor) -> Tensor:
    """Sum of derivative times value over examples, (m, n)."""
    return derivative.flatten(0, -2).mT @ value.flatten(0, -2)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None or not x.is_cuda or len(x) > SMALL:
        return functional.linear(x, weight, bias)
    return x @ weight.mT + bias


def linear_backward(operation: ops.Linear, weights: Weights, step: Step) -> Backward:
    """Coefficients A on W x + b are A W on x; see ``bounds._offset`` for what rounding costs."""
    weight, bias = weights["weight"], weights.get("bias")

    def error() -> Tensor:
        terms: Tensor | int = weight.shape[1]
        tiny: Tensor | float = 0.0
        if weight.shape[1] > LONG or len(weight) <= MANY or step.coefficients.shape[1] > MANY:
            # To a layer of few outputs, such as the last one, and among so many products one more is nothing, and long
            # sums err by so much that it is worth it.
            sizes, magnitudes = step.magnitude(), step.rounding.magnitude(weight)
            magnitude = functional.linear(sizes, magnitudes)
            terms = (sizes > step.rounding.underflow).sum(-1, keepdim=True).to(sizes.dtype)
            tiny = _error_of_tiny(magnitudes, step.rounding)
        else:
            # By Cauchy's inequality |W| |x| is at most ||W|| ||x||, row by row: more, and no product.
            rows = torch.linalg.vector_norm(weight, dim=-1).add_(_lost_by_squares(weight))
            magnitude = _length(step.magnitude()) * rows
        if bias is not None:
            magnitude.add_(bias.abs())
        return _error(magnitude, terms, weight.shape[0], step).add_(tiny)

    # Before the product, while the coefficients are in the cache.
    constant = _bias_part(step, bias, -1)
    return Backward((step.coefficients @ weight,), constant, error, owned=True)


def conv2d_backward(operation: ops.Conv2d, weights: Weights, step: Step) -> Backward:
    """Coefficients on a convolution become their transposed convolution."""
    weight, bias = weights["weight"], weights.get("bias")

    def error() -> Tensor:
        magnitudes = step.rounding.magnitude(weight), None if bias is None else bias.abs()
        # An input enters every output channel of its group, at those places of the kernel that strides let it meet.
        apart = (stride // math.gcd(stride, d) for stride, d in zip(operation.stride, operation.dilation, strict=True))
        places = [-(-length // every) for length, every in zip(weight.shape[2:], apart, strict=True)]
        uses = len(weight) // operation.groups * math.prod(places)
        return _error(operation.convolve(step.magnitude(), *magnitudes), weight[0].numel(), uses, step)

    height, width = step.inputs[0].center.shape[2:]
    into = operation.transpose(step.coefficients.flatten(0, 1), weight, (height, width))
    into = into.unflatten(0, step.coefficients.shape[:2])
    return Backward((into,), _bias_part(step, bias, 2), error, owned=True)


def _length(values: Tensor) -> Tensor:
    """Euclidean length of the last dimension, (..., 1), of values >= 0 whose squares may overflow."""
    largest = values.amax(-1, keepdim=True).clamp_min_(torch.finfo(values.dtype).smallest_normal)
    return largest * torch.linalg.vector_norm(values / largest, dim=-1, keepdim=True)


def _lost_by_squares(weight: Tensor) -> float:
    """How much longer a row may be than its length as it is computed, where squares underflow.

    It is far more than the weights' own underflow, ``Rounding.weight_underflow``.
    """
    return 2 * math.sqrt(weight.shape[-1] * torch.finfo(weight.dtype).smallest_normal)


def _bias_part(step: Step, bias: Tensor | None, channel: int) -> Tensor:
    """A b, (B, S); over the places of an image or a sequence in float64, since these sums are long.

    ``_error`` covers the rounding of these sums.
    """
    if bias is None:
        return step.coefficients.new_zeros(step.coefficients.shape[:2])
    if step.coefficients.dim() == 3:
        return step.coefficients @ bias
    by_channel = step.coefficients.movedim(channel, 2).flatten(3).sum(-1, dtype=torch.float64)
    return by_channel @ bias.double()


def _error_of_tiny(magnitudes: Tensor, rounding: Rounding) -> Tensor:
    """What it costs a layer's sums that inputs of at most ``Rounding.underflow`` do not count as terms.

    Where a number t is added to a float s, the result is a float nearest to s + t, so it is off by |t| at most. A sum
    of n terms, k of which are not tiny, therefore errs by γₖ times their magnitudes, and by |t| for each of at most n
    partial sums t of tiny ones alone, of which none is above n |w| |x|. ReLUs that are off give such inputs: their
    number, often more than half, need not count.
    """
    return magnitudes.amax() * (4.0 * magnitudes.shape[1] ** 2 * rounding.underflow)


def _gamma(terms: Tensor | int, rounding: Rounding) -> Tensor | float:
    """γ of sums of so many terms, with some to spare; as many as a tensor may have are few enough."""
    if isinstance(terms, int):
        return rounding.gamma(terms + 8)
    return (terms + 9) * rounding.unit / (1 - (terms + 9) * rounding.unit)


def _error(magnitude: Tensor, terms: Tensor | int, uses: int, step: Step) -> Tensor:
    """Rounding error of running the layer (sums of ``terms``) and of its backward pass (sums of ``uses``).

    The bias is summed over all outputs in float64, which matters where the program runs in float64 itself.
    """
    rounding = step.rounding
    relative: Tensor | float = _gamma(terms, rounding) + rounding.gamma(uses + 8)
    # What the magnitude itself may lose, which is relative to it, and what is made of it.
    relative = relative * (1 + 2 * relative + 64 * rounding.unit)
    relative = relative + (step.coefficients[0, 0].numel() + 8) * 2.0**-52
    return magnitude.mul_(relative).add_(2 * rounding.underflow)


register(
    ops.Linear,
    linear_interval,
    "nn.Linear, F.linear, torch.einsum with a matrix of weights",
    linear_backward,
    reuses=True,
    separable=True,
    training=linear_training,
    radius_tells=True,
)
register(
    ops.Conv2d,
    conv2d_interval,
    "nn.Conv2d, F.conv2d (zero padding, any stride, dilation, groups)",
    conv2d_backward,
    reuses=True,
    separable=True,
    training=conv2d_training,
    radius_tells=True,
)
