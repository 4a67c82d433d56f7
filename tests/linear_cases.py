"""A linear network as a classifier, as a regression and as a posterior: small enough for every kind of call."""

import torch
from torch import nn

import certibayes as cb


def _net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Linear(3, 3)


PREDICTOR = cb.Point(_net()).predictor()
REGRESSOR = cb.Point(_net(), metadata={"task": "regression"}).predictor()
PARAMS = {name: value.detach() for name, value in _net().named_parameters()}
POSTERIOR = cb.DiagonalGaussian(_net(), PARAMS, {name: value.abs() / 10 for name, value in PARAMS.items()})
BALL = {"eps": 0.1, "domain": (0.0, 1.0)}
