"""Certificates in l2 and l1: against closed forms, exact programmes, a third party's attacks and the checker."""

import itertools
import json
import warnings
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from scipy.optimize import linprog
from torch import nn

import certibayes as cb
from certibayes.certification import as_method, certify_in_shards
from certibayes.checker import check_certificate
from certibayes.errors import CorruptFile, InvalidInput

from ..strategies import distance, few_of, generator, in_turn, into_ball, law, seeds

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # foolbox and what it imports, not ours
    import foolbox

DOMAIN = (0.0, 1.0)
norms = pytest.mark.parametrize("norm", ["l2", "l1"])


def _seeded(make, seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def _predictor(make, seed=0, count=3):
    return cb.Samples.from_modules([_seeded(make, seed + i) for i in range(count)]).predictor(count)


@pytest.fixture(scope="module")
def trained():
    """A small robust posterior, and points of which some can be certified."""
    digits = cb.data.load("digits")
    posterior = cb.fit(
        cb.networks.mlp(784, [24], 10),
        (digits.train.inputs[:2500], digits.train.targets[:2500]),
        algorithm=cb.VOGN(lr=0.003),
        likelihood=cb.RobustCategorical(cb.TwoPoint.for_radius(0.04)),
        prior=cb.GaussianPrior(300.0),
        temperature=0.001,
        epochs=4,
        progress=False,
    )
    return posterior.predictor(2, seed=1).eval(), digits.test.inputs[:40], digits.test.targets[:40]


@pytest.fixture(scope="module")
def reached(trained):
    """Certified radii by norm, each found when it is first asked for."""
    predictor, x, y = trained

    @cache
    def radii(norm):
        largest = {"l2": 2.0, "l1": 8.0}[norm]
        settings = {"method": cb.Best("crown"), "domain": DOMAIN, "largest": largest, "tolerance": largest / 30}
        return cb.certified_radius(predictor, x[:24], y[:24], norm=norm, **settings)

    return radii


# Against what is known exactly


@norms
@pytest.mark.parametrize(
    "method",
    few_of([cb.Elided("ibp"), cb.Elided("crown"), cb.Best("crown")], fast=[cb.Elided("ibp"), cb.Elided("crown")]),
    ids=repr,
)
def test_the_radius_of_a_linear_classifier_is_the_distance_to_its_boundary(norm, method):
    net = _seeded(lambda: nn.Linear(6, 4), 3)
    predictor = cb.Point(net).predictor()
    x = torch.randn(20, 6, generator=generator(1))
    found = cb.certified_radius(predictor, x, norm=norm, method=method, largest=4.0, tolerance=1e-5)
    weight, logits = net.weight.detach().double(), net(x).detach().double()
    label = logits.argmax(1)
    margins = logits.gather(1, label[:, None]) - logits
    differences = weight[label][:, None] - weight
    dual = differences.norm(dim=-1) if norm == "l2" else differences.abs().amax(-1)
    exact = torch.where(margins > 0, margins / dual.clamp(min=1e-9), torch.inf).amin(1)
    close = exact < 3.9
    assert bool((found.radius <= exact).all()) and int(close.sum()) > 10
    torch.testing.assert_close(found.radius[close], exact[close], atol=1e-4, rtol=0)


@pytest.mark.slow
@law(4)
@given(seed=seeds)
def test_the_l1_radius_of_a_tiny_network_is_below_the_exact_one(seed):
    """Linear programmes over all patterns of ReLUs find the nearest input of another class."""
    net = _seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), seed)
    first, last = (
        (layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy()) for layer in (net[0], net[2])
    )
    x = torch.randn(2, 3, generator=generator(seed))
    predictor = cb.Point(net).predictor()
    settings = {"norm": "l1", "largest": 4.0, "tolerance": 1e-3}
    found = cb.certified_radius(predictor, x, method=cb.Best("alpha-crown"), **settings)
    for point, label, radius in zip(x.double().numpy(), predictor.predict(x).tolist(), found.radius, strict=True):
        nearest = np.inf
        for pattern in itertools.product((1.0, 0.0), repeat=4):
            on = np.array(pattern)
            linear = last[0] @ (on[:, None] * first[0])
            offset = last[0] @ (on * first[1]) + last[1]
            lead, shift = linear[label] - linear[1 - label], offset[label] - offset[1 - label]
            # x' = x + up - down; each ReLU on its side; the label no longer ahead.
            sides = [(-(2 * o - 1) * w, (2 * o - 1) * (w @ point + b)) for o, w, b in zip(on, *first, strict=True)]
            rows = [*sides, (lead, -(lead @ point + shift))]
            matrix = [np.concatenate([row, -row]) for row, _ in rows]
            solved = linprog(np.ones(6), matrix, [limit for _, limit in rows], bounds=(0, None))
            nearest = min(nearest, solved.fun) if solved.success else nearest
        assert float(radius) <= nearest + 1e-9
        assert float(radius) > 0.2 * min(nearest, 4.0) - 1e-3  # and not for want of trying


