"""The memory limit: what is found does not depend on it, and what is held at once does."""

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.certification import _branch as branch
from certibayes.certification import _stage as stage
from certibayes.certification import as_method, margin_bounds
from certibayes.certification._pairs import NO_PAIRS, Pairs, Searched, bytes_held, search_in
from certibayes.certification._stage import run
from certibayes.certification.clock import Clock
from certibayes.certification.state import State
from certibayes.networks.graph import INPUT

from ..strategies import few_of
from .cases import EVERY_RIVAL, problem_of

POINTS, NETWORKS, CLASSES = 3, 3, 4

pytestmark = pytest.mark.usefixtures("few_steps")


@pytest.fixture(scope="module")
def predictor():
    """Convolutional networks; in float64, where ascent does not make much of what rounding does to sums."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 8), nn.ReLU(),
            nn.Linear(8, CLASSES),
        ).double()  # fmt: skip
    params = dict(net.named_parameters())
    std = {name: torch.full_like(value, 0.02) for name, value in params.items()}
    return cb.DiagonalGaussian(net, params, std, input_shape=(1, 8, 8)).predictor(NETWORKS, seed=1)


@pytest.fixture(scope="module")
def x():
    return torch.rand(POINTS, 1, 8, 8, generator=torch.Generator().manual_seed(2)).double()


@pytest.fixture
def held(monkeypatch):
    """Numbers of points whose boxes a search holds, of leaves bounded at once, as lists."""
    points: list[int] = []
    leaves: list[int] = []
    begin, bounded = branch.Search.begin, branch.Search._bounded

    def begin_and_count(self, *args):
        points.append(len(self.boxes[INPUT].center))
        return begin(self, *args)

    def bound_and_count(self, bounder, some, chosen):
        leaves.append(len(some.problem))
        return bounded(self, bounder, some, chosen)

    monkeypatch.setattr(branch.Search, "begin", begin_and_count)
    monkeypatch.setattr(branch.Search, "_bounded", bound_and_count)
    return points, leaves


SMALL = 1e-9
PLANED = 5e-3
"""Chords are cuts at a kink, so that what rounding does to a sum may decide which way the ascent sets out."""

WAYS = [
    ("best", "alpha-crown", "linf", SMALL), ("best", "alpha-crown", "l2", SMALL), ("joint", "crown", "linf", SMALL),
    ("best", "hull", "linf", PLANED), ("elided", "hull", "l2", PLANED),
]  # fmt: skip


@pytest.mark.parametrize("way", few_of(WAYS, fast=[WAYS[1], WAYS[2], WAYS[4]]), ids=str)
def test_little_memory_finds_what_much_memory_finds(predictor, x, held, way):
    method, bounds, norm, tolerance = way

    def found(memory):
        problem = problem_of(predictor, x, 0.25 if norm == "linf" else 0.75, norm=norm, memory=memory)
        return run(as_method(method, bounds=bounds).stages, problem, State.start(problem), Clock())

    much = found(2**31)
    points, leaves = (list(counts) for counts in held)
    for counts in held:
        counts.clear()
    little = found(1)
    assert max(points) > 1 and max(leaves) > 1
    assert max(held[0]) == 1 and max(held[1]) == 1
    assert torch.equal(little.proved, much.proved)
    torch.testing.assert_close(little.differences.amin(-1), much.differences.amin(-1), atol=tolerance, rtol=0)
    # What was held of the parts is dropped.
    assert little.pairs is much.pairs is NO_PAIRS


@pytest.mark.slow
def test_splitting_goes_through_all_parts(predictor, x, held):
    """Every point has an answer, or had its part of the time."""
    settings = {"eps": 0.25, "method": cb.Best("ibp", budget=60.0)}
    much = cb.certify(predictor, x, **settings)
    held[0].clear()
    little = cb.certify(predictor, x, memory=1, **settings)
    assert max(held[0]) == 1
    assert not much.unknown.any()
    assert torch.equal(little.certified, much.certified)
    assert torch.equal(little.attacked, much.attacked)


def _every_pair(predictor, x):
    problem = problem_of(predictor, x, 0.25, rounding="ideal", threshold=EVERY_RIVAL)
    return problem, Pairs.of(State.start(problem).every_rival, NETWORKS)


def _searched(problem, pairs, network, which):
    search = search_in(problem, pairs, network, which)
    with torch.no_grad():
        return Searched(network, which, search, search.begin(torch.full((len(which),), -100.0).double(), "crown"))


def test_boxes_are_held_once_a_point(predictor, x):
    """Not once for every rival."""
    problem, pairs = _every_pair(predictor, x)
    which = torch.arange(len(pairs.point)).flip(0)
    searched = _searched(problem, pairs, 0, which)
    assert all(len(box.center) == POINTS for box in searched.search.boxes.values())
    # Each pair with the boxes of its own point.
    expected = margin_bounds(predictor, problem.box, problem.labels, pairs.rival.view(POINTS, -1), "ideal")[0]
    torch.testing.assert_close(searched.margins, expected.flatten()[which])
    inputs = pairs.with_search(searched).worst_inputs(which, x[pairs.point[which]])
    assert ((inputs[0] - x[pairs.point[which]]).abs() <= 0.25 + 1e-12).all()
    assert inputs[0].ne(x[pairs.point[which]]).any() and torch.equal(inputs[1], x[pairs.point[which]])


def test_what_is_held_is_what_was_counted(predictor, x):
    """For the first network; all of them hold as much."""
    problem, pairs = _every_pair(predictor, x)
    for network in range(NETWORKS):
        pairs = pairs.with_search(_searched(problem, pairs, network, torch.arange(len(pairs.point))))
    total, count = 0, CLASSES - 1
    for _, _, search, trees in pairs.searches:
        tensors = [tensor for box in search.boxes.values() for tensor in (box.center, box.radius)]
        tensors += [trees.coefficients, trees.worst_inputs, trees.leaves.signs]
        total += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert 0.5 * POINTS * bytes_held(predictor, count) < total <= POINTS * bytes_held(predictor, count)


def test_all_rivals_are_counted_where_all_are_searched(predictor, x, monkeypatch):
    """Also where only some of them are open."""
    counted = []
    monkeypatch.setattr(stage, "bytes_held", lambda _, rivals: counted.append(rivals) or 1)
    problem = problem_of(predictor, x, 0.25)
    for method, at_most in ((cb.Elided("hull"), None), (cb.Joint("hull"), CLASSES - 2)):
        counted.clear()
        run(method.stages, problem, State.start(problem), Clock())
        assert counted == [CLASSES - 1] if at_most is None else max(counted) <= at_most
