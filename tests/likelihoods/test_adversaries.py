from typing import ClassVar

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.errors import InvalidInput
from certibayes.likelihoods import Batch, Model

from ..strategies import ball
from .cases import assert_same, case_of, full_noise, images, mlp_case


class RecordingPGD(cb.PGD):
    """PGD that remembers the inputs it settles on."""

    found: ClassVar[list] = []

    def worst_inputs(self, *arguments):
        worst = super().worst_inputs(*arguments)
        RecordingPGD.found.append(worst)
        return worst


def recorded(case, likelihood, noise):
    RecordingPGD.found.clear()
    case.log_likelihood(likelihood, noise)
    (worst,) = RecordingPGD.found
    return worst


@pytest.mark.parametrize("domain", [(0.0, 1.0), (0.25, 0.75), None])
def test_pgd_stays_in_ball_and_domain(domain):
    case = mlp_case(dtype=torch.float32, size=20)
    inputs = case.batch.inputs if domain is None else case.batch.inputs.clamp(*domain)
    case = case._replace(batch=case.batch._replace(inputs=inputs))
    likelihood = cb.RobustCategorical(cb.TwoPoint(0.1, 0.0), RecordingPGD(), domain=domain)
    noise = full_noise(likelihood, case.batch)
    worst = recorded(case, likelihood, noise)
    lower, upper = ball(inputs, noise.radii[0], domain)
    assert torch.equal(worst, worst.clamp(lower, upper))
    if domain is not None:
        assert float(worst.min()) >= domain[0]
        assert float(worst.max()) <= domain[1]


def test_pgd_begins_at_the_starts():
    case = mlp_case()
    likelihood = cb.RobustCategorical(cb.TwoPoint(0.1, 0.0), RecordingPGD(steps=1, step_size=1e-30), domain=None)
    noise = full_noise(likelihood, case.batch)
    expected = case.batch.inputs + noise.radii[0] * noise.starts
    torch.testing.assert_close(recorded(case, likelihood, noise), expected)


@pytest.mark.parametrize("settings", [{"steps": 0}, {"step_size": -0.1}])
def test_pgd_that_goes_nowhere_is_refused_before_training(settings):
    with pytest.raises(InvalidInput, match=next(iter(settings))):
        cb.PGD(**settings)


def test_other_starts_give_another_likelihood():
    case = mlp_case(8, 8)
    likelihood = cb.RobustCategorical(cb.TwoPoint(0.3, 0.0), cb.PGD(steps=1))
    one, other = (full_noise(likelihood, case.batch, seed) for seed in (0, 1))
    assert not torch.equal(case.log_likelihood(likelihood, one), case.log_likelihood(likelihood, other))


def test_no_gradient_flows_through_the_search():
    """The weight gradient is the one at the attacked input, held fixed."""
    case = mlp_case(8, 5)
    likelihood = cb.RobustCategorical(cb.TwoPoint(0.1, 0.0), RecordingPGD(steps=3))
    noise = full_noise(likelihood, case.batch)
    worst = recorded(case, likelihood, noise)
    fixed = case._replace(batch=Batch(worst, case.batch.targets))
    assert_same(case.gradient(likelihood, noise), fixed.gradient(cb.Categorical()))


def test_no_gradient_flows_through_the_search_under_functional_transforms():
    case = mlp_case(8, 5)
    likelihood = cb.RobustCategorical(cb.TwoPoint(0.1, 0.0), RecordingPGD(steps=3))
    noise = full_noise(likelihood, case.batch)
    worst = recorded(case, likelihood, noise)
    found = torch.func.grad(lambda p: likelihood.log_likelihood(case.graph, p, case.batch, noise).sum())(case.params)
    fixed = case._replace(batch=Batch(worst, case.batch.targets))
    assert_same(found, fixed.gradient(cb.Categorical()))


def test_pgd_finds_the_corner_of_a_linear_two_class_model():
    """The worst input of a linear model with two classes is x - eps sign(w_y - w_rival)."""
    case = case_of(nn.Linear(6, 2), images(9, 6), torch.arange(9) % 2)
    likelihood = cb.RobustCategorical(cb.TwoPoint(0.125, 0.0), RecordingPGD(steps=10), domain=None)
    noise = full_noise(likelihood, case.batch)
    weight = case.params["weight"]
    direction = (weight[case.batch.targets] - weight[1 - case.batch.targets]).sign()
    torch.testing.assert_close(recorded(case, likelihood, noise), case.batch.inputs - 0.125 * direction)


def test_intervals_and_attacks_agree_on_a_linear_two_class_model():
    """There the folded interval bound is exact, so bound and attack must meet."""
    case = case_of(nn.Linear(6, 2), images(9, 6), torch.arange(9) % 2)
    exact = case.log_likelihood(cb.RobustCategorical(cb.TwoPoint(0.1, 0.0), cb.IBP(margins=True)))
    attacked = case.log_likelihood(cb.RobustCategorical(cb.TwoPoint(0.1, 0.0), cb.PGD(steps=10)))
    torch.testing.assert_close(exact, attacked)


class TestExtremes:
    """Smallest and largest outputs, for regression."""

    def test_both_are_exact_for_a_linear_model(self):
        case = case_of(nn.Linear(4, 3), images(5, 4))
        outputs = case.graph.evaluate(case.params, case.batch.inputs)
        reach = 0.1 * case.params["weight"].abs().sum(1)
        threat = case.threat(0.1, starts=torch.zeros(5, 4, dtype=torch.float64))
        for adversary in (cb.IBP(), cb.PGD(steps=10)):
            low, high = adversary.extremes(case.model, threat)
            torch.testing.assert_close(low, outputs - reach)
            torch.testing.assert_close(high, outputs + reach)

    def test_attacked_extremes_lie_within_the_bounds(self):
        case = mlp_case(8, 5)
        threat = case.threat(0.2, (0.0, 1.0), 2 * images(7, 6, seed=9) - 1)
        low, high = cb.IBP().extremes(case.model, threat)
        attacked_low, attacked_high = cb.PGD(steps=5).extremes(case.model, threat)
        assert (low <= attacked_low + 1e-12).all()
        assert (attacked_high <= high + 1e-12).all()
        assert (attacked_low <= attacked_high).all()

    def test_gradients_reach_the_weights(self):
        case = mlp_case(8, 5)
        leaves = {name: p.clone().requires_grad_(True) for name, p in case.params.items()}
        low, high = cb.PGD(steps=2).extremes(Model(case.graph, leaves), case.threat(0.2))
        gradients = torch.autograd.grad((high - low).sum(), list(leaves.values()), allow_unused=True)
        assert gradients[0] is not None
        assert float(gradients[0].abs().sum()) > 0