@pytest.mark.parametrize(
    ("method", "bounds"), in_turn(["theorem1", "pairwise", "elided", "best"], ["ibp", "alpha-crown", "crown"])
)
def test_certified_points_are_nested(method, bounds):
    """l1 in l2 in l-infinity: what is proved for the larger ball is proved for the smaller, but for rounding."""
    predictor = _predictor(lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)))
    x = torch.randn(60, 6, generator=generator(2))
    chosen = as_method(method, bounds=bounds)
    previous, counts = None, []
    for norm, eps in (("linf", 0.0503), ("l2", 0.0502), ("l1", 0.0501)):
        certified = cb.certify(predictor, x, eps=eps, norm=norm, method=chosen).certified
        assert previous is None or bool((certified | ~previous).all())
        previous, counts = certified, [*counts, int(certified.sum())]
    assert 0 < counts[0] < counts[2]


@norms
def test_class_bounds_hold_over_the_ball(norm):
    def make():
        net = nn.Sequential(
            cb.networks.Normalize([0.4], [0.3]), nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3)
        )
        net.input_shape = (1, 4, 4)
        return net

    predictor = _predictor(make)
    x = torch.rand(10, 1, 4, 4, generator=generator(4))
    result = cb.certify(predictor, x, eps=0.3, norm=norm, domain=DOMAIN)
    eps = torch.full((10, 1, 1, 1), 0.3, dtype=torch.float64)
    for seed in range(60):
        direction = torch.randn(10, 1, 4, 4, generator=generator(seed))
        direction = direction ** (1 if seed % 2 else 5)  # nearly one coordinate
        point = into_ball((x + direction).clamp(*DOMAIN), x, eps, norm)
        probabilities = predictor.probabilities(point).double()
        assert bool((result.lower <= probabilities).all() and (probabilities <= result.upper).all())


# Against attacks


@pytest.mark.parametrize(
    ("norm", "attack"),
    [
        ("l2", lambda: foolbox.attacks.L2ProjectedGradientDescentAttack(steps=30)),
        ("l2", lambda: foolbox.attacks.L2FastGradientAttack()),
        ("l2", lambda: foolbox.attacks.L2DeepFoolAttack(steps=20)),
        pytest.param("l1", lambda: foolbox.attacks.L1ProjectedGradientDescentAttack(steps=30), marks=pytest.mark.slow),
        pytest.param("l1", lambda: foolbox.attacks.SparseL1DescentAttack(steps=30), marks=pytest.mark.slow),
    ],
)
def test_no_attack_breaks_a_point_at_its_largest_certified_radius(trained, reached, norm, attack):
    predictor, x, y = trained
    found = reached(norm)
    assert float(found.certified.double().mean()) > 0.3
    assert float(found.median) > {"l2": 0.3, "l1": 0.8}[norm]
    model = foolbox.PyTorchModel(predictor, bounds=DOMAIN)
    some_broken = False
    for index in found.radius.argsort(descending=True)[1:11:2].tolist():
        point, label, radius = x[index : index + 1], y[index : index + 1], float(found.radius[index])
        assert radius > 0
        for eps, proved in ((radius, True), (12 * radius, False)):
            candidate = attack()(model, point, label, epsilons=eps)[1].clamp(*DOMAIN)
            candidate = into_ball(candidate, point, torch.tensor(eps, dtype=torch.float64), norm)
            broken = bool(predictor.predict(candidate) != label)
            assert not (proved and broken)
            some_broken = some_broken or broken
    assert some_broken  # the attack can do something


