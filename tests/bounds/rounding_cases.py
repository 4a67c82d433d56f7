"""Numbers that lose many digits, exact sums of them, and programs that sum in another order."""

from fractions import Fraction

import torch
from torch import Tensor

from certibayes.bounds import outward
from certibayes.bounds.sums import LONG
from certibayes.networks import direct_sums

from ..strategies import generator
from .float_programs import OTHER_PROGRAMS

F32, F64 = outward(torch.float32), outward(torch.float64)
UNIT = F32.unit
ORDERS = {
    "forwards": torch.arange,
    "backwards": lambda n: torch.arange(n).flip(0),
    "evens first": lambda n: torch.cat([torch.arange(0, n, 2), torch.arange(1, n, 2)]),
}
LENGTHS = (7, LONG - 1, LONG, LONG + 1, 784, 3072, 5000)


def random_numbers(seed: int, *shape: int, octaves: float = 0.0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal numbers, times powers of two up to ``octaves`` away."""
    rng = generator(seed)
    numbers = torch.randn(shape, generator=rng, dtype=dtype)
    return numbers * torch.exp2(((torch.rand(shape, generator=rng) * 2 - 1) * octaves).round()).to(dtype)


def sum_of_products(*factors: list) -> Fraction:
    """Exact sum of products."""
    total = Fraction(0)
    for terms in zip(*factors, strict=True):
        product = Fraction(1)
        for term in terms:
            product *= term
        total += product
    return total


def run_in_order(graph, params, x, order):
    """Inputs and output of every node, each layer summed in the given order."""
    seen = {}

    def rule(node, values):
        other = OTHER_PROGRAMS.get(type(node.operation))
        weights = node.weights(params)
        if other is None or order is None:
            return node.operation.evaluate(weights, *values)
        return other(node.operation, weights, values[0], order)

    def remember(node, values, output):
        seen[node.name] = (values, output)
        return output

    with torch.no_grad(), direct_sums():
        graph.fold(x, rule, remember)
    return seen
