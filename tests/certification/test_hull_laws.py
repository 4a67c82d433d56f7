"""Laws of the tightest bounds and rules: no attack breaks what they prove, on every kind of network they take."""

from dataclasses import replace
from functools import cache
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import certibayes as cb
from certibayes.attacks import as_attack
from certibayes.certification import as_method
from certibayes.certification._pairs import Pairs, Searched, search_in
from certibayes.certification._stage import run
from certibayes.certification.clock import Clock
from certibayes.certification.stages import JointBound, LogitBounds, MarginBounds, Refine
from certibayes.certification.stages.joint import others_of
from certibayes.certification.stages.refine import with_search
from certibayes.certification.state import State
from certibayes.prediction import Predictor

from ..bounds.float_programs import run_otherwise
from ..strategies import VARIANTS, ZOO, ball, few_of, in_turn, inputs, law, make, points_of, seeds
from .cases import EVERY_RIVAL, problem_of

METHODS = [
    cb.Elided("hull"),
    cb.Joint("hull"),
    cb.Best("hull"),
    cb.Joint("crown", "crown"),
    cb.Elided("alpha-crown", "crown"),
    cb.Best("hull", "crown", budget=0.2),
]
TESTED = ["relu", "no bias", "residual", "residual images", "max pool, padded, ceil"]


@cache
def _predictor(name: str, seed: int, networks: int = 3, dtype: torch.dtype = torch.float32) -> Predictor:
    """Networks of the zoo that have most of their weights in common."""
    base = make(name, seed, dtype)
    nets = []
    for index in range(networks):
        net, other = make(name, seed, dtype), make(name, seed + 1 + index, dtype)
        with torch.no_grad():
            for p, b, o in zip(net.parameters(), base.parameters(), other.parameters(), strict=True):
                p.copy_(0.8 * b + 0.2 * o)
        nets.append(net)
    return cb.Samples.from_modules(nets).predictor(networks)


def at_each(x, *radii: float):
    """The points once for each radius, with their radii: what would be as many certificates, in one."""
    return x.repeat(len(radii), *[1] * (x.dim() - 1)), torch.tensor(radii, dtype=torch.float64).repeat_interleave(
        len(x)
    )


def _orders():
    return (torch.arange, lambda n: torch.arange(n).flip(0))


def _assert_unbroken(predictor: Predictor, x, eps, found) -> None:
    """Attacks, random points, and points run by programs that add up in other orders."""
    proved, labels = x[found.certified], found.labels[found.certified]
    if len(proved) == 0:
        return
    eps = torch.as_tensor(eps, dtype=torch.float64).expand(len(x))[found.certified]
    attacked = cb.attack(
        predictor, proved, labels, eps=eps, method=as_attack("ensemble", steps=8, restarts=1, queries=20)
    )
    assert attacked.robust_accuracy == 1.0
    points = points_of(*ball(proved, eps.view(-1, *[1] * (x.dim() - 1))), 16, 0)
    assert bool((predictor.predict(points.flatten(0, 1)).unflatten(0, points.shape[:2]) == labels).all())
    if predictor.dtype == torch.float32:
        for order in _orders():
            logits = torch.stack(
                [
                    run_otherwise(predictor.graph, {k: v[i] for k, v in predictor.samples.items()}, points[-1], order)
                    for i in range(predictor.size)
                ]
            )
            mean = logits.double().flatten(2).softmax(-1).mean(0)
            assert torch.equal(mean.argmax(-1), labels)


WAYS = list(product(sorted(ZOO), METHODS))
FAST_WAYS = [(name, method) for name, method in WAYS if method == cb.Best("hull") and name not in VARIANTS]
FAST_WAYS += zip(TESTED, (method for method in METHODS if method != cb.Best("hull")), strict=True)


