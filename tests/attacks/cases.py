"""Models and settings that the tests of attacks have in common."""

import math

import torch
from torch import nn

import certibayes as cb

BUDGET = {"steps": 8, "restarts": 2, "queries": 30}


def rand(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def posterior_of(hidden=(12,), seed=0):
    net = cb.networks.mlp(6, hidden, 3, seed=seed)
    mean = {name: 2.0 * p for name, p in net.named_parameters()}
    return cb.DiagonalGaussian(net, mean, {name: torch.full_like(p, 0.2) for name, p in mean.items()})


def predictor_of(hidden=(12,), seed=0):
    return posterior_of(hidden, seed).predictor(3, seed=seed)


class Linear(nn.Module):
    """log softmax of W x + b."""

    def __init__(self, classes, inputs, seed=0, scale=1.0):
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        self.weight = scale * torch.randn(classes, inputs, generator=g)
        # Every class is the best one somewhere around the middle of [0, 1].
        self.bias = -0.5 * self.weight.sum(-1)

    def forward(self, x):
        return torch.log_softmax(x.flatten(1) @ self.weight.T + self.bias, -1)


class NoGradients(nn.Module):
    """Fails where anyone asks for a gradient."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        assert not x.requires_grad and not torch.is_grad_enabled()
        return self.inner(x)


def worst_margins(model, x, y, eps, norm):
    """The smallest margin of a linear model in a ball without a domain: m - eps times the dual norm, per rival."""
    slopes = model.weight[y][:, None] - model.weight[None]
    margins = (slopes * x[:, None]).sum(-1) + model.bias[y][:, None] - model.bias[None]
    dual = {"linf": 1, "l2": 2, "l1": math.inf}[norm]
    lowest = margins - eps * slopes.norm(p=dual, dim=-1)
    return lowest.masked_fill(torch.arange(len(model.weight)) == y[:, None], math.inf).amin(-1)
