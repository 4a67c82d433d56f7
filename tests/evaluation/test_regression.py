"""How well a regression predicts."""

import math

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.errors import InvalidInput
from certibayes.evaluation import assess_regression


def predictor(biases):
    nets = []
    for bias in biases:
        net = nn.Linear(1, 1)
        with torch.no_grad():
            net.weight.zero_()
            net.bias.fill_(bias)
        nets.append(nn.Sequential(net))
    posterior = cb.Samples.from_modules(nets)
    posterior.metadata["task"] = "regression"
    return posterior.predictor()


def test_figures_are_those_of_the_mixture():
    x, y = torch.zeros(3, 1), torch.tensor([0.0, 1.0, 5.0])
    found = assess_regression(predictor([-1.0, 1.0]), x, y, noise_std=0.5).summary()
    assert found["rmse"] == pytest.approx(math.sqrt(26 / 3)) and found["mae"] == pytest.approx(2.0)
    assert found["standard_deviation"] == pytest.approx(1.0) and found["coverage_95"] == pytest.approx(2 / 3)

    def density(value):
        return sum(math.exp(-0.5 * ((value - b) / 0.5) ** 2) / (0.5 * math.sqrt(2 * math.pi)) for b in (-1, 1)) / 2

    assert found["nll"] == pytest.approx(-sum(math.log(density(v)) for v in (0.0, 1.0, 5.0)) / 3)
    assert found["r2"] == pytest.approx(1 - (26 / 3) / float(y.var(correction=0)))
    unknown = assess_regression(predictor([0.0]), x, y).summary()
    assert unknown["nll"] is None and unknown["coverage_95"] is None


def test_what_cannot_be_assessed_is_refused():
    model, x = predictor([0.0]), torch.zeros(3, 1)
    classes = cb.Samples.from_modules([nn.Sequential(nn.Linear(1, 2))]).predictor()
    for make, words in (
        (lambda: assess_regression(classes, x, x), "takes a regression predictor"),
        (lambda: assess_regression(model, x), "pass y"),
        (lambda: assess_regression(model, x, torch.zeros(3, 2)), r"targets \(3, 1\); got \(3, 2\)"),
        (lambda: assess_regression(model, x, x, noise_std=0.0), "noise_std must be positive"),
    ):
        with pytest.raises(InvalidInput, match=words):
            make()
