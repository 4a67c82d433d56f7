"""Statistical certificates: bounds on posteriors that are known, the borders, and the words."""

import json
import math

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import certibayes as cb
from certibayes.errors import InvalidInput
from certibayes.statistical import posterior_predictive_bounds, robust_probability
from certibayes.statistical.concentration import INEQUALITIES, Sums, samples_needed
from certibayes.statistical.predictive import smallest_differences

from ..strategies import generator

DOMAIN = (0.0, 1.0)
MEAN, STD, SHIFT = 2.0, 1.5, 0.3
POINTS = torch.tensor([[0.5], [0.3], [0.9]])
ONES = torch.ones(3, dtype=torch.int64)
EPS = 0.2


def _posterior(std: float = STD, mean: float = MEAN) -> cb.DiagonalGaussian:
    """Logits (0, w x - SHIFT) with one random weight, w ~ N(mean, std²)."""
    net = nn.Linear(1, 2)
    means = {"weight": torch.tensor([[0.0], [mean]]), "bias": torch.tensor([0.0, -SHIFT])}
    stds = {"weight": torch.tensor([[0.0], [std]]), "bias": torch.zeros(2)}
    return cb.DiagonalGaussian(net, means, stds)


def _true_probability(point: float) -> float:
    """Class 1 wins on [low, high] iff w x > SHIFT at both ends, that is w > SHIFT / low."""
    low = max(point - EPS, 0.0)
    return float(stats.norm.sf(SHIFT / low, MEAN, STD))


def _worst_of_class_1(weights: Tensor) -> Tensor:
    """The smallest softmax of class 1 over each ball, for every weight: (n, B)."""
    low, high = (POINTS[:, 0] - EPS).clamp(min=0.0).double(), (POINTS[:, 0] + EPS).clamp(max=1.0).double()
    ends = torch.stack([weights[:, None] * low, weights[:, None] * high])
    return (ends.amin(0) - SHIFT).sigmoid()


def _weights(count: int = 100_000, seed: int = 7) -> Tensor:
    return MEAN + STD * torch.randn(count, generator=generator(seed), dtype=torch.float64)


# The robust probability


def test_the_robust_probability_of_a_known_posterior():
    result = robust_probability(_posterior(), POINTS, ONES, eps=EPS, domain=DOMAIN, samples=300, joint=True)
    truth = torch.tensor([_true_probability(float(x)) for x in POINTS], dtype=torch.float64)
    assert 0.2 < float(truth.min()) < float(truth.max()) < 0.95
    assert bool((result.lower <= truth).all() and (truth <= result.upper).all())
    assert bool((result.upper - result.lower < 0.22).all())
    # Interval bounds are exact here, so certified networks are the robust ones, but for rounding.
    robust = (_worst_of_class_1(_weights()) > 0.5).double().mean(0)
    torch.testing.assert_close(robust, truth, atol=0.01, rtol=0)
    assert bool((result.lower <= robust).all() and (robust <= result.upper).all())


@pytest.mark.slow
def test_the_confidence_is_kept_over_many_trials():
    truth = torch.tensor([_true_probability(float(x)) for x in POINTS], dtype=torch.float64)
    misses = torch.zeros(3)
    trials, posterior = 60, _posterior()
    for seed in range(trials):
        result = robust_probability(
            posterior, POINTS, ONES, eps=EPS, domain=DOMAIN, samples=25, confidence=0.8, seed=seed
        )
        misses += (result.lower > truth) | (result.upper < truth)
    assert bool((misses <= 0.2 * trials).all())
    assert float(misses.sum()) > 0  # and it is not vacuous


def test_networks_count_only_if_they_classify_as_the_label():
    result = robust_probability(_posterior(), POINTS, 1 - ONES, eps=EPS, domain=DOMAIN, samples=200)
    truth = 1 - float(stats.norm.sf(SHIFT / 0.7, MEAN, STD))  # class 0 wins iff w < SHIFT / high
    assert float(result.lower[0]) <= truth <= float(result.upper[0])


def test_a_point_mass_is_certain():
    result = robust_probability(_posterior(std=0.0), POINTS[:1], ONES[:1], eps=EPS, domain=DOMAIN, samples=100)
    assert result.certified.tolist() == [100]
    assert float(result.lower) == pytest.approx(0.005 ** (1 / 100), rel=1e-6)
    assert float(result.upper) == 1.0


