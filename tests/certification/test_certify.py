"""Laws of certificates: nothing that was tried ever breaks a certified point or leaves the stated bounds."""

import json
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import certibayes as cb
from certibayes.attacks import PGD
from certibayes.certification import logit_bounds
from certibayes.prediction import Predictor

from ..strategies import CLASSES, ZOO, ball, generator, in_turn, inputs, law, make, points_of, seeds, threads

METHODS = ("theorem1", "pairwise", "auto")
DOMAIN = (0.0, 1.0)
# Enough of the zoo to meet every kind of layer once; the bounds tests take all of it.
NETWORKS = ("relu", "sigmoid", "residual", "batch norm on images", "average pool, padded, ceil", "normalize")


def _predictor(name: str = "relu", seed: int = 0, samples: int = 3, dtype: torch.dtype = torch.float32) -> Predictor:
    """Networks that are much alike, as samples of a posterior are."""
    modules = [make(name, seed) for _ in range(samples)]
    rng = generator(seed)
    with torch.no_grad():
        for module in modules:
            for p in module.parameters():
                p.add_(0.02 * torch.randn(p.shape, generator=rng))
                p.mul_(2.0)
    predictor = cb.Samples.from_modules(modules).predictor(samples)
    return predictor.to(dtype)


def _points(name: str = "relu", count: int = 20, seed: int = 0) -> torch.Tensor:
    x = inputs(name, count, seed).sigmoid()
    x.flatten(1)[: count // 2, 0] = torch.tensor([0.0, 1.0]).repeat(count)[: count // 2]
    return x


def _largest_useful_radius(predictor: Predictor, x: torch.Tensor, method: str) -> float:
    """A radius at which some points are certified and some are not."""
    eps = 0.5
    while cb.certify(predictor, x, eps=eps, method=method, domain=DOMAIN).certified_fraction < 0.5:
        eps /= 1.5
    return eps


@pytest.mark.parametrize(("name", "method"), in_turn(NETWORKS, METHODS))
def test_no_attack_breaks_a_certified_point(name, method):
    predictor, x = _predictor(name), _points(name)
    eps = _largest_useful_radius(predictor, x, method)
    result = cb.certify(predictor, x, eps=eps, method=method, domain=DOMAIN)
    assert result.certified.any()
    kept, labels = x[result.certified], result.labels[result.certified]
    attacked = cb.attack(predictor, kept, labels, eps=eps, domain=DOMAIN, method=PGD(steps=10, restarts=2))
    assert not attacked.success.any()
    for point in points_of(*ball(kept, eps, DOMAIN), 20, 0):
        log_probabilities = predictor(point)
        own = log_probabilities.gather(1, labels[:, None]).squeeze(1)
        rivals = log_probabilities.scatter(1, labels[:, None], -torch.inf).amax(1)
        assert bool((own > rivals).all())  # strictly: a tie may be broken either way


@pytest.mark.parametrize(("name", "dtype"), in_turn(NETWORKS, [torch.float32, torch.float64]))
def test_probabilities_stay_within_their_bounds_without_tolerance(name, dtype):
    predictor, x = _predictor(name, dtype=dtype), _points(name).to(dtype)
    for eps in (0.0, 0.01, 0.2):
        result = cb.certify(predictor, x, eps=eps, domain=DOMAIN)
        attacked = cb.attack(predictor, x, eps=eps, domain=DOMAIN, method=PGD(steps=3, restarts=1)).inputs
        for point in [attacked, *points_of(*ball(x, eps, DOMAIN), 6, 0)]:
            for batch_size in (20, 7):
                p = torch.cat([predictor.probabilities(part) for part in point.split(batch_size)]).double()
                assert bool((result.lower <= p).all() and (p <= result.upper).all())


@pytest.mark.parametrize("method", METHODS)
@law(8)
@given(seed=seeds, eps=st.sampled_from([0.0, 0.003, 0.03]))
def test_certified_points_are_predicted_as_their_label(method, seed, eps):
    predictor, x = _predictor(seed=seed), _points(seed=seed)
    labels = torch.randint(CLASSES, (len(x),), generator=generator(seed))
    result = cb.certify(predictor, x, labels, eps=eps, method=method, domain=DOMAIN)
    assert bool((result.predicted == labels)[result.certified].all())
    assert result.certified_fraction <= result.accuracy


@pytest.mark.parametrize("rounding", ["outward", "ideal"])
@pytest.mark.parametrize("method", METHODS)
@law(3)
@given(seed=seeds)
def test_certified_sets_shrink_with_the_radius(method, rounding, seed):
    predictor, x = _predictor(seed=seed), _points(seed=seed)
    before = torch.ones(len(x), dtype=torch.bool)
    for eps in (0.0, 0.001, 0.01, 0.05, 0.2, 1.0):
        certified = cb.certify(predictor, x, eps=eps, method=method, rounding=rounding, domain=DOMAIN).certified
        assert bool((before | ~certified).all())
        before = certified


@law(5)
@given(seed=seeds, eps=st.sampled_from([0.003, 0.03, 0.3]))
def test_pairwise_certifies_all_that_theorem1_does_and_auto_all_that_pairwise_does(seed, eps):
    predictor, x = _predictor(seed=seed), _points(seed=seed)
    found = [cb.certify(predictor, x, eps=eps, method=method, domain=DOMAIN).certified for method in METHODS]
    assert all(bool((better | ~worse).all()) for worse, better in pairwise(found))


@law(5)
@given(seed=seeds, eps=st.sampled_from([0.003, 0.03]))
def test_outward_bounds_contain_ideal_bounds(seed, eps):
    predictor, x = _predictor(seed=seed), _points(seed=seed)
    ideal = cb.certify(predictor.double(), x, eps=eps, domain=DOMAIN, rounding="ideal")
    outward = cb.certify(predictor.float(), x, eps=eps, domain=DOMAIN)
    assert bool((outward.lower <= ideal.lower).all() and (outward.upper >= ideal.upper).all())


def test_the_domain_helps_and_never_hurts():
    predictor, x = _predictor(), _points()
    unlimited = cb.certify(predictor, x, eps=0.3)
    clipped = cb.certify(predictor, x, eps=0.3, domain=DOMAIN)
    assert bool((clipped.lower >= unlimited.lower - 1e-6).all() and (clipped.upper <= unlimited.upper + 1e-6).all())


def test_batch_size_and_threads_change_nothing_but_rounding():
    predictor, x = _predictor("batch norm on images"), _points("batch norm on images")
    whole = cb.certify(predictor, x, eps=0.01, domain=DOMAIN)
    for count, batch_size in ((1, 1), (2, 7), (1, 500)):
        with threads(count):
            parts = cb.certify(predictor, x, eps=0.01, domain=DOMAIN, batch_size=batch_size)
        torch.testing.assert_close(parts.lower, whole.lower, atol=1e-6, rtol=1e-4)
        torch.testing.assert_close(parts.upper, whole.upper, atol=1e-6, rtol=1e-4)


def test_without_labels_the_predicted_classes_are_certified():
    predictor, x = _predictor(), _points()
    result = cb.certify(predictor, x, eps=1e-4, domain=DOMAIN)
    assert torch.equal(result.labels, predictor.predict(x))
    assert torch.equal(result.labels, result.predicted)
    assert result.accuracy == 1.0 and result.certified_fraction > 0.5


def test_a_wrong_label_is_never_certified():
    predictor, x = _predictor(), _points()
    wrong = (predictor.predict(x) + 1) % CLASSES
    result = cb.certify(predictor, x, wrong, eps=0.0)
    assert not result.certified.any() and result.accuracy == 0.0


def test_a_tie_is_never_certified():
    net = nn.Linear(2, 2)
    with torch.no_grad():
        net.weight.fill_(1.0)
        net.bias.zero_()
    for method in METHODS:
        result = cb.certify(cb.Point(net).predictor(), torch.rand(5, 2), eps=0.0, method=method)
        assert not result.certified.any()


@pytest.mark.parametrize("gap", [1e-8, 1e-7, 3e-7, 1e-6, 1e-5])
def test_a_lead_that_rounding_could_eat_is_certified_only_if_it_shows(gap):
    """Certified implies a strictly larger log-probability of the float program."""
    net = nn.Linear(1, 3)
    with torch.no_grad():
        net.weight.zero_()
        net.bias.copy_(torch.tensor([gap, 0.0, -1.0]))
    predictor = cb.Point(net).predictor()
    x = torch.rand(3, 1)
    for method in METHODS:
        result = cb.certify(predictor, x, torch.zeros(3, dtype=torch.int64), eps=0.1, method=method)
        scores = predictor(x)
        assert bool((scores[:, 0] > scores[:, 1])[result.certified].all())


@pytest.mark.parametrize("gap", [20.0, 60.0, 90.0, 95.0, 103.5, 104.0, 110.0, 500.0, 5000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tiny_probabilities_stay_within_their_bounds(gap, dtype):
    """Below 1e-38 float32 probabilities lose digits and then underflow, which no relative slack covers."""
    net = nn.Linear(1, 2)
    with torch.no_grad():
        net.weight.zero_()
        net.bias.copy_(torch.tensor([0.0, gap]))
    predictor = cb.Point(net).predictor().to(dtype)
    x = torch.rand(1, 1, dtype=dtype)
    result = cb.certify(predictor, x, eps=0.1)
    p = predictor.probabilities(x).double()
    assert bool((result.lower <= p).all() and (p <= result.upper).all())


@pytest.mark.parametrize("classes", range(2, 40))
def test_equal_probabilities_stay_within_their_bounds(classes):
    """Logits that are 0 have hardly any bounds of their own, so only the rounding of 1 / C to float32 is left."""
    net = nn.Linear(1, classes)
    with torch.no_grad():
        net.weight.zero_()
        net.bias.zero_()
    predictor, x = cb.Point(net).predictor(), torch.rand(1, 1)
    result, p = cb.certify(predictor, x, eps=0.1), predictor.probabilities(x).double()
    assert bool((result.lower <= p).all() and (p <= result.upper).all())
    assert not result.certified.any()


@law(40)
@given(x=st.floats(0.9, 1.0), eps=st.floats(0.85, 0.99))
def test_points_in_float64_have_their_own_ball(x, eps):
    """The point is rounded to the predictor's float32; the ball that is stated is around the point as given."""
    predictor = _identity_predictor()
    point = torch.tensor([[x]], dtype=torch.float64)
    result = cb.certify(predictor, point, eps=eps)
    for corner in (point - eps, point + eps):
        p = predictor.probabilities(corner).double()
        assert bool((result.lower <= p).all() and (p <= result.upper).all())


def _identity_predictor() -> Predictor:
    """Logits (0, x)."""
    net = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[0.0], [1.0]]))
    return cb.Point(net).predictor()


