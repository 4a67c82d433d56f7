"""Branch and bound: never above what a network really does, close to it when finished, and honest when stopped."""

import time

import pytest
import torch
from hypothesis import given
from torch import nn

import certibayes as cb
from certibayes.attacks import PGD
from certibayes.bounds import IDEAL, ideal_box, outward, outward_box
from certibayes.certification import as_method
from certibayes.certification._leaves import CLOSE
from certibayes.errors import InvalidInput
from certibayes.networks import direct_sums, trace

from ..strategies import ZOO, attacked_points, ball, few_of, inputs, law, outputs_at, points_of, seeds, traced
from .cases import asked, finish, is_done, search_of

NETWORKS = [
    "relu", "no bias", "residual", "convolution, stride and padding", "batch norm on images", "residual images",
    "sequence", "transposed convolution", "dense block", "slices", "paddings", "upsample", "reductions",
    "products with matrices", "channels last", "average pool, padded, ceil",
]  # fmt: skip


def two_inputs(seed=0, dtype=torch.float64):
    """A network of two inputs, whose smallest margin a fine grid finds."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(2, 12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3)).to(dtype)
    return trace(net, torch.zeros(1, 2, dtype=dtype))


@pytest.mark.parametrize("seed", few_of(range(6), fast=[1]))
def test_when_finished_the_bound_is_close_to_the_smallest_margin_there_is(seed):
    network = two_inputs(seed)
    x = torch.tensor([[0.3, -0.2]], dtype=torch.float64)
    labels = torch.tensor([seed % 3])
    with torch.no_grad():
        search, trees, rivals = search_of(network.graph, network.params, ideal_box(x, 1.0), labels, IDEAL)
        trees = finish(search, trees, 60)
        axis = torch.linspace(-1, 1, 401, dtype=torch.float64)
        grid = x + torch.cartesian_prod(axis, axis)
        outputs = network.graph.evaluate(network.params, grid)
        margins = outputs[:, labels] - outputs[:, rivals[0]]
    assert is_done(trees)
    smallest = margins.amin(0)
    assert (trees.bounds <= smallest + 1e-9).all()
    # Where every sign is fixed, a few steps on the multipliers are not the last word; nor is a grid.
    assert (trees.bounds >= smallest - CLOSE - 0.1).all()


@pytest.mark.parametrize("name", few_of(NETWORKS, fast=["relu", "residual images"]))
@law(2)
@given(seed=seeds)
def test_no_point_of_the_ball_is_below_the_bound_after_any_round(name, seed):
    """In floats, without tolerance."""
    assert name in ZOO
    graph, params = traced(name, seed)
    x, labels = inputs(name, 2, seed), torch.tensor([0, 1])
    points = torch.cat(
        [
            points_of(*ball(x, 0.3), 64, seed),
            attacked_points(lambda z: graph.evaluate(params, z), *ball(x, 0.3)),
        ]
    )
    with torch.no_grad(), direct_sums():
        search, trees, rivals = search_of(graph, params, outward_box(x, 0.3), labels, outward(torch.float32))
        outputs = outputs_at(graph, params, points).double()
        own = outputs.gather(-1, labels.expand(len(outputs), 2)[..., None])
        margins = (own - outputs).gather(-1, rivals.expand(len(outputs), -1, -1)).flatten(1)
        before = trees
        for _ in range(8):
            functions = (points[:, search.point] * trees.coefficients.double()).flatten(2).sum(-1) + trees.offsets
            assert (trees.bounds <= margins).all() and (functions <= margins).all()
            assert (trees.bounds >= before.bounds).all() and (trees.offsets >= before.offsets).all()
            before = trees
            if is_done(trees):
                break
            trees = search.advance(trees, asked(trees))


def test_it_stops_at_the_wanted_margin_and_claims_no_more():
    network = two_inputs(1)
    x, labels = torch.tensor([[0.3, -0.2]], dtype=torch.float64), torch.tensor([0])
    with torch.no_grad():
        _, trees, _ = search_of(network.graph, network.params, ideal_box(x, 0.2), labels, IDEAL)
    assert is_done(trees, -50.0)


def test_a_higher_margin_opens_leaves_again():
    network = two_inputs(2)
    x, labels = torch.tensor([[0.3, -0.2]], dtype=torch.float64), torch.tensor([0])
    with torch.no_grad():
        search, begun, _ = search_of(network.graph, network.params, ideal_box(x, 2.0), labels, IDEAL)
        at_once = finish(search, begun, 60)
        in_steps, halfway = begun, (begun.bounds + at_once.bounds) / 2
        while in_steps.open(halfway).any():
            in_steps = search.advance(in_steps, halfway)
        reached = in_steps.bounds
        in_steps = finish(search, in_steps, 60)
    assert (at_once.bounds > begun.bounds + 0.01).all()
    assert (reached >= halfway).all()
    torch.testing.assert_close(in_steps.bounds, at_once.bounds, atol=5 * CLOSE, rtol=0)


def test_linear_functions_rise_with_the_bounds_of_leaves():
    """What all networks together are bounded by: A stays as the root has it, and d rises to what leaves allow."""
    network = two_inputs(0)
    x, labels = torch.tensor([[0.3, -0.2]], dtype=torch.float64), torch.tensor([0])
    with torch.no_grad():
        search, begun, _ = search_of(network.graph, network.params, ideal_box(x, 2.0), labels, IDEAL)
        later = begun
        for _ in range(4):
            later = search.advance(later, asked(later))
    assert torch.equal(later.coefficients, begun.coefficients)
    assert (later.offsets > begun.offsets + 0.05).any()


def test_what_is_left_when_time_is_up_keeps_its_bounds():
    network = two_inputs(2)
    x, labels = torch.tensor([[0.3, -0.2]], dtype=torch.float64), torch.tensor([0])
    with torch.no_grad():
        search, begun, _ = search_of(network.graph, network.params, ideal_box(x, 1.0), labels, IDEAL)
        before = begun.bounds.clone()
        stopped = search.advance(begun, asked(begun), lambda: True)
    assert torch.equal(stopped.bounds, before)
    assert len(stopped.leaves.problem) == len(begun.leaves.problem)


def test_a_search_that_never_began_knows_what_was_known():
    network = two_inputs(2)
    x, labels = torch.tensor([[0.3, -0.2]], dtype=torch.float64), torch.tensor([0])
    with torch.no_grad():
        search, begun, _ = search_of(network.graph, network.params, ideal_box(x, 1.0), labels, IDEAL)
        stopped = search.begin(begun.known, "hull", lambda: True)
    assert torch.equal(stopped.bounds, begun.known)
    assert not stopped.coefficients.any() and torch.equal(stopped.offsets, begun.known)
    assert bool((stopped.smallest == torch.inf).all())


def test_going_on_does_not_change_what_it_goes_on_from():
    better = []
    for seed in range(3):
        network = two_inputs(seed)
        x, labels = torch.tensor([[0.3, -0.2]], dtype=torch.float64), torch.tensor([0])
        with torch.no_grad():
            search, begun, _ = search_of(network.graph, network.params, ideal_box(x, 2.0), labels, IDEAL)
            tensors = [*begun.leaves, *(part for part in begun if isinstance(part, torch.Tensor))]
            before = [tensor.clone() for tensor in tensors]
            after = finish(search, begun, 2)
        assert all(torch.equal(tensor, copy) for tensor, copy in zip(tensors, before, strict=True))
        better.append(((after.bounds > begun.bounds).any(), (after.smallest < begun.smallest).any()))
    assert all(any(found) for found in zip(*better, strict=True))  # there was something to change


def test_the_inputs_it_came_upon_are_in_the_box_and_as_bad_as_it_says():
    network = two_inputs(3)
    x, labels = torch.tensor([[0.3, -0.2]], dtype=torch.float64), torch.tensor([0])
    with torch.no_grad():
        search, trees, rivals = search_of(network.graph, network.params, ideal_box(x, 0.7), labels, IDEAL)
        trees = finish(search, trees)
        assert ((trees.worst_inputs - x).abs() <= 0.7 + 1e-12).all()
        outputs = network.graph.evaluate(network.params, trees.worst_inputs)
        margins = outputs[:, 0] - outputs.gather(1, rivals.T).squeeze(1)
    torch.testing.assert_close(margins, trees.smallest)


@pytest.fixture(scope="module")
def predictor():
    digits = cb.data.load("digits")
    likelihood = cb.RobustCategorical(cb.TwoPoint(0.05), cb.IBP())
    posterior = cb.fit(
        cb.networks.mlp(784, [24], 10),
        (digits.train.inputs[:1500], digits.train.targets[:1500]),
        algorithm=cb.VOGN(lr=0.01),
        likelihood=likelihood,
        temperature=0.01,
        epochs=6,
        progress=False,
    )
    return posterior.predictor(4, seed=1)


@pytest.fixture(scope="module")
def digits():
    x, y = cb.data.load("digits").test
    return x[:60], y[:60]


@pytest.fixture(scope="module")
def split(predictor, digits):
    """A certificate with branch and bound, of which some points are proved and some refuted."""
    x, y = digits
    return cb.certify(predictor, x, y, eps=0.05, domain=(0.0, 1.0), method=cb.Best(budget=10.0))


class TestCertify:
    def test_splitting_proves_more_and_every_point_has_one_answer(self, predictor, digits):
        x, y = digits
        plain, split = (
            cb.certify(predictor, x, y, eps=0.05, domain=(0.0, 1.0), method=cb.Best("crown", budget=budget))
            for budget in (None, 20.0)
        )
        assert (split.certified | ~plain.certified).all()
        assert int(split.certified.sum()) > int(plain.certified.sum())
        assert not (split.certified & split.attacked).any()
        assert torch.equal(split.unknown, ~(split.certified | split.attacked))
        assert plain.attacked is None

    def test_counterexamples_are_counterexamples(self, predictor, digits, split):
        (x, y), found = digits, split
        worst = found.counterexamples[found.attacked]
        assert int(found.attacked.sum()) > 0
        assert (predictor.predict(worst) != y[found.attacked]).all()
        lower, upper = ball(x[found.attacked], 0.05, (0.0, 1.0))
        assert (worst >= lower).all()
        assert (worst <= upper).all()
        assert torch.equal(found.counterexamples[~found.attacked], x[~found.attacked])

    def test_no_attack_breaks_what_splitting_proved(self, predictor, digits, split):
        (x, y), proved = digits, split.certified
        attacked = cb.attack(
            predictor, x[proved], y[proved], eps=0.05, domain=(0.0, 1.0), method=PGD(steps=50, restarts=6), seed=3
        )
        assert attacked.robust_accuracy == 1.0

    def test_the_time_limit_is_kept(self, predictor, digits):
        x, y = digits
        began = time.monotonic()
        cb.certify(predictor, x, y, eps=0.2, domain=(0.0, 1.0), method=cb.Best("ibp", budget=0.01))
        # Not a claim about speed: hours of work would be left.
        assert time.monotonic() - began < 60

    @pytest.mark.parametrize("budget", [0.0, -1.0, float("nan"), float("inf")])
    def test_a_budget_of_nothing_is_refused(self, budget):
        with pytest.raises(InvalidInput, match=f"budget is a positive number of seconds, got {budget}"):
            cb.Best(budget=budget)

    def test_only_the_method_best_takes_a_budget(self):
        with pytest.raises(InvalidInput, match="only the method best can use a budget, not pairwise"):
            as_method("pairwise", budget=1.0)


def test_a_network_without_activations_has_nothing_to_split():
    """A linear classifier: its margins are exact from the start."""
    predictor = cb.Point(nn.Linear(3, 4)).predictor()
    x = torch.rand(5, 3)
    found = cb.certify(predictor, x, eps=0.3, method=cb.Best(budget=5.0))
    assert torch.equal(found.certified, cb.certify(predictor, x, eps=0.3, method="elided").certified)
    assert torch.equal(found.certified, ~found.attacked)
