"""Rules allow for programs that err by as much as they are said to, also where the library at hand is better."""

import pytest
import torch
from torch import nn

from certibayes.bounds import layer_boxes, outward_box, rules_for
from certibayes.bounds._backward import Step
from certibayes.bounds._offset import Offset
from certibayes.networks import trace

from ..strategies import graph_and_params
from .rounding_cases import F32, UNIT

# Units of A + B |z| by which a program may err: those of a library function, or of the few operations there are.
PROMISED = {
    "clamp": (lambda: nn.Hardtanh(-0.3, 0.7), 1.0, (0.7, 0.0)),
    "prelu": (lambda: nn.PReLU(init=1.7), 2.0, (0.0, 1.7)),
    "elu": (lambda: nn.ELU(), 16.0, (1.0, 1.0)),
    "softplus": (lambda: nn.Softplus(), 16.0, (1.0, 1.0)),
    "gelu": (lambda: nn.GELU(), 16.0, (0.0, 1.0)),
    "silu": (lambda: nn.SiLU(), 16.0, (0.0, 1.0)),
    "hardswish": (lambda: nn.Hardswish(), 6.0, (0.0, 1.0)),
}


@pytest.mark.parametrize("radius", [0.0, 1e-6, 0.5])
@pytest.mark.parametrize("name", PROMISED)
def test_a_program_may_err_as_much_as_was_promised(name, radius):
    make, units, (constant, factor) = PROMISED[name]
    torch.manual_seed(0)
    x = torch.cat([torch.linspace(-4, 4, 60), torch.linspace(-40, 40, 20)])[:, None]
    graph, params = graph_and_params(trace(nn.Sequential(make(), nn.Flatten()), x[:1]))
    exact = {key: value.double() for key, value in params.items()}
    box = outward_box(x, radius)
    boxes = layer_boxes(graph, params, box, F32)
    node = graph.nodes[0]
    lower, upper = boxes[node.name].ends()
    weights = node.weights(params)
    bounds = {}
    for sign in (1.0, -1.0):
        step = Step(torch.full((len(x), 1, 1), sign), (box,), boxes[node.name], F32)
        back = rules_for(node.operation).linear(node.operation, weights, step)
        offset = Offset(step.coefficients, F32)
        offset.add_layer(step, back)
        bounds[sign] = back.coefficients[0][:, 0].double(), offset.value
    for place in (-1.0, -0.3, 0.0, 0.4, 1.0):
        z = torch.clamp(x + place * radius, x - radius, x + radius).double()
        value = node.operation.evaluate(node.weights(exact), z)
        error = units * UNIT * (constant + factor * z.abs())
        assert bool((lower <= value - error).all() and (value + error <= upper).all())
        for sign, (slope, shift) in bounds.items():
            worst = sign * value - error
            assert bool((slope * z + shift <= worst).all()), float((slope * z + shift - worst).max())


@pytest.mark.parametrize(
    ("layer", "copies"), [(nn.Upsample(scale_factor=32), 1024), (nn.ReplicationPad2d(20), 441)], ids=["upsample", "pad"]
)
def test_coefficients_of_copies_may_be_added_up_in_any_order(layer, copies):
    """Torch adds them up in pieces, and nothing says that it must: n - 1 sums, each off by a unit."""
    x = 1 + torch.rand(1, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    graph, params = graph_and_params(trace(nn.Sequential(layer, nn.Flatten()), x))
    boxes, node = layer_boxes(graph, params, outward_box(x, 0.0), F32), graph.nodes[0]
    output = boxes[node.name]
    step = Step(torch.ones(1, 1, *node.shape), (boxes["input"],), output, F32)
    back = rules_for(node.operation).linear(node.operation, {}, step)
    assert bool((back.output_error() >= (copies - 1) * UNIT * output.center.abs()).all())