@pytest.mark.parametrize("way", few_of(WAYS, fast=FAST_WAYS), ids=lambda way: f"{way[0]}-{way[1]!r}")
def test_no_attack_breaks_what_is_proved_on_any_network(way, request):
    """Every kind of layer, whether or not it has units to put cuts above or to split."""
    name, method = way
    if name not in TESTED:
        request.getfixturevalue("few_steps")
    predictor, x = _predictor(name, 0, networks=2), inputs(name, 3, 0)
    eps = 0.02
    _assert_unbroken(predictor, x, eps, cb.certify(predictor, x, eps=eps, method=method))


@pytest.mark.parametrize("method", few_of(METHODS, fast=METHODS[2:5]), ids=repr)
@law(3)
@given(seed=seeds, name=st.sampled_from(TESTED))
def test_no_attack_breaks_what_is_proved_at_any_radius(method, seed, name):
    predictor, x = _predictor(name, seed), inputs(name, 4, seed)
    x, eps = at_each(x, 0.05, 0.2)
    _assert_unbroken(predictor, x, eps, cb.certify(predictor, x, eps=eps, method=method))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["elided", "joint", "best"])
def test_no_attack_breaks_the_largest_certified_radius(name):
    predictor, x = _predictor("relu", 3, networks=2), inputs("relu", 5, 3)
    radius = cb.certified_radius(
        predictor, x, method=as_method(name, bounds="hull"), tolerance=0.01, largest=1.0
    ).radius
    assert int((radius > 0).sum()) > 3
    lower, upper = ball(x, radius[:, None].float())
    labels = predictor.predict(x)
    attacked = cb.attack(
        predictor, x, labels, eps=radius, method=as_attack("ensemble", steps=30, restarts=3, queries=100)
    )
    assert attacked.robust_accuracy == 1.0
    assert all(torch.equal(predictor.predict(point), labels) for point in points_of(lower, upper, 200, 1))


@pytest.mark.parametrize("name", ["elided", "joint", "best"])
def test_tighter_bounds_prove_all_that_looser_ones_do(name):
    for seed in range(2):
        predictor = _predictor("relu", seed, networks=2)
        x, eps = at_each(inputs("relu", 6, seed), 0.1, 0.3)
        ways = [as_method(name, bounds=bounds) for bounds in ("crown", "hull")]
        proved = [cb.certify(predictor, x, eps=eps, method=method).certified for method in ways]
        assert bool((proved[1] | ~proved[0]).all())


# Corners of the interface


@cache
def _small(classes: int, networks: int = 2, dtype: torch.dtype = torch.float32, bias: float = 1.0) -> Predictor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(classes)
        nets = [
            nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, classes)).to(dtype)
            for _ in range(networks)
        ]
        for net in nets[1:]:
            for p, b in zip(net.parameters(), nets[0].parameters(), strict=True):
                p.data = b.data + 0.1 * (p.data - b.data)
        for net in nets:
            net[0].bias.data *= bias
    return cb.Samples.from_modules(nets).predictor(networks)


@pytest.mark.parametrize(("method", "classes"), in_turn(METHODS, [2, 100]))
def test_two_classes_and_a_hundred(classes, method):
    predictor, x = _small(classes), torch.rand(2, 5, generator=torch.Generator().manual_seed(0))
    found = cb.certify(predictor, x, eps=1e-3, method=method)
    assert found.certified.any()
    _assert_unbroken(predictor, x, 1e-3, found)


@pytest.mark.parametrize(("method", "dtype"), in_turn(METHODS, [torch.float32, torch.float64]))
def test_one_network_and_no_radius(dtype, method):
    predictor = _small(4, 1, dtype)
    x = torch.rand(5, 5, generator=torch.Generator().manual_seed(0), dtype=dtype)
    x, eps = at_each(x, 0.0, 1e-3, 0.3)
    found = cb.certify(predictor, x, eps=eps, method=method)
    assert all(found.certified[eps == small].float().mean() > 0.5 for small in (0.0, 1e-3))
    _assert_unbroken(predictor, x, eps, found)


