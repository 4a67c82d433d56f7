"""Rules over margins, and the bounds they may be asked to take: against brute force, and against attacks."""

import json
from functools import cache
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import certibayes as cb
from certibayes.attacks import PGD
from certibayes.certification import as_method
from certibayes.certification.rules import elided_values, pairwise_values
from certibayes.errors import InvalidInput
from certibayes.prediction import Predictor

from ..strategies import ball, few_of, generator, in_turn, law, points_of, seeds

DOMAIN = (0.0, 1.0)
BOUNDS = ("ibp", "crown", "alpha-crown")
METHODS = ("theorem1", "pairwise", "elided", "best")
every_way = pytest.mark.parametrize(("bounds", "method"), list(product(BOUNDS, METHODS)))
each_method = pytest.mark.parametrize(("method", "bounds"), in_turn(METHODS, ["ibp", "alpha-crown", "crown"]))


# From margins to differences of probabilities


def _margin_boxes(seed: int, classes: int, scale: float, width: float) -> tuple[Tensor, Tensor, Tensor]:
    rng = generator(seed)
    lower = torch.randn(3, 5, classes, generator=rng, dtype=torch.float64) * scale
    return lower, lower + torch.rand(lower.shape, generator=rng, dtype=torch.float64) * width, torch.arange(5) % classes


def _difference(margins: Tensor, labels: Tensor) -> Tensor:
    """softmax_y - softmax_c for logits with the given margins, y at 0: (..., B, C)."""
    is_label = labels[:, None] == torch.arange(margins.shape[-1])
    p = (-margins.masked_fill(is_label, 0.0)).softmax(-1)
    return p.masked_fill(~is_label, 0.0).sum(-1, keepdim=True) - p


def _smallest_difference(lower: Tensor, upper: Tensor, labels: Tensor) -> Tensor:
    """Over all corners of the box of margins; inf for the label. In each margin the difference is monotone."""
    best = torch.full_like(lower, torch.inf)
    for corner in product((False, True), repeat=lower.shape[-1]):
        best = torch.minimum(best, _difference(torch.where(torch.tensor(corner), upper, lower), labels))
    return best.masked_fill(labels[:, None] == torch.arange(lower.shape[-1]), torch.inf)


@law(60)
@given(
    seed=seeds,
    classes=st.integers(2, 6),
    scale=st.sampled_from([0.1, 3.0, 30.0]),
    width=st.sampled_from([0.0, 0.3, 3.0, 50.0]),
)
def test_elided_values_are_the_brute_force_minimum_and_never_above_it(seed, classes, scale, width):
    lower, upper, labels = _margin_boxes(seed, classes, scale, width)
    found, exact = elided_values(lower, upper, labels), _smallest_difference(lower, upper, labels)
    assert bool((found <= exact).all())
    torch.testing.assert_close(found, exact, atol=1e-11, rtol=0)


@law(30)
@given(seed=seeds, scale=st.sampled_from([300.0, 1e4, 1e6]), width=st.sampled_from([1.0, 1e3, 1e7]))
def test_elided_values_of_extreme_margins_stay_sound(seed, scale, width):
    lower, upper, labels = _margin_boxes(seed, 4, scale, width)
    found, exact = elided_values(lower, upper, labels), _smallest_difference(lower, upper, labels)
    assert bool((found <= exact).all()) and not bool(torch.isnan(found).any())
    torch.testing.assert_close(found, exact, atol=1e-6, rtol=0)


@law(30)
@given(seed=seeds, width=st.sampled_from([0.0, 1.0, 10.0]))
def test_no_margins_of_the_box_fall_below_elided_values(seed, width):
    lower, upper, labels = _margin_boxes(seed, 5, 3.0, width)
    noise = torch.rand(200, *lower.shape, generator=generator(seed + 1), dtype=torch.float64)
    is_label = labels[:, None] == torch.arange(5)
    reached = _difference(lower + noise * (upper - lower), labels).masked_fill(is_label, torch.inf)
    assert bool((reached >= elided_values(lower, upper, labels)).all())


def test_lower_bounds_of_the_other_margins_would_be_unsound_where_a_rival_leads():
    """The rival leads by 1. The third class may be far behind, where the lead is worth most, or far ahead."""
    lower = torch.tensor([[[0.0, -1.0, -20.0]]], dtype=torch.float64)
    upper = torch.tensor([[[0.0, -1.0, 20.0]]], dtype=torch.float64)
    labels = torch.tensor([0])
    value = float(elided_values(lower, upper, labels)[0, 0, 1])
    assert value == pytest.approx(-float(torch.tanh(torch.tensor(0.5))), abs=1e-6)
    assert float(_difference(lower, labels)[0, 0, 1]) > -1e-6  # what the lower bound would have said


