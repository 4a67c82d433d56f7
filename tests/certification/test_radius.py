"""Laws of certified radii: each was proved, no attack breaks one, and where the answer is known they come close."""

import dataclasses

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.attacks import PGD
from certibayes.certification import METHODS, as_method, certified_radius
from certibayes.errors import InvalidInput
from certibayes.prediction import Predictor

from ..strategies import CLASSES, few_of, generator, in_turn, inputs, make

DOMAIN = (0.0, 1.0)
NETWORKS = ("relu", "sigmoid", "residual", "batch norm on images")


def _predictor(name: str = "relu", samples: int = 3, seed: int = 0) -> Predictor:
    modules = [make(name, seed) for _ in range(samples)]
    rng = generator(seed)
    with torch.no_grad():
        for module in modules:
            for p in module.parameters():
                p.add_(0.02 * torch.randn(p.shape, generator=rng)).mul_(2.0)
    return cb.Samples.from_modules(modules).predictor(samples)


def _points(name: str = "relu", count: int = 12) -> torch.Tensor:
    return inputs(name, count, 0).sigmoid()


def _linear(weight: torch.Tensor, bias: torch.Tensor) -> Predictor:
    net = nn.Linear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        net.weight.copy_(weight)
        net.bias.copy_(bias)
    return cb.Point(net).predictor()


@pytest.mark.parametrize(("name", "method"), in_turn(NETWORKS, ["theorem1", "pairwise", "auto"]))
def test_every_radius_is_proved_by_certify_itself_and_stands_against_attacks(name, method):
    predictor, x = _predictor(name), _points(name)
    result = certified_radius(predictor, x, method=method, domain=DOMAIN)
    assert result.correct.all() and result.radius.dtype == torch.float64 and (result.radius > 0).any()
    kept, labels = result.certified, result.labels
    found = cb.certify(predictor, x, labels, eps=result.radius, method=method, domain=DOMAIN)
    assert torch.equal(found.certified, kept)
    attack = PGD(steps=10, restarts=2)
    attacked = cb.attack(predictor, x[kept], labels[kept], eps=result.radius[kept], domain=DOMAIN, method=attack)
    assert not attacked.success.any()
    limited = result.unproved < float("inf")
    beyond = result.unproved[limited]
    assert not cb.certify(predictor, x[limited], eps=beyond, method=method, domain=DOMAIN).certified.any()
    assert bool((beyond - result.radius[limited] <= result.tolerance).all())
    # And alone, as one radius for one point.
    eps = float(result.radius[0])
    assert bool(cb.certify(predictor, x[:1], labels[:1], eps=eps, method=method, domain=DOMAIN).certified) == kept[0]


@pytest.mark.parametrize("tolerance", [0.1, 1e-3, 1e-6])
def test_one_linear_layer_has_a_known_radius(tolerance):
    """Two classes: theorem 1 and the boxes of logits are exact up to the intervals of the logits themselves."""
    weight = torch.tensor([[1.0, -0.5], [0.0, 0.0]])
    predictor = _linear(weight, torch.tensor([0.0, 0.0]))
    x = torch.tensor([[0.9, 0.2], [0.5, 0.9], [0.3, 0.1]])
    # The second logit is constant, so the class changes where x_0 - x_1 / 2 is 0.
    expected = ((x @ weight[0]) / weight[0].abs().sum()).double()
    result = certified_radius(predictor, x, torch.zeros(3, dtype=torch.int64), tolerance=tolerance, largest=1.0)
    assert bool((result.radius <= expected + 1e-6).all())
    assert bool((result.radius >= expected - tolerance - 1e-4).all())


def test_the_domain_lets_radii_grow():
    weight, x = torch.tensor([[1.0], [0.0]]), torch.tensor([[0.2]])
    predictor = _linear(weight, torch.tensor([0.1, 0.0]))
    unlimited = certified_radius(predictor, x)
    clipped = certified_radius(predictor, x, domain=DOMAIN)
    assert abs(float(unlimited.radius) - 0.3) < 2e-3
    assert float(clipped.radius) == 0.5 and float(clipped.unproved) == float("inf")


def test_a_misclassified_point_has_radius_0_and_is_marked():
    predictor, x = _predictor(), _points()
    labels = predictor.predict(x)
    labels[::2] = (labels[::2] + 1) % CLASSES
    result = certified_radius(predictor, x, labels, domain=DOMAIN)
    assert not result.correct[::2].any() and result.correct[1::2].all()
    assert not result.certified[::2].any() and not result.radius[::2].any()
    assert result.certified_at(0.0) <= 0.5 and result.mean == float(result.radius.mean())


def test_a_tie_cannot_be_certified_even_alone():
    predictor = _linear(torch.ones(2, 2), torch.zeros(2))
    result = certified_radius(predictor, torch.rand(3, 2))
    assert result.correct.all() and not result.certified.any()
    assert not result.radius.any() and not result.unproved.any()
    assert result.certified_at(0.0) == 0.0