def test_corrections_widen():
    def width(**settings: object) -> float:
        result = robust_probability(_posterior(), POINTS, ONES, eps=EPS, domain=DOMAIN, samples=50, **settings)
        return float((result.upper - result.lower).sum())

    plain = width()
    assert width(confidence=0.9) < plain < width(confidence=0.9999)
    assert plain < width(joint=True)
    assert plain == pytest.approx(width(joint=True, confidence=1 - 0.01 * 3), rel=1e-9)
    assert plain < width(inequality="hoeffding")


def test_smaller_balls_are_more_robust():
    lowers = [
        robust_probability(_posterior(), POINTS, ONES, eps=eps, domain=DOMAIN, samples=50).lower
        for eps in (0.0, 0.1, 0.25)
    ]
    assert bool((lowers[0] >= lowers[1]).all() and (lowers[1] >= lowers[2]).all())


# The worst-case predictive


@pytest.mark.parametrize("inequality", ["hoeffding", "bernstein"])
def test_the_worst_case_predictive_of_a_known_posterior(inequality):
    result = posterior_predictive_bounds(
        _posterior(), POINTS, ONES, eps=EPS, domain=DOMAIN, samples=300, inequality=inequality, joint=True
    )
    weights = _weights()
    worst = _worst_of_class_1(weights).mean(0)
    assert bool((result.lower[:, 1] <= worst).all() and (worst - result.lower[:, 1] < 0.17).all())
    # What is bounded is also the predictive itself, anywhere in the ball.
    for x in torch.linspace(-EPS, EPS, 9):
        inputs = (POINTS[:, 0] + x).clamp(*DOMAIN).double()
        predictive = (weights[:, None] * inputs - SHIFT).sigmoid().mean(0)
        both = torch.stack([1 - predictive, predictive], -1)
        assert bool((result.lower <= both).all() and (both <= result.upper).all())
        assert bool((result.margins[:, 0] <= 2 * predictive - 1).all())
    assert bool((result.margins[:, 1] == 1).all())
    # Paired differences are never worse than bounds apart, but for the correction of both.
    assert bool((result.margins[:, 0] >= result.lower[:, 1] - result.upper[:, 0] - 1e-9).all())
    assert result.certified.tolist() == (result.margins[:, 0] > 0).tolist()
    assert result.certified[2]


def test_bernstein_is_tighter_for_a_narrow_posterior():
    gaps = {}
    for inequality in ("hoeffding", "bernstein"):
        result = posterior_predictive_bounds(
            _posterior(std=0.05), POINTS, ONES, eps=EPS, domain=DOMAIN, samples=200, inequality=inequality
        )
        gaps[inequality] = float((result.upper - result.lower).mean())
    assert gaps["bernstein"] < gaps["hoeffding"]


def test_the_correction_counts_all_classes_sides_rivals_and_points():
    settings = {"eps": 0.0, "domain": DOMAIN, "samples": 50, "inequality": "hoeffding", "confidence": 0.9}
    posterior = _posterior(std=0.0)
    single = posterior_predictive_bounds(posterior, POINTS, ONES, **settings)
    exact = single.lower[0, 1] + math.sqrt(math.log((3 * 2 - 1) / 0.1) / 100)
    assert float(exact) == pytest.approx(1 / (1 + math.exp(SHIFT - MEAN * 0.5)), abs=1e-5)
    joint = posterior_predictive_bounds(posterior, POINTS, ONES, joint=True, **settings)
    widening = math.sqrt(math.log(3 * 5 / 0.1) / 100) - math.sqrt(math.log(5 / 0.1) / 100)
    torch.testing.assert_close(single.lower[0, 1] - joint.lower[0, 1], torch.tensor(widening).double())


