"""Calibration and proper scores against loops, against torchmetrics, and in cases that are known."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from certibayes.errors import InvalidInput
from certibayes.evaluation import (
    accuracy,
    brier_score,
    expected_calibration_error,
    negative_log_likelihood,
    reliability,
)


def predictions(seed, classes, count=50):
    generator = torch.Generator().manual_seed(seed)
    log_probabilities = (3 * torch.randn(count, classes, generator=generator)).log_softmax(-1)
    return log_probabilities, torch.randint(classes, (count,), generator=generator)


def by_loop(log_probabilities, labels, bins):
    confidence, predicted = log_probabilities.double().exp().max(-1)
    total = 0.0
    for k in range(bins):
        inside = (confidence > k / bins) & (confidence <= (k + 1) / bins)
        if inside.any():
            accuracy = (predicted == labels)[inside].double().mean()
            total += float(inside.double().mean() * (accuracy - confidence[inside].mean()).abs())
    return total


@given(seed=st.integers(0, 1000), classes=st.integers(2, 6), bins=st.integers(1, 20))
def test_it_is_the_weighted_gap_of_the_bins(seed, classes, bins):
    generator = torch.Generator().manual_seed(seed)
    log_probabilities = (3 * torch.randn(50, classes, generator=generator)).log_softmax(-1)
    labels = torch.randint(classes, (50,), generator=generator)
    assert expected_calibration_error(log_probabilities, labels, bins) == pytest.approx(
        by_loop(log_probabilities, labels, bins), abs=1e-9
    )


def test_certain_and_right_has_none_certain_and_wrong_has_all():
    sure = torch.tensor([[1.0, 0.0]]).log().expand(10, 2)
    assert expected_calibration_error(sure, torch.zeros(10, dtype=torch.long)) == 0.0
    assert expected_calibration_error(sure, torch.ones(10, dtype=torch.long)) == 1.0


def test_right_as_often_as_it_says_has_none():
    says = torch.tensor([[0.7, 0.3]], dtype=torch.float64).log().expand(10, 2)
    assert expected_calibration_error(says, torch.tensor([0] * 7 + [1] * 3)) == pytest.approx(0.0, abs=1e-12)


def test_no_bins():
    with pytest.raises(InvalidInput):
        expected_calibration_error(torch.zeros(1, 2), torch.zeros(1, dtype=torch.long), 0)


@given(seed=st.integers(0, 1000), classes=st.sampled_from([2, 3, 100]))
def test_it_is_what_torchmetrics_finds(seed, classes):
    from torchmetrics.functional.classification import multiclass_calibration_error

    log_probabilities, labels = predictions(seed, classes)
    expected = multiclass_calibration_error(log_probabilities.exp(), labels, classes, n_bins=15)
    assert expected_calibration_error(log_probabilities, labels) == pytest.approx(float(expected), abs=1e-6)


@given(seed=st.integers(0, 1000), bins=st.integers(1, 20))
def test_a_reliability_diagram_has_the_means_of_each_bin(seed, bins):
    log_probabilities, labels = predictions(seed, 3)
    found = reliability(log_probabilities, labels, bins)
    confidence, predicted = log_probabilities.double().exp().max(-1)
    for k in range(bins):
        inside = (confidence > k / bins) & (confidence <= (k + 1) / bins)
        assert int(found.counts[k]) == int(inside.sum())
        if inside.any():
            assert float(found.confidence[k]) == pytest.approx(float(confidence[inside].mean()))
            assert float(found.accuracy[k]) == pytest.approx(float((predicted == labels)[inside].double().mean()))
        else:
            assert math.isnan(found.accuracy[k]) and found.summary()["accuracy"][k] is None
    assert found.error == expected_calibration_error(log_probabilities, labels, bins)


@pytest.mark.parametrize("classes", [2, 10, 100])
def test_brier_and_likelihood_of_the_uniform_the_perfect_and_the_worst_prediction(classes):
    labels = torch.arange(classes)
    uniform = torch.full((classes, classes), 1 / classes, dtype=torch.float64).log()
    assert brier_score(uniform, labels) == pytest.approx(1 - 1 / classes)
    assert negative_log_likelihood(uniform, labels) == pytest.approx(math.log(classes))
    certain = torch.eye(classes).log()
    assert (brier_score(certain, labels), negative_log_likelihood(certain, labels)) == (0.0, 0.0)
    assert accuracy(certain, labels) == 1.0
    wrong = labels.roll(1)
    assert (brier_score(certain, wrong), negative_log_likelihood(certain, wrong)) == (2.0, math.inf)
    assert accuracy(certain, wrong) == 0.0


@given(seed=st.integers(0, 1000), classes=st.integers(2, 6))
def test_scores_are_means_over_a_loop(seed, classes):
    log_probabilities, labels = predictions(seed, classes)
    p = log_probabilities.double().exp().tolist()
    brier = [sum((q - (c == y)) ** 2 for c, q in enumerate(row)) for row, y in zip(p, labels.tolist(), strict=True)]
    assert brier_score(log_probabilities, labels) == pytest.approx(sum(brier) / len(brier))
    loss = [-math.log(row[y]) for row, y in zip(p, labels.tolist(), strict=True)]
    assert negative_log_likelihood(log_probabilities, labels) == pytest.approx(sum(loss) / len(loss))


FIGURES = [reliability, expected_calibration_error, accuracy, negative_log_likelihood, brier_score]


@pytest.mark.parametrize("figure", FIGURES)
def test_what_cannot_be_calibrated_is_refused(figure):
    labels = torch.zeros(2, dtype=torch.long)
    for bad, words in (
        (torch.tensor([[0.0, math.nan], [0.0, 0.0]]), "NaN"),
        (torch.tensor([[5.0, -3.0], [0.0, 0.0]]), "log_softmax"),
        (torch.zeros(2), "shape"),
        (torch.zeros(0, 2), "B > 0"),
    ):
        with pytest.raises(InvalidInput, match=words):
            figure(bad, labels)
    with pytest.raises(InvalidInput, match="labels"):
        figure(torch.zeros(2, 2), None)
    with pytest.raises(InvalidInput, match="labels"):
        figure(torch.zeros(2, 2), torch.tensor([0, 2]))
    with pytest.raises(InvalidInput, match="labels"):
        figure(torch.zeros(2, 2), torch.tensor([0]))


def test_its_repr_is_a_line():
    logs = torch.log(torch.tensor([[0.75, 0.25], [0.75, 0.25]]))
    shown = repr(reliability(logs, torch.tensor([0, 1]), bins=4))
    assert shown == "Reliability(2 predictions in 4 bins, calibration error 0.2500)"


def test_predictions_may_be_arrays_or_lists():
    logs, labels = torch.log(torch.tensor([[0.75, 0.25], [0.4, 0.6]])), torch.tensor([0, 0])
    for figure in (accuracy, brier_score, expected_calibration_error, negative_log_likelihood):
        assert figure(logs.numpy(), labels.numpy()) == figure(logs, labels) == figure(logs.tolist(), labels.tolist())