@pytest.mark.parametrize("norm", few_of(["l2", "l1"], fast=["l2"]))
def test_a_budget_finds_counterexamples_inside_the_ball_and_proves_more(norm):
    predictor = _predictor(lambda: nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 3)), count=2)
    x = torch.randn(30, 4, generator=generator(7))
    eps = {"l2": 0.4, "l1": 0.6}[norm]
    plain, long = (
        cb.certify(predictor, x, eps=eps, norm=norm, method=cb.Best(budget=budget)) for budget in (None, 4.0)
    )
    assert not bool((plain.certified & ~long.certified).any())
    assert int(long.certified.sum()) > int(plain.certified.sum()) and int(long.attacked.sum()) > 0
    away = long.counterexamples[long.attacked].double() - x[long.attacked].double()
    assert bool((distance(away, norm) <= eps).all())
    assert bool((predictor.predict(long.counterexamples) != long.labels)[long.attacked].all())


# What certificates say of themselves


@norms
def test_the_norm_is_stated_stored_and_checked(trained, norm, tmp_path):
    predictor, x, y = trained
    eps = {"l2": 0.3, "l1": 0.6}[norm]
    result = cb.certify(predictor, x, y, eps=eps, norm=norm, domain=DOMAIN)
    assert result.norm == norm and f"within {norm} distance {eps}" in result.statement and norm in repr(result)
    record = json.loads(json.dumps(result.to_json()))
    assert record["norm"] == norm
    check = check_certificate(record, predictor, x)
    assert check.holds and int(check.confirmed.sum()) > 0.5 * int(result.certified.sum()) > 0
    sharded = certify_in_shards(predictor, x, y, tmp_path / "shards", eps=eps, norm=norm, domain=DOMAIN, shard=25)
    assert sharded.norm == norm and torch.equal(sharded.certified, result.certified)
    again = certify_in_shards(predictor, x, y, tmp_path / "shards", eps=eps, norm=norm, domain=DOMAIN, shard=25)
    assert torch.equal(again.lower, sharded.lower) and again.norm == norm


@norms
def test_the_checker_refutes_what_is_false_in_the_norm(norm):
    predictor = _predictor(lambda: nn.Linear(5, 3), count=2)
    x = torch.randn(40, 5, generator=generator(1))
    record = cb.certify(predictor, x, eps=1.0, norm=norm).to_json()
    record["certified"] = [True] * 40
    check = check_certificate(record, predictor, x)
    wrong = ~cb.certify(predictor, x, eps=1.0, norm=norm, method="best").certified
    assert int(check.refuted.sum()) >= 0.5 * int(wrong.sum()) > 0
    assert not bool((check.refuted & ~wrong).any())


@norms
@pytest.mark.parametrize("rounding", ["outward", "ideal"])
def test_the_checker_confirms_with_normalization_and_convolutions(norm, rounding):
    def make():
        net = nn.Sequential(
            cb.networks.Normalize([0.5, 0.3], [0.25, 2.0]), nn.Conv2d(2, 4, 3, padding=1, groups=2), nn.ReLU(),
            nn.Flatten(), nn.Linear(64, 3),
        )  # fmt: skip
        net.input_shape = (2, 4, 4)
        return net

    predictor = _predictor(make, count=2)
    x = torch.rand(20, 2, 4, 4, generator=generator(3))
    result = cb.certify(predictor, x, eps=0.02, norm=norm, domain=DOMAIN, rounding=rounding, method="pairwise")
    check = check_certificate(result.to_json(), predictor, x)
    assert check.holds and int(result.certified.sum()) > 3
    assert int(check.confirmed.sum()) >= int(result.certified.sum()) - 3


