"""Laws of the tightest bounds and rules: no attack breaks what they prove, on every kind of network they take."""

from functools import cache
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import certibayes as cb
from certibayes.attack import as_attack
from certibayes.bounds import Box
from certibayes.certify.batch import Batch
from certibayes.certify.judge import Judge
from certibayes.certify.network_bounds import logit_bounds
from certibayes.certify.points import Points
from certibayes.certify.refine import Refinement
from certibayes.errors import UnsoundBounds
from certibayes.prediction import Predictor
from certibayes.regions import InputRegion

from ..bounds.test_float_program import _run_otherwise
from ..strategies import ZOO, ball, inputs, law, make, points_of, seeds

WAYS = [
    {"bounds": "hull", "rule": "elided"},
    {"bounds": "hull", "rule": "joint"},
    {"bounds": "hull", "rule": "best"},
    {"bounds": "crown", "rule": "joint", "intermediates": "crown"},
    {"bounds": "alpha-crown", "rule": "elided", "intermediates": "crown"},
    {"bounds": "hull", "rule": "best", "intermediates": "crown", "budget": 0.2},
]
ways = pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(str(value) for value in way.values()))


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


def _orders():
    return (torch.arange, lambda n: torch.arange(n).flip(0))


def _assert_unbroken(predictor: Predictor, x, eps, found) -> None:
    """Attacks, random points, and points run by programs that add up in other orders."""
    proved, labels = x[found.certified], found.labels[found.certified]
    if len(proved) == 0:
        return
    attacked = cb.attack(
        predictor, proved, labels, eps=eps, method=as_attack("ensemble", steps=8, restarts=1, queries=20)
    )
    assert attacked.standing == 1.0
    for point in points_of(*ball(proved, eps), 16, 0):
        assert torch.equal(predictor.predict(point), labels)
    if predictor.dtype == torch.float32:
        for order in _orders():
            logits = torch.stack(
                [
                    _run_otherwise(predictor.graph, {k: v[i] for k, v in predictor.samples.items()}, point, order)
                    for i in range(predictor.size)
                ]
            )
            mean = logits.double().flatten(2).softmax(-1).mean(0)
            assert torch.equal(mean.argmax(-1), labels)


@ways
@pytest.mark.parametrize("name", sorted(ZOO))
def test_no_attack_breaks_what_is_proved_on_any_network(name, way):
    """Every kind of layer, whether or not it has units to put planes above or to split."""
    predictor, x = _predictor(name, 0, networks=2), inputs(name, 3, 0)
    eps = 0.02
    _assert_unbroken(predictor, x, eps, cb.certify(predictor, x, eps=eps, **way))


@ways
@law(3)
@given(seed=seeds, name=st.sampled_from(["relu", "no bias", "residual", "residual images", "max pool, padded, ceil"]))
def test_no_attack_breaks_what_is_proved_at_any_radius(way, seed, name):
    predictor, x = _predictor(name, seed), inputs(name, 4, seed)
    for eps in (0.05, 0.2):
        _assert_unbroken(predictor, x, eps, cb.certify(predictor, x, eps=eps, **way))


@pytest.mark.parametrize("rule", ["elided", "joint", "best"])
def test_no_attack_breaks_the_largest_certified_radius(rule):
    predictor, x = _predictor("relu", 3, networks=2), inputs("relu", 5, 3)
    radius = cb.certified_radius(predictor, x, bounds="hull", rule=rule, tolerance=0.01, largest=1.0).radius
    assert int((radius > 0).sum()) > 3
    lower, upper = ball(x, radius[:, None].float())
    labels = predictor.predict(x)
    attacked = cb.attack(
        predictor, x, labels, eps=radius, method=as_attack("ensemble", steps=30, restarts=3, queries=100)
    )
    assert attacked.standing == 1.0
    assert all(torch.equal(predictor.predict(point), labels) for point in points_of(lower, upper, 200, 1))


@pytest.mark.parametrize("rule", ["elided", "joint", "best"])
def test_tighter_bounds_prove_all_that_looser_ones_do(rule):
    for seed, eps in product(range(2), (0.1, 0.3)):
        predictor, x = _predictor("relu", seed, networks=2), inputs("relu", 6, seed)
        proved = [cb.certify(predictor, x, eps=eps, rule=rule, bounds=bounds).certified for bounds in ("crown", "hull")]
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