@pytest.mark.parametrize("classes", [2, 3, 6])
def test_smallest_differences_hold_over_the_polytope(classes):
    rng = generator(classes)
    base = torch.rand(200, classes, generator=rng, dtype=torch.float64) ** 3
    base = base / base.sum(-1, keepdim=True)
    reached = base + 0.3 * (torch.rand(50, 200, classes, generator=rng, dtype=torch.float64) - 0.5)
    reached = reached.clamp(min=0.0)
    reached = reached / reached.sum(-1, keepdim=True)
    lower, upper = reached.amin(0), reached.amax(0)
    labels = torch.arange(200) % classes
    bound = smallest_differences(lower, upper, labels)
    own = reached.gather(-1, labels[None, :, None].expand(50, -1, 1))
    is_label = labels[:, None] == torch.arange(classes)
    assert bool(((own - reached >= bound) | is_label).all())
    assert bool((bound >= lower.gather(1, labels[:, None]) - upper - 1e-12)[~is_label].all())
    if classes == 2:  # two classes sum to one, so the bound is reached
        torch.testing.assert_close((own - reached).amin(0)[~is_label], bound[~is_label], atol=1e-12, rtol=0)


# A fresh predictor


def test_a_fresh_predictor_keeps_its_promise():
    bounds = posterior_predictive_bounds(_posterior(), POINTS, ONES, eps=EPS, domain=DOMAIN, samples=500)
    for size in (5, 40):
        promise = bounds.fresh_predictor(size, confidence=0.9)
        worst = _worst_of_class_1(_weights(size * 4000)).view(size, 4000, 3).mean(0)
        failing = (worst <= 0.5).double().mean(0)
        assert bool((failing <= promise.failure).all())
        left = (worst < promise.lower[:, 1]).double().mean(0)
        assert bool((left <= 0.1).all())
    many = bounds.fresh_predictor(2000, confidence=0.99)
    assert many.certified[2] and float(many.failure[2]) < 1e-6
    assert bool((many.lower <= bounds.lower).all() and (many.upper >= bounds.upper).all())


def test_real_fresh_predictors_are_certified_as_promised():
    posterior = _posterior(std=0.3, mean=8.0)
    bounds = posterior_predictive_bounds(posterior, POINTS, ONES, eps=0.1, domain=DOMAIN, samples=400, joint=True)
    promise = bounds.fresh_predictor(200, confidence=0.95)
    assert promise.certified.all()
    for seed in range(5):
        certificate = cb.certify(posterior.predictor(200, seed=seed), POINTS, ONES, eps=0.1, domain=DOMAIN)
        assert certificate.certified.all()
        assert bool((certificate.lower >= promise.lower).all() and (certificate.upper <= promise.upper + 1e-6).all())


def test_the_number_of_samples_needed_is_enough():
    bounds = posterior_predictive_bounds(_posterior(std=0.3), POINTS, ONES, eps=0.1, domain=DOMAIN, samples=150)
    margin = float(bounds.margins[2].min())
    needed = samples_needed(margin, confidence=0.999)
    assert bounds.fresh_predictor(needed + 1, 0.999).certified[2]
    assert not bounds.fresh_predictor(needed - 1, 0.999).certified[2]


def test_without_a_margin_nothing_is_promised():
    bounds = posterior_predictive_bounds(_posterior(mean=0.0), POINTS, ONES, eps=EPS, domain=DOMAIN, samples=50)
    promise = bounds.fresh_predictor(10_000)
    assert not promise.certified.any() and bool((promise.failure == 1).all())


# Borders and words


def test_dependent_samples_are_refused_with_the_reason():
    net = nn.Linear(1, 2)
    chain = cb.Samples.from_modules([nn.Linear(1, 2) for _ in range(4)])
    for function in (robust_probability, posterior_predictive_bounds):
        with pytest.raises(InvalidInput, match=r"Markov chain.*correlated.*certify\(posterior"):
            function(chain, POINTS, ONES, eps=0.1, samples=3)
        with pytest.raises(InvalidInput, match="nothing random"):
            function(cb.Point(net), POINTS, ONES, eps=0.1, samples=3)
        with pytest.raises(InvalidInput, match=r"certify\(predictor"):
            function(cb.Point(net).predictor(), POINTS, ONES, eps=0.1, samples=3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"samples": 0}, "samples"),
        ({"confidence": 1.0}, "confidence"),
        ({"confidence": 0.0}, "confidence"),
        ({"inequality": "magic"}, "inequality must be one of.*magic"),
        ({"method": "magic"}, "method must be one of.*magic"),
        ({"eps": -1.0}, "eps"),
        ({"y": torch.tensor([0, 1, 2])}, "labels"),
        ({"y": ONES[:2]}, "labels"),
        ({"x": POINTS + 5}, "domain"),
        ({"samples": 1, "inequality": "bernstein"}, "at least 2"),
    ],
)
def test_refused(settings, message):
    arguments = {"x": POINTS, "y": ONES, "eps": 0.1, "domain": DOMAIN, "samples": 3, **settings}
    for function in (robust_probability, posterior_predictive_bounds):
        with pytest.raises(InvalidInput, match=message):
            function(_posterior(), **arguments)


