"""The memory limit: what is found does not depend on it, and what is held at once does."""

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.bounds import ideal_box
from certibayes.certify import branch, margin_bounds
from certibayes.certify.judge import Judge
from certibayes.certify.refine import Refinement, bytes_held
from certibayes.networks.graph import INPUT

POINTS, NETWORKS, CLASSES = 3, 3, 4


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
    widths = {name: torch.full_like(value, 0.02) for name, value in params.items()}
    return cb.DiagonalGaussian(net, params, widths, input_shape=(1, 8, 8)).predictor(NETWORKS, seed=1)


@pytest.fixture(scope="module")
def x():
    return torch.rand(POINTS, 1, 8, 8, generator=torch.Generator().manual_seed(2)).double()


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    for name, method in branch.METHODS.items():
        monkeypatch.setitem(branch.METHODS, name, method._replace(steps=min(5, method.steps)))


@pytest.fixture
def margins(monkeypatch):
    """What the judge says of every batch, as a list."""
    said, judged = [], Judge.__call__

    def listen(self, points, seconds=None):
        said.append(judged(self, points, seconds))
        return said[-1]

    monkeypatch.setattr(Judge, "__call__", listen)
    return said


@pytest.fixture
def held(monkeypatch):
    """Numbers of points whose boxes a refinement held, of leaves bounded at once, as lists."""
    points: list[int] = []
    leaves: list[int] = []
    begin, bounded = Refinement.begin, branch.Search._bounded

    def begin_and_count(self, *args):
        found = begin(self, *args)
        points.append(max(len(searched.search.boxes[INPUT].centre) for searched in self.searches))
        return found

    def bound_and_count(self, problem, *args):
        leaves.append(len(problem))
        return bounded(self, problem, *args)

    monkeypatch.setattr(Refinement, "begin", begin_and_count)
    monkeypatch.setattr(branch.Search, "_bounded", bound_and_count)
    return points, leaves


SMALL = 1e-9
PLANED = 5e-3
"""Chords are planes at a kink, so that what rounding does to a sum may decide which way the ascent sets out."""

WAYS = [
    ("best", "alpha-crown", "linf", SMALL), ("best", "alpha-crown", "l2", SMALL), ("joint", "crown", "linf", SMALL),
    ("best", "hull", "linf", PLANED), ("elided", "hull", "l2", PLANED),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "bounds", "norm", "tolerance"), WAYS)
def test_little_memory_finds_what_much_memory_finds(predictor, x, margins, held, rule, bounds, norm, tolerance):
    settings = {"eps": 0.25 if norm == "linf" else 0.75, "rule": rule, "bounds": bounds, "norm": norm}
    much = cb.certify(predictor, x, **settings)
    points, leaves = (list(counts) for counts in held)
    for counts in held:
        counts.clear()
    little = cb.certify(predictor, x, memory=1, **settings)
    assert max(points) > 1 and max(leaves) > 1
    assert max(held[0]) == 1 and max(held[1]) == 1
    assert torch.equal(little.certified, much.certified)
    torch.testing.assert_close(margins[1].margin, margins[0].margin, atol=tolerance, rtol=0)


def test_splitting_goes_through_all_parts(predictor, x, held):
    """Every point has an answer, or had its share of the time."""
    settings = {"eps": 0.25, "rule": "best", "bounds": "ibp", "budget": 60.0}
    much = cb.certify(predictor, x, **settings)
    held[0].clear()
    little = cb.certify(predictor, x, memory=1, **settings)
    assert max(held[0]) == 1
    assert not much.unknown.any()
    assert torch.equal(little.certified, much.certified)
    assert torch.equal(little.attacked, much.attacked)


def test_boxes_are_held_once_a_point(predictor, x):
    """Not once for every rival."""
    labels, count = predictor.predict(x), CLASSES - 1
    point = torch.arange(POINTS).repeat_interleave(count)
    rivals = (labels[:, None] + torch.arange(1, CLASSES)).flatten() % CLASSES
    refinement = Refinement(predictor, ideal_box(x, 0.25), point, labels[point], rivals, "ideal")
    which, known = torch.arange(POINTS * count).flip(0), torch.full((POINTS * count,), -100.0, dtype=torch.float64)
    found = refinement.begin(0, which, known, "crown", lambda: False)
    search = refinement.searches[0].search
    assert all(len(box.centre) == POINTS for box in search.boxes.values())
    # Each problem with the boxes of its own point.
    expected = margin_bounds(predictor, ideal_box(x, 0.25), labels, rivals.view(POINTS, count), "ideal")[0]
    torch.testing.assert_close(found.margins, expected.flatten()[which])
    assert ((refinement.inputs(which)[0] - x[point[which]]).abs() <= 0.25 + 1e-12).all()


def test_what_is_held_is_what_was_counted(predictor, x):
    """For the first network; all of them hold as much."""
    labels, count = predictor.predict(x), CLASSES - 1
    point = torch.arange(POINTS).repeat_interleave(count)
    rivals = (labels[:, None] + torch.arange(1, CLASSES)).flatten() % CLASSES
    refinement = Refinement(predictor, ideal_box(x, 0.25), point, labels[point], rivals, "ideal")
    which, known = torch.arange(POINTS * count), torch.full((POINTS * count,), -100.0, dtype=torch.float64)
    for network in range(NETWORKS):
        refinement.begin(network, which, known, "crown", lambda: False)
    total = 0
    for _, _, search in refinement.searches:
        tensors = [tensor for box in search.boxes.values() for tensor in box]
        tensors += [search.line_coefficients, search.worst_inputs, search.leaves.signs]
        total += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert 0.5 * POINTS * bytes_held(predictor, count) < total <= POINTS * bytes_held(predictor, count)
