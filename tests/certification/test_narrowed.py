"""What CROWN says of the layers in between is found once for every network and point, and handed on."""

from collections import Counter

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.bounds import intermediate
from certibayes.bounds.intermediate import crown_boxes_of_all
from certibayes.certification import _layers, network_bounds
from certibayes.certification._narrowed import Narrowed
from certibayes.certification._stage import Budgeted
from certibayes.certification.clock import Clock
from certibayes.certification.stages import LogitBounds, MarginBounds, SplitInputs
from certibayes.certification.state import State
from certibayes.regions import Box

from .cases import mapped, problem_of
from .test_intermediates import convolutional, points, predictor_of

EPS = 0.04


@pytest.fixture
def narrowed(monkeypatch):
    """How slopes were chosen, for each time that a layer was narrowed."""
    counts: list[intermediate.Chosen] = []
    found = intermediate._Layer.narrowed

    def count(self, how, every):
        counts.append(how)
        return found(self, how, every)

    monkeypatch.setattr(intermediate._Layer, "narrowed", count)
    return counts


@pytest.mark.parametrize("budget", [None, 0.5])
def test_every_layer_of_every_network_is_narrowed_once(narrowed, budget):
    predictor, x = predictor_of(convolutional(3.0, 0), convolutional(3.0, 1)), points(6)
    method = cb.Best("alpha-crown", "crown", budget=budget)
    shared = cb.certify(predictor, x, eps=EPS, method=method)
    # Two layers in two networks, by two slopes and by an ascent; stages after the first find nothing anew.
    assert Counter(how.word for how in narrowed if how.steps == 0) == {"adaptive": 4, "zero": 4}
    assert len([how for how in narrowed if how.steps > 0]) == 4
    assert 0 < int(shared.certified.sum()) < 6 or budget


def test_what_is_shared_changes_nothing(narrowed, monkeypatch):
    predictor, x = predictor_of(convolutional(3.0, 0), convolutional(3.0, 1)), points(6)
    method = cb.Best("alpha-crown", "crown")
    shared = cb.certify(predictor, x, eps=EPS, method=method)
    few = len(narrowed)
    monkeypatch.setattr(Narrowed, "keep", lambda *args: None)
    alone = cb.certify(predictor, x, eps=EPS, method=method)
    assert len(narrowed) - few > few
    assert torch.equal(alone.certified, shared.certified)
    torch.testing.assert_close(alone.lower, shared.lower, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(alone.upper, shared.upper, atol=1e-5, rtol=1e-5)


def test_each_point_has_its_own_boxes_back():
    predictor = predictor_of(convolutional(3.0))
    problem = problem_of(predictor, points(5), EPS).sharing(2**20)
    graph, layers = predictor.graph, sorted(intermediate.narrowed_layers(predictor.graph))
    shapes = {node.name: node.shape for node in graph.nodes}

    def boxes(which):
        filled = {
            name: torch.ones(len(which), *shapes[name]) * which.view(-1, *[1] * len(shapes[name])) for name in layers
        }
        return {name: Box(value, value + 1) for name, value in filled.items()}

    share = problem.share.of_network(0)
    for which in (torch.tensor([3, 1]), torch.tensor([0, 4])):
        assert share.take(which).known("crown") is None
        share.take(which).keep(graph, "crown", boxes(which.float()))
    asked = torch.tensor([4, 1, 0])
    for name, box in share.take(asked).known("crown").items():
        expected = boxes(asked.float())[name]
        assert torch.equal(box.center, expected.center) and torch.equal(box.radius, expected.radius)
    assert share.take(torch.tensor([1, 2])).known("crown") is None
    assert share.take(asked).known("alpha-crown") is None
    assert share.of_network(1).take(asked).known("crown") is None
    assert problem.take(torch.tensor([4])).share.points.tolist() == [4]


def test_nothing_is_kept_beyond_its_memory():
    problem = problem_of(predictor_of(convolutional(3.0)), points(2), EPS).sharing(100)
    graph, share = problem.predictor.graph, problem.share.of_network(0)
    shapes = {node.name: node.shape for node in graph.nodes}
    share.keep(
        graph, "crown", {name: Box(torch.zeros(2, *shape), torch.zeros(2, *shape)) for name, shape in shapes.items()}
    )
    assert share.known("crown") is None


def _of_two_inputs(seed):
    """Deep enough that intervals explode; with few inputs boxes are split, and the parts are boxes of their own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        wide = [nn.Linear(2, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU()]
        net = nn.Sequential(*wide, nn.Linear(12, 4))
    with torch.no_grad():
        for layer in (net[0], net[2], net[4]):
            layer.weight.mul_(3.0)
    return net


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("kind", ["images", "two inputs"])
def test_what_is_handed_on_is_what_would_be_found_anew(kind, together, monkeypatch):
    """Boxes of another network, point or part of a box would prove what is not true."""
    if kind == "images":
        predictor, x, eps = predictor_of(convolutional(3.0, 0), convolutional(3.0, 1)), points(4), EPS
    else:
        predictor = predictor_of(*(_of_two_inputs(seed) for seed in range(3)))
        x, eps = torch.rand(7, 2, generator=torch.Generator().manual_seed(2)), 0.2
    found, sizes = _layers.narrowed_boxes, []

    def compared(graph, stack, box, rounding, intermediates, share=None, networks=()):
        handed = found(graph, stack, box, rounding, intermediates, share, networks)
        anew = found(graph, stack, box, rounding, "crown")
        if intermediates == "alpha-crown":
            anew = crown_boxes_of_all(graph, stack, box, rounding, known=anew, steps=intermediate.STEPS)
        for name in intermediate.narrowed_layers(graph):
            for one, other in zip(handed[name].ends(), anew[name].ends(), strict=True):
                # An ascent magnifies last bits, which depend on what else is in a batch.
                torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)
        sizes.append(len(box.center))
        return handed

    for module in (_layers, network_bounds):
        monkeypatch.setattr(module, "narrowed_boxes", compared)
    if together:
        mapped(monkeypatch)
    if kind == "images":
        cb.certify(predictor, x, eps=eps, method=cb.Best("alpha-crown", "crown", budget=0.5))
    else:
        problem = problem_of(predictor, x, eps, intermediates="crown").sharing(2**24)
        state = LogitBounds("ibp")(problem, State.start(problem), Clock())
        state = MarginBounds("crown", "open")(problem, state, Clock())
        Budgeted((SplitInputs(),))(problem, state, Clock(2.0))
    # Some points, and not always the first.
    assert len(set(sizes)) > 1


def test_points_that_go_one_by_one_for_want_of_memory_have_their_own_boxes():
    predictor = predictor_of(convolutional(3.0, 0), convolutional(3.0, 1))
    problem = problem_of(predictor, points(3), EPS).sharing(2**24)
    settings = predictor, problem.box, "outward", "crown", "crown", 1
    alone = network_bounds.logit_bounds(*settings)
    # What the first call keeps is handed to the second.
    for _ in range(2):
        for one, other in zip(network_bounds.logit_bounds(*settings, share=problem.share), alone, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
