"""The receptive field of a convolution's unit: a small network of its own, over windows of all layers before.

A unit of a convolution at place i reads a window of the layer before it, and that a window of the one before that. With
stride s, padding p and kernel k (dilation d), places from o on, n of them, are made of

    o s - p ... o s - p + (n - 1) s + d (k - 1)

of the layer's input. On these windows the same operations, without padding, compute the unit: its receptive field is a
network with one output a channel, and bounding it costs what the window is large, not what the image is. Zeros around
an image are exactly 0, whatever the layers before would make of what lies beyond it: windows of boxes have center and
radius 0 there, and coefficients on such places are dropped (``LinearBounder.inside``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from certibayes.bounds.linear import Boxes
from certibayes.networks import Graph, Node, Operation, Params
from certibayes.networks.graph import INPUT
from certibayes.networks.operations import BatchNorm, Conv2d, LeakyReLU, Normalize, ReLU, Sigmoid, Tanh
from certibayes.regions import Box

PLACE_BY_PLACE = (ReLU, LeakyReLU, Tanh, Sigmoid, BatchNorm, Normalize)
"""Operations whose output at a place depends on their input at that place alone, in the same way everywhere."""

WORTH = 0.5
"""Windows are worth it where they hold less than this fraction of all values."""

Pair = tuple[int, int]


class Window(NamedTuple):
    """Which places of a layer the unit at place i of another depends on: from ``step`` i + ``start`` on, ``size``."""

    step: Pair = (1, 1)
    start: Pair = (0, 0)
    size: Pair = (1, 1)

    def before(self, convolution: Conv2d, kernel: Pair) -> Window:
        """Return the window of a convolution's input, where this is one of its output."""
        stride, padding, dilation = convolution.stride, convolution.padding, convolution.dilation
        step, start, size = (
            (a * stride[0], b * stride[1]) for a, b in (self.step, self.start, (self.size[0] - 1, self.size[1] - 1))
        )
        return Window(
            step,
            (start[0] - padding[0], start[1] - padding[1]),
            (size[0] + dilation[0] * (kernel[0] - 1) + 1, size[1] + dilation[1] * (kernel[1] - 1) + 1),
        )


@dataclass(frozen=True)
class ReceptiveField:
    """The network that computes a unit of a convolution from a window of the input.

    Attributes:
        graph: without padding; its output is one value for each channel, (C, 1, 1).
        windows: by node, and of the input.
        padded: nodes that a convolution pads with zeros.
    """

    graph: Graph
    windows: Mapping[str, Window]
    padded: frozenset[str]

    @property
    def largest(self) -> int:
        """How many values the largest window has."""
        shapes = [self.graph.input_shape, *(node.shape for node in self.graph.nodes)]
        return max(math.prod(shape) for shape in shapes)

    def over(self, boxes: Boxes) -> WindowedBoxes:
        """Return all windows of the boxes of the whole network."""
        height, width = boxes[self.graph.nodes[-1].name].center.shape[2:]
        views = {name: _all_windows(boxes[name], window, (height, width)) for name, window in self.windows.items()}
        return WindowedBoxes(self, boxes, views)


@dataclass(frozen=True)
class WindowedBoxes:
    """Windows of the boxes of a network.

    Attributes:
        field: which windows.
        boxes: of every node of the whole network, (B, C, H, W).
        views: windows of each node, (B, 2 or 3, C, H', W', h, w), for units at all
            places of the last, which take no memory of their own.
    """

    field: ReceptiveField
    boxes: Boxes
    views: Mapping[str, Tensor]

    def take(self, point: Tensor, place: tuple[Tensor, Tensor]) -> Boxes:
        """Return the boxes in the receptive fields of R units, (R, C, h, w), by node.

        Args:
            point: that each unit is of, (R,).
            place: row and column of each unit, (R,).
        """
        found: Boxes = {}
        for name, view in self.views.items():
            # Three indices with whole dimensions between them: theirs comes first.
            center, radius, *largest = view[point, :, :, place[0], place[1]].unbind(1)
            found[name] = Box(center, radius, None, largest[0] if largest else None, self.boxes[name].allowance)
        return found

    def inside(self, place: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        """Return 1 for places inside the image and 0 for its padding, (R, 1, 1, h, w), for nodes that are padded."""
        found = {}
        for name in self.field.padded:
            window, center = self.field.windows[name], self.boxes[name].center
            rows, columns = (_is_inside(place[i], window, i, center.shape[2 + i]) for i in range(2))
            found[name] = (rows[:, :, None] & columns[:, None, :])[:, None, None].to(center.dtype)
        return found


def receptive_field(graph: Graph, params: Params, boxes: Boxes) -> ReceptiveField | None:
    """Return the receptive field of the units of a graph's last layer, a convolution.

    Args:
        graph: up to that layer.
        params: parameters and buffers of one sample.
        boxes: of every node.

    Returns:
        None where windows are not worth it, or where the layers before are not convolutions and what acts place by
        place, one after the other, on a box of images that carries no ball.
    """
    by_name = {node.name: node for node in graph.nodes}
    if not isinstance(graph.nodes[-1].operation, Conv2d) or boxes[INPUT].ball is not None:
        return None
    window, name = Window(), graph.nodes[-1].name
    nodes: list[Node] = []
    windows, padded = {}, set()
    while name != INPUT:
        node, windows[name] = by_name[name], window
        operation: Operation = node.operation
        shape = (node.shape[0], *window.size)
        if isinstance(operation, Conv2d):
            height, width = node.weights(params)["weight"].shape[2:]
            window = window.before(operation, (height, width))
            if operation.padding != (0, 0):
                padded.add(node.inputs[0])
            operation = replace(operation, padding=(0, 0))
        elif not isinstance(operation, PLACE_BY_PLACE):
            return None
        nodes.insert(0, replace(node, operation=operation, shape=shape))
        name = node.inputs[0]
    windows[INPUT] = window
    seen = sum(boxes[name].center.shape[1] * math.prod(window.size) for name, window in windows.items())
    if seen > WORTH * sum(boxes[name].center[0].numel() for name in windows):
        return None
    inner = replace(graph, nodes=tuple(nodes), input_shape=(graph.input_shape[0], *window.size))
    # Beyond the input the box is 0, which is all there is to know of it.
    return ReceptiveField(inner, windows, frozenset(padded - {INPUT}))


def _all_windows(box: Box, window: Window, places: Pair) -> Tensor:
    """Return the windows of units at all places, with zeros around the box, (B, 2 or 3, C, *places, h, w)."""
    parts = [box.center, box.radius] if box.largest is None else [box.center, box.radius, box.largest]
    whole = torch.stack(parts, 1)
    for i in range(2):
        # The last window ends where it ends; what the strides leave over is in none.
        last = (places[i] - 1) * window.step[i] + window.start[i] + window.size[i]
        padding = [0, 0] * (1 - i) + [-window.start[i], last - whole.shape[3 + i]]
        whole = functional.pad(whole, padding)
    return whole.unfold(3, window.size[0], window.step[0]).unfold(4, window.size[1], window.step[1])


def _is_inside(place: Tensor, window: Window, i: int, length: int) -> Tensor:
    """Tell which rows or columns of windows are those of the image, (R, size)."""
    at = place[:, None] * window.step[i] + window.start[i] + torch.arange(window.size[i], device=place.device)
    return (at >= 0) & (at < length)
