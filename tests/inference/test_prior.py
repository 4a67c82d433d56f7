import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import certibayes as cb
from certibayes.errors import InvalidInput
from certibayes.networks import trace

from ..strategies import Functional
from .cases import LIKELIHOODS, fit, target_for


def precisions(prior, net, example=None):
    traced = trace(net, example)
    return {name: float(p) for name, p in prior.precisions(traced.graph, traced.params).items()}


def test_the_variance_is_variance_scale_over_fan_in():
    found = precisions(cb.GaussianPrior(variance_scale=10.0), cb.networks.mlp(784, [512], 10))
    assert found == pytest.approx({"1.weight": 78.4, "1.bias": 78.4, "3.weight": 51.2, "3.bias": 51.2})


def test_the_fan_in_of_a_convolution_is_its_patch():
    net = nn.Sequential(nn.Conv2d(3, 8, 5), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    found = precisions(cb.GaussianPrior(variance_scale=1.0), net, torch.rand(1, 3, 5, 5))
    assert found == pytest.approx({"0.weight": 75.0, "0.bias": 75.0, "3.weight": 8.0, "3.bias": 8.0})


def test_a_bias_has_the_fan_in_of_its_layer_whose_matrix_is_a_constant():
    net = Functional(lambda self, x: functional.linear(x, self.matrix, self.bias), bias=torch.zeros(3))
    net.register_buffer("matrix", torch.rand(3, 4))
    traced = trace(net, torch.rand(1, 4))
    found = cb.GaussianPrior(variance_scale=1.0).precisions(traced.graph, {**traced.buffers, **traced.params})
    assert {name: float(p) for name, p in found.items()} == {"bias": 4.0}
    fit(net=net)


def test_one_width_for_all():
    found = precisions(cb.GaussianPrior(std=0.5), cb.networks.mlp(4, [5], 3))
    assert set(found.values()) == {4.0}


def test_its_density_is_the_normal_one_up_to_a_constant():
    target, params, _ = target_for(LIKELIHOODS["standard"], torch.float64)
    shifted = {name: p + 0.1 for name, p in params.items()}

    def density(weights):
        terms = [
            torch.distributions.Normal(0.0, target.precision[n].rsqrt()).log_prob(w).sum() for n, w in weights.items()
        ]
        return torch.stack(terms).sum()

    found = target.log_prior(shifted) - target.log_prior(params)
    torch.testing.assert_close(found, density(shifted) - density(params))


@pytest.mark.parametrize(
    "settings", [{"variance_scale": 0.0}, {"variance_scale": math.nan}, {"std": -1.0}, {"std": math.inf}]
)
def test_bad_scales(settings):
    with pytest.raises(InvalidInput, match="prior"):
        cb.GaussianPrior(**settings)