@pytest.mark.parametrize(("method", "bias"), in_turn(METHODS, [1e-12, 1e4]))
def test_tiny_and_huge_biases(bias, method):
    predictor = _small(3, 2, torch.float32, bias)
    x = torch.rand(4, 5, generator=torch.Generator().manual_seed(1))
    _assert_unbroken(predictor, x, 0.1, cb.certify(predictor, x, eps=0.1, method=method))


# What the rules are given


@law(3)
@given(seed=seeds, eps=st.sampled_from([0.01, 0.2, 0.6]))
def test_functions_margins_and_what_others_add_hold_for_every_input(seed, eps):
    """The pieces of the joint bound, each against the networks: T⁺ above, T⁻ below, functions below the margins."""
    predictor, x = _predictor("relu", seed), inputs("relu", 3, seed)
    problem = problem_of(predictor, x, eps, threshold=EVERY_RIVAL)
    stages = (LogitBounds("ibp"), MarginBounds("crown"), Refine("hull", rivals="all", until_decided=False))
    with torch.no_grad():
        state = run(stages, problem, State.start(problem), Clock())
        # Points for which a counterexample came up are bounded as well.
        state = replace(state, broken=torch.zeros_like(state.broken))
        pairs = state.pairs
        point, rival = pairs.point, pairs.rival
        assert len(point) == 3 * (predictor.classes - 1)
        known = state.margins[:, point, rival]
        functions, others = pairs.functions(torch.arange(len(point)), known), others_of(state, point, rival)
        joint = JointBound()(problem, state, Clock()).joint
        assert torch.isfinite(joint[point, rival]).all()
        smallest = torch.full_like(joint, torch.inf)
        for z in points_of(*ball(x, eps), 60, seed):
            logits = predictor.sample_outputs(z).double()
            margins = logits.gather(-1, problem.labels.expand(3, -1)[..., None]) - logits
            own = margins[:, point, rival]
            terms = (-margins).exp()
            rest = terms[:, point].sum(-1) - 1 - terms[:, point, rival]
            assert (own >= known).all()
            assert (rest <= others.upper + 1e-12 * (1 + others.upper)).all()
            assert (rest >= others.lower - 1e-12 * (1 + rest)).all()
            value = torch.einsum("npi,pi->np", functions.coefficients.double(), z[point].double()) + functions.offset
            assert (value <= own + 1e-14).all()
            p = logits.softmax(-1).mean(0)
            gaps = p.gather(-1, problem.labels[:, None]) - p
            smallest[point, rival] = torch.minimum(smallest[point, rival], gaps[point, rival])
        assert (joint <= smallest).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_bounds_that_are_no_numbers_prove_nothing(value):
    """An infinite bound would prove anything; what was known before stays."""
    predictor, x = _predictor("relu", 0), inputs("relu", 1, 0)
    problem = problem_of(predictor, x, 0.1, threshold=EVERY_RIVAL)
    with torch.no_grad():
        before = run((LogitBounds("ibp"), MarginBounds("crown")), problem, State.start(problem), Clock())
        pairs = Pairs.of(before.every_rival, predictor.size)
        which = torch.arange(len(pairs.point))
        search = search_in(problem, pairs, 0, which)
        trees = search.begin(torch.full((len(which),), -torch.inf).double(), "hull")
        assert torch.isfinite(Searched(0, which, search, trees).margins).all()
        wrong = trees._replace(
            leaves=trees.leaves._replace(
                bound=torch.full_like(trees.leaves.bound, value), offset=torch.full_like(trees.leaves.offset, value)
            ),
            coefficients=torch.full_like(trees.coefficients, value),
        )
        searched = Searched(0, which, search, wrong)
        assert bool((searched.margins == -torch.inf).all())
        after = with_search(problem, replace(before, pairs=pairs), searched)
        assert torch.equal(after.margins, before.margins) and torch.equal(after.values, before.values)
        joint = JointBound()(problem, replace(after, broken=torch.zeros_like(after.broken)), Clock())
    assert torch.equal(joint.joint, before.joint)
