"""What one network finds at its roots starts the next: half the ascent, and nothing lost."""

import pytest
import torch

import certibayes as cb
from certibayes.certification import _branch as branch
from certibayes.certification._pairs import Pairs
from certibayes.certification.clock import Clock
from certibayes.certification.stages import Refine
from certibayes.certification.state import State

from .cases import EVERY_RIVAL, problem_of
from .test_intermediates import convolutional, points, predictor_of


@pytest.fixture
def steps(monkeypatch):
    """Lengths of all ascents."""
    found: list[int] = []
    ascend = branch.ascend

    def watched(bounder, specification, start, count, *rate):
        found.append(count)
        return ascend(bounder, specification, start, count, *rate)

    monkeypatch.setattr(branch, "ascend", watched)
    return found


def _refined(predictor, x):
    problem = problem_of(predictor, x, 0.02, threshold=EVERY_RIVAL, intermediates="crown")
    return Refine("alpha-crown")(problem, State.start(problem), Clock())


def test_the_same_network_again_needs_half_the_steps(steps):
    net = convolutional(2.0)
    state = _refined(predictor_of(net, net), points(3))
    whole = branch.ROOTS["alpha-crown"].steps
    assert steps == [whole, (whole + 1) // 2]
    # A point that the first network's worst input breaks is not asked about again.
    again = torch.isfinite(state.margins[1])
    assert int(again.sum()) >= 4
    assert (state.margins[1][again] >= state.margins[0][again] - 1e-3).all()


def test_networks_that_are_not_alike_lose_little(steps):
    nets = [convolutional(2.0, seed) for seed in (0, 1)]
    together, alone = _refined(predictor_of(*nets), points(3)), _refined(predictor_of(nets[1]), points(3))
    rivals = torch.isfinite(alone.margins[0])
    lost = alone.margins[0][rivals] - together.margins[1][rivals]
    assert float(lost.max()) < 0.2 * float(alone.margins[0][rivals].std())


def test_pairs_that_were_not_searched_have_nothing_to_start_with(steps):
    net = convolutional(2.0)
    pairs = _refined(predictor_of(net), points(3)).pairs
    chosen = torch.tensor([4, 0])
    start = pairs.start(chosen)
    assert torch.equal(start.variables, pairs.searches[0].trees.leaves.variables[chosen]) and start.is_known.all()
    assert Pairs.of(torch.ones(3, 3, dtype=torch.bool), 1).start(chosen) is None


def test_dense_networks_begin_their_cuts_as_ever(steps):
    net = cb.networks.mlp(6, [8, 8], 3)
    problem = problem_of(cb.Samples.from_modules([net, net]).predictor(2), torch.rand(2, 6), 0.1, threshold=EVERY_RIVAL)
    Refine("hull")(problem, State.start(problem), Clock())
    assert steps == [branch.ROOTS["hull"].steps] * 2


def test_margins_are_the_bounds_that_were_found_and_not_what_was_seen():
    """What a network does at some input is above its smallest margin, and no bound. Each pair has its point's box."""
    x = points(3)
    state = _refined(predictor_of(convolutional(2.0, 0), convolutional(2.0, 1)), x)
    pairs = state.pairs
    for searched in pairs.searches:
        place = searched.network, pairs.point[searched.which], pairs.rival[searched.which]
        center = searched.search.boxes["input"].center[searched.search.point]
        torch.testing.assert_close(center, x[place[1]])
        assert torch.equal(state.margins[place], searched.trees.bounds)
        assert (searched.trees.bounds <= searched.trees.smallest).all()
        assert (searched.trees.bounds < searched.trees.smallest).any()
