"""Derivatives with respect to |w|, against plain autograd with and without |w| held constant.

Where a weight enters by w and by |w|, its derivative is a + sign(w) b with b the derivative with respect to |w|. Held
constant, |w| leaves a alone, so b is what is missing, times the sign. Differences |w_y - w_j| of a last layer that is
folded into margins are widened by variables of their own, with respect to which autograd differentiates.
"""

from dataclasses import replace

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.bounds import Box, interval_bounds
from certibayes.bounds.rounding import Rounding
from certibayes.likelihoods import PAIRS
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


def by_widening(likelihood, graph, case, noise):
    """Derivatives of the summed log-likelihood with respect to every |w_k - w_j|, whichever has the label."""
    tensors, labels = {**case.buffers, **case.params}, case.batch.targets
    last = graph.nodes[-1].weights(tensors)
    low, high = ((case.batch.inputs + sign * noise.radii[0]).clamp(0, 1) for sign in (-1, 1))
    features = interval_bounds(graph.body, tensors, Box((low + high) / 2, (high - low) / 2))
    center = features.center @ last["weight"].T + last.get("bias", 0.0)
    clean = graph.evaluate(tensors, case.batch.inputs) if likelihood.p_eps.clean else None

    def total(extra):
        distance = (last["weight"][labels, None] - last["weight"]).abs() + extra[labels]
        worst = center - center.gather(1, labels[:, None]) + (distance * features.radius[:, None]).sum(-1)
        worst = worst.scatter(1, labels[:, None], 0.0)
        return likelihood.log_p(clean, [worst], labels, noise.log_weights).sum()

    classes, width = last["weight"].shape
    slopes = torch.func.grad(total)(last["weight"].new_zeros(classes, classes, width))
    return slopes + slopes.transpose(0, 1)


def agrees(likelihood, case, monkeypatch, graph=None):
    graph = case.graph if graph is None else graph
    noise = full_noise(likelihood, case.batch)
    expected = by_autograd(likelihood, graph, case, noise, monkeypatch)
    assert expected
    if likelihood.pair_kinks(graph) is not None:
        expected[PAIRS] = by_widening(likelihood, graph, case, noise)
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
    assert likelihood.pair_kinks(graph) is None


def test_without_a_last_layer_to_fold_in_margins_tell_of_no_kinks():
    graph = trace(built(CONVOLUTIONS["pool"]), torch.zeros(1, *IMAGE)).graph
    assert KINKED["lam=0.25"].kinks(graph)
    assert not KINKED["margins"].kinks(graph)
    assert KINKED["margins"].pair_kinks(graph) is None


def test_with_margins_the_last_layer_has_its_kinks_elsewhere():
    graph = trace(built(LINEAR_NETWORKS["two layers"]), torch.zeros(1, 6)).graph
    assert KINKED["lam=0.25"].kinks(graph) == {"0.weight", "2.weight"}
    assert KINKED["lam=0.25"].pair_kinks(graph) is None
    assert KINKED["margins"].kinks(graph) == {"0.weight"}
    assert KINKED["margins"].pair_kinks(graph) == "2.weight"


@pytest.mark.parametrize("size", [2, 9])
@pytest.mark.parametrize("lam", [0.0, 0.25])
def test_pairs_of_classes_in_batches_of_any_size(lam, size, monkeypatch):
    """With fewer examples than classes the margins are found in another way."""
    likelihood = cb.RobustCategorical(cb.TwoPoint(0.1, lam), cb.IBP(margins=True))
    case = case_of(built(LINEAR_NETWORKS["two layers"]), images(size, 6))
    agrees(likelihood, case, monkeypatch)
    arguments = (case.graph, case.params, case.buffers, case.batch, full_noise(likelihood, case.batch))
    slopes = likelihood.value_and_slopes(*arguments, -1.0)[2][PAIRS]
    assert torch.equal(slopes, slopes.transpose(0, 1))
    assert bool((slopes >= 0).all()) and float(slopes.max()) > 0
    assert not slopes.diagonal().any()


def test_a_last_layer_that_is_constant_has_no_pairs(monkeypatch):
    case = case_of(built(LINEAR_NETWORKS["two layers"]), images(6, 6))
    graph = replace(case.graph, parameters=("0.weight", "0.bias", "2.bias"), buffers=("2.weight",))
    params, fixed = dict(case.params), {"2.weight": case.params["2.weight"]}
    del params["2.weight"]
    assert KINKED["margins"].pair_kinks(graph) is None
    agrees(KINKED["margins"], case._replace(graph=graph, params=params, buffers=fixed), monkeypatch)


def test_other_radii_and_what_margins_are_replaced_by_have_no_pairs():
    graph = trace(built(LINEAR_NETWORKS["two layers"]), torch.zeros(1, 6)).graph

    class Other(cb.RobustCategorical):
        def worst_outputs(self, model, threat, targets):
            return super().worst_outputs(model, threat, targets)

    assert Other(cb.TwoPoint(0.1), cb.IBP(margins=True)).pair_kinks(graph) is None
    assert cb.RobustCategorical(cb.Rayleigh(0.1), cb.IBP(margins=True)).pair_kinks(graph) is None
    assert cb.RobustCategorical(cb.TwoPoint(0.1), cb.IBP(margins=True, smoothing=0.1)).pair_kinks(graph) is None
