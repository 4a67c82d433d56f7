"""How many inputs are attacked at once, where nobody says."""

import torch
from torch import nn

import certibayes as cb
from certibayes.attacks._batch import batch_size_for
from certibayes.support.memory import POINTS_ON_CPU

CPU = torch.device("cpu")


def _predictor(networks: int):
    net = cb.networks.mlp(12, [64], 4, seed=0)
    params = dict(net.named_parameters())
    std = {name: torch.full_like(value, 0.05) for name, value in params.items()}
    return cb.DiagonalGaussian(net, params, std).predictor(networks, seed=1)


def test_many_networks_are_attacked_at_fewer_points_at_once():
    assert batch_size_for(_predictor(3), CPU) == POINTS_ON_CPU
    assert 1 <= batch_size_for(_predictor(2_000), CPU) < POINTS_ON_CPU


def test_a_module_that_is_no_predictor_has_batches_of_one_size():
    assert batch_size_for(nn.Linear(4, 3), CPU) == POINTS_ON_CPU


def test_the_default_is_what_fits():
    predictor, x = _predictor(3), torch.rand(20, 12, generator=torch.Generator().manual_seed(0))
    found, whole = (cb.attack(predictor, x, eps=0.2, domain=None, **given) for given in ({}, {"batch_size": 500}))
    assert torch.equal(found.inputs, whole.inputs)
