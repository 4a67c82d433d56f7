"""A network whose output for one input depends on the inputs beside it cannot be certified, and is refused."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.errors import UnsupportedLayer
from certibayes.networks import Operation, lowering, trace


class BroadcastsTheBatch(nn.Module):
    """(B, 1, 4) + (B, 4) is (B, B, 4): every example meets every other."""

    def __init__(self):
        super().__init__()
        self.layer, self.pool, self.last = nn.Linear(3, 4), nn.AdaptiveAvgPool2d(1), nn.Linear(1, 2)

    def forward(self, x):
        h = self.layer(x)
        return self.last(self.pool((h.unsqueeze(1) + h).unsqueeze(1)).flatten(1))


def test_broadcasting_over_the_batch_is_refused():
    with pytest.raises(UnsupportedLayer, match="batch"):
        trace(BroadcastsTheBatch(), torch.rand(1, 3))
    assert not cb.supports(BroadcastsTheBatch(), torch.rand(1, 3))


class Center(nn.Module):
    """Subtracts the mean over the batch. Its shapes give nothing away; only different examples do."""

    def forward(self, x):
        return x - x.mean(0)


@dataclass(frozen=True)
class CenterOperation(Operation):
    def evaluate(self, weights, *inputs):
        return inputs[0] - inputs[0].mean(0)


def test_a_registered_layer_that_mixes_examples_is_refused(monkeypatch):
    monkeypatch.setitem(lowering.modules, Center, lambda module: (CenterOperation(), {}))
    with pytest.raises(UnsupportedLayer, match="mixes the examples"):
        trace(nn.Sequential(nn.Linear(3, 2), Center()), torch.rand(1, 3))