def test_proportions_and_probabilities_are_distinguished():
    with pytest.raises(InvalidInput, match="proportions"):
        posterior_predictive_bounds(_posterior(), POINTS, ONES, eps=0.1, samples=3, inequality="clopper-pearson")
    with pytest.raises(InvalidInput, match="proportions"):
        INEQUALITIES["clopper-pearson"](Sums.of(torch.tensor([0.5, 1.0])), 0.1)


def test_regression_is_refused():
    posterior = _posterior()
    posterior.metadata["task"] = "regression"
    with pytest.raises(InvalidInput, match="regression"):
        robust_probability(posterior, POINTS, ONES, eps=0.1, samples=3)


def test_draws_depend_on_the_seed_alone_and_not_on_predictors():
    settings = {"eps": EPS, "domain": DOMAIN, "samples": 20, "inequality": "hoeffding"}
    one, again, other = (
        posterior_predictive_bounds(_posterior(), POINTS, ONES, seed=seed, **settings) for seed in (0, 0, 1)
    )
    assert torch.equal(one.lower, again.lower) and not torch.equal(one.lower, other.lower)


def test_statements_and_json():
    settings = {"eps": 0.125, "domain": DOMAIN, "samples": 20, "seed": 5}
    probability = robust_probability(_posterior(), POINTS, ONES, joint=True, **settings)
    predictive = posterior_predictive_bounds(_posterior(), POINTS, ONES, rounding="ideal", **settings)
    fresh = predictive.fresh_predictor(35, 0.9)
    common = ("0.99", "0.125", "[0, 1]", "20 independent draws", "DiagonalGaussian", "seed 5", "ibp", "union bound")
    for result in (probability, predictive, fresh):
        for word in common:
            assert word in result.statement
        record = json.loads(json.dumps(result.to_json(), allow_nan=False))
        assert record["statement"] == result.statement and len(record["lower"]) == len(result) == 3
        origin = record["trial"]["provenance"]
        assert origin["seed"] == 5 and origin["version"] == cb.__version__
    assert "jointly for all 3 points" in probability.statement and "clopper-pearson" in probability.statement
    assert "for each point by itself" in predictive.statement and "exact arithmetic" in predictive.statement
    assert "35 further weight samples" in fresh.statement and "at least 0.9" in fresh.statement


def test_other_methods_and_radii_are_passed_on():
    settings = {"domain": DOMAIN, "samples": 30}
    plain = robust_probability(_posterior(), POINTS, ONES, eps=EPS, **settings)
    tensor = torch.full((3,), EPS)
    for method in (cb.Pairwise("crown"), cb.Elided("ibp"), cb.Elided("crown")):
        result = robust_probability(_posterior(), POINTS, ONES, eps=tensor, method=method, **settings)
        assert bool((result.certified - plain.certified).abs().max() <= 1)  # one linear layer: exact every way
        assert (
            f"{method.bounds} bounds and the method {method.name}" in result.statement
            and "radius given for that point" in result.statement
        )
        json.dumps(result.to_json())
    crown = posterior_predictive_bounds(_posterior(), POINTS, ONES, eps=tensor, method=cb.Pairwise("crown"), **settings)
    ibp = posterior_predictive_bounds(_posterior(), POINTS, ONES, eps=EPS, **settings)
    torch.testing.assert_close(crown.upper, ibp.upper, atol=1e-4, rtol=0)


