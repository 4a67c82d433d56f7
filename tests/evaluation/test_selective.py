"""Risk-coverage curves against brute force over orders, and in cases that are known."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from certibayes.errors import InvalidInput
from certibayes.evaluation import risk_coverage

CASES = st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.booleans()), min_size=1, max_size=6)


def curve(scores, right):
    return risk_coverage(torch.tensor(scores, dtype=torch.float64), torch.tensor(right))


@given(cases=CASES)
def test_the_risk_is_the_mean_over_all_orders_that_the_scores_allow(cases):
    orders = [o for o in itertools.permutations(cases) if all(a[0] <= b[0] for a, b in itertools.pairwise(o))]
    expected = [
        sum(sum(not right for _, right in order[:k]) / k for order in orders) / len(orders)
        for k in range(1, len(cases) + 1)
    ]
    found = curve(*map(list, zip(*cases, strict=True)))
    assert found.risk.tolist() == pytest.approx(expected)
    assert found.area == pytest.approx(sum(expected) / len(expected))


@given(cases=CASES)
def test_coverage_grows_to_one_where_the_risk_is_the_error_rate(cases):
    found = curve(*map(list, zip(*cases, strict=True)))
    assert found.coverage.tolist() == [k / len(cases) for k in range(1, len(cases) + 1)]
    assert float(found.risk[-1]) == pytest.approx(sum(not right for _, right in cases) / len(cases))
    assert found.accuracy_at(1.0) == pytest.approx(1 - float(found.risk[-1]))


def test_good_uncertainty_has_low_risk_and_bad_uncertainty_high_risk():
    right = [True, True, False, False]
    good, none, bad = curve([0.1, 0.2, 0.3, 0.4], right), curve([0.0] * 4, right), curve([0.4, 0.3, 0.2, 0.1], right)
    assert good.risk.tolist() == pytest.approx([0, 0, 1 / 3, 1 / 2])
    assert bad.risk.tolist() == pytest.approx([1, 1, 2 / 3, 1 / 2])
    assert none.area == pytest.approx(0.5)
    assert good.area < none.area < bad.area


def test_accuracy_where_half_is_answered():
    found = curve([0.1, 0.2, 0.3, 0.4], [True, False, True, False])
    assert [found.accuracy_at(c) for c in (0.01, 0.25, 0.26, 0.5, 0.75, 1.0)] == pytest.approx(
        [1, 1, 1 / 2, 1 / 2, 2 / 3, 1 / 2]
    )
    with pytest.raises(InvalidInput, match="coverage"):
        found.accuracy_at(0.0)


@pytest.mark.parametrize("count", [1, 2, 99, 100, 101, 1234])
def test_a_thinned_curve_keeps_its_points_and_its_end(count):
    generator = torch.Generator().manual_seed(count)
    found = risk_coverage(torch.rand(count, generator=generator), torch.rand(count, generator=generator) > 0.3)
    thin = found.thinned(100)
    assert len(thin.risk) == min(count, 100) and thin.summary()["coverage"][-1] == 1.0
    assert (thin.coverage.diff() > 0).all()
    kept = (found.coverage[:, None] == thin.coverage).any(1)
    assert found.risk[kept].tolist() == thin.risk.tolist()


@pytest.mark.parametrize(
    ("scores", "right"),
    [
        (torch.empty(0), torch.empty(0, dtype=torch.bool)),
        (torch.tensor([math.nan]), torch.tensor([True])),
        (torch.tensor([0.5]), torch.tensor([1])),
        (torch.tensor([0.5]), torch.tensor([True, False])),
    ],
)
def test_what_has_no_curve_is_refused(scores, right):
    with pytest.raises(InvalidInput):
        risk_coverage(scores, right)


def test_its_repr_is_a_line():
    found = risk_coverage([0.1, 0.2, 0.3, 0.4], [True, True, False, False])
    shown = "RiskCoverage(4 points, area 0.2083, accuracy 50.0% at coverage 1, 100.0% at coverage 0.5)"
    assert repr(found) == shown
