"""Bounds on every network of a predictor, on a CPU one by one, on a GPU as many at once as fit."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from certibayes.bounds import Box, LinearBounder, by_name, interval_bounds, layer_boxes, linear_bounds, within_range
from certibayes.bounds.intermediate import crown_boxes
from certibayes.bounds.linear import Boxes
from certibayes.bounds.optimize import MOST_PLANES, optimized_bounds, optimized_lower
from certibayes.bounds.planes import planed_layers
from certibayes.errors import UnsoundBounds
from certibayes.networks import Node, Params, direct_sums
from certibayes.networks.operations import Reshape
from certibayes.networks.samples import each
from certibayes.prediction import Predictor

BOUNDS = ("ibp", "crown", "alpha-crown", "hull")
"""From loose and cheap to tight and costly: intervals, linear bounds, linear bounds with optimized slopes, and with
planes over the hulls of ReLU units as well."""

INTERMEDIATES = ("ibp", "crown")
"""What linear bounds know of the layers in between: intervals, or what CROWN itself says of them."""

MEMORY = 2 * 2**30
"""Bytes that linear bounds may take, unless told otherwise."""

SHARE_COPIES = 24
"""Tensors as large as the shares of planes that are held at once: gradients, moments, products with weights."""


@torch.no_grad()
def logit_bounds(
    predictor: Predictor,
    box: Box,
    rounding: str = "outward",
    bounds: str = "ibp",
    intermediates: str = "ibp",
    memory: int = MEMORY,
) -> tuple[Tensor, Tensor]:
    """Bound the logits of every network of a predictor.

    Args:
        predictor: N networks.
        box: inputs, (B, ...).
        rounding: ``"outward"`` or ``"ideal"``.
        bounds: one of ``BOUNDS``, each at least as tight as the one before.
        intermediates: one of ``INTERMEDIATES``; intervals do without them.
        memory: bytes that linear bounds may take; they go through the points in parts where they must.

    Returns:
        Lower and upper ends in float64, (N, B, C).

    Raises:
        UnsoundBounds: they are not finite, or inverted.
    """
    mode = by_name(rounding, predictor.dtype)
    graph = predictor.graph
    points = torch.arange(len(box.centre), device=box.centre.device)
    at_once = batch_for(predictor, 2 * graph.classes, memory, bounds)
    if bounds != "ibp" and len(points) > at_once:
        parts = (box.take(part) for part in points.split(at_once))
        ends = [logit_bounds(predictor, part, rounding, bounds, intermediates, memory) for part in parts]
        lows, highs = zip(*ends, strict=True)
        return torch.cat(lows, 1), torch.cat(highs, 1)

    def by_intervals(params: dict[str, Tensor]) -> tuple[Tensor, ...]:
        sound = torch.ones((), dtype=torch.bool, device=predictor.device)

        def watch(node: Node, boxes: tuple[Box, ...], output: Box) -> Box:
            # Looked at as it passes: to keep the boxes of all layers would cost more than the arithmetic.
            nonlocal sound
            if not isinstance(node.operation, Reshape):
                sound = sound & within_range(output)
            return output

        return (*interval_bounds(graph, params, box, mode, watch).ends(), sound)

    def by_lines(params: dict[str, Tensor]) -> tuple[Tensor, ...]:
        boxes, sound = known_boxes(predictor, params, box, rounding, intermediates)
        if bounds == "crown":
            lower, upper = linear_bounds(graph, params, box, mode, boxes=boxes)
        else:
            lower, upper = optimized_bounds(LinearBounder(graph, params, boxes, mode), hull=bounds == "hull")
        if intermediates == "crown":
            # Those boxes are rounded once more, so where they gain nothing they are a little wider than intervals.
            low, high, _ = by_intervals(params)
            lower, upper = torch.maximum(lower, low.flatten(1)), torch.minimum(upper, high.flatten(1))
        return lower, upper, sound

    low, high, flags = _over_networks(by_intervals if bounds == "ibp" else by_lines, predictor, bounds != "hull")
    if not mode.outward:
        # Where a box is all but a point, ends that are not rounded outwards may cross by some units.
        units = 2**12 * torch.finfo(predictor.dtype).eps * (1 + low.abs() + high.abs())
        crossed = (low > high) & (low - high <= units)
        low, high = torch.where(crossed, high, low), torch.where(crossed, low, high)
    require_sound(flags, low <= high)
    return low, high


@torch.no_grad()
def margin_bounds(
    predictor: Predictor,
    box: Box,
    labels: Tensor,
    rivals: Tensor,
    rounding: str = "outward",
    bounds: str = "crown",
    intermediates: str = "ibp",
) -> Tensor:
    """Bound the margins z_y - z_c of every network from below, with the last layer folded in.

    Args:
        predictor: N networks.
        box: inputs, (B, ...).
        labels: y, (B,).
        rivals: the classes c that are asked about, (B, K).
        rounding: ``"outward"`` or ``"ideal"``.
        bounds: one of ``BOUNDS``, but ``"hull"``, which cannot be mapped over networks.
        intermediates: one of ``INTERMEDIATES``.

    Returns:
        Lower bounds in float64, (N, B, K).

    Raises:
        UnsoundBounds: they are not finite.
    """
    mode = by_name(rounding, predictor.dtype)
    graph = predictor.graph
    every = torch.arange(graph.classes, device=labels.device)
    specification = (every == labels[:, None, None]).to(predictor.dtype) - (every == rivals[..., None]).to(
        predictor.dtype
    )
    specification = specification.view(*rivals.shape, *graph.output_shape)

    def bound(params: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        boxes, sound = known_boxes(predictor, params, box, rounding, intermediates)
        # On a GPU this is mapped over networks.
        bounder = LinearBounder(graph, params, boxes, mode, in_place=not specification.is_cuda)
        if bounds == "ibp":
            lower = bounder.elided(specification)
        elif bounds == "crown":
            lower = bounder.lower(specification)
        else:
            lower = optimized_lower(bounder, specification)
        return lower, sound

    lows, flags = _over_networks(bound, predictor)
    require_sound(flags, torch.isfinite(lows))
    return lows


def known_boxes(
    predictor: Predictor, params: Params, box: Box, rounding: str, intermediates: str
) -> tuple[Boxes, Tensor]:
    """Return the boxes of every layer of one network, and whether all of them are far from overflow."""
    mode = by_name(rounding, predictor.dtype)
    boxes = layer_boxes(predictor.graph, params, box, mode)
    sound = _sound(predictor, boxes)
    if intermediates == "crown":
        boxes = crown_boxes(predictor.graph, params, boxes, mode)
    return boxes, sound


def batch_for(predictor: Predictor, quantities: int, memory: int, bounds: str = "crown") -> int:
    """How many points at once keep linear bounds on so many quantities of each within ``memory`` bytes."""
    graph = predictor.graph
    sizes = [torch.Size(shape).numel() for shape in (graph.input_shape, *(node.shape for node in graph.nodes))]
    # Coefficients of two layers at a time, and what the relaxation makes of them; an ascent keeps those of all layers,
    # and slopes with their gradients and moments.
    numbers = 10 * sum(sizes) if bounds in ("alpha-crown", "hull") else 6 * max(sizes)
    if bounds == "hull":
        numbers += SHARE_COPIES * sum(
            min(MOST_PLANES, *layer.shape) * int(layer.weights(predictor.samples)["weight"].shape[-1])
            for layer in planed_layers(graph).values()
        )
    each_point = quantities * numbers * torch.finfo(predictor.dtype).bits // 8
    networks = predictor.size if predictor.device.type == "cuda" and bounds != "hull" else 1
    return max(1, memory // (each_point * networks))


def _over_networks(
    bound: Callable[[dict[str, Tensor]], tuple[Tensor, ...]], predictor: Predictor, mapped: bool = True
) -> list[Tensor]:
    """Results of ``bound`` for every network, each stacked, (N, ...)."""
    with direct_sums():
        parts: list[tuple[Tensor, ...]] = list(each(bound, predictor.samples, mapped))
    return [torch.cat(column) for column in zip(*parts, strict=True)]


def _sound(predictor: Predictor, boxes: Boxes) -> Tensor:
    """Tell whether every layer's box is far from overflow; it can hide behind a bounded activation."""

    def matters(node: Node) -> bool:
        return not isinstance(node.operation, Reshape)

    checks = [within_range(boxes[node.name]) for node in predictor.graph.nodes if matters(node)]
    return torch.stack(checks).all() if checks else torch.ones((), dtype=torch.bool, device=predictor.device)


def require_sound(*flags: Tensor) -> None:
    """Raise unless all flags hold."""
    if not all(bool(flag.all()) for flag in flags):
        raise UnsoundBounds(
            "the bounds are NaN, infinite or inverted, or close to it, so nothing can be proved. Most likely the "
            "weights or the radius are so large that intervals explode; try a smaller eps, or look at the widths of "
            "the posterior."
        )
