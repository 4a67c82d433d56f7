"""Where floats end: overflow, half precision and sums too long to be bounded must never yield a bound that is wrong."""

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.bounds import interval_bounds, outward, outward_box, registry
from certibayes.bounds.registry import Rules
from certibayes.certification import METHODS
from certibayes.errors import CertibayesError, UnsoundBounds
from certibayes.networks import trace

from ..strategies import Functional, assert_inside, graph_and_params

HUGE = 2.0**30  # the largest weight that predictors take


def _overflow_hidden_by_a_sigmoid() -> nn.Module:
    """At x = 0 all is 0; elsewhere the fourth layer computes inf - inf, and a sigmoid hides the infinite radius."""
    net = nn.Sequential(
        nn.Linear(1, 2, bias=False),
        nn.Linear(2, 2, bias=False),
        nn.Linear(2, 2, bias=False),
        nn.Linear(2, 1, bias=False),
        nn.Sigmoid(),
        nn.Linear(1, 2),
    )
    with torch.no_grad():
        net[0].weight.fill_(HUGE)
        net[1].weight.copy_(torch.eye(2) * HUGE)
        net[2].weight.copy_(torch.eye(2) * HUGE)
        net[3].weight.copy_(torch.tensor([[HUGE, -HUGE]]))
        net[5].weight.fill_(0.1)
        net[5].bias.copy_(torch.tensor([0.0, 5.0]))
    return net


def _assert_unanswered(predictor, x, eps, method) -> None:
    result = cb.certify(predictor, x, eps=eps, method=method)
    assert list(result.reasons) == [0] and "overflow" in result.reasons[0]
    assert not result.certified.any() and bool((result.lower == 0).all() and (result.upper >= 1).all())


@pytest.mark.parametrize("method", METHODS)
def test_overflow_hidden_by_a_sigmoid_is_not_certified(method):
    predictor = cb.Point(_overflow_hidden_by_a_sigmoid()).predictor()
    x, eps = torch.zeros(1, 1), 2.0**10
    assert bool(predictor(x + eps).isnan().all())  # so nothing can be said about this ball
    _assert_unanswered(predictor, x, eps, method)


@pytest.mark.parametrize("method", METHODS)
def test_overflow_scaled_down_again_is_not_certified(method):
    """The center and the radius are finite floats, their sum is not."""
    net = nn.Sequential(*[nn.Linear(1, 1, bias=False) for _ in range(8)], nn.Linear(1, 2))
    with torch.no_grad():
        for index in range(8):
            net[index].weight.fill_(HUGE if index < 4 else 1 / HUGE)
        net[8].weight.copy_(torch.tensor([[0.0], [1e-3]]))
        net[8].bias.copy_(torch.tensor([0.0, 10.0]))
    predictor = cb.Point(net).predictor()
    x, eps = torch.tensor([[200.0]]), 100.0
    assert not bool(torch.isfinite(predictor.sample_outputs(x + eps)).all())
    _assert_unanswered(predictor, x, eps, method)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_refused_or_sound(dtype):
    """In bfloat16 a sum of 256 terms has no relative error bound at all: γ would divide by 0."""
    torch.manual_seed(0)
    predictor = cb.Point(nn.Linear(300, 3)).predictor().to(dtype)
    with pytest.raises(CertibayesError, match=r"float32|precision"):
        cb.certify(predictor, torch.rand(3, 300), eps=0.01)


@pytest.mark.parametrize("terms", [2**22, 2**24, 2**25])
def test_sums_too_long_to_be_bounded_are_refused(terms):
    """The argument for the widening needs n u well below 1."""
    with pytest.raises(CertibayesError):
        outward(torch.float32).widening(terms)


@pytest.mark.parametrize("divisor", [2.0**-126 * 1.3, 1e-30])
def test_division_of_subnormals_by_a_tiny_number(divisor):
    """The relative widening of a subnormal underflows, and the division makes what is missing large."""
    graph, params = graph_and_params(trace(Functional(lambda self, x: x / divisor), torch.full((1, 4096), 2.0**-145)))
    steps = torch.arange(4096) % 60
    x = (40 + steps) * 2.0**-149
    box = interval_bounds(graph, params, outward_box(x[None], 3 * 2.0**-149), outward(torch.float32))
    for step in range(-3, 4):
        exact = (x.double() + step * 2.0**-149) / torch.tensor(divisor).double()
        assert_inside(exact[None], box)
        assert_inside((x[None] + step * 2.0**-149) / divisor, box)


def test_weights_beyond_the_limit_are_refused():
    net = nn.Linear(2, 2)
    with torch.no_grad():
        net.weight.fill_(2.0**31)
    with pytest.raises(cb.CertibayesError, match=r"2\^30"):
        cb.Point(net).predictor()


@pytest.mark.parametrize("method", METHODS)
def test_a_negative_radius_is_never_taken_for_a_bound(method, monkeypatch):
    """A rule that returns inverted boxes, a user's own say, could cancel against others; every layer is looked at."""
    predictor = cb.Point(nn.Linear(2, 2)).predictor()
    kind = type(predictor.graph.nodes[0].operation)
    own = registry.registered()[kind]

    def inverted(*arguments):
        box = own.interval(*arguments)
        return box._replace(radius=-box.radius)

    monkeypatch.setitem(registry._rules, kind, Rules(inverted, own.description, own.linear))
    with pytest.raises(UnsoundBounds):
        cb.certify(predictor, torch.rand(3, 2), eps=0.1, method=method)


def test_a_normalisation_made_negative_later_stays_sound():
    net = nn.Sequential(cb.networks.Normalize([0.5], [1.0]), nn.Flatten(), nn.Linear(1, 2))
    net[0].std.fill_(-0.25)
    network = trace(net, torch.rand(1, 1))
    graph, params = graph_and_params(network)
    x = torch.rand(20, 1)
    box = interval_bounds(graph, params, outward_box(x, 0.1), outward(torch.float32))
    for step in (-0.1, 0.0, 0.1):
        assert_inside(graph.evaluate(params, x + step), box)