@law(20)
@given(seed=seeds, classes=st.integers(2, 6), width=st.sampled_from([0.0, 0.5, 5.0]))
def test_margins_of_a_box_of_logits_are_no_tighter_than_the_box(seed, classes, width):
    rng = generator(seed)
    low = torch.randn(2, 4, classes, generator=rng, dtype=torch.float64) * 2
    high, labels = low + torch.rand(low.shape, generator=rng, dtype=torch.float64) * width, torch.arange(4) % classes
    own = labels.expand(2, -1)[..., None]
    found = elided_values(low.gather(-1, own) - high, high.gather(-1, own) - low, labels)
    assert bool((found <= pairwise_values(low, high, labels) + 1e-11).all())


# Whole certificates


@cache
def _predictor(samples: int = 3, classes: int = 4, noise: float = 0.3, seed: int = 0, inputs: int = 5) -> Predictor:
    """Networks with one base in common, ``noise`` apart from each other."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        base = nn.Sequential(nn.Linear(inputs, 10), nn.ReLU(), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, classes))
        nets = []
        for _ in range(samples):
            net = nn.Sequential(
                *[nn.Linear(m.in_features, m.out_features) if i % 2 == 0 else nn.ReLU() for i, m in enumerate(base)]
            )
            with torch.no_grad():
                for p, b in zip(net.parameters(), base.parameters(), strict=True):
                    p.copy_(2.5 * ((1 - noise) * b + noise * p))
            nets.append(net)
    return cb.Samples.from_modules(nets).predictor(samples)


def _points(count: int = 12, inputs: int = 5, seed: int = 0) -> Tensor:
    return torch.rand(count, inputs, generator=generator(seed))


def _certified(predictor, x, bounds, method, eps, y=None, **settings):
    chosen = as_method(method, bounds=bounds)
    return cb.certify(predictor, x, y, eps=eps, method=chosen, domain=DOMAIN, **settings).certified


@every_way
def test_no_attack_of_ours_breaks_a_certified_point(bounds, method):
    proved = 0
    for noise, eps in ((0.1, 0.03), (0.3, 0.06), (1.0, 0.03)):
        predictor, x = _predictor(noise=noise), _points()
        result = cb.certify(predictor, x, eps=eps, method=as_method(method, bounds=bounds), domain=DOMAIN)
        kept, labels = x[result.certified], result.labels[result.certified]
        if len(kept) == 0:
            continue
        proved += len(kept)
        assert not cb.attack(
            predictor, kept, labels, eps=eps, domain=DOMAIN, method=PGD(steps=8, restarts=2)
        ).success.any()
        for point in points_of(*ball(kept, eps, DOMAIN), 10, 0):
            assert bool((predictor.predict(point) == labels).all())
    assert proved > 5


STRONGER = [
    *[
        (bounds, weak, strong)
        for bounds in BOUNDS
        for weak, strong in (("theorem1", "pairwise"), ("pairwise", "elided"))
    ],
    ("ibp", "elided", "best"),
    ("crown", "elided", "best"),
]


@cache
def _proved_once(bounds: str, method: str, seed: int) -> Tensor:
    """For 20 points, each at three radii."""
    x, eps = _points(20, seed=seed).repeat(3, 1), torch.tensor([0.01, 0.03, 0.06]).double().repeat_interleave(20)
    return _certified(_predictor(noise=1.0, seed=seed), x, bounds, method, eps)


def _assert_stronger(weak: tuple[str, str], strong: tuple[str, str]) -> None:
    """All that one way of proving proves, the other does as well."""
    for seed in range(2):
        one, other = (_proved_once(*way, seed) for way in (weak, strong))
        assert bool((other | ~one).all())


@pytest.mark.parametrize(("bounds", "weak", "strong"), STRONGER)
def test_a_later_method_proves_all_that_an_earlier_one_does(bounds, weak, strong):
    _assert_stronger((bounds, weak), (bounds, strong))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("weak", "strong"), [("ibp", "crown"), ("crown", "alpha-crown")])
def test_tighter_bounds_prove_all_that_looser_ones_do(weak, strong, method):
    _assert_stronger((weak, method), (strong, method))


def test_linear_bounds_and_margins_prove_more():
    predictor, x = _predictor(noise=0.1), _points(40)
    counts = [
        int(_certified(predictor, x, bounds, method, 0.1).sum())
        for bounds, method in (("ibp", "theorem1"), ("ibp", "elided"), ("crown", "elided"))
    ]
    assert counts[0] < counts[1] < counts[2]


@each_method
def test_without_a_radius_almost_all_points_are_proved(bounds, method):
    predictor, x = _predictor(), _points(40)
    assert float(_certified(predictor, x, bounds, method, 0.0).float().mean()) > 0.9


@each_method
def test_one_network_and_a_hundred_classes(bounds, method):
    x = _points(4)
    single = _predictor(samples=1)
    certified = _certified(single, x, bounds, method, 0.01)
    assert bool(certified.any())
    many = _predictor(classes=100, samples=2, noise=0.02)
    result = cb.certify(many, x, eps=1e-3, method=as_method(method, bounds=bounds), domain=DOMAIN)
    assert result.lower.shape == (4, 100) and bool(result.certified.any())
    kept = x[result.certified]
    assert bool((many.predict((kept + 1e-3).clamp(0, 1)) == result.labels[result.certified]).all())


@pytest.mark.parametrize("bounds", few_of(["crown", "alpha-crown"], fast=["crown"]))
@pytest.mark.parametrize("method", ["elided", "best"])
def test_little_memory_and_small_batches_give_the_same_answer(bounds, method):
    predictor, x = _predictor(), _points(12)
    whole = _certified(predictor, x, bounds, method, 0.05)
    assert 0 < int(whole.sum()) < len(x)
    assert torch.equal(_certified(predictor, x, bounds, method, 0.05, memory=1), whole)
    assert torch.equal(_certified(predictor, x, bounds, method, 0.05, batch_size=5, memory=10_000), whole)


@each_method
def test_labels_are_the_predicted_classes_unless_given(bounds, method):
    predictor, x = _predictor(), _points()
    predicted = predictor.predict(x)
    assert torch.equal(
        _certified(predictor, x, bounds, method, 0.03), _certified(predictor, x, bounds, method, 0.03, predicted)
    )
    assert not bool(_certified(predictor, x, bounds, method, 0.03, (predicted + 1) % 4).any())


# Radii by point and by input value


@each_method
def test_equal_radii_are_one_radius(bounds, method):
    predictor, x = _predictor(), _points()
    one = _certified(predictor, x, bounds, method, 0.03)
    for eps in (torch.full((12,), 0.03, dtype=torch.float64), torch.full((12, 5), 0.03, dtype=torch.float64)):
        assert torch.equal(_certified(predictor, x, bounds, method, eps), one)


@each_method
def test_every_point_may_have_a_radius_of_its_own(bounds, method):
    predictor, x = _predictor(), _points()
    radii = torch.tensor([0.0, 0.01, 0.1, 0.5], dtype=torch.float64).repeat(3)
    at_once = _certified(predictor, x, bounds, method, radii)
    # Each radius once, every time with another point.
    chosen = [0, 5, 10, 3, 8]
    alone = [_certified(predictor, x[i : i + 1], bounds, method, float(radii[i])) for i in chosen]
    assert torch.equal(at_once[chosen], torch.cat(alone))


@each_method
def test_where_only_some_inputs_may_change_every_such_change_is_harmless(bounds, method):
    predictor, x = _predictor(noise=0.05), _points(12)
    radii = torch.tensor([0.0, 0.12, 0.0, 0.05, 0.0], dtype=torch.float64)
    result = cb.certify(predictor, x, eps=radii[None], method=as_method(method, bounds=bounds), domain=DOMAIN)
    everywhere = _certified(predictor, x, bounds, method, 0.12)
    assert bool((result.certified | ~everywhere).all())
    assert int(result.certified.sum()) > int(everywhere.sum())
    steps = torch.linspace(-1, 1, 9)
    for a, b in product(steps, steps):
        moved = (x + torch.stack([0 * a, a, 0 * a, b, 0 * a]) * radii.float()).clamp(0, 1)
        p = predictor.probabilities(moved).double()
        assert bool((predictor.predict(moved) == result.labels)[result.certified].all())
        assert bool((p >= result.lower).all() and (p <= result.upper).all())


@pytest.mark.parametrize("shape", [(3,), (12, 4), (4, 5), (2, 12, 5), (1, 1, 5)])
def test_radii_that_fit_nothing_are_refused(shape):
    with pytest.raises(InvalidInput):
        _certified(_predictor(), _points(), "ibp", "theorem1", torch.full(shape, 0.1))


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_radii_that_are_no_radii_are_refused(value):
    with pytest.raises(InvalidInput, match="radii"):
        _certified(_predictor(), _points(), "ibp", "theorem1", torch.tensor([0.1] * 11 + [value]))


# Words


@every_way
def test_statements_name_bounds_and_method(bounds, method):
    result = cb.certify(_predictor(), _points(3), eps=0.03, method=as_method(method, bounds=bounds), domain=DOMAIN)
    assert f"{bounds} bounds and the method {method}" in result.statement
    record = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert record["provenance"]["settings"] == {"bounds": bounds, "method": method, "intermediates": "ibp"}


def test_statements_tell_radii_of_points_from_radii_of_inputs():
    points = cb.certify(_predictor(), _points(3), eps=torch.tensor([0.0, 0.25, 0.5]))
    assert "given for that point (from 0.0 to 0.5)" in points.statement
    values = cb.certify(_predictor(), _points(3), eps=torch.tensor([[0.0, 0.25, 0.5, 0.0, 0.0]]))
    assert "given for each input value (from 0.0 to 0.5)" in values.statement


def test_best_takes_the_tightest_bounds_by_default():
    assert cb.certify(_predictor(), _points(2), eps=0.01, method="best").bounds == "hull"
    assert cb.certify(_predictor(), _points(2), eps=0.01, method="elided").bounds == "ibp"
