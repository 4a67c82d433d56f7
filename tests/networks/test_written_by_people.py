"""Modules written the way people write them work, equal to themselves to 1e-6, or are refused with advice."""

import warnings

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.errors import CertibayesError
from certibayes.networks import trace
from certibayes.networks.head import HEADS

from ..strategies import randomise_statistics
from . import written_by_people, written_by_strangers, written_in_papers

FILES = (written_by_people, written_by_strangers, written_in_papers)
WORKING = {name: case for file in FILES for name, case in file.WORKING.items()}
REFUSED = {name: case for file in FILES for name, case in file.REFUSED.items()}


def _made(build) -> nn.Module:
    torch.manual_seed(0)
    return randomise_statistics(build()).eval()


def test_there_are_many_of_them():
    assert len(WORKING) + len(REFUSED) >= 190
    assert len(WORKING) == sum(len(file.WORKING) for file in FILES)  # no name twice
    assert len(REFUSED) == sum(len(file.REFUSED) for file in FILES)


@pytest.mark.filterwarnings("ignore:.*is left off", "ignore:.*padding='same'")
@pytest.mark.parametrize("name", WORKING)
def test_it_is_what_the_module_computes(name):
    shape, build = WORKING[name]
    net = _made(build)
    traced = trace(net, torch.full((1, *shape), 0.5))
    x = torch.randn(9, *shape)
    with torch.no_grad():
        expected = net(x)
        found = HEADS[traced.graph.head](traced.graph.evaluate({**traced.params, **traced.buffers}, x))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6 * float(expected.abs().max()))
    assert cb.supports(net, x)


@pytest.mark.filterwarnings("ignore:.*is left off", "ignore:.*padding='same'")
@pytest.mark.parametrize("name", WORKING)
def test_nothing_that_is_certified_is_false(name):
    shape, build = WORKING[name]
    predictor = cb.Samples.from_modules([_made(build)], input_shape=shape).predictor()
    x, eps = torch.rand(3, *shape), 0.01
    for bounds in ("ibp", "crown"):
        result = cb.certify(predictor, x, eps=eps, domain=(0.0, 1.0), method=cb.Pairwise(bounds))
        for _ in range(20):
            near = (x + eps * (2 * torch.rand_like(x) - 1).sign() * torch.rand(3, *[1] * len(shape))).clamp(0, 1)
            probabilities = predictor.probabilities(near).double()
            own = probabilities.gather(1, result.labels[:, None])[:, 0]
            others = probabilities.scatter(1, result.labels[:, None], -1.0).amax(1)
            assert bool((own > others)[result.certified].all())
            assert bool((probabilities >= result.lower - 1e-6).all() and (probabilities <= result.upper + 1e-6).all())
    assert bool(cb.certify(predictor, x, eps=0.0, domain=(0.0, 1.0), method=cb.Pairwise("crown")).certified.any())


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_with_advice(name):
    shape, build, words = REFUSED[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        net = build()
        with pytest.raises(CertibayesError, match=words) as caught:
            trace(net, torch.full((1, *shape), 0.5))
        assert not cb.supports(net, torch.full((1, *shape), 0.5))
    assert len(str(caught.value)) > 60  # more than a name