@pytest.mark.parametrize("method", few_of(METHODS, fast=set(METHODS) - {"best"}))
def test_stronger_methods_reach_at_least_as_far(method):
    predictor, x = _predictor(), _points(count=6)
    plain = certified_radius(predictor, x, method="theorem1", domain=DOMAIN, tolerance=0.01)
    found = certified_radius(predictor, x, method=method, domain=DOMAIN, tolerance=0.01)
    assert bool((found.radius >= plain.radius).all())
    assert found.bounds == as_method(method).bounds and found.bounds in found.statement
    for i in range(len(x)):
        eps = float(found.radius[i])
        assert cb.certify(predictor, x[i : i + 1], eps=eps, method=method, domain=DOMAIN).certified.all()


def test_one_network_and_a_hundred_classes():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 100))
    predictor, x = cb.Point(net).predictor(), torch.rand(6, 4)
    result = certified_radius(predictor, x, domain=DOMAIN, tolerance=1e-4)
    assert result.samples == 1 and result.certified.all() and (result.radius > 0).any()
    for radius in result.radius.unique().tolist():
        kept = result.radius == radius
        assert cb.certify(predictor, x[kept], eps=radius, domain=DOMAIN).certified.all()


def test_order_and_batches_make_no_difference():
    predictor, x = _predictor("batch norm on images"), _points("batch norm on images", 15)
    whole = certified_radius(predictor, x, domain=DOMAIN)
    order = torch.randperm(len(x), generator=generator(0))
    shuffled = certified_radius(predictor, x[order], domain=DOMAIN, batch_size=4)
    assert torch.equal(shuffled.radius, whole.radius[order])
    assert torch.equal(shuffled.unproved, whole.unproved[order])


def test_one_exploding_point_does_not_take_the_others_down():
    """Beyond 2^100 nothing is known of it."""
    net = nn.Sequential(*[nn.Linear(1, 1, bias=False) for _ in range(5)], nn.Linear(1, 2, bias=False))
    with torch.no_grad():
        for layer in net[:4]:
            layer.weight.fill_(2.0**24)
        # In two steps: one factor of 2^-96 would be so close to underflow that bounds had to allow for it.
        net[4].weight.fill_(2.0**-48)
        net[5].weight.copy_(torch.tensor([[2.0**-48], [0.0]]))
    predictor, x = cb.Point(net).predictor(), torch.tensor([[0.5], [20.0], [0.25]])
    labels = torch.zeros(3, dtype=torch.int64)
    assert cb.certify(predictor, x, labels, eps=0.0).certified.tolist() == [True, False, True]
    result = certified_radius(predictor, x, labels, largest=1.0)
    assert result.certified.tolist() == [True, False, True] and result.correct.all()
    assert abs(float(result.radius[0]) - 0.5) < 2e-3 and abs(float(result.radius[2]) - 0.25) < 2e-3


def test_progress_reaches_the_end_in_the_promised_number_of_steps():
    seen = []
    certified_radius(_predictor(), _points(), tolerance=0.1, progress=lambda done, total: seen.append((done, total)))
    steps = 3  # ceil(log2(0.5 / 0.1))
    assert seen == [(12 * (k + 1), 12 * (steps + 2)) for k in range(steps + 2)]


def test_ideal_rounding_never_reaches_less_far():
    predictor, x = _predictor(), _points()
    assert bool(
        (certified_radius(predictor, x, rounding="ideal").radius >= certified_radius(predictor, x).radius).all()
    )


def test_the_statement_says_what_was_proved():
    result = certified_radius(_predictor(), _points(), method="theorem1", domain=DOMAIN)
    for word in ("[0, 1]", "l-infinity", "3 fixed weight samples", result.digest[:16], "theorem1", "0.5", "float32"):
        assert word in result.statement
    assert "Radius(mean" in repr(result)
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.largest = 1.0


def test_no_points_no_radii():
    result = certified_radius(_predictor(), torch.zeros(0, 5))
    assert len(result) == 0 and result.mean == result.median == result.certified_at(0.1) == 0.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"largest": 0.0}, "positive"),
        ({"largest": float("inf")}, "finite"),
        ({"tolerance": -1.0}, "positive"),
        ({"tolerance": float("nan")}, "finite"),
        ({"tolerance": 1e-30}, "too fine"),
        ({"method": "majority"}, "method must be"),
        ({"y": torch.zeros(3, dtype=torch.int64)}, "12 inputs but 3 labels"),
    ],
)
def test_refused(settings, message):
    with pytest.raises(InvalidInput, match=message):
        certified_radius(_predictor(), _points(), **settings)


def test_crown_intermediates_reach_at_least_as_far():
    torch.manual_seed(0)
    layers = [part for _ in range(4) for part in (nn.Linear(6, 6), nn.ReLU())]
    predictor = cb.Point(nn.Sequential(*layers, nn.Linear(6, 3))).predictor()
    settings = {"largest": 4.0, "tolerance": 0.01}
    x = torch.rand(10, 6)
    plain = cb.certified_radius(predictor, x, method=cb.Theorem1("crown"), **settings)
    better = cb.certified_radius(predictor, x, method=cb.Theorem1("crown", "crown"), **settings)
    assert bool((better.radius >= plain.radius).all()) and better.mean > plain.mean > 0
    assert better.intermediates == "crown" and "with crown intermediates" in better.statement
    assert "intermediates" not in plain.statement