@pytest.mark.parametrize("name", NETWORKS)
def test_logit_bounds_hold_every_network(name):
    predictor, x = _predictor(name), _points(name)
    box = cb.bounds.outward_box(x, 0.05, DOMAIN)
    lower, upper = logit_bounds(predictor, box)
    assert lower.dtype == torch.float64 and lower.shape == (3, len(x), CLASSES)
    for point in points_of(*ball(x, 0.05, DOMAIN), 20, 0):
        outputs = predictor.sample_outputs(point).double()
        assert bool((lower <= outputs).all() and (outputs <= upper).all())


def test_counterexamples_of_points_in_float64_lie_in_the_ball_around_these():
    """The predictor runs in float32 and reads every input as that; the ball is not around what it reads."""
    predictor, eps = _predictor(), 0.2
    x = torch.rand(40, *predictor.graph.input_shape, generator=generator(3), dtype=torch.float64)
    result = cb.certify(predictor, x, eps=eps, domain=DOMAIN, method=cb.Best("crown", budget=2.0))
    attacked = result.attacked
    assert int(attacked.sum()) > 4
    found = result.counterexamples[attacked]
    assert found.dtype == torch.float64
    assert bool((found >= x[attacked] - eps).all() and (found <= x[attacked] + eps).all())
    assert bool((found >= 0).all() and (found <= 1).all())
    assert bool((predictor.predict(found.float()) != result.labels[attacked]).all())


