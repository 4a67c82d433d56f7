import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import certibayes as cb
from certibayes.evaluation import entropy


def biases(logits):
    """A predictor whose i-th network answers with the i-th row of logits, whatever the input."""
    stacked = torch.tensor(logits)
    weight = torch.zeros(*stacked.shape, 2)
    return cb.Samples(nn.Linear(2, stacked.shape[-1]), {"weight": weight, "bias": stacked}).predictor(len(stacked))


def measured(logits):
    return cb.uncertainty(biases(logits), torch.zeros(1, 2))


def h(*probabilities):
    return -sum(p * math.log(p) for p in probabilities if p > 0)


def rows(networks, classes):
    return st.lists(
        st.lists(st.floats(-30, 30, width=32), min_size=classes, max_size=classes),
        min_size=networks,
        max_size=networks,
    )


@settings(max_examples=50, deadline=None)
@given(logits=rows(4, 3))
def test_total_is_expected_plus_mutual_information(logits):
    found = measured(logits)
    each = torch.softmax(torch.tensor(logits, dtype=torch.float64), -1)
    mean = each.mean(0)
    # Mutual information by its other definition: the mean divergence of the networks from their mean.
    divergence = torch.xlogy(each, each / mean).sum(-1).mean()
    assert float(found.mutual_information) == pytest.approx(float(divergence), abs=1e-9)
    total = float(found.expected_entropy + found.mutual_information)
    assert float(found.predictive_entropy) == pytest.approx(total, abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(logits=rows(3, 5))
def test_entropies_stay_between_zero_and_the_uniform_one(logits):
    found = measured(logits)
    for value in (found.predictive_entropy, found.expected_entropy, found.mutual_information):
        assert -1e-12 <= float(value) <= math.log(5) + 1e-9
    assert float(found.mutual_information) <= math.log(3) + 1e-9
    assert 0.0 <= float(found.disagreement) <= 1.0


def test_a_case_worked_by_hand():
    """Two networks, (3/4, 1/4) and (1/4, 3/4): the mean is (1/2, 1/2)."""
    found = measured([[math.log(3.0), 0.0], [0.0, math.log(3.0)]])
    assert float(found.predictive_entropy) == pytest.approx(math.log(2), rel=1e-6)
    assert float(found.expected_entropy) == pytest.approx(h(0.75, 0.25), rel=1e-6)
    assert float(found.mutual_information) == pytest.approx(math.log(2) - h(0.75, 0.25), rel=1e-6)
    assert float(found.disagreement) == 0.5


def test_the_two_entropies_are_not_swapped():
    found = measured([[5.0, 0.0], [0.0, 5.0]])
    assert float(found.predictive_entropy) > float(found.expected_entropy)


@settings(max_examples=25, deadline=None)
@given(row=st.lists(st.floats(-30, 30, width=32), min_size=4, max_size=4))
def test_identical_networks_share_no_information(row):
    found = measured([row] * 3)
    assert float(found.mutual_information) == pytest.approx(0.0, abs=1e-12)
    assert float(found.disagreement) == 0.0


def test_the_uniform_distribution_has_the_largest_entropy():
    assert float(measured([[0.0] * 10]).predictive_entropy) == pytest.approx(math.log(10))


@pytest.mark.parametrize("gap", [100.0, 1e4, 1e8])
def test_certainty_has_no_entropy_and_no_nan(gap):
    found = measured([[gap, 0.0, 0.0], [gap, 0.0, 0.0]])
    assert float(found.predictive_entropy) == pytest.approx(0.0, abs=1e-12)
    assert float(found.expected_entropy) == pytest.approx(0.0, abs=1e-12)
    assert float(found.mutual_information) == 0.0


def test_certain_networks_that_contradict_each_other():
    """All uncertainty is about the weights."""
    found = measured([[1e6, 0.0], [0.0, 1e6]])
    assert float(found.mutual_information) == pytest.approx(math.log(2))
    assert float(found.expected_entropy) == pytest.approx(0.0, abs=1e-12)


def test_disagreement_counts_networks_against_the_mean():
    """Three of four say class 1; the fourth says 0."""
    found = measured([[0.0, 2.0], [0.0, 2.0], [0.0, 2.0], [2.0, 0.0]])
    assert float(found.disagreement) == 0.25


def test_entropy_takes_zero_times_log_zero_as_zero():
    log_p = torch.tensor([[0.0, -math.inf, -math.inf], [math.log(0.5), math.log(0.5), -math.inf]])
    assert entropy(log_p).tolist() == pytest.approx([0.0, math.log(2)])


def test_batches_cover_every_input():
    net = cb.networks.mlp(4, [6], 3)
    mean = dict(net.named_parameters())
    std = {name: torch.full_like(p, 0.3) for name, p in mean.items()}
    predictor = cb.DiagonalGaussian(net, mean, std).predictor(4)
    x = torch.rand(11, 4, generator=torch.Generator().manual_seed(0))
    whole, parts = cb.uncertainty(predictor, x), cb.uncertainty(predictor, x, batch_size=3)
    assert whole.predictive_entropy.shape == (11,)
    assert whole.predictive_entropy.dtype == torch.float64
    # Products of another batch size may round otherwise.
    torch.testing.assert_close(whole.mutual_information, parts.mutual_information, rtol=1e-4, atol=1e-6)


def test_wider_posteriors_are_less_certain():
    net = cb.networks.mlp(4, [6], 3)
    mean = dict(net.named_parameters())
    x = torch.rand(20, 4, generator=torch.Generator().manual_seed(0))
    information = []
    for scale in (0.01, 0.1, 1.0):
        std = {name: torch.full_like(p, scale) for name, p in mean.items()}
        predictor = cb.DiagonalGaussian(net, mean, std).predictor(30)
        information.append(float(cb.uncertainty(predictor, x).mutual_information.mean()))
    assert information[0] < information[1] < information[2]


def test_regression_has_no_class_entropy():
    posterior = cb.Point(cb.networks.mlp(4, [6], 1), metadata={"task": "regression"})
    with pytest.raises(cb.CertibayesError):
        cb.uncertainty(posterior.predictor(), torch.rand(3, 4))


def test_inputs_that_are_not_numbers_are_refused():
    with pytest.raises(cb.CertibayesError):
        cb.uncertainty(biases([[0.0, 1.0]]), torch.full((2, 2), math.nan))
