"""A softmax at the end of a network is left off, which is said, and nothing is said of outputs that it would change."""

import json

import pytest
import torch
from torch import nn
from torch.nn import functional

import certibayes as cb
from certibayes.errors import InvalidInput
from certibayes.networks import Graph, trace
from certibayes.vnnlib import parse_vnnlib

from ..strategies import Functional

VECTOR = torch.full((2, 6), 0.3)


def _net(forward) -> nn.Module:
    return Functional(forward, layer=nn.Linear(6, 3))


HEADS = {
    "nn.Softmax": lambda: nn.Sequential(nn.Linear(6, 3), nn.Softmax(-1)),
    "nn.LogSoftmax": lambda: nn.Sequential(nn.Linear(6, 3), nn.LogSoftmax(1)),
    "F.softmax": lambda: _net(lambda self, x: functional.softmax(self.layer(x), -1)),
    "F.log_softmax": lambda: _net(lambda self, x: functional.log_softmax(self.layer(x), dim=1)),
    "torch.softmax": lambda: _net(lambda self, x: torch.softmax(self.layer(x), -1)),
    "tensor.softmax": lambda: _net(lambda self, x: self.layer(x).softmax(-1)),
    "tensor.log_softmax": lambda: _net(lambda self, x: self.layer(x).log_softmax(dim=-1)),
    "log of softmax": lambda: _net(lambda self, x: torch.log(self.layer(x).softmax(-1))),
}


@pytest.mark.parametrize("kind", HEADS)
def test_it_is_left_off_and_that_is_said(kind):
    torch.manual_seed(0)
    net, x = HEADS[kind](), torch.randn(5, 6)
    with pytest.warns(UserWarning, match="is left off: its logits are what is trained and certified"):
        traced = trace(net, VECTOR)
    logits = traced.graph.evaluate(traced.params, x)
    log_softmax = "og" in kind
    assert traced.graph.head == ("log_softmax" if log_softmax else "softmax")
    torch.testing.assert_close((torch.log_softmax if log_softmax else torch.softmax)(logits, 1), net(x))
    assert cb.supports(HEADS[kind]()) and cb.supports(HEADS[kind](), VECTOR)
    assert Graph.from_json(json.loads(json.dumps(traced.graph.to_json()))) == traced.graph


def test_its_predictor_gives_its_probabilities_and_is_certified():
    torch.manual_seed(0)
    net, x = HEADS["nn.Softmax"](), torch.rand(10, 6)
    with pytest.warns(UserWarning, match="left off"):
        predictor = cb.Samples.from_modules([net]).predictor()
    torch.testing.assert_close(predictor.probabilities(x), net(x))
    assert bool(cb.certify(predictor, x, eps=0.0, domain=(0.0, 1.0)).certified.any())


def test_its_outputs_are_not_taken_for_those_without_it(tmp_path):
    net, data = HEADS["nn.Softmax"](), (torch.rand(20, 6), torch.rand(20, 3))
    specification = "".join(f"(declare-const X_{i} Real)(assert (<= X_{i} 1))(assert (>= X_{i} 0))" for i in range(6))
    specification += "".join(f"(declare-const Y_{i} Real)" for i in range(3)) + "(assert (>= Y_0 2))"
    refused = [
        lambda: cb.verify(net, parse_vnnlib(specification)),
        lambda: cb.networks.to_onnx(net, tmp_path / "net.onnx"),
        lambda: cb.fit(net, data, algorithm="map", likelihood=cb.RobustGaussian(1.0), epochs=1),
    ]
    for call in refused:
        with (
            pytest.warns(UserWarning, match="left off"),
            pytest.raises(InvalidInput, match="Give a network without it"),
        ):
            call()
