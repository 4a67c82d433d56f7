"""Expected calibration error against a loop over bins, and in cases that are known."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from certibayes.errors import InvalidInput
from certibayes.uncertainty import expected_calibration_error


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
