"""Branch and bound behind convolutions: every leaf holds, whatever its variables; and broken versions are caught."""

import copy
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import certibayes as cb
from certibayes.attacks import as_attack
from certibayes.bounds import Box, layer_boxes, linear, outward, outward_box
from certibayes.bounds.intermediate import crown_boxes
from certibayes.bounds.linear import margin_specification
from certibayes.bounds.rules import activation
from certibayes.certification import _branch as branch
from certibayes.certification._leaves import Trees
from certibayes.networks import direct_sums, trace

from ..bounds.exact_cases import knots_of
from ..bounds.test_windows import NETS, dense_layers, network
from ..strategies import attacked_points, ball, few_of, generator, graph_and_params, law, points_of, seeds
from .cases import asked, is_done, search_of
from .test_branch_exact import _assert_leaves_hold

RELUS = [name for name in NETS if name not in ("dilated, groups", "three")]


def tiny(seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Conv2d(1, 2, 2, padding=1), nn.ReLU(), nn.Conv2d(2, 2, 3, 2, 1), nn.ReLU(), nn.Flatten(),
            nn.Linear(18, 2),
        )  # fmt: skip
    net.input_shape = (1, 4, 4)
    return net


@law(5)
@given(seed=seeds, eps=st.sampled_from([0.3, 3.0]), pixel=st.integers(0, 15), dtype=st.sampled_from(["32", "64"]))
def test_every_leaf_is_below_the_exact_network(seed, eps, pixel, dtype):
    """Over one pixel, in rational arithmetic: at every kink, on every leaf that it belongs to."""
    net, dtype = tiny(seed), getattr(torch, f"float{dtype}")
    x = torch.rand(1, 1, 4, 4, generator=generator(seed))
    middle = Fraction(float(x.view(-1)[pixel]))
    layers = dense_layers(copy.deepcopy(net), pixel, x)
    knots = knots_of(layers, middle - Fraction(eps), middle + Fraction(eps))
    graph, params = graph_and_params(trace(net))
    params = {name: value.to(dtype) for name, value in params.items()}
    radii = torch.zeros(1, 1, 4, 4, dtype=torch.float64)
    radii.view(-1)[pixel] = eps
    box = cb.regions.InputRegion.around(x.to(dtype), radii).outward_box(dtype)
    with torch.no_grad():
        search, trees, _ = search_of(graph, params, box, torch.tensor([0]), outward(dtype))
        _assert_leaves_hold(trees, knots, [lambda z: z[0] - z[1]])
        for _ in range(4):
            trees = search.advance(trees, asked(trees))
            _assert_leaves_hold(trees, knots, [lambda z: z[0] - z[1]])


def assert_leaves_hold_with_any_variables(name: str, seed: int, eps: float = 0.1) -> None:
    """Fix signs that some input of the ball has, set all variables at random, and look at all inputs of each leaf."""
    graph, params, x = network(name, seed)
    x, labels, rounding = x[:2], torch.tensor([0, 1]), outward(torch.float32)
    lower, upper = ball(x, eps)
    points = points_of(lower, upper, 24, seed)
    points = torch.cat([points, attacked_points(lambda z: graph.evaluate(params, z), lower, upper)])

    def differences(z):
        outputs = graph.evaluate(params, z)
        return outputs - outputs.roll(1, -1)

    points = torch.cat([points, attacked_points(differences, lower, upper)])
    with torch.no_grad(), direct_sums():
        boxes = crown_boxes(graph, params, layer_boxes(graph, params, outward_box(x, eps), rounding), rounding)
        specification, rivals = margin_specification(labels, graph.classes, x.dtype)
        count = rivals.shape[1]
        point = torch.arange(2).repeat_interleave(count)
        search = branch.Search(graph, params, boxes, point, specification.flatten(0, 1)[:, None], rounding)
        seen: dict[str, torch.Tensor] = {}

        def watch(node, values, output):
            seen[node.name] = output
            return output

        units, margins = [], []
        for z in points:
            outputs = graph.evaluate(params, z, watch).double()
            units.append(torch.cat([seen[node.inputs[0]].flatten(1) for node in search.relus], 1))
            margins.append((outputs.gather(1, labels[:, None]) - outputs.gather(1, rivals)).flatten())
        # Of every input and problem: (inputs, P, H) and (inputs, P).
        inside, margin = torch.stack(units)[:, point], torch.stack(margins)
        rng = generator(seed + 5)
        problem = torch.arange(2 * count).repeat(3)
        home = torch.randint(len(points), (len(problem),), generator=rng)
        pattern = torch.where(inside[home, problem] >= 0, 1, -1).to(torch.int8)
        share = torch.rand(len(problem), 1, generator=rng)
        # A third has multipliers, a third has none, and a third has nothing but fixed signs.
        kind = torch.arange(3).repeat_interleave(2 * count)[:, None]
        share = torch.where(kind == 2, 1.0, share)
        signs = pattern * (torch.rand(pattern.shape, generator=rng) < share)
        chance = torch.rand(pattern.shape, generator=rng)
        multipliers = (kind == 0) * chance * 10 ** (4 * torch.rand(len(problem), 1, generator=rng) - 3)
        variables = torch.where(signs == 0, chance.round(decimals=1), multipliers).half()
        template = search.begin(torch.full((2 * count,), -torch.inf, dtype=torch.float64), "crown").leaves
        leaves = template.take(problem)._replace(
            signs=signs, variables=variables, bound=torch.full((len(problem),), -torch.inf, dtype=torch.float64)
        )
        bounder = search._bounder(leaves)
        bound = search._bounded(bounder, leaves, search._relaxation(bounder, leaves))[0].leaves.bound
    assert torch.isfinite(bound).all()
    belongs = (inside[:, problem] * signs >= 0).all(-1)
    assert belongs.any(0).all()
    assert (~belongs | (bound <= margin[:, problem])).all()


