"""Linear bounds in training: a certified likelihood that is never below the one of intervals."""

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.errors import InvalidInput
from certibayes.experiments import TrainSpec
from certibayes.likelihoods import CROWNIBP, per_example_gradients

from ..strategies import ZOO, attacked_points, ball, inputs, make, points_of
from .cases import CLASSES, assert_same, case_of, conv_net, full_noise, images, mlp_case

RADIUS = cb.TwoPoint(0.1, 0.0)
DEEP = ("relu", "tanh", "residual", "max pool, padded, ceil", "batch norm on images", "ends in tanh")


def _values(case, adversary, radius=RADIUS, domain=None):
    return case.log_likelihood(cb.RobustCategorical(radius, adversary, domain=domain))


def _zoo_case(name):
    return case_of(make(name), inputs(name, 6, 0, torch.float64), torch.arange(6) % 3)


@pytest.mark.parametrize("eta", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("name", ZOO)
def test_it_lies_between_interval_margins_and_what_attacks_reach(name, eta):
    case = _zoo_case(name)
    linear = _values(case, CROWNIBP(), cb.TwoPoint(eta, 0.0))
    room = 1e-9 * (1 + linear.abs())
    assert bool((linear >= _values(case, cb.IBP(margins=True), cb.TwoPoint(eta, 0.0)) - room).all())
    assert bool((linear <= _values(case, cb.PGD(steps=5), cb.TwoPoint(eta, 0.0)) + room).all())
    lower, upper = ball(case.batch.inputs, eta)
    weights = {**case.params, **case.buffers}
    points = [
        *points_of(lower, upper, 6, 0),
        *attacked_points(lambda x: case.graph.evaluate(weights, x), lower, upper, steps=3),
    ]
    for x in points:
        moved = case._replace(batch=case.batch._replace(inputs=x))
        assert bool((linear <= moved.log_likelihood(cb.Categorical()) + room).all())


def test_it_is_exact_for_a_linear_two_class_model():
    case = case_of(nn.Linear(6, 2), images(9, 6), torch.arange(9) % 2)
    attacked = _values(case, cb.PGD(steps=10), domain=(0.0, 1.0))
    torch.testing.assert_close(_values(case, CROWNIBP(), domain=(0.0, 1.0)), attacked)


def test_it_is_strictly_better_on_a_deep_network():
    case = mlp_case(12, 12)
    assert bool((_values(case, CROWNIBP()) > _values(case, cb.IBP(margins=True)) + 1e-3).all())


def test_beta_mixes_interval_and_linear_margins():
    case = mlp_case(8, 8)
    torch.testing.assert_close(_values(case, CROWNIBP(beta=0.0)), _values(case, cb.IBP(margins=True)))
    low, middle, high = (_values(case, CROWNIBP(beta=beta)) for beta in (0.0, 0.5, 1.0))
    assert bool((low < middle).all() and (middle < high).all())


@pytest.mark.parametrize("beta", [-0.1, 1.1, float("nan")])
def test_beta_is_a_fraction(beta):
    with pytest.raises(InvalidInput, match="beta"):
        CROWNIBP(beta)


def test_without_a_radius_it_is_the_standard_likelihood():
    case = mlp_case(8, 8)
    standard = case.log_likelihood(cb.Categorical())
    torch.testing.assert_close(_values(case, CROWNIBP(), cb.TwoPoint(0.1, 1.0)), standard)
    likelihood = cb.RobustCategorical(RADIUS, CROWNIBP(), domain=None)
    at_start = likelihood.draw(0.0, case.batch, None)  # the ramp begins at radius 0
    torch.testing.assert_close(case.log_likelihood(likelihood, at_start), standard)


@pytest.mark.parametrize("progress", [0.0, 1e-30, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", DEEP)
def test_gradients_reach_all_weights_and_are_finite(name, dtype, progress):
    """At the start of the ramp boxes have no width, where quotients are not taken."""
    case = case_of(make(name), inputs(name, 6, 0, dtype), torch.arange(6) % 3)
    likelihood = cb.RobustCategorical(cb.TwoPoint(0.1), CROWNIBP(), domain=None)
    noise = likelihood.draw(progress, case.batch, None)
    values = case.log_likelihood(likelihood, noise)
    assert values.dtype == dtype and bool(torch.isfinite(values).all())
    for gradient in case.gradient(likelihood, noise).values():
        assert gradient.dtype == dtype
        assert bool(torch.isfinite(gradient).all()) and float(gradient.abs().sum()) > 0


@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_gradients_equal_differences(beta):
    case = mlp_case(5, size=3)
    likelihood = cb.RobustCategorical(RADIUS, CROWNIBP(beta), domain=(0.0, 1.0))
    noise = full_noise(likelihood, case.batch)
    names = list(case.params)

    def value(*weights):
        return likelihood.log_likelihood(case.graph, dict(zip(names, weights, strict=True)), case.batch, noise)

    leaves = [p.clone().requires_grad_(True) for p in case.params.values()]
    assert torch.autograd.gradcheck(value, leaves, atol=1e-6)


@pytest.mark.parametrize("beta", [0.5, 1.0])
@pytest.mark.parametrize("net", ["mlp", "conv"])
def test_curvature_is_that_of_a_loop_over_examples(net, beta):
    case = mlp_case(8, 5) if net == "mlp" else case_of(conv_net(), images(4, 1, 6, 6))
    likelihood = cb.RobustCategorical(cb.TwoPoint(0.05), CROWNIBP(beta))
    noise = full_noise(likelihood, case.batch)
    found = likelihood.value_grad_and_squares(case.graph, case.params, case.buffers, case.batch, noise)
    expected = per_example_gradients(likelihood, case.graph, case.params, case.buffers, case.batch, noise)
    assert_same(found.squares, expected.squares)
    squares = {name: torch.zeros_like(p) for name, p in case.params.items()}
    for i in range(len(case.batch.inputs)):
        one = case._replace(batch=type(case.batch)(case.batch.inputs[i : i + 1], case.batch.targets[i : i + 1]))
        squares = {name: squares[name] + g.square() for name, g in one.gradient(likelihood, noise).items()}
    assert_same(found.squares, squares)
    assert_same(found.gradient, case.gradient(likelihood, noise))


class TestExtremes:
    """Smallest and largest outputs, for regression."""

    def _ends(self, case, adversary, radius=0.2):
        return adversary.extremes(case.model, case.threat(radius, (0.0, 1.0)))

    @pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
    def test_they_lie_between_intervals_and_attacks(self, beta):
        case = mlp_case(8, 5)
        low, high = self._ends(case, CROWNIBP(beta))
        outer, inner = self._ends(case, cb.IBP()), self._ends(case, cb.PGD(steps=5))
        assert bool((outer[0] <= low + 1e-12).all() and (low <= inner[0] + 1e-12).all())
        assert bool((inner[1] <= high + 1e-12).all() and (high <= outer[1] + 1e-12).all())

    def test_a_gaussian_likelihood_takes_them(self):
        case = mlp_case(8, 5)
        targets = torch.zeros(len(case.batch.inputs), CLASSES, dtype=torch.float64)
        case = case._replace(batch=case.batch._replace(targets=targets))
        linear, interval = (
            case.log_likelihood(cb.RobustGaussian(0.5, RADIUS, adversary)) for adversary in (CROWNIBP(), cb.IBP())
        )
        assert bool((linear >= interval).all() and (linear > interval).any())


def test_what_goes_into_metadata():
    assert cb.RobustCategorical(RADIUS, CROWNIBP(0.5)).describe()["adversary"]["name"] == "CROWNIBP"
    assert CROWNIBP(0.5).describe() == {"name": "CROWNIBP", "beta": 0.5}


def test_a_spec_makes_it():
    spec = TrainSpec(likelihood="crown-ibp", eps=0.1)
    likelihood = spec.make_likelihood(cb.data.load("digits"))
    assert likelihood.adversary == CROWNIBP()
    assert likelihood.p_eps.eta == pytest.approx(0.11)
