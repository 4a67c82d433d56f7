"""Normalization of each example by itself: layer, group, instance and root mean square norm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from certibayes.errors import UnsupportedLayer
from certibayes.networks import operations as ops
from certibayes.networks.lowering.registry import (
    ByShape,
    Chain,
    Lowered,
    Meaning,
    lower_function,
    lower_module,
    weights_of,
)

SMALLEST_EPS = 2.0**-68
"""As for the variance of batch norm: below this a program may take it for 0."""


def _layer_norm(normalized: Sequence[int], eps: float, centered: bool = True) -> Meaning:
    """Normalize over the last dimensions: whatever comes before them is a group of its own."""
    _require_eps(eps)

    def meaning(shape: tuple[int, ...]) -> Meaning:
        size = tuple(normalized)
        if shape[len(shape) - len(size) :] != size:
            raise UnsupportedLayer(f"a norm over the last dimensions {size} reads examples of shape {shape}.")
        groups = math.prod(shape[: len(shape) - len(size)])
        _require_several(shape, groups, centered)
        return Chain(ops.RootMeanSquareNorm(groups, eps), before=(ops.Center(groups),) if centered else ())

    return ByShape(meaning)


def _group_norm(groups: int, eps: float) -> Meaning:
    """Normalize groups of channels."""
    _require_eps(eps)

    def meaning(shape: tuple[int, ...]) -> Meaning:
        _require_several(shape, groups)
        return Chain(ops.RootMeanSquareNorm(groups, eps, by_channel=True), before=(ops.Center(groups),))

    return ByShape(meaning)


def _require_several(shape: tuple[int, ...], groups: int, centered: bool = True) -> None:
    if centered and math.prod(shape) == groups:
        raise UnsupportedLayer(
            f"a norm of shape {shape} in {groups} groups takes off the mean of every number by itself, so that all of "
            "them become 0. Take fewer groups, or leave the norm out."
        )


def _require_eps(eps: float) -> None:
    if not eps >= SMALLEST_EPS:
        raise UnsupportedLayer(
            f"a norm with eps={eps:g} has no bounds: where all inputs of a group are equal it would divide by 0. Take "
            "eps=1e-5, torch's default."
        )


@lower_module(nn.LayerNorm)
def _(module: nn.LayerNorm) -> tuple[Meaning, dict[str, str]]:
    return _layer_norm(module.normalized_shape, module.eps), weights_of(module, "weight", "bias")


@lower_module(nn.GroupNorm)
def _(module: nn.GroupNorm) -> tuple[Meaning, dict[str, str]]:
    return _group_norm(module.num_groups, module.eps), weights_of(module, "weight", "bias")


@lower_module(nn.InstanceNorm1d, nn.InstanceNorm2d)
def _(module: nn.InstanceNorm2d) -> tuple[Meaning, dict[str, str]]:
    if module.track_running_stats:
        # In eval mode it is a batch norm.
        return ops.BatchNorm(module.eps), weights_of(module, "weight", "bias", "running_mean", "running_var")
    return _group_norm(module.num_features, module.eps), weights_of(module, "weight", "bias")


@lower_module(nn.RMSNorm)
def _(module: nn.RMSNorm) -> tuple[Meaning, dict[str, str]]:
    eps = module.eps
    if eps is None:
        if module.weight is None:
            raise UnsupportedLayer("an RMSNorm without eps takes that of its input's precision; say which: eps=1e-6.")
        eps = torch.finfo(module.weight.dtype).eps
    return _layer_norm(module.normalized_shape, eps, centered=False), weights_of(module, "weight")


@lower_function(functional.layer_norm, torch.layer_norm)
def _(x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any) -> Lowered:
    return Lowered(_layer_norm(normalized_shape, eps), (x,), _given(weight=weight, bias=bias))


@lower_function(functional.group_norm, torch.group_norm)
def _(x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any) -> Lowered:
    return Lowered(_group_norm(num_groups, eps), (x,), _given(weight=weight, bias=bias))


@lower_function(functional.rms_norm, torch.rms_norm)
def _(x: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Lowered:
    if eps is None:
        raise UnsupportedLayer("rms_norm without eps takes that of its input's precision; say which: eps=1e-6.")
    return Lowered(_layer_norm(normalized_shape, eps, centered=False), (x,), _given(weight=weight))


@lower_function(functional.instance_norm)
def _(x: Any, *_: Any, **__: Any) -> Lowered:
    raise UnsupportedLayer("instance_norm as a function has no bounds; use nn.InstanceNorm2d, or group_norm.")


def _given(**weights: Any) -> dict[str, Any]:
    return {role: weight for role, weight in weights.items() if weight is not None}
