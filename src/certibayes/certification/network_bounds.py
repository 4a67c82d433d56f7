"""Bounds on every network of a predictor, on a CPU one by one, on a GPU as many at once as fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from certibayes.bounds import Box, by_name, interval_bounds
from certibayes.bounds.cuts import cut_layers
from certibayes.bounds.interval import prepared_inputs
from certibayes.bounds.linear import Boxes, LinearBounder, output_bounds
from certibayes.bounds.optimize import MOST_CUTS, optimized_bounds, optimized_lower
from certibayes.bounds.slopes import CHOSEN, WORDS, better_lower
from certibayes.bounds.stack import Stack, apart
from certibayes.certification._layers import Ranges, boxes_of_layers, narrowed_boxes
from certibayes.certification._narrowed import Share
from certibayes.errors import UnsoundBounds
from certibayes.networks import Graph, Node, direct_sums
from certibayes.prediction import Predictor
from certibayes.support.stacks import are_mapped, map_samples, map_trees, pick

BOUNDS = ("ibp", "crown", "alpha-crown", "hull")
"""From loose and cheap to tight and costly: intervals, linear bounds, linear bounds with optimized slopes, and with
multi-neuron cuts above ReLU units as well."""

INTERMEDIATES = ("ibp", "crown", "alpha-crown")
"""What linear bounds know of the layers in between: intervals, or what CROWN itself says of them, by itself or with
slopes that are optimized for every unit."""

ONE_BY_ONE = tuple((word,) for word in WORDS)
"""Slopes of CROWN in rounds, each for what those before it leave open."""

Bound = Callable[..., tuple[Tensor, ...]]
"""(parameters of one network, what CROWN narrowed of its layers or nothing) -> tensors."""

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
    networks: Sequence[int] | None = None,
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
        networks: the numbers of those to bound, which are all of N then; None for every network.

    Returns:
        Lower and upper ends in float64, (N, B, C); infinite for a network and point for which any layer came close to
        overflow, so that nothing is known.

    Raises:
        UnsoundBounds: finite bounds are inverted, which no sound rule can make them.
    """
    mode = by_name(rounding, predictor.dtype)
    graph = predictor.graph
    points = torch.arange(len(box.center), device=box.center.device)
    at_once = batch_for(predictor, 2 * graph.classes, memory, bounds, slopes, networks)
    if bounds != "ibp" and len(points) > at_once:
        ends = [
            logit_bounds(
                predictor, box.take(part), rounding, bounds, intermediates, memory, slopes,
                None if share is None else share.take(part), networks,
            )
            for part in points.split(at_once)
        ]  # fmt: skip
        lows, highs = zip(*ends, strict=True)
        return torch.cat(lows, 1), torch.cat(highs, 1)

    start, prepared = Ranges.start(box), prepared_inputs(graph, predictor.samples, box, mode)

    def by_intervals(params: dict[str, Tensor], narrowed: Boxes | None = None) -> tuple[Tensor, ...]:
        ranges = start

        def watch(node: Node, boxes: tuple[Box, ...], output: Box) -> Box:
            # Looked at as it passes: to keep the boxes of all layers would cost more than the arithmetic.
            nonlocal ranges
            ranges = ranges.seen(node, boxes, output, mode)
            return output

        output = interval_bounds(graph, params, prepared, mode, watch)
        return output.center, output.radius, *ranges

    def by_linear_bounds(params: dict[str, Tensor], narrowed: Boxes | None = None) -> tuple[Tensor, ...]:
        boxes, ranges = boxes_of_layers(graph, params, box, mode, start, narrowed)
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
    found = _over_networks(bound, predictor, box, rounding, bounds, intermediates, share, networks)
    low, high, known, inverted = found
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
    networks: Sequence[int] | None = None,
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
        networks: likewise.

    Returns:
        Lower bounds in float64, (N, B, K); -inf where nothing is known.

    Raises:
        UnsoundBounds: a layer's finite bounds are inverted.
    """
    specification = margin_coefficients(predictor.graph, labels[:, None], rivals, predictor.dtype)
    return output_lower_bounds(predictor, box, specification, rounding, bounds, intermediates, slopes, share, networks)


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
    networks: Sequence[int] | None = None,
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
        networks: likewise.

    Returns:
        Lower bounds in float64, (N, B, K); -inf where nothing is known.

    Raises:
        UnsoundBounds: a layer's finite bounds are inverted.
    """
    mode = by_name(rounding, predictor.dtype)
    graph, start, one_by_one = predictor.graph, Ranges.start(box), not are_mapped(predictor.samples)

    def bound(params: dict[str, Tensor], narrowed: Boxes | None = None) -> tuple[Tensor, ...]:
        boxes, ranges = boxes_of_layers(graph, params, box, mode, start, narrowed)
        # Where this is mapped over networks, nothing is overwritten.
        bounder = LinearBounder(graph, params, boxes, mode, in_place=bounds == "crown" and one_by_one)
        if bounds == "ibp":
            lower = bounder.elided(specification)
        elif bounds == "crown":
            lower = better_lower(bounder, specification, slopes)
        else:
            lower = optimized_lower(bounder, specification)
        return lower, *ranges

    lower, known, inverted = _over_networks(bound, predictor, box, rounding, bounds, intermediates, share, networks)
    _require_upright(~inverted)
    return torch.where(known[..., None] & torch.isfinite(lower), lower, -torch.inf)


