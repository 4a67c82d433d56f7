"""On MLPs the bounds equal those of an independent implementation, the package bound-propagation.

It is published under the GPL and serves as an oracle in tests only. Its ``crown_ibp`` takes intermediate bounds from
interval propagation, as ours does at any depth; its ``crown`` takes them from CROWN, which is the same thing as long
as there is one hidden layer, whose interval bounds are exact. Its lower slopes are those of the chords unless it is
asked to choose adaptively. Ours are intersected with interval bounds, so the oracle's are as well before comparing.
"""

import warnings
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from certibayes.bounds import Box, ideal_box, interval_bounds, layer_boxes, linear_bounds, outward, outward_box
from certibayes.networks import trace
from certibayes.networks.operations import ReLU

from ..strategies import generator, graph_and_params

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # bound-propagation calls torch.jit.script, which is deprecated; not ours
    import bound_propagation

DEPTHS = ([6], [6, 5], [7, 6, 5])
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def _case(hidden: list[int], dtype: torch.dtype):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(len(hidden))
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise([4, *hidden, 3]):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    net = nn.Sequential(*layers[:-1]).to(dtype)
    x = torch.randn(20, 4, generator=generator(0), dtype=dtype)
    return net, *graph_and_params(trace(net)), x


def _theirs(net: nn.Module, x: Tensor, eps: float, method: str, adaptive: bool = False) -> tuple[Tensor, Tensor]:
    model = bound_propagation.BoundModelFactory(adaptive_relu=adaptive).build(net)
    region = bound_propagation.HyperRectangle.from_eps(x, eps)
    with torch.no_grad():
        plain = model.ibp(region)
        if method == "ibp":
            return plain.lower, plain.upper
        bounds = getattr(model, method)(region).concretize()
    return torch.maximum(bounds.lower, plain.lower), torch.minimum(bounds.upper, plain.upper)


def _assert_equal(ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.double(), other.double(), **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("eps", [0.0, 0.05, 0.5])
@pytest.mark.parametrize("hidden", DEPTHS)
class TestEqualsTheOracle:
    def test_interval_bounds(self, hidden, eps, dtype):
        net, graph, params, x = _case(hidden, dtype)
        box = interval_bounds(graph, params, ideal_box(x, eps))
        _assert_equal((box.lower, box.upper), _theirs(net, x, eps, "ibp"))

    def test_linear_bounds_with_adaptive_slopes(self, hidden, eps, dtype):
        net, graph, params, x = _case(hidden, dtype)
        ours = linear_bounds(graph, params, ideal_box(x, eps), slopes="adaptive")
        _assert_equal(ours, _theirs(net, x, eps, "crown_ibp", adaptive=True))

    def test_linear_bounds_with_the_slopes_of_chords(self, hidden, eps, dtype):
        """Slopes that are given as tensors."""
        net, graph, params, x = _case(hidden, dtype)
        boxes = layer_boxes(graph, params, ideal_box(x, eps))
        slopes = {
            node.name: _chord(boxes[node.inputs[0]])[:, None]
            for node in graph.nodes
            if isinstance(node.operation, ReLU)
        }
        ours = linear_bounds(graph, params, ideal_box(x, eps), slopes=slopes)
        _assert_equal(ours, _theirs(net, x, eps, "crown_ibp"))


def _chord(box: Box) -> Tensor:
    return (box.upper / (box.upper - box.lower).clamp(min=1e-30)).clamp(0, 1)


def test_with_one_hidden_layer_interval_intermediate_bounds_lose_nothing():
    net, graph, params, x = _case([8], torch.float64)
    ours = linear_bounds(graph, params, ideal_box(x, 0.3), slopes="adaptive")
    _assert_equal(ours, _theirs(net, x, 0.3, "crown", adaptive=True))


@pytest.mark.parametrize("hidden", DEPTHS)
def test_bounds_that_account_for_rounding_lie_just_outside(hidden):
    net, graph, params, x = _case(hidden, torch.float32)
    lower, upper = linear_bounds(graph, params, outward_box(x, 0.1), outward(torch.float32), "adaptive")
    low, high = _theirs(net.double(), x.double(), 0.1, "crown_ibp", adaptive=True)
    assert bool((lower <= low).all() and (upper >= high).all())
    _assert_equal((lower, upper), (low, high))
