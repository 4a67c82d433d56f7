"""Sums over all places of an image: what is subtracted for their rounding covers the worst order of summation."""

import pytest
import torch
from torch import nn

from certibayes.bounds import layer_boxes, outward, outward_box, rules_for
from certibayes.bounds._backward import Step
from certibayes.networks import trace

from ..strategies import graph_and_params


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("side", [2, 16, 64])
def test_the_error_of_a_convolution_covers_the_sum_of_its_biases(dtype, side):
    """A sum of n products errs by up to n units of float64 relative to its magnitudes, also in a float64 program."""
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten()).to(dtype)
    nn.init.zeros_(net[0].weight)
    x = torch.zeros(1, 1, side, side, dtype=dtype)
    graph, params = graph_and_params(trace(net, x))
    rounding, node = outward(dtype), graph.nodes[0]
    boxes = layer_boxes(graph, params, outward_box(x, 0.0), rounding)
    step = Step(torch.ones(1, 1, 2, side, side, dtype=dtype), (boxes[node.inputs[0]],), boxes[node.name], rounding)
    back = rules_for(node.operation).linear(node.operation, node.weights(params), step)
    error = back.output_error().double().sum()
    terms = 2 * side * side
    magnitude = net[0].bias.detach().double().abs().sum() * side * side
    assert float(error) >= float(magnitude) * terms * 2.0**-53
