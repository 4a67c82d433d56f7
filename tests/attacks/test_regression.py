"""Attacks on regressions: what is found lies in the ball, and never outside what is proved."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import certibayes as cb
from certibayes.attacks import PGD
from certibayes.errors import InvalidInput


def predictor(seed, outputs=2, samples=3):
    torch.manual_seed(seed)
    nets = [nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, outputs)) for _ in range(samples)]
    posterior = cb.Samples.from_modules(nets)
    posterior.metadata["task"] = "regression"
    return posterior.predictor()


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("seed", range(3))
def test_no_attack_leaves_a_certified_interval(seed, norm):
    model, x = predictor(seed), torch.randn(9, 4)
    settings = {"eps": 0.3, "norm": norm, "domain": (-4.0, 4.0)}
    found = cb.attack_regression(model, x, method=PGD(steps=10, restarts=2), **settings)
    proved = cb.certify_regression(model, x, method=cb.Theorem1(bounds="crown"), **settings)
    assert bool((found.lower >= proved.lower).all() and (found.upper <= proved.upper).all())
    # It is an attack: random inputs reach less far; and its inputs give what they are said to.
    region = cb.regions.InputRegion.around(x, 0.3, norm, (-4.0, 4.0))
    tried = torch.stack([model(region.sample(torch.Generator().manual_seed(k))) for k in range(200)])
    assert bool((found.upper >= tried.amax(0) - 1e-4).all() and (found.lower <= tried.amin(0) + 1e-4).all())
    for k in range(2):
        assert torch.allclose(model(found.upper_inputs[:, k])[:, k], found.upper[:, k], atol=1e-6)
        assert torch.allclose(model(found.lower_inputs[:, k])[:, k], found.lower[:, k], atol=1e-6)
        assert bool((region.distance(found.upper_inputs[:, k]) <= 0.3).all())


def test_the_worst_of_a_linear_function_is_found_exactly():
    net = nn.Linear(3, 1)
    posterior = cb.Samples.from_modules([nn.Sequential(net)])
    posterior.metadata["task"] = "regression"
    x, eps = torch.randn(5, 3), torch.tensor([[0.5, 0.0, 0.1]])
    found = cb.attack_regression(posterior.predictor(), x, eps=eps)
    reach = (net.weight.detach().abs() * eps).sum()
    assert torch.allclose(found.upper - found.predicted, reach.expand(5, 1), atol=1e-5)
    assert torch.equal(found.upper_inputs[:, 0, 1], x[:, 1])


def test_deviations_are_from_targets_where_there_are_any():
    model, x, y = predictor(0, outputs=1), torch.randn(6, 4), torch.randn(6)
    found = cb.attack_regression(model, TensorDataset(x, y), eps=0.1, batch_size=4)
    away = (found.predicted[:, 0] - y).abs()
    assert bool((found.deviation[:, 0] >= away).all()) and len(found) == 6
    assert found.robust_fraction(1e9) == 1.0 and found.robust_fraction(0.0) == 0.0
    assert "6 points" in repr(found)
    assert len(cb.attack_regression(model, x[:0], eps=0.1)) == 0


def test_what_cannot_be_attacked_is_refused():
    model, x = predictor(0), torch.randn(6, 4)
    classes = cb.Samples.from_modules([nn.Sequential(nn.Linear(4, 2))]).predictor()
    for make, words in (
        (lambda: cb.attack_regression(classes, x, eps=0.1), "classes are attacked by attack"),
        (lambda: cb.attack_regression(model, x, eps=0.1, method="pgd"), "attacked by PGD"),
        (lambda: cb.attack_regression(model, x, torch.randn(6, 3), eps=0.1), r"targets must be \(6, 2\)"),
        (lambda: cb.attack(model, x, eps=0.1), "attack_regression moves its predictions"),
    ):
        with pytest.raises(InvalidInput, match=words):
            make()
