"""Detection figures against the definitions that are obviously right: all pairs, all thresholds, all bins."""

import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from certibayes.errors import InvalidInput, MissingPackage
from certibayes.evaluation import aupr, auroc, detect, fpr_at_tpr, histogram, likelihood_ratio

# Few distinct values, so that ties are common; some beyond [0, 1], some a rounding apart.
VALUES = st.sampled_from([0.0, 1e-17, 1e-12, 0.25, 0.25 + 2**-53, 0.5, 1.0, 2.3, 40.0, 41.0])
SCORES = st.lists(VALUES, min_size=1, max_size=25).map(lambda values: torch.tensor(values, dtype=torch.float64))
FIGURES = [auroc, aupr, fpr_at_tpr, detect]


def all_pairs(inside, outside):
    difference = outside[:, None] - inside[None, :]
    return float(((difference > 0).double() + 0.5 * (difference == 0).double()).mean())


def all_thresholds(inside, outside, level):
    best = 1.0
    for t in [-math.inf, *inside.tolist(), *outside.tolist()]:
        # Counted in whole numbers, for 0.95 is not a float.
        if 100 * int((outside >= t).sum()) >= round(100 * level) * len(outside):
            best = min(best, float((inside >= t).double().mean()))
    return best


def steps_of_precision(inside, outside):
    area, recall = 0.0, 0.0
    for t in sorted({*inside.tolist(), *outside.tolist()}, reverse=True):
        found, false = int((outside >= t).sum()), int((inside >= t).sum())
        area += (found / len(outside) - recall) * found / (found + false)
        recall = found / len(outside)
    return area


@given(inside=SCORES, outside=SCORES)
def test_auroc_is_the_fraction_of_pairs_in_order_with_ties_for_a_half(inside, outside):
    assert auroc(inside, outside) == pytest.approx(all_pairs(inside, outside), abs=1e-6)


@given(inside=SCORES, outside=SCORES)
def test_aupr_is_the_sum_over_thresholds(inside, outside):
    assert aupr(inside, outside) == pytest.approx(steps_of_precision(inside, outside), abs=1e-6)


@given(inside=SCORES, outside=SCORES, level=st.sampled_from([0.01, 0.5, 0.8, 0.95, 1.0]))
def test_false_positives_are_the_fewest_over_all_thresholds(inside, outside, level):
    assert fpr_at_tpr(inside, outside, level) == all_thresholds(inside, outside, level)


