"""The inequalities behind statistical certificates, against distributions that are known."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from certibayes.errors import InvalidInput
from certibayes.statistical.concentration import INEQUALITIES, Sums, hoeffding_tail, samples_needed

from ..strategies import generator


def _sums(successes: int, draws: int) -> Sums:
    return Sums(draws, torch.tensor(float(successes)).double(), torch.tensor(float(successes)).double())


# The inequalities


def test_clopper_pearson_in_closed_form():
    for draws in (1, 10, 500):
        for failure in (0.05, 1e-6):
            lower, upper = INEQUALITIES["clopper-pearson"](_sums(draws, draws), failure)
            assert float(upper) == 1.0
            assert float(lower) == pytest.approx(failure ** (1 / draws), rel=1e-8)
            lower, upper = INEQUALITIES["clopper-pearson"](_sums(0, draws), failure)
            assert float(lower) == 0.0
            assert float(upper) == pytest.approx(1 - failure ** (1 / draws), abs=2e-9)


@pytest.mark.parametrize("failure", [0.1, 1e-3, 1e-9])
def test_clopper_pearson_inverts_the_binomial_tail_on_the_safe_side(failure):
    for draws in (3, 40, 1000, 100_000):
        successes = np.unique(np.linspace(0, draws, 41).astype(int))
        total = torch.from_numpy(successes).double()
        lower, upper = (t.numpy() for t in INEQUALITIES["clopper-pearson"](Sums(draws, total, total), failure))
        inner, outer = successes[1:], successes[:-1]
        assert (stats.binom.sf(inner - 1, draws, lower[1:]) <= failure).all()
        assert stats.binom.sf(inner - 1, draws, lower[1:]) == pytest.approx(failure, rel=1e-4)
        assert (stats.binom.cdf(outer, draws, upper[:-1]) <= failure * (1 + 1e-9)).all()
        assert ((lower <= successes / draws) & (successes / draws <= upper)).all()


@pytest.mark.parametrize("inequality", INEQUALITIES)
@pytest.mark.parametrize("p", [0.0, 0.02, 0.5, 0.9, 0.999, 1.0])
def test_exact_coverage_of_coins(inequality, p):
    """For a coin every outcome can be enumerated, so coverage is a sum, not a simulation."""
    draws, failure = 60, 0.05
    total = torch.arange(draws + 1).double()
    lower, upper = INEQUALITIES[inequality](Sums(draws, total, total), failure)
    weight = stats.binom.pmf(np.arange(draws + 1), draws, p)
    assert weight[(lower > p).numpy()].sum() <= failure
    assert weight[(upper < p).numpy()].sum() <= failure


@pytest.mark.parametrize("inequality", ["hoeffding", "bernstein"])
@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (0.1, 0.1), (0.05, 2.0), (30.0, 2.0)])
def test_coverage_of_means(inequality, a, b):
    failure, trials = 0.2, 4000
    values = np.random.default_rng(0).beta(a, b, size=(80, trials))
    lower, upper = INEQUALITIES[inequality](Sums.of(torch.from_numpy(values)), failure)
    allowed = failure + 4 * math.sqrt(failure / trials)
    assert float((lower > a / (a + b)).double().mean()) <= allowed
    assert float((upper < a / (a + b)).double().mean()) <= allowed


def test_hoeffding_and_bernstein_formulas():
    values = torch.rand(200, 3, generator=generator(0), dtype=torch.float64)
    sums, failure = Sums.of(values), 0.01
    lower, upper = INEQUALITIES["hoeffding"](sums, failure)
    radius = math.sqrt(math.log(100) / 400)
    torch.testing.assert_close(lower, values.mean(0) - radius)
    torch.testing.assert_close(upper, values.mean(0) + radius)
    lower, upper = INEQUALITIES["bernstein"](sums, failure)
    radius = (2 * values.var(0) * math.log(200) / 200).sqrt() + 7 * math.log(200) / (3 * 199)
    torch.testing.assert_close(lower, values.mean(0) - radius)
    torch.testing.assert_close(upper, (values.mean(0) + radius).clamp(max=1.0))


def test_bernstein_wins_where_the_variance_is_small_and_only_there():
    for gap, wins in ((0.02, True), (1.0, False)):
        values = 0.5 + gap * (torch.rand(1000, generator=generator(1), dtype=torch.float64).round() - 0.5)
        lowers = [INEQUALITIES[name](Sums.of(values), 0.01)[0] for name in ("bernstein", "hoeffding")]
        assert bool(lowers[0] > lowers[1]) == wins


@pytest.mark.parametrize("inequality", INEQUALITIES)
def test_bounds_tighten_with_draws_and_loosen_with_confidence(inequality):
    def width(draws: int, failure: float) -> float:
        lower, upper = INEQUALITIES[inequality](_sums(draws * 4 // 5, draws), failure)
        assert float(lower) <= 0.8 <= float(upper)
        return float(upper - lower)

    assert width(5000, 0.01) < width(500, 0.01) < width(50, 0.01)
    assert width(500, 0.1) < width(500, 0.01) < width(500, 1e-6)


def test_sums_of_one_draw_after_the_other_are_those_of_all():
    values = torch.rand(50, 4, generator=generator(2), dtype=torch.float64)
    sums = Sums(0, torch.zeros(4).double(), torch.zeros(4).double())
    for value in values:
        sums = sums.plus(value)
    torch.testing.assert_close(sums.mean, values.mean(0))
    assert bool((sums.variance >= values.var(0)).all())
    torch.testing.assert_close(sums.variance, values.var(0), atol=1e-12, rtol=1e-9)


def test_hoeffding_tail_is_sound_for_coins_and_in_closed_form():
    for margin in (0.05, 0.4, 0.98):
        m = torch.tensor(margin, dtype=torch.float64)
        for draws in (1, 9, 200):
            tail = float(hoeffding_tail(m, 0.0, draws))
            assert tail == pytest.approx((1 - margin**2) ** (draws / 2), rel=1e-6)
            # Draws of -1 and 1 with mean m: the worst there is.
            assert stats.binom.cdf(draws // 2, draws, (1 + margin) / 2) <= tail
    edge = torch.tensor([-1.0, 0.0, 0.1, 1.0], dtype=torch.float64)
    assert hoeffding_tail(edge, 0.1, 10).tolist() == [1.0, 1.0, 1.0, 0.0]


# How many draws


def test_samples_needed_for_a_fresh_predictor():
    for margin in (0.03, 0.3, 0.9, 1.0):
        for confidence in (0.9, 0.999999):
            n = samples_needed(margin, confidence=confidence, statements=9)
            m, failure = torch.tensor(margin, dtype=torch.float64), (1 - confidence) / 9
            assert float(hoeffding_tail(m, 0.0, n)) <= failure * (1 + 1e-6)
            assert n == 1 or (1 - margin**2) ** ((n - 1) / 2) > failure * (1 - 1e-6)


def test_samples_needed_by_hoeffding():
    assert samples_needed(0.05, confidence=0.95, inequality="hoeffding") == math.ceil(math.log(20) / (2 * 0.05**2))
    n = samples_needed(0.05, confidence=0.95, inequality="hoeffding", statements=20)
    assert n == math.ceil(math.log(400) / (2 * 0.05**2))
    lower, _ = INEQUALITIES["hoeffding"](_sums(n, n), 0.05 / 20)
    assert float(lower) >= 0.95 - 1e-9


def test_samples_needed_by_clopper_pearson():
    # 0.99^n <= 0.01: the well-known 459 successes in a row, 299 for 95%.
    assert samples_needed(0.01, confidence=0.99, inequality="clopper-pearson") == 459
    assert samples_needed(0.01, confidence=0.95, inequality="clopper-pearson") == 299
    n = samples_needed(0.05, confidence=0.99, inequality="clopper-pearson", observed=0.9)
    for count, enough in ((n, True), *((k, False) for k in range(n - 60, n))):
        lower, _ = INEQUALITIES["clopper-pearson"](_sums(math.floor(0.9 * count), count), 0.01 * (1 - 2.0**-40))
        assert (float(lower) >= 0.85) == enough


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"margin": 0.0}, "margin"),
        ({"margin": 1.5}, "margin"),
        ({"margin": 0.5, "confidence": 1.0}, "confidence"),
        ({"margin": 0.5, "statements": 0}, "statements"),
        ({"margin": 0.5, "inequality": "magic"}, "magic"),
        ({"margin": 0.5, "inequality": "clopper-pearson", "observed": 0.3}, "observed"),
        ({"margin": 1e-6, "inequality": "clopper-pearson", "observed": 0.5}, "a million"),
        ({"margin": 1e-12}, "larger margin"),
    ],
)
def test_impossible_numbers_of_draws_are_refused(settings, message):
    with pytest.raises(InvalidInput, match=message):
        samples_needed(**settings)
