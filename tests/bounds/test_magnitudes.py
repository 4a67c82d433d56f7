"""Absurd magnitudes: what is subnormal in the program, behind activations that are huge, must never fool a bound."""

from itertools import product

import pytest
import torch
from torch import nn

import certibayes as cb

from ..random_magnitudes import look_at_many
from ..strategies import Functional, few_of

TINY = 2.0**-149  # the smallest float32 there is
HUGE = 2.0**30  # the largest weight that predictors take


def _chain(*weights: float) -> list[nn.Module]:
    layers = [nn.Linear(1, 1, bias=False) for _ in weights]
    with torch.no_grad():
        for layer, weight in zip(layers, weights, strict=True):
            layer.weight.fill_(weight)
    return layers


def _two_logits(slope: float, threshold: float) -> nn.Module:
    """Class 0 where slope * z > threshold."""
    layer = nn.Linear(1, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[slope], [0.0]]))
        layer.bias.copy_(torch.tensor([0.0, threshold]))
    return layer


def subnormal_batch_norm() -> nn.Module:
    """A batch norm whose factor 2.5 * 2^-149 the program rounds to 2 * 2^-149, behind activations of 2^90."""
    norm = nn.BatchNorm1d(1, eps=0.0)
    norm.running_var.fill_(4.0)
    with torch.no_grad():
        norm.weight.fill_(5 * TINY)
    return nn.Sequential(*_chain(HUGE, HUGE, HUGE), norm, *_chain(HUGE, 2.0**29), _two_logits(1.0, 2.2)).eval()


def subnormal_constant() -> nn.Module:
    """A constant 1.5 * 2^-149 that the program rounds to 2 * 2^-149."""
    return Functional(
        lambda self, x: self.last(x * 2.0**90 * (1.5 * TINY) * 2.0**59), last=_two_logits(-1.0, -1.8)
    ).eval()


METHODS = [
    cb.Theorem1("ibp"), cb.Theorem1("crown"), cb.Elided("ibp"), cb.Elided("crown"), cb.Joint("crown"), cb.Best(),
    cb.Auto(),
]  # fmt: skip


WAYS = list(product(["linf", "l2", "l1"], METHODS))
FAST = [(norm, method) for norm, method in WAYS if norm == "linf" or method in (cb.Elided("crown"), cb.Auto())]


@pytest.mark.parametrize("way", few_of(WAYS, fast=FAST), ids=lambda way: f"{way[0]}-{way[1]!r}")
@pytest.mark.parametrize("net", [subnormal_batch_norm, subnormal_constant], ids=lambda f: f.__name__)
def test_a_class_that_a_point_of_the_ball_does_not_have_is_not_certified(net, way):
    norm, method = way
    predictor = cb.Point(net()).predictor()
    x, eps = torch.linspace(0.3, 2.0, 35)[:, None], 0.1
    result = cb.certify(predictor, x, eps=eps, norm=norm, method=method)
    for step in torch.linspace(-eps, eps, 21):
        broken = predictor.predict(x + step * 0.999) != result.labels
        assert not bool((result.certified & broken).any())


@pytest.mark.parametrize("first", few_of(range(0, 120, 30), fast=[0]))
def test_nothing_false_is_proved_of_random_networks_of_any_magnitude(first):
    """``python -m tests.random_magnitudes 2000`` looks at more of them."""
    found = look_at_many(range(first, first + 30))
    assert found["violations"] == 0
    # Not by refusing them all.
    assert found["refused"] < 15 < found["answered"]
    assert found["certified"] > 7 and found["at certified points"] > 500


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_a_ball_that_overflows_before_the_first_layer_is_answered(norm):
    """Nothing is known of the points, which is said and not raised."""
    net = Functional(lambda self, x: self.last(x * 2.0**100 * 2.0**100), last=nn.Linear(3, 2)).eval()
    net.input_shape = (3,)
    predictor = cb.Point(net).predictor()
    result = cb.certify(predictor, torch.full((2, 3), 0.5), torch.tensor([0, 0]), eps=0.1, norm=norm)
    assert not bool(result.certified.any()) and len(result.reasons) == 2
