"""Convolutions, and the gradient of their filters, as one matrix product over patches, for GPUs.

Certificates run without cuDNN, whose algorithms may transform their inputs first (see ``support.arithmetic``). What
torch has in its place launches several kernels for every image. Here all patches of all images are the rows of one
matrix, made by strided views and one copy, and every output is a direct sum, as certificates need it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

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

    With zeros between outputs that are ``stride`` apart it is a convolution with the flipped filters.

    Args:
        y: what the convolution's outputs are multiplied with.
        weight: filters (O, C / groups, kh, kw).
        stride: of the convolution.
        padding: with zeros, as (left, right, top, bottom), of y with its zeros; negative to crop.
        dilation: of the filters.
        groups: of channels.
    """
    height, width = y.shape[2:]
    apart = functional.pad(y[:, :, :, None, :, None], (0, stride[1] - 1, 0, 0, 0, stride[0] - 1))
    apart = apart.flatten(4, 5).flatten(2, 3)[:, :, : (height - 1) * stride[0] + 1, : (width - 1) * stride[1] + 1]
    filters = len(weight)
    flipped = weight.unflatten(0, (groups, filters // groups)).transpose(1, 2).flatten(0, 1).flip(-2, -1)
    return convolve(apart, flipped, (1, 1), padding, dilation, groups)