@pytest.mark.parametrize("count", range(1, 101))
def test_ninety_five_percent_is_counted_exactly(count):
    """The positives score 1..count; of 100 negatives among them the count is known."""
    outside = torch.arange(1.0, count + 1)
    missed = count - -(-95 * count // 100)
    assert fpr_at_tpr(outside - 0.5, outside) == pytest.approx((count - missed - 1) / count)


def test_positives_are_the_out_of_distribution_inputs_with_high_scores():
    low, high = torch.tensor([0.1, 0.2]), torch.tensor([0.8, 0.9, 0.7])
    assert (auroc(low, high), aupr(low, high), fpr_at_tpr(low, high)) == (1.0, 1.0, 0.0)
    assert (auroc(high, low), fpr_at_tpr(high, low)) == (0.0, 1.0)
    assert detect(low, high).chance_aupr == 0.6
    assert detect(low, high).summary() == {"auroc": 1.0, "aupr": 1.0, "fpr95": 0.0, "chance_aupr": 0.6}


def test_one_value_for_all_tells_nothing():
    same = torch.full((7,), 0.3)
    found = detect(same, same[:3])
    assert (found.auroc, found.aupr, found.fpr95) == (0.5, pytest.approx(0.3), 1.0)


def test_order_and_scale_of_scores_do_not_matter():
    generator = torch.Generator().manual_seed(0)
    inside, outside = torch.rand(50, generator=generator), torch.rand(60, generator=generator) + 0.3
    shuffled = outside[torch.randperm(60, generator=generator)]
    assert detect(inside, outside) == detect(inside, shuffled) == detect(inside * 1024, outside * 1024)


@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize("which", [0, 1])
def test_an_empty_set_is_refused(figure, which):
    sets = [torch.rand(3), torch.rand(3)]
    sets[which] = torch.empty(0)
    with pytest.raises(InvalidInput, match=("in-distribution", "out-of-distribution")[which]):
        figure(*sets)


@pytest.mark.parametrize("figure", [*FIGURES, likelihood_ratio])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_scores_that_are_no_numbers_are_refused(figure, bad):
    with pytest.raises(InvalidInput, match="NaN"):
        figure(torch.tensor([0.1, 0.5]), torch.tensor([0.3, bad]))
    with pytest.raises(InvalidInput, match="float"):
        figure(torch.tensor([1, 2]), torch.tensor([0.3, 0.4]))


def test_scores_of_another_shape_are_refused():
    with pytest.raises(InvalidInput, match="shape"):
        auroc(torch.rand(3, 2), torch.rand(3))


@pytest.mark.parametrize("level", [0.0, 1.5, math.nan])
def test_no_such_fraction(level):
    with pytest.raises(InvalidInput, match="tpr"):
        fpr_at_tpr(torch.rand(3), torch.rand(3), level)


def test_likelihood_ratio_is_mean_confidence_outside_over_inside():
    assert likelihood_ratio(torch.tensor([0.9, 0.7]), torch.tensor([0.2, 0.4, 0.6])) == pytest.approx(0.5)
    assert likelihood_ratio(torch.ones(3), torch.ones(5)) == 1.0


@pytest.mark.parametrize("bad", [0.0, -0.5, 2.3])
def test_a_ratio_of_anything_but_probabilities_is_refused(bad):
    with pytest.raises(InvalidInput, match="probabilities"):
        likelihood_ratio(torch.tensor([0.5]), torch.tensor([bad]))


@settings(max_examples=50)
@given(seed=st.integers(0, 1000), bins=st.integers(1, 30))
def test_histogram_counts_every_score_once(seed, bins):
    scores = 2 * torch.rand(40, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = histogram(scores, 2.0, bins)
    expected = [
        float(((scores >= a) & (scores < b)).double().mean())
        for a, b in zip(found.edges[:-1], found.edges[1:], strict=True)
    ]
    assert found.fractions.tolist() == pytest.approx(expected)
    assert len(found.edges) == bins + 1


def test_the_ends_of_the_range_belong_to_it():
    top = math.log(10)
    found = histogram(torch.tensor([0.0, -1e-12, top, top + 1e-12], dtype=torch.float64), top, 4)
    assert found.fractions.tolist() == [0.5, 0.0, 0.0, 0.5]
    assert found.summary()["edges"][-1] == top


@pytest.mark.parametrize("scores", [torch.empty(0), torch.tensor([3.0]), torch.tensor([math.nan])])
def test_scores_that_fit_no_histogram(scores):
    with pytest.raises(InvalidInput):
        histogram(scores, 2.0)


def test_reprs_are_short():
    low, high = torch.tensor([0.1, 0.2]), torch.tensor([0.8, 0.9, 0.7])
    shown = "Detection(AUROC 1.0000, AUPR 1.0000 (chance 0.6000), FPR at 95% TPR 0.0000)"
    assert repr(detect(low, high)) == shown
    found = histogram(torch.tensor([0.1, 0.7, 0.8, 1.9]), 2.0, 4)
    assert repr(found) == "Histogram(4 bins from 0 to 2, the fullest 0.5 to 1 with 50.0%)"


def test_scores_may_be_arrays_or_lists():
    inside, outside = [0.1, 0.5, 0.7], [0.4, 0.8]
    expected = detect(torch.tensor(inside), torch.tensor(outside))
    assert detect(inside, outside) == expected == detect(np.array(inside), np.array(outside))
    assert likelihood_ratio(inside, outside) == pytest.approx(0.6 / (1.3 / 3))


def test_without_torchmetrics_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchmetrics.functional", None)
    with pytest.raises(MissingPackage, match=r'pip install "certibayes\[evaluation\]"'):
        auroc(torch.rand(3), torch.rand(3))