def margin_coefficients(graph: Graph, labels: Tensor, rivals: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the coefficients of z_y - z_c on the outputs, (..., *output_shape); labels and rivals broadcast."""
    every = torch.arange(graph.classes, device=rivals.device)
    own, rival = every == labels[..., None], every == rivals[..., None]
    difference = own.to(dtype) - rival.to(dtype)
    return difference.view(*difference.shape[:-1], *graph.output_shape)


def go_together(predictor: Predictor, box: Box, bounds: str, intermediates: str) -> bool:
    """Tell whether networks are bounded all at once, as on a GPU, or one after the other.

    Cuts need that on every device, and CROWN's intermediates where inputs carry a ball, which is for one network.
    """
    return are_mapped(predictor.samples) and bounds != "hull" and (intermediates == "ibp" or box.ball is None)


def slope_rounds(bounds: str, intermediates: str) -> tuple[tuple[str, ...], ...]:
    """Say which slopes are tried at once, and which only on what those before them leave open."""
    # CROWN's intermediates cost far more than what is made of them, so all slopes are tried while they are known.
    return ONE_BY_ONE if bounds == "crown" and intermediates == "ibp" else ((*WORDS, CHOSEN),)


def batch_for(
    predictor: Predictor,
    quantities: int,
    memory: int,
    bounds: str = "crown",
    slopes: tuple[str, ...] = WORDS,
    networks: Sequence[int] | None = None,
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
    together = predictor.size if networks is None else len(networks)
    return max(1, memory // (each_point * (together if are_mapped(predictor.samples) and bounds != "hull" else 1)))


def _over_networks(  # noqa: PLR0913 - what its callers were given
    bound: Bound,
    predictor: Predictor,
    box: Box,
    rounding: str,
    bounds: str,
    intermediates: str,
    share: Share | None,
    networks: Sequence[int] | None,
) -> tuple[Tensor, ...]:
    """Results of ``bound`` for some networks or all of them, stacked, (N, ...)."""
    with direct_sums():
        if bounds == "ibp" or intermediates == "ibp":
            samples = predictor.samples if networks is None else _picked(predictor, networks)
            return map_samples(bound, samples, mapped=bounds != "hull")
        narrow = partial(
            narrowed_boxes, predictor.graph, box=box, rounding=by_name(rounding, predictor.dtype),
            intermediates=intermediates, share=share,
        )  # fmt: skip
        numbers = list(range(predictor.size) if networks is None else networks)
        if len(numbers) > 1 and go_together(predictor, box, bounds, intermediates):
            return _together(bound, predictor, narrow, numbers)
        found = [_alone(bound, predictor, narrow, number) for number in numbers]
        return tuple(torch.stack(results) for results in zip(*found, strict=True))


def _alone(bound: Bound, predictor: Predictor, narrow: Callable[..., Boxes], number: int) -> tuple[Tensor, ...]:
    """Result of ``bound`` for one network whose layers are narrowed first."""
    params = pick(predictor.samples, number)
    return bound(params, narrow(Stack(params), networks=[number]))


def _together(
    bound: Bound, predictor: Predictor, narrow: Callable[..., Boxes], numbers: list[int]
) -> tuple[Tensor, ...]:
    """Results of ``bound`` for networks whose layers are narrowed first, all at once, or half of them where it must."""
    try:
        return _mapped(bound, predictor, narrow, numbers)
    except torch.cuda.OutOfMemoryError:
        if len(numbers) == 1:
            raise
    torch.cuda.empty_cache()
    half = len(numbers) // 2
    parts = [_together(bound, predictor, narrow, part) for part in (numbers[:half], numbers[half:])]
    return tuple(torch.cat(results) for results in zip(*parts, strict=True))


def _mapped(bound: Bound, predictor: Predictor, narrow: Callable[..., Boxes], numbers: list[int]) -> tuple[Tensor, ...]:
    """Results of ``bound`` for networks whose layers are narrowed first, all at once."""
    # A function of its own, of which nothing is left in memory when it fails.
    samples = _picked(predictor, numbers)
    narrowed = narrow(Stack.of(samples), networks=numbers)
    found: tuple[Tensor, ...] = map_trees(bound, samples, apart(narrowed, len(numbers)))
    return found


def _picked(predictor: Predictor, networks: Sequence[int]) -> dict[str, Tensor]:
    """Return the samples of some networks, stacked."""
    return {name: tensor[list(networks)] for name, tensor in predictor.samples.items()}


def _require_upright(*flags: Tensor) -> None:
    """Raise unless all flags hold."""
    if not all(bool(flag.all()) for flag in flags):
        raise UnsoundBounds(
            "a lower bound lies above its upper bound, so nothing can be proved. This is a mistake in a rule; if you "
            "registered one of your own, look there first, else please report it with the network."
        )