@pytest.mark.parametrize("method", ["theorem1", "pairwise", "auto"])
def test_a_draw_whose_bounds_overflow_counts_against_its_point_alone(method):
    """Its probabilities may be anything there, and it is not robust."""
    net = nn.Sequential(*[nn.Linear(1, 1, bias=False) for _ in range(5)], nn.Linear(1, 2))
    factors = [2.0**24] * 4 + [2.0**-48, 2.0**-48]
    mean = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    for index, factor in enumerate(factors):
        mean[f"{index}.weight"][0] = factor
    mean["5.bias"] = torch.tensor([0.0, 0.05])
    posterior = cb.DiagonalGaussian(net, mean, {name: torch.zeros_like(p) for name, p in mean.items()})
    x, y, settings = torch.tensor([[0.5], [20.0]]), torch.zeros(2, dtype=torch.int64), {"eps": 0.1, "samples": 12}
    robust = robust_probability(posterior, x, y, method=method, **settings)
    assert robust.certified.tolist() == [12, 0] and float(robust.upper[1]) < 1.0 == float(robust.upper[0])
    found = posterior_predictive_bounds(posterior, x, y, method=method, **settings)
    assert bool((found.lower[1] == 0).all() and (found.upper[1] == 1).all()) and bool((found.margins[1] <= 0)[1])
    alone = posterior_predictive_bounds(posterior, x[:1], y[:1], method=method, **settings)
    assert torch.equal(found.lower[:1], alone.lower) and torch.equal(found.upper[:1], alone.upper)
    json.dumps(found.to_json(), allow_nan=False)


def test_progress_and_batches():
    seen = []
    settings = {"eps": EPS, "domain": DOMAIN, "samples": 3}
    whole = posterior_predictive_bounds(_posterior(), POINTS, ONES, **settings)
    parts = posterior_predictive_bounds(
        _posterior(), POINTS, ONES, batch_size=2, progress=lambda *done: seen.append(done), device="cpu", **settings
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]
    torch.testing.assert_close(whole.lower, parts.lower)


def test_an_empty_batch():
    for joint in (False, True):
        settings = {"eps": EPS, "samples": 3, "joint": joint}
        assert len(robust_probability(_posterior(), POINTS[:0], ONES[:0], **settings)) == 0
        result = posterior_predictive_bounds(_posterior(), POINTS[:0], ONES[:0], **settings)
        assert result.lower.shape == (0, 2) and result.fresh_predictor(5).failure.shape == (0,)


def test_a_low_rank_posterior_is_drawn_from_independently():
    net = nn.Linear(1, 2)
    mean = {"weight": torch.tensor([[0.0], [3.0]]), "bias": torch.zeros(2)}
    std = {name: torch.zeros_like(p) for name, p in mean.items()}
    factors = {"weight": torch.tensor([[[0.0], [1.0]]]), "bias": torch.zeros(1, 2)}
    result = robust_probability(
        cb.LowRankGaussian(net, mean, std, factors), POINTS, ONES, eps=0.1, domain=DOMAIN, samples=200
    )
    truth = float(stats.norm.sf(0.0, 3.0, 1.0))
    assert bool((result.lower <= truth).all() and (truth <= result.upper).all())


# The domain


class InUnitInterval(cb.DiagonalGaussian):
    """A posterior that knows which inputs there are."""

    domain = DOMAIN


@pytest.mark.parametrize("bound", [robust_probability, posterior_predictive_bounds])
def test_the_domain_of_the_posterior_is_taken_unless_one_is_stated(bound):
    plain = _posterior()
    knowing = InUnitInterval(plain.network, plain.mean, plain.std)
    settings = {"eps": EPS, "samples": 40}
    own, stated = bound(knowing, POINTS, ONES, **settings), bound(plain, POINTS, ONES, domain=DOMAIN, **settings)
    everywhere = bound(knowing, POINTS, ONES, domain=None, **settings)
    assert own.trial.domain == DOMAIN and "with values in [0, 1]" in own.statement
    assert torch.equal(own.lower, stated.lower) and torch.equal(own.upper, stated.upper)
    assert everywhere.trial.domain is None and bound(plain, POINTS, ONES, **settings).trial.domain is None


@pytest.mark.parametrize("bound", [robust_probability, posterior_predictive_bounds])
def test_a_radius_wider_than_the_domain_is_questioned(bound):
    with pytest.raises(InvalidInput, match="eps=8 is wider than the domain"):
        bound(_posterior(), POINTS, ONES, eps=8, domain=DOMAIN, samples=4)
