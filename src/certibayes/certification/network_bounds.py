"""Bounds on every network of a predictor, on a CPU one by one, on a GPU as many at once as fit."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor

from certibayes.bounds import Box, Rounding, by_name, interval_bounds, layer_boxes, within_range
from certibayes.bounds.cuts import cut_layers
from certibayes.bounds.intermediate import STEPS as INTERMEDIATE_STEPS
from certibayes.bounds.intermediate import crown_boxes
from certibayes.bounds.interval import prepared_inputs
from certibayes.bounds.linear import Boxes, LinearBounder, output_bounds
from certibayes.bounds.optimize import MOST_CUTS, optimized_bounds, optimized_lower
from certibayes.bounds.registry import rules_for
from certibayes.bounds.rounding import radius_within_range
from certibayes.bounds.slopes import CHOSEN, WORDS, better_lower
from certibayes.certification._narrowed import Share
from certibayes.errors import UnsoundBounds
from certibayes.networks import Graph, Node, Params, direct_sums
from certibayes.prediction import Predictor
from certibayes.support.stacks import map_samples, pick

BOUNDS = ("ibp", "crown", "alpha-crown", "hull")
"""From loose and cheap to tight and costly: intervals, linear bounds, linear bounds with optimized slopes, and with
multi-neuron cuts above ReLU units as well."""

INTERMEDIATES = ("ibp", "crown", "alpha-crown")
"""What linear bounds know of the layers in between: intervals, or what CROWN itself says of them, by itself or with
slopes that are optimized for every unit."""

ONE_BY_ONE = tuple((word,) for word in WORDS)
"""Slopes of CROWN in rounds, each for what those before it leave open."""

MEMORY = 2 * 2**30
"""Bytes that linear bounds may take on a CPU, by default."""

CUT_COPIES = 24
"""Tensors as large as the coefficients of cuts that are held at once: gradients, moments, products with weights."""


@torch.no_grad()
def logit_bounds(  # noqa: PLR0913 - public
    predictor: Predictor,
    box: Box,
    rounding: str = "outward",
    bounds: str = "ibp",
    intermediates: str = "ibp",
    memory: int = MEMORY,
    slopes: tuple[str, ...] = WORDS,
    share: Share | None = None,
    network: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Bound the logits of every network of a predictor.

    Args:
        predictor: N networks.
        box: inputs, (B, ...).
        rounding: ``"outward"`` or ``"ideal"``.
        bounds: one of ``BOUNDS``, each at least as tight as the one before.
        intermediates: one of ``INTERMEDIATES``; intervals do without them.
        memory: bytes that linear bounds may take; they go through the points in parts where they must.
        slopes: of ``"crown"``, see ``bounds.slopes``; the best of them is taken.
        share: what is kept of CROWN's intermediates for these points, and where to keep it.
        network: the number of the only one to bound, which is all of N then; None for every network.

    Returns:
        Lower and upper ends in float64, (N, B, C); infinite for a network and point for which any layer came close to
        overflow, so that nothing is known.

    Raises:
        UnsoundBounds: finite bounds are inverted, which no sound rule can make them.
    """
    mode = by_name(rounding, predictor.dtype)
    graph = predictor.graph
    points = torch.arange(len(box.center), device=box.center.device)
    at_once = batch_for(predictor, 2 * graph.classes, memory, bounds, slopes)
    if bounds != "ibp" and len(points) > at_once:
        ends = [
            logit_bounds(
                predictor, box.take(part), rounding, bounds, intermediates, memory, slopes,
                None if share is None else share.take(part), network,
            )
            for part in points.split(at_once)
        ]  # fmt: skip
        lows, highs = zip(*ends, strict=True)
        return torch.cat(lows, 1), torch.cat(highs, 1)

    start, prepared = Ranges.start(box), prepared_inputs(graph, predictor.samples, box, mode)

    def by_intervals(params: dict[str, Tensor], network: int | None = None) -> tuple[Tensor, ...]:
        ranges = start

        def watch(node: Node, boxes: tuple[Box, ...], output: Box) -> Box:
            # Looked at as it passes: to keep the boxes of all layers would cost more than the arithmetic.
            nonlocal ranges
            ranges = ranges.seen(node, boxes, output, mode)
            return output

        output = interval_bounds(graph, params, prepared, mode, watch)
        return output.center, output.radius, *ranges

    def by_linear_bounds(params: dict[str, Tensor], network: int | None = None) -> tuple[Tensor, ...]:
        boxes, ranges = intermediate_boxes(
            predictor, params, box, rounding, intermediates, start, _of_network(share, network)
        )
        bounder = LinearBounder(graph, params, boxes, mode)
        if bounds == "crown":
            lower, upper = output_bounds(graph, boxes, lambda both: better_lower(bounder, both, slopes), mode)
        else:
            lower, upper = optimized_bounds(bounder, hull=bounds == "hull")
        if intermediates != "ibp":
            # Those boxes are rounded once more, so where they gain nothing they are a little wider than intervals.
            center, radius, *_ = by_intervals(params)
            low, high = Box(center, radius).ends()
            lower, upper = torch.maximum(lower, low.flatten(1)), torch.minimum(upper, high.flatten(1))
        return lower, upper, *ranges

    bound = by_intervals if bounds == "ibp" else by_linear_bounds
    low, high, known, inverted = _over_networks(bound, predictor, can_be_mapped(bounds, intermediates), network)
    if bounds == "ibp":
        low, high = Box(low, high).ends()
    low, high = low.flatten(2), high.flatten(2)
    if not mode.outward:
        # Where a box is all but a point, ends that are not rounded outwards may cross by some units.
        units = 2**12 * torch.finfo(predictor.dtype).eps * (1 + low.abs() + high.abs())
        crossed = (low > high) & (low - high <= units)
        low, high = torch.where(crossed, high, low), torch.where(crossed, low, high)
    known = (known & are_finite(low, high))[..., None]
    _require_upright(~inverted)
    if not bool(((high - low).amin() >= 0) & known.all()):
        _require_upright((low <= high) | ~known)
        low, high = low.masked_fill(~known, -torch.inf), high.masked_fill(~known, torch.inf)
    return low, high


