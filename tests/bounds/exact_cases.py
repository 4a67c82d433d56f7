"""Tiny piecewise-linear networks, and their exact ranges and kinks in rational arithmetic."""

from fractions import Fraction
from itertools import combinations, pairwise, product

import torch
from torch import nn

from ..strategies import exact_affine, fractions, generator


def network(seed: int, units: list[int], slope: float) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = []
    for n, m in pairwise(units):
        layers += [nn.Linear(n, m), _activation(slope)]
    return nn.Sequential(*layers[:-1])


def rescaled(net: nn.Sequential, seed: int, octaves: float) -> nn.Sequential:
    with torch.no_grad():
        for index, parameter in enumerate(net.parameters()):
            exponents = ((torch.rand(parameter.shape, generator=generator(seed + index)) * 2 - 1) * octaves).round()
            parameter.mul_(torch.exp2(exponents))
    return net


def _activation(slope: float) -> nn.Module:
    return nn.LeakyReLU(slope) if slope else nn.ReLU()


def _bend(slope: Fraction, values: list) -> list:
    return [v if v > 0 else slope * v for v in values]


def layers_of(net: nn.Sequential) -> list[tuple[list, list]]:
    return [(fractions(m.weight.detach()), fractions(m.bias.detach())) for m in net if isinstance(m, nn.Linear)]


def _forward(layers: list, slope: Fraction, x: list, upto: int | None = None) -> list:
    """Exact output; with ``upto``, the exact pre-activations of that layer."""
    for index, (weight, bias) in enumerate(layers):
        x = exact_affine(weight, bias, x)
        if index == upto or index == len(layers) - 1:
            return x
        x = _bend(slope, x)
    return x


def range_on_interval(layers: list, slope: Fraction, low: Fraction, high: Fraction) -> list[tuple]:
    """Exact range of a one-input network: it is linear between the points where some pre-activation is 0."""
    knots = [low, high]
    for depth in range(len(layers) - 1):
        found = set(knots)
        for left, right in pairwise(knots):
            at_left, at_right = (_forward(layers, slope, [p], depth) for p in (left, right))
            for a, b in zip(at_left, at_right, strict=True):
                if a * b < 0:  # linear in between, so it has one zero
                    found.add(left + (right - left) * a / (a - b))
        knots = sorted(found)
    outputs = [_forward(layers, slope, [p]) for p in knots]
    return [(min(column), max(column)) for column in zip(*outputs, strict=True)]


def range_on_rectangle(layers: list, slope: Fraction, low: list, high: list) -> list[tuple]:
    """Exact range of a two-input network with one hidden layer.

    It is linear on every cell of the arrangement of the hidden units' kinks and the rectangle's sides, so its
    extremes are at crossings of two of those inside the rectangle.
    """
    borders = [(w[0], w[1], b) for w, b in zip(*layers[0], strict=True)]
    for axis, value in product((0, 1), (0, 1)):
        bound = (low, high)[value][axis]
        borders.append((Fraction(1 - axis), Fraction(axis), -bound))
    outputs = []
    for (a, b, c), (d, e, f) in combinations(borders, 2):
        determinant = a * e - b * d
        if determinant == 0:
            continue
        point = [(b * f - c * e) / determinant, (c * d - a * f) / determinant]
        if all(lo <= p <= hi for lo, p, hi in zip(low, point, high, strict=True)):
            outputs.append(_forward(layers, slope, point))
    return [(min(column), max(column)) for column in zip(*outputs, strict=True)]


def knots_of(layers: list, low: Fraction, high: Fraction) -> list[tuple[Fraction, list, list]]:
    """The ends and kinks of a one-input network: place, outputs, and pre-activations, in one list."""

    def follow(x: Fraction) -> tuple[list, list]:
        values, seen = [x], []
        for index, (weight, bias) in enumerate(layers):
            values = [
                sum((w * v for w, v in zip(row, values, strict=True)), start=b)
                for row, b in zip(weight, bias, strict=False)
            ]
            if index < len(layers) - 1:
                seen += values
                values = [max(v, Fraction(0)) for v in values]
        return values, seen

    places = [low, high]
    for _ in layers[:-1]:
        found = set(places)
        for left, right in pairwise(places):
            for a, b in zip(follow(left)[1], follow(right)[1], strict=True):
                if a * b < 0:
                    found.add(left + (right - left) * a / (a - b))
        places = sorted(found)
    return [(place, *follow(place)) for place in places]