@pytest.mark.parametrize("name", few_of(RELUS, fast=["padded", "batch norm"]))
@law(4)
@given(seed=seeds)
def test_any_variables_are_sound(name, seed):
    """In floats, without tolerance."""
    assert_leaves_hold_with_any_variables(name, seed)


def _added(self, node, back):
    """The multipliers have the wrong sign."""
    (coefficients,) = back.coefficients
    multipliers = self.relaxation.multipliers[node.name] * self.relaxation.signs[node.name]
    return back._replace(coefficients=(coefficients + multipliers,))


def _low_chords(found):
    """Chords pass below the ends of ReLUs."""

    def kinked(slope_below, step):
        relaxation = found(slope_below, step)
        return relaxation._replace(upper_offset=-relaxation.upper_offset)

    return kinked


def _mirrored(found):
    """Boxes are cut to the other sign."""
    return lambda self, problem, signs: found(self, problem, -signs)


def _too_small(found):
    """Boxes lose a tenth of their radius."""

    def boxes_of(self, problem, signs):
        boxes = found(self, problem, signs)
        return {name: Box(box.center, 0.9 * box.radius) for name, box in boxes.items()}

    return boxes_of


MUTATIONS = {
    "multipliers added": (linear._BackwardPass, "_subtract_multipliers", lambda found: _added, 0.1),
    "low chords": (activation, "kinked", _low_chords, 0.5),
    "other sign": (branch.Search, "boxes_of", _mirrored, 0.1),
    # Small balls are nearly linear, and bounds on them nearly exact.
    "small boxes": (branch.Search, "boxes_of", _too_small, 0.001),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_what_is_broken_on_purpose_is_caught(mutation, monkeypatch):
    owner, name, broken, eps = MUTATIONS[mutation]
    monkeypatch.setattr(owner, name, broken(getattr(owner, name)))
    caught = 0
    for seed in range(4):
        try:
            assert_leaves_hold_with_any_variables("padded", seed, eps)
        except AssertionError:
            caught += 1
    assert caught > 0


def test_a_tree_without_one_of_its_children_is_caught(monkeypatch):
    """The law of ``test_branch``, on trees that forget every second leaf."""
    graph, params, x = network("padded", 1)
    labels, (lower, upper) = torch.tensor([0]), ball(x[:1], 0.3)
    points = attacked_points(lambda z: graph.evaluate(params, z), lower, upper, steps=20)
    with torch.no_grad(), direct_sums():
        outputs = torch.stack([graph.evaluate(params, z) for z in points]).double()[:, 0]
        found = outputs[:, 0, None] - outputs[:, 1:]
        search, trees, _ = search_of(graph, params, outward_box(x[:1], 0.3), labels, outward(torch.float32))
        forgetful = honest = trees
        for _ in range(6):
            honest = search.advance(honest, asked(honest))
            assert (honest.bounds <= found.amin(0)).all()
            forgetful = search.advance(forgetful, asked(forgetful))
            kept = forgetful.leaves.found > forgetful.leaves.found.median()
            kept |= torch.arange(len(kept)) < 2
            forgetful = forgetful._replace(leaves=forgetful.leaves.take(kept))
    assert (forgetful.bounds > honest.bounds).any()


def test_what_is_given_up_keeps_the_bound_of_its_worst_leaf():
    graph, params, x = network("padded", 0)
    with torch.no_grad():
        search, trees, _ = search_of(
            graph, params, outward_box(x[:2], 0.2), torch.tensor([0, 1]), outward(torch.float32)
        )
        for _ in range(3):
            trees = search.advance(trees, asked(trees))
        given_up = torch.tensor([True, False, True, False])
        closed = trees.closed(given_up)
    assert torch.equal(closed.bounds, trees.bounds)
    # What joint bounds of all networks are made of holds for the whole box, too.
    assert torch.equal(closed.offsets, trees.offsets)
    assert torch.bincount(closed.leaves.problem)[given_up].tolist() == [1, 1]
    assert not closed.leaves.signs[given_up[closed.leaves.problem]].any()
    assert not closed.open(asked(closed))[given_up[closed.leaves.problem]].any()
    others = ~given_up[closed.leaves.problem]
    before = ~given_up[trees.leaves.problem]
    assert torch.equal(closed.leaves.bound[others], trees.leaves.bound[before])


def test_little_memory_gives_up_the_problems_that_need_most(monkeypatch):
    monkeypatch.setattr(branch, "LEAST_KEPT", 8)
    graph, params, x = network("padded", 0)
    with torch.no_grad():
        search, trees, _ = search_of(
            graph, params, outward_box(x[:2], 0.2), torch.tensor([0, 1]), outward(torch.float32)
        )
        search = branch.replace(search, memory=0)
        for _ in range(3):
            trees = search.advance(trees, asked(trees))
        kept = search.within_memory(trees, torch.tensor([2.0, 9.0, 1.0, 5.0]))
    assert len(trees.leaves.problem) == 32
    assert torch.bincount(kept.leaves.problem).tolist() == [1, 1, 8, 1]
    assert torch.equal(kept.bounds, trees.bounds)


def test_the_easiest_points_come_first_and_no_more_than_asked():
    graph, params, x = network("padded", 0)
    with torch.no_grad():
        search, trees, _ = search_of(
            graph, params, outward_box(x[:2], 0.2), torch.tensor([0, 1]), outward(torch.float32)
        )
        grown = search.advance(trees, asked(trees), most=2, priority=torch.tensor([3.0, 0.0, 2.0, 1.0]))
    assert torch.bincount(grown.leaves.problem).tolist() == [1, 2, 1, 2]


def test_work_left_is_the_number_of_leaves_if_splits_go_on_as_they_did():
    """Two leaves that are short by 2 and by 1 gains: 2² + 2¹ leaves; none where nothing is open."""
    leaves = branch.Leaves(
        problem=torch.tensor([0, 0, 1]), signs=torch.zeros(3, 1, dtype=torch.int8), variables=torch.zeros(3, 1).half(),
        bound=torch.tensor([-1.0, -0.5, 0.4]).double(), offset=torch.zeros(3).double(),
        choices=torch.zeros(3, 1).long(), loss=torch.ones(3), found=torch.ones(3).double(),
    )  # fmt: skip
    two = torch.zeros(2).double()
    trees = Trees(two - 9, leaves, two + 9, two, two, gained=two + 2.0, children=two + 4.0)
    work = trees.work_left(torch.zeros(2).double())
    torch.testing.assert_close(work, torch.tensor([6.0, 0.0]).double().log2())


@pytest.mark.slow
def test_no_attack_succeeds_at_the_largest_certified_radii():
    """Of a predictor of several networks, by branch and bound: 100,000 inputs, and a strong attack."""
    nets = []
    for seed in range(3):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            net = nn.Sequential(
                nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 6, 3, 2, 1), nn.BatchNorm2d(6), nn.ReLU(),
                nn.Flatten(), nn.Linear(24, 10), nn.ReLU(), nn.Linear(10, 3),
            )  # fmt: skip
            torch.manual_seed(seed)
            with torch.no_grad():
                for weight in net.parameters():
                    weight.add_(0.03 * torch.randn_like(weight)).mul_(1.5)
        net.input_shape = (1, 8, 8)
        nets.append(net.eval())
    predictor = cb.Samples.from_modules(nets).predictor(3)
    x = torch.rand(8, 1, 8, 8, generator=generator(3))
    labels = predictor.predict(x)
    plain = cb.certified_radius(predictor, x, method=cb.Auto(intermediates="crown"), largest=0.5, tolerance=2e-3)
    found = cb.certified_radius(
        predictor, x, method=cb.Best("alpha-crown", "crown", budget=3.0), largest=0.5, tolerance=2e-3
    )
    radii = found.radius
    assert (radii >= plain.radius - 1e-9).all() and (radii > 0).all()
    assert float(radii.sum()) > 1.02 * float(plain.radius.sum())
    trials = 0
    for eps, one, label in zip(radii.tolist(), x, labels, strict=True):
        for seed in range(5):
            tried = points_of(*ball(one[None], eps), 2500, seed)[:, 0]
            assert (predictor.predict(tried) == label).all()
            trials += len(tried)
    assert trials == 100_000
    for eps, one, label in zip(radii.tolist(), x, labels, strict=True):
        attack = as_attack("ensemble", steps=30)
        assert cb.attack(predictor, one[None], label[None], eps=eps, method=attack).robust_accuracy == 1.0


def test_a_finished_search_is_done():
    """On a small ball every leaf is decided, behind convolutions too."""
    graph, params, x = network("strided", 2)
    with torch.no_grad():
        search, trees, _ = search_of(graph, params, outward_box(x[:1], 0.01), torch.tensor([0]), outward(torch.float32))
        for _ in range(30):
            if is_done(trees):
                break
            trees = search.advance(trees, asked(trees))
    assert is_done(trees)
    assert (trees.bounds >= trees.smallest - 0.1).all()