def are_finite(lower: Tensor, upper: Tensor) -> Tensor:
    """Tell where all bounds on some classes are finite, (..., C) each -> (...).

    By a sum, since arithmetic is several times as fast as truth values on a CPU; no finite ends in question overflow.
    """
    return torch.isfinite((upper - lower).sum(-1))


@torch.no_grad()
def margin_bounds(  # noqa: PLR0913 - public
    predictor: Predictor,
    box: Box,
    labels: Tensor,
    rivals: Tensor,
    rounding: str = "outward",
    bounds: str = "crown",
    intermediates: str = "ibp",
    slopes: tuple[str, ...] = WORDS,
    share: Share | None = None,
    network: int | None = None,
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
        slopes: of ``"crown"``, see ``bounds.slopes``; the best of them is taken.
        share: see ``logit_bounds``.
        network: likewise.

    Returns:
        Lower bounds in float64, (N, B, K); -inf where nothing is known.

    Raises:
        UnsoundBounds: a layer's finite bounds are inverted.
    """
    specification = margin_coefficients(predictor.graph, labels[:, None], rivals, predictor.dtype)
    return output_lower_bounds(predictor, box, specification, rounding, bounds, intermediates, slopes, share, network)


@torch.no_grad()
def output_lower_bounds(  # noqa: PLR0913 - public
    predictor: Predictor,
    box: Box,
    specification: Tensor,
    rounding: str = "outward",
    bounds: str = "crown",
    intermediates: str = "ibp",
    slopes: tuple[str, ...] = WORDS,
    share: Share | None = None,
    network: int | None = None,
) -> Tensor:
    """Bound linear functions of the outputs of every network from below, with the last layer folded in.

    Args:
        predictor: N networks.
        box: inputs, (B, ...).
        specification: coefficients on the outputs, (B, K, *output_shape).
        rounding: see ``margin_bounds``.
        bounds: likewise.
        intermediates: likewise.
        slopes: likewise.
        share: likewise.
        network: likewise.

    Returns:
        Lower bounds in float64, (N, B, K); -inf where nothing is known.

    Raises:
        UnsoundBounds: a layer's finite bounds are inverted.
    """
    mode = by_name(rounding, predictor.dtype)
    graph, start = predictor.graph, Ranges.start(box)

    def bound(params: dict[str, Tensor], network: int | None = None) -> tuple[Tensor, ...]:
        # Intervals stay intervals, whatever linear bounds know of the layers in between.
        known_by = "ibp" if bounds == "ibp" else intermediates
        boxes, ranges = intermediate_boxes(
            predictor, params, box, rounding, known_by, start, _of_network(share, network)
        )
        # On a GPU this is mapped over networks, and nothing is overwritten.
        bounder = LinearBounder(graph, params, boxes, mode, in_place=bounds == "crown" and not specification.is_cuda)
        if bounds == "ibp":
            lower = bounder.elided(specification)
        elif bounds == "crown":
            lower = better_lower(bounder, specification, slopes)
        else:
            lower = optimized_lower(bounder, specification)
        return lower, *ranges

    lower, known, inverted = _over_networks(bound, predictor, can_be_mapped(bounds, intermediates), network)
    _require_upright(~inverted)
    return torch.where(known[..., None] & torch.isfinite(lower), lower, -torch.inf)


def margin_coefficients(graph: Graph, labels: Tensor, rivals: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the coefficients of z_y - z_c on the outputs, (..., *output_shape); labels and rivals broadcast."""
    every = torch.arange(graph.classes, device=rivals.device)
    own, rival = every == labels[..., None], every == rivals[..., None]
    difference = own.to(dtype) - rival.to(dtype)
    return difference.view(*difference.shape[:-1], *graph.output_shape)


class Ranges(NamedTuple):
    """What the boxes of all layers seen so far say about a batch of points.

    Attributes:
        known: where all of them are far from overflow, (B,); NaN is not. Overflow can hide behind a bounded activation.
        inverted: whether any radius is negative, ().
    """

    known: Tensor
    inverted: Tensor

    @staticmethod
    def start(box: Box) -> Ranges:
        """Return what the box of the inputs says."""
        return Ranges(*within_range(box))

    def seen(self, node: Node, inputs: tuple[Box, ...], output: Box, rounding: Rounding) -> Ranges:
        """Record the box of a layer, made of those of its inputs."""
        rules = rules_for(node.operation)
        if rules.keeps_range:
            return self
        if rules.radius_tells and inputs[0].ball is None and radius_within_range(output, rounding):
            return self
        inside, inverted = within_range(output)
        return Ranges(self.known & inside, self.inverted | inverted)


def intermediate_boxes(
    predictor: Predictor,
    params: Params,
    box: Box,
    rounding: str,
    intermediates: str,
    start: Ranges | None = None,
    share: Share | None = None,
) -> tuple[Boxes, Ranges]:
    """Return the boxes of every layer of one network, and what they say about overflow.

    Args:
        predictor: N networks.
        params: of one of them.
        box: inputs, (B, ...).
        rounding: see ``margin_bounds``.
        intermediates: likewise.
        start: what the box of the inputs says, where that is known: it is the same for all networks.
        share: what is kept of this very network.
    """
    mode = by_name(rounding, predictor.dtype)
    boxes = layer_boxes(predictor.graph, params, box, mode)
    ranges = Ranges.start(box) if start is None else start
    for node in predictor.graph.nodes:
        ranges = ranges.seen(node, tuple(boxes[name] for name in node.inputs), boxes[node.name], mode)
    if intermediates != "ibp":
        boxes = _narrowed(predictor.graph, params, boxes, mode, intermediates, share)
    return boxes, ranges


def _narrowed(
    graph: Graph, params: Params, boxes: Boxes, mode: Rounding, intermediates: str, share: Share | None
) -> Boxes:
    """Narrow boxes by CROWN, or take what is known of that."""
    known = None if share is None else share.known(intermediates)
    if known is not None:
        return crown_boxes(graph, params, boxes, mode, known=known)
    steps = 0
    if intermediates == "alpha-crown":
        known, steps = None if share is None else share.known("crown"), INTERMEDIATE_STEPS
    boxes = crown_boxes(graph, params, boxes, mode, known=known, steps=steps)
    if share is not None:
        share.keep(graph, intermediates, boxes)
    return boxes


def _of_network(share: Share | None, network: int | None) -> Share | None:
    return None if share is None else share.of_network(network)


def can_be_mapped(bounds: str, intermediates: str) -> bool:
    """Tell whether networks are bounded all at once, on a GPU, or one by one, as cuts and selected units need it."""
    return bounds == "ibp" or (bounds != "hull" and intermediates == "ibp")


def slope_rounds(bounds: str, intermediates: str) -> tuple[tuple[str, ...], ...]:
    """Say which slopes are tried at once, and which only on what those before them leave open."""
    # CROWN's intermediates cost far more than what is made of them, so all slopes are tried while they are known.
    return ONE_BY_ONE if bounds == "crown" and intermediates == "ibp" else ((*WORDS, CHOSEN),)


def batch_for(
    predictor: Predictor, quantities: int, memory: int, bounds: str = "crown", slopes: tuple[str, ...] = WORDS
) -> int:
    """How many points at once keep linear bounds on so many quantities of each within ``memory`` bytes."""
    graph = predictor.graph
    counts = [torch.Size(shape).numel() for shape in (graph.input_shape, *(node.shape for node in graph.nodes))]
    # Coefficients of two layers at a time, and what the relaxation makes of them; an ascent keeps those of all layers,
    # and slopes with their gradients and moments.
    ascends = bounds in ("alpha-crown", "hull") or (bounds == "crown" and CHOSEN in slopes)
    numbers = 10 * sum(counts) if ascends else 6 * max(counts)
    if bounds == "hull":
        numbers += CUT_COPIES * sum(
            min(MOST_CUTS, *layer.shape) * int(layer.weights(predictor.samples)["weight"].shape[-1])
            for layer in cut_layers(graph).values()
        )
    each_point = quantities * numbers * torch.finfo(predictor.dtype).bits // 8
    networks = predictor.size if predictor.device.type == "cuda" and bounds != "hull" else 1
    return max(1, memory // (each_point * networks))


def _over_networks(
    bound: Callable[..., tuple[Tensor, ...]], predictor: Predictor, mapped: bool, network: int | None
) -> tuple[Tensor, ...]:
    """Results of ``bound`` for one network or all of them, stacked, (N, ...); unless mapped it is given the number."""
    with direct_sums():
        if network is not None:
            return tuple(result[None] for result in bound(pick(predictor.samples, network), network))
        numbers = count()
        return map_samples(lambda params: bound(params, None if mapped else next(numbers)), predictor.samples, mapped)


def _require_upright(*flags: Tensor) -> None:
    """Raise unless all flags hold."""
    if not all(bool(flag.all()) for flag in flags):
        raise UnsoundBounds(
            "a lower bound lies above its upper bound, so nothing can be proved. This is a mistake in a rule; if you "
            "registered one of your own, look there first, else please report it with the network."
        )