def test_a_stored_certificate_names_its_norm(trained):
    predictor, x, y = trained
    record = cb.certify(predictor, x, y, eps=0.02, domain=DOMAIN).to_json()
    with pytest.raises(CorruptFile, match="linf, l2, l1"):
        check_certificate({**record, "norm": "l3"}, predictor, x)
    assert record.pop("norm") == "linf"
    with pytest.raises(CorruptFile, match="missing: norm"):
        check_certificate(record, predictor, x)


def test_radii_are_for_points_and_norms_are_known(trained):
    predictor, x, y = trained
    each = torch.linspace(0.0, 0.4, len(x))
    result = cb.certify(predictor, x, y, eps=each, norm="l2", domain=DOMAIN)
    whole = cb.certify(predictor, x, y, eps=0.4, norm="l2", domain=DOMAIN)
    assert bool((result.lower >= whole.lower - 1e-6).all()) and bool((result.certified | ~whole.certified).all())
    for eps in (torch.full((784,), 0.1), torch.full(x.shape, 0.1)):
        with pytest.raises(InvalidInput, match="is for the norm linf"):
            cb.certify(predictor, x, y, eps=eps, norm="l1")
    for call in (cb.certify, cb.certified_radius):
        settings = {"eps": 0.1} if call is cb.certify else {}
        with pytest.raises(InvalidInput, match="norm must be one of linf, l2, l1"):
            call(predictor, x, y, norm="euclid", **settings)


@pytest.mark.parametrize("norm", few_of(["l2", "l1"], fast=["l2"]))
def test_radii_carry_the_norm(reached, norm):
    assert reached(norm).norm == norm and f"within {norm} distance radius" in reached(norm).statement


def test_abstention_carries_the_norm(trained):
    predictor, x, y = trained
    certificate = cb.certify(predictor, x, y, eps=0.3, norm="l2", domain=DOMAIN)
    wider = cb.certify(predictor, x, y, eps=0.3, domain=DOMAIN)
    assert "l2 distance" in cb.certify_abstention(certificate, 0.99).statement
    assert bool((cb.entropy_bounds(certificate)[1] <= cb.entropy_bounds(wider)[1] + 1e-6).all())


@norms
def test_statistical_certificates_carry_the_norm(norm):
    net = _seeded(lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), 0)
    mean = {name: p.detach() for name, p in net.named_parameters()}
    posterior = cb.DiagonalGaussian(net, mean, {name: 0.01 * torch.ones_like(p) for name, p in mean.items()})
    x = torch.randn(6, 4, generator=generator(0))
    y = posterior.predictor(3).predict(x)
    settings = {"eps": 0.05, "samples": 20, "confidence": 0.9}
    found, wider = (cb.robust_probability(posterior, x, y, norm=n, **settings) for n in (norm, "linf"))
    assert bool((found.certified >= wider.certified).all()) and found.trial.to_json()["norm"] == norm
    assert f"{norm} distance 0.05" in found.statement
    bounds = cb.posterior_predictive_bounds(posterior, x, y, norm=norm, **settings)
    assert bounds.to_json()["trial"]["norm"] == norm


@norms
def test_regression_in_other_norms(norm):
    net = _seeded(lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), 0)
    data = torch.randn(40, 4, generator=generator(0)), torch.randn(40, 2, generator=generator(1))
    posterior = cb.fit(
        net, data, algorithm=cb.MAP(lr=0.01), likelihood=cb.RobustGaussian(1.0), epochs=1,
        progress=False,
    )  # fmt: skip
    predictor, x = posterior.predictor(1), data[0][:8]
    found, wider = (
        cb.certify_regression(predictor, x, eps=0.2, norm=n, method=cb.Theorem1("crown")) for n in (norm, "linf")
    )
    assert found.to_json()["norm"] == norm and f"{norm} distance 0.2" in found.statement
    assert float((found.upper - found.lower).sum()) < float((wider.upper - wider.lower).sum())
    eps = torch.full((8, 1), 0.2, dtype=torch.float64)
    for seed in range(40):
        point = into_ball(x + torch.randn(8, 4, generator=generator(seed)), x, eps, norm)
        values = predictor(point).detach().double()
        assert bool((found.lower <= values).all() and (values <= found.upper).all())
