"""Derivatives with respect to |w|, against plain autograd with and without |w| held constant.

Where a weight enters by w and by |w|, its derivative is a + sign(w) b with b the derivative with respect to |w|. Held
constant, |w| leaves a alone, so b is what is missing, times the sign.
"""

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.bounds.rounding import Rounding
from certibayes.networks import trace
from certibayes.networks.batch_norm import training_graph

from .cases import case_of, images
from .test_curvature import CONVOLUTIONS, IMAGE, LINEAR_NETWORKS, assert_same, built, full_noise

KINKED = {
    "lam=0.25": cb.RobustCategorical(cb.TwoPoint(0.1, 0.25)),
    "lam=0": cb.RobustCategorical(cb.TwoPoint(0.1, 0.0)),
    "margins": cb.RobustCategorical(cb.TwoPoint(0.1, 0.25), cb.IBP(margins=True)),
    "sabr": cb.RobustCategorical(cb.TwoPoint(0.1, 0.25), cb.SABR(attack=cb.PGD(steps=2), bound=cb.IBP())),
    "regression": cb.RobustGaussian(0.5, cb.TwoPoint(0.1, 0.25)),
}
SMOOTH = {
    "standard": cb.Categorical(),
    "no radius": cb.RobustCategorical(cb.TwoPoint(0.1, 1.0)),
    "attack": cb.RobustCategorical(cb.TwoPoint(0.1), cb.PGD(steps=2)),
    "smoothed": cb.RobustCategorical(cb.TwoPoint(0.1), cb.IBP(smoothing=0.1)),
}


def by_autograd(likelihood, graph, case, noise, monkeypatch):
    def gradient():
        def total(params):
            return likelihood.log_likelihood(graph, {**case.buffers, **params}, case.batch, noise).sum()

        return torch.func.grad(total)(dict(case.params))

    whole = gradient()
    # Batch norm's factors, which depend on the weights where the batch gives them, are vectors.
    monkeypatch.setattr(
        Rounding, "magnitude", lambda self, weight: weight.abs().detach() if weight.dim() > 1 else weight.abs()
    )
    without = gradient()
    monkeypatch.undo()
    return {name: (whole[name] - without[name]) * case.params[name].sign() for name in likelihood.kinks(graph)}


def agrees(likelihood, case, monkeypatch, graph=None):
    graph = case.graph if graph is None else graph
    noise = full_noise(likelihood, case.batch)
    expected = by_autograd(likelihood, graph, case, noise, monkeypatch)
    assert expected
    arguments = (graph, case.params, case.buffers, case.batch, noise)
    values, gradient, found = likelihood.value_and_slopes(*arguments, 0.5)
    assert_same({name: 2 * g for name, g in found.items()}, expected, rtol=1e-9, atol=1e-12)
    same = likelihood.value_and_grad(*arguments, 0.5)
    assert torch.equal(values, same[0])
    assert_same(gradient, same[1], rtol=0.0, atol=0.0)
    if graph is case.graph:
        squared = likelihood.value_grad_and_squares(*arguments)
        assert_same(squared.magnitudes, expected, rtol=1e-9, atol=1e-12)


def regression_case(case, likelihood):
    if isinstance(likelihood, cb.RobustGaussian):
        targets = torch.randn(len(case.batch.inputs), case.graph.classes, dtype=torch.float64)
        return case._replace(batch=case.batch._replace(targets=targets))
    return case


@pytest.mark.parametrize("likelihood", KINKED.values(), ids=KINKED)
@pytest.mark.parametrize("net", ["two layers", "four layers", "normalized", "residual"])
def test_linear_layers(net, likelihood, monkeypatch):
    case = case_of(built(LINEAR_NETWORKS[net]), images(6, 6))
    agrees(likelihood, regression_case(case, likelihood), monkeypatch)


@pytest.mark.parametrize("likelihood", KINKED.values(), ids=KINKED)
@pytest.mark.parametrize("net", ["plain", "all at once", "groups"])
def test_convolutions(net, likelihood, monkeypatch):
    case = case_of(built(CONVOLUTIONS[net]), images(6, *IMAGE))
    agrees(likelihood, regression_case(case, likelihood), monkeypatch)


@pytest.mark.parametrize("by_batch", [False, True])
def test_batch_norm(by_batch, monkeypatch):
    net = built(lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)))
    case = case_of(net, images(6, 6))
    agrees(KINKED["lam=0.25"], case, monkeypatch, training_graph(case.graph) if by_batch else None)


@pytest.mark.parametrize("likelihood", SMOOTH.values(), ids=SMOOTH)
def test_what_is_smooth_has_no_kinks(likelihood):
    graph = trace(built(LINEAR_NETWORKS["two layers"]), torch.zeros(1, 6)).graph
    assert not likelihood.kinks(graph)


def test_without_a_last_layer_to_fold_in_margins_tell_of_no_kinks():
    graph = trace(built(CONVOLUTIONS["pool"]), torch.zeros(1, *IMAGE)).graph
    assert KINKED["lam=0.25"].kinks(graph)
    assert not KINKED["margins"].kinks(graph)


def test_with_margins_the_last_layer_has_its_kinks_elsewhere():
    graph = trace(built(LINEAR_NETWORKS["two layers"]), torch.zeros(1, 6)).graph
    assert KINKED["lam=0.25"].kinks(graph) == {"0.weight", "2.weight"}
    assert KINKED["margins"].kinks(graph) == {"0.weight"}