def test_float64_predictors():
    predictor, x = _predictor(dtype=torch.float64), _points().double()
    result = cb.certify(predictor, x, eps=1e-3, domain=DOMAIN)
    assert result.dtype == "float64" and "float64" in result.statement
    assert result.certified.any()


def test_points_of_another_precision_are_converted():
    predictor, x = _predictor(), _points()
    result = cb.certify(predictor, x.double(), eps=0.01, domain=DOMAIN)
    assert torch.equal(result.lower, cb.certify(predictor, x, eps=0.01, domain=DOMAIN).lower)


def test_inputs_that_require_gradients():
    result = cb.certify(_predictor(), _points().requires_grad_(True), eps=0.01, domain=DOMAIN)
    assert not result.lower.requires_grad


def test_an_empty_batch():
    for name in ("relu", "batch norm on images"):
        predictor = _predictor(name)
        result = cb.certify(predictor, _points(name)[:0], eps=0.1)
        assert len(result) == 0 and result.lower.shape == (0, CLASSES)
        assert result.certified_fraction == 0.0 and result.accuracy == 0.0
        json.dumps(result.to_json())


def test_progress_is_reported():
    seen = []
    cb.certify(_predictor(), _points(), eps=0.1, batch_size=8, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(8, 20), (16, 20), (20, 20)]


def test_autocast_changes_nothing():
    predictor, x = _predictor("batch norm on images"), _points("batch norm on images")
    plain = cb.certify(predictor, x, eps=0.01)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = cb.certify(predictor, x, eps=0.01)
    assert torch.equal(plain.lower, cast.lower) and torch.equal(plain.certified, cast.certified)


def test_every_zoo_network_can_be_certified():
    for name in ZOO:
        predictor = cb.Point(make(name)).predictor()
        result = cb.certify(predictor, _points(name, 4), eps=0.0, domain=DOMAIN)
        assert bool((result.lower <= result.upper).all())
