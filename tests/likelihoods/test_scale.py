"""Radii that are multiples of a scale of each feature."""

import json

import pytest
import torch

import certibayes as cb
from certibayes.errors import InvalidInput
from certibayes.likelihoods import Batch, likelihood_from
from certibayes.networks import trace

X, Y = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 2
SCALE = torch.tensor([[2.0, 0.5, 0.25]])


def values(likelihood, x, y, net):
    traced = trace(net, x)
    noise = likelihood.draw(1.0, Batch(x, y), torch.Generator().manual_seed(1))
    return likelihood.log_likelihood(traced.graph, {**traced.params, **traced.buffers}, Batch(x, y), noise)


@pytest.mark.parametrize("adversary", [cb.IBP(), cb.PGD(steps=3), cb.CROWNIBP()], ids=str)
def test_a_scale_is_a_change_of_units(adversary):
    """The ball of scaled radii around x is the ball of plain ones around x / scale, for the network of those inputs."""
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    scaled = torch.nn.Sequential(cb.networks.Normalize([0.0] * 3, SCALE[0].tolist()), *plain)
    expected = values(cb.RobustCategorical(eps=0.2, adversary=adversary, domain=None), X / SCALE, Y, plain)
    likelihood = cb.RobustCategorical(eps=0.2, adversary=adversary, domain=None, scale=SCALE)
    assert torch.allclose(values(likelihood, X, Y, scaled), expected, atol=1e-6)
    # And it is not without effect.
    unscaled = values(cb.RobustCategorical(eps=0.2, adversary=adversary, domain=None), X, Y, scaled)
    assert not torch.allclose(unscaled, expected, atol=1e-3)


def test_features_of_scale_zero_do_not_change():
    net = torch.nn.Sequential(torch.nn.Linear(3, 1))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[0.0, 5.0, 0.0]]))
    y = torch.zeros(6, 1)
    fixed = cb.RobustGaussian(eps=0.5, scale=[1.0, 0.0, 1.0])
    assert torch.allclose(values(fixed, X, y, net), values(cb.RobustGaussian(), X, y, net))


def test_a_scale_is_remembered_and_read_back():
    likelihood = cb.RobustCategorical(eps=0.2, domain=None, scale=SCALE)
    described = json.loads(json.dumps(likelihood.describe()))
    assert described["scale"] == SCALE.tolist()
    assert torch.equal(likelihood_from(described).scale, SCALE.double())
    assert "scale" not in cb.RobustCategorical(eps=0.2).describe()
    assert likelihood.program != cb.RobustCategorical(eps=0.2, domain=None, scale=2 * SCALE).program
    assert torch.equal(likelihood.smoothed(0.1).scale, SCALE.double())


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (2.0, "one number for each feature"),
        (torch.ones(4, 3), r"\(1, \*shape\); got shape \(4, 3\)"),
        ([-1.0, 1.0, 1.0], "finite radii >= 0"),
    ],
)
def test_scales_that_make_no_sense_are_refused(scale, words):
    with pytest.raises(InvalidInput, match=words):
        cb.RobustCategorical(eps=0.2, scale=scale)


def test_a_scale_for_other_inputs_is_refused():
    net = torch.nn.Sequential(torch.nn.Linear(3, 2))
    with pytest.raises(InvalidInput, match=r"each of \(2,\) features, and the inputs have \(3,\)"):
        cb.fit(net, (X, Y), algorithm="map", likelihood=cb.RobustCategorical(eps=0.1, domain=None, scale=[1.0, 2.0]))
