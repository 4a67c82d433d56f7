"""Convolutions, and the gradient of their filters, as one matrix product over patches, for GPUs.

Certificates run without cuDNN, whose algorithms may transform their inputs first (see ``support.arithmetic``). What
torch has in its place launches several kernels for every image. Here all patches of all images are the rows of one
matrix, made by strided views and one copy, and every output is a direct sum, as certificates need it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from certibayes.support.stacks import is_recorded

Pair = tuple[int, int]


def convolve(
    x: Tensor, weight: Tensor, stride: Pair, padding: tuple[int, int, int, int], dilation: Pair, groups: int
) -> Tensor:
    """Cross-correlate images (B, C, H, W) with filters (O, C / groups, kh, kw).

    Args:
        x: images.
        weight: filters.
        stride: of the windows.
        padding: with zeros, as (left, right, top, bottom); negative to crop.
        dilation: of the filters.
        groups: of channels.
    """
    filters = len(weight)
    windows = _windows(x, weight, stride, padding, dilation, groups)
    batch, *shape = windows.shape[1:4]
    rows = windows.reshape(groups, batch * shape[0] * shape[1], -1)
    products = torch.bmm(rows, weight.reshape(groups, filters // groups, -1).mT)
    return products.view(groups, batch, *shape, -1).permute(1, 0, 4, 2, 3).reshape(batch, filters, *shape)


def filter_slope(
    derivative: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Pair,
    padding: tuple[int, int, int, int],
    dilation: Pair,
    groups: int,
) -> Tensor:
    """Return the gradient with respect to the filters, of their shape, for derivatives (B, O, oh, ow) of the outputs.

    The other arguments are those of ``convolve``.
    """
    rows = _windows(x, weight, stride, padding, dilation, groups).flatten(4).flatten(1, 3)
    by_group = derivative.unflatten(1, (groups, len(weight) // groups)).permute(1, 2, 0, 3, 4).flatten(2)
    return torch.bmm(by_group, rows).reshape(weight.shape)


def _windows(
    x: Tensor, weight: Tensor, stride: Pair, padding: tuple[int, int, int, int], dilation: Pair, groups: int
) -> Tensor:
    """Return the patches that the filters see, (groups, B, oh, ow, C / groups, kh, kw), without a copy."""
    channels, *kernel = weight.shape[1:]
    if any(padding):
        x = functional.pad(x, padding)
    for i in range(2):
        # Windows along rows, then along columns: (B, C, oh, ow, kh, kw) after both.
        x = x.unfold(2 + i, dilation[i] * (kernel[i] - 1) + 1, stride[i])[..., :: dilation[i]]
    return x.unflatten(1, (groups, channels)).permute(1, 0, 3, 4, 2, 5, 6)


def convolve_transposed(
    y: Tensor, weight: Tensor, stride: Pair, padding: tuple[int, int, int, int], dilation: Pair, groups: int
) -> Tensor:
    """Apply the transpose of ``convolve``'s linear map to (B, O, oh, ow).

    Args:
        y: what the convolution's outputs are multiplied with.
        weight: filters (O, C / groups, kh, kw).
        stride: of the convolution.
        padding: with zeros, as (left, right, top, bottom), of y with its zeros; negative to crop.
        dilation: of the filters.
        groups: of channels.
    """
    if torch.is_grad_enabled() and not is_recorded(weight):
        transposed: Tensor = _Transposed.apply(y, weight, stride, padding, dilation, groups)
        return transposed
    return _transposed(y, weight, stride, padding, dilation, groups)


class _Transposed(torch.autograd.Function):
    """``convolve_transposed`` with its derivative by y written out, which is a convolution; the filters are constants.

    Inside ``torch.vmap`` that of a strided view would be computed network by network.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        y: Tensor, weight: Tensor, stride: Pair, padding: tuple[int, int, int, int], dilation: Pair, groups: int
    ) -> Tensor:
        return _transposed(y, weight, stride, padding, dilation, groups)

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        context.save_for_backward(inputs[1])
        context.settings = inputs[2:]

    @staticmethod
    def backward(context: Any, derivative: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = context.saved_tensors
        stride, (left, right, top, bottom), dilation, groups = context.settings
        down, across = (dilation[i] * (weight.shape[2 + i] - 1) for i in range(2))
        around = (across - left, across - right, down - top, down - bottom)
        return convolve(derivative, weight, stride, around, dilation, groups), None, None, None, None, None


def _transposed(
    y: Tensor, weight: Tensor, stride: Pair, padding: tuple[int, int, int, int], dilation: Pair, groups: int
) -> Tensor:
    if stride == (1, 1) or dilation != (1, 1):
        return _among_zeros(y, weight, stride, padding, dilation, groups)
    return _pixel_by_pixel(y, weight, stride, padding, groups)


def _among_zeros(
    y: Tensor, weight: Tensor, stride: Pair, padding: tuple[int, int, int, int], dilation: Pair, groups: int
) -> Tensor:
    """Convolve with the flipped filters, with zeros between outputs that are ``stride`` apart."""
    height, width = y.shape[2:]
    apart = functional.pad(y[:, :, :, None, :, None], (0, stride[1] - 1, 0, 0, 0, stride[0] - 1))
    apart = apart.flatten(4, 5).flatten(2, 3)[:, :, : (height - 1) * stride[0] + 1, : (width - 1) * stride[1] + 1]
    filters = len(weight)
    flipped = weight.unflatten(0, (groups, filters // groups)).transpose(1, 2).flatten(0, 1).flip(-2, -1)
    return convolve(apart, flipped, (1, 1), padding, dilation, groups)


def _pixel_by_pixel(y: Tensor, weight: Tensor, stride: Pair, padding: tuple[int, int, int, int], groups: int) -> Tensor:
    """Compute the s x s pixels that belong to one place of y as so many channels, without a product with zeros.

    With filters w as long as K strides s, filled up with zeros, the pixel s q + r of the result is

        sum_t y[q - t] w[s t + r],    0 <= t < K,    0 <= r < s,

    a convolution of y with filters of length K for every r (Shi et al., 2016).
    """
    filters, channels, *kernel = weight.shape
    turns = [-(-kernel[i] // stride[i]) for i in range(2)]
    filled = functional.pad(weight, (0, turns[1] * stride[1] - kernel[1], 0, turns[0] * stride[0] - kernel[0]))
    # (groups, O / groups, C / groups, t, r, t, r) -> (groups, C / groups, r, r, O / groups, t, t)
    split = filled.view(groups, filters // groups, channels, turns[0], stride[0], turns[1], stride[1])
    shorter = split.permute(0, 2, 4, 6, 1, 3, 5).flatten(0, 3).flip(-2, -1)
    around = (turns[1] - 1, turns[1] - 1, turns[0] - 1, turns[0] - 1)
    pixels = convolve(y, shorter, (1, 1), around, (1, 1), groups)
    # (B, C, r, r, q, q) -> (B, C, q, r, q, r)
    pixels = pixels.unflatten(1, (groups * channels, *stride)).permute(0, 1, 4, 2, 5, 3)
    whole = pixels.reshape(len(y), groups * channels, -1, stride[1] * pixels.shape[4])
    sizes = [(y.shape[2 + i] - 1) * stride[i] + 2 - kernel[i] for i in range(2)]
    near = (padding[2] - kernel[0] + 1, padding[0] - kernel[1] + 1)
    far = [sizes[i] + padding[2 - 2 * i] + padding[3 - 2 * i] - whole.shape[2 + i] - near[i] for i in range(2)]
    if max(*near, *far) > 0:
        return functional.pad(whole, (near[1], far[1], near[0], far[0]))
    # Without the copy that padding makes also where it only crops.
    return whole[..., -near[0] : whole.shape[2] + far[0], -near[1] : whole.shape[3] + far[1]]