@ways
@pytest.mark.parametrize("classes", [2, 100])
def test_two_classes_and_a_hundred(classes, way):
    predictor, x = _small(classes), torch.rand(2, 5, generator=torch.Generator().manual_seed(0))
    found = cb.certify(predictor, x, eps=1e-3, **way)
    assert found.certified.any()
    _assert_unbroken(predictor, x, 1e-3, found)


@ways
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_network_and_no_radius(dtype, way):
    predictor = _small(4, 1, dtype)
    x = torch.rand(5, 5, generator=torch.Generator().manual_seed(0), dtype=dtype)
    for eps in (0.0, 1e-3, 0.3):
        found = cb.certify(predictor, x, eps=eps, **way)
        assert eps > 1e-3 or found.certified.float().mean() > 0.5
        if eps > 0:
            _assert_unbroken(predictor, x, eps, found)


@ways
@pytest.mark.parametrize("bias", [1e-12, 1e4])
def test_tiny_and_huge_biases(bias, way):
    predictor = _small(3, 2, torch.float32, bias)
    x = torch.rand(4, 5, generator=torch.Generator().manual_seed(1))
    _assert_unbroken(predictor, x, 0.1, cb.certify(predictor, x, eps=0.1, **way))


# What the rules are told


def _batch(predictor: Predictor, x, eps: float, rule: str) -> Batch:
    judge = Judge(predictor, "hull", rule, "outward", 0.0, 2**28)
    labels = predictor.predict(x)
    box = Box(x, torch.full_like(x, eps))
    points = Points(InputRegion.around(x, eps), labels, labels, box)
    return Batch(judge, points, *logit_bounds(predictor, box))


@law(5)
@given(seed=seeds, eps=st.sampled_from([0.01, 0.2, 0.6]))
def test_lines_margins_and_what_others_add_hold_for_every_input(seed, eps):
    """The pieces of the rule joint, each against what the networks do: T⁺ above, T⁻ below, lines below the margins."""
    predictor, x = _predictor("relu", seed), inputs("relu", 3, seed)
    with torch.no_grad():
        batch = _batch(predictor, x, eps, "joint")
        batch.tighten("crown", torch.isfinite(batch.values[0]))
        batch.enclose(torch.isfinite(batch.values[0]), "hull")
        every = torch.arange(len(batch.point))
        known = batch.margins[:, batch.point, batch.rival]
        lines, others = batch.refinement.lines(every, known), batch._others(batch.point, batch.rival)
        batch.join()
        smallest = torch.full_like(batch.together, torch.inf)
        for z in points_of(*ball(x, eps), 60, seed):
            logits = predictor.sample_outputs(z).double()
            margins = logits.gather(-1, batch.points.labels.expand(3, -1)[..., None]) - logits
            own = margins[:, batch.point, batch.rival]
            terms = (-margins).exp()
            rest = terms[:, batch.point].sum(-1) - 1 - terms[:, batch.point, batch.rival]
            assert (own >= known).all()
            assert (rest <= others.most + 1e-12 * (1 + others.most)).all()
            assert (rest >= others.least - 1e-12 * (1 + rest)).all()
            line = torch.einsum("npi,pi->np", lines.coefficients.double(), z[batch.point].double()) + lines.offsets
            assert (line <= own + 1e-14).all()
            p = logits.softmax(-1).mean(0)
            gaps = p.gather(-1, batch.points.labels[:, None]) - p
            smallest[batch.point, batch.rival] = torch.minimum(
                smallest[batch.point, batch.rival], gaps[batch.point, batch.rival]
            )
        assert (batch.together <= smallest).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_bounds_that_are_no_numbers_are_refused(value):
    """An infinite bound would prove anything."""
    predictor, x = _predictor("relu", 0), inputs("relu", 1, 0)
    point, labels, rivals = torch.tensor([0]), torch.tensor([0]), torch.tensor([1])
    refinement = Refinement(predictor, Box(x, torch.full_like(x, 0.1)), point, labels, rivals, "outward")
    which, known = torch.tensor([0]), torch.tensor([-100.0], dtype=torch.float64)
    found = refinement.begin(0, which, known, "hull", lambda: False)
    assert torch.isfinite(found.margins).all()
    search = refinement.searches[0].search
    search.known = torch.full_like(search.known, -torch.inf)
    search.leaves = search.leaves._replace(bound=torch.full_like(search.leaves.bound, value))
    with pytest.raises(UnsoundBounds):
        refinement.found(refinement.searches[0])
