"""The gradient that is written out is that of autograd, whatever the likelihood."""

import math

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.likelihoods import Likelihood

from .cases import CLASSES, assert_same, case_of, conv_net, full_noise, images, labels, mlp_case

CLASSIFICATION = {
    "standard": cb.Categorical(),
    "lam=1": cb.RobustCategorical(cb.TwoPoint(0.1, 1.0)),
    "lam=0.25": cb.RobustCategorical(cb.TwoPoint(0.1, 0.25)),
    "lam=0": cb.RobustCategorical(cb.TwoPoint(0.1, 0.0)),
    "no domain": cb.RobustCategorical(cb.TwoPoint(0.1, 0.25), domain=None),
    "no radius": cb.RobustCategorical(cb.TwoPoint(0.0)),
    "smoothing": cb.RobustCategorical(cb.TwoPoint(0.1, 0.25), cb.IBP(smoothing=0.1)),
    "margins": cb.RobustCategorical(cb.TwoPoint(0.1, 0.25), cb.IBP(margins=True)),
    "margins, lam=0": cb.RobustCategorical(cb.TwoPoint(0.1, 0.0), cb.IBP(margins=True)),
    "margins, smoothing": cb.RobustCategorical(cb.TwoPoint(0.1, 0.25), cb.IBP(margins=True, smoothing=0.1)),
    "pgd": cb.RobustCategorical(cb.TwoPoint(0.1, 0.25), cb.PGD(steps=2)),
    "crown-ibp": cb.RobustCategorical(cb.TwoPoint(0.1, 0.25), cb.CROWNIBP()),
    "quadrature": cb.RobustCategorical(cb.Exponential(0.1, quadrature=3)),
}
REGRESSION = {
    "standard": cb.RobustGaussian(0.5),
    "lam=0.25": cb.RobustGaussian(0.5, cb.TwoPoint(0.1, 0.25)),
    "lam=0": cb.RobustGaussian(0.5, cb.TwoPoint(0.1, 0.0)),
}


def computed(likelihood, case, noise, scale=1.0):
    return likelihood.value_and_grad(case.graph, case.params, case.buffers, case.batch, noise, scale)


def agrees(likelihood, case, noise=None):
    noise = full_noise(likelihood, case.batch) if noise is None else noise
    values, gradient = computed(likelihood, case, noise, -0.5)
    torch.testing.assert_close(values, case.log_likelihood(likelihood, noise), rtol=1e-12, atol=1e-12)
    expected = {name: -0.5 * slope for name, slope in case.gradient(likelihood, noise).items()}
    assert_same(gradient, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("likelihood", CLASSIFICATION.values(), ids=CLASSIFICATION)
@pytest.mark.parametrize("case", [mlp_case(8, 5), case_of(conv_net(), images(4, 1, 5, 5))], ids=["linear", "images"])
def test_classification(case, likelihood):
    agrees(likelihood, case)


@pytest.mark.parametrize("likelihood", REGRESSION.values(), ids=REGRESSION)
def test_regression(likelihood):
    agrees(likelihood, case_of(cb.networks.mlp(6, [7], 2), images(5, 6), images(5, 2, seed=4)))


def test_batch_norm_and_frozen_layers():
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES)).eval()
    case = case_of(net, images(5, 6))
    agrees(CLASSIFICATION["lam=0.25"], case)
    frozen = {name: tensor for name, tensor in case.params.items() if name.startswith("0.")}
    learned = {name: tensor for name, tensor in case.params.items() if name not in frozen}
    agrees(CLASSIFICATION["lam=0.25"], case._replace(params=learned, buffers={**case.buffers, **frozen}))


@pytest.mark.parametrize("given_up", [0, 1], ids=["the inputs themselves", "the box"])
def test_one_of_the_two_may_have_no_weight(given_up):
    """As at the ends of a ramp: the logarithm of its weight is minus infinity."""
    case, likelihood = mlp_case(), CLASSIFICATION["lam=0.25"]
    noise = full_noise(likelihood, case.batch)
    log_weights = torch.zeros(2, dtype=torch.float64)
    log_weights[given_up] = -math.inf
    agrees(likelihood, case, noise._replace(log_weights=log_weights))


def test_extreme_logits_have_finite_gradients():
    case, likelihood = mlp_case(), CLASSIFICATION["lam=0.25"]
    large = case._replace(params={name: 1e4 * p for name, p in case.params.items()})
    values, gradient = computed(likelihood, large, full_noise(likelihood, case.batch))
    assert values.isfinite().all()
    assert all(slope.isfinite().all() for slope in gradient.values())


class Tempered(cb.Categorical):
    def log_p(self, clean, worst, targets, log_weights):
        return 0.5 * super().log_p(clean, worst, targets, log_weights)


class Doubled(cb.RobustCategorical):
    def log_p(self, clean, worst, targets, log_weights):
        return 2.0 * super().log_p(clean, worst, targets, log_weights)


class Shifted(cb.RobustCategorical):
    def passes(self, graph, params, batch, noise):
        return super().passes(graph, params, batch._replace(inputs=0.9 * batch.inputs), noise)


class Penalized(cb.RobustCategorical):
    def log_likelihood(self, graph, params, batch, noise):
        return super().log_likelihood(graph, params, batch, noise) - 1.0


@pytest.mark.parametrize(
    "likelihood",
    [Tempered(), *(kind(cb.TwoPoint(0.1, 0.25)) for kind in (Doubled, Shifted, Penalized))],
    ids=lambda likelihood: type(likelihood).__name__,
)
def test_a_likelihood_that_changes_a_part_of_another_is_differentiated_as_it_is(likelihood):
    case = mlp_case()
    agrees(likelihood, case)
    noise = full_noise(likelihood, case.batch)
    found = likelihood.value_grad_and_squares(case.graph, case.params, case.buffers, case.batch, noise)
    expected = Likelihood.value_grad_and_squares(likelihood, case.graph, case.params, case.buffers, case.batch, noise)
    assert_same(found.squares, expected.squares, rtol=1e-9, atol=1e-12)


def test_networks_go_through_vmap():
    case, likelihood = mlp_case(), CLASSIFICATION["lam=0.25"]
    noise = full_noise(likelihood, case.batch)
    stacked = {name: torch.stack([p, 1.5 * p]) for name, p in case.params.items()}
    for kind in ("value_and_grad", "value_grad_and_squares"):

        def both(params, kind=kind):
            scale = (1.0,) if kind == "value_and_grad" else ()
            return getattr(likelihood, kind)(case.graph, params, case.buffers, case.batch, noise, *scale)[1:]

        many = torch.vmap(both)(stacked)
        for index in range(2):
            alone = both({name: p[index] for name, p in stacked.items()})
            for found, expected in zip(many, alone, strict=True):
                assert_same({name: s[index] for name, s in found.items()}, expected, rtol=1e-12, atol=1e-12)


def test_labels_of_one_class():
    likelihood = CLASSIFICATION["lam=0.25"]
    case = case_of(cb.networks.mlp(6, [8], CLASSES), images(4, 6), labels(4, 1))
    agrees(likelihood, case)
