"""Kinks: where |w| decides how wide a weight is.

References are in float64: quadrature for expectations of |w|, and a search for the Gaussian nearest in KL divergence.
"""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import certibayes as cb
from certibayes.inference._kink import PRECISE, kink_curvatures
from certibayes.likelihoods import Batch

from ..strategies import in_turn, law
from .cases import LIKELIHOODS, data_for, fit, network, target_for

NODES = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
WEIGHTS = torch.exp(-NODES.square() / 2) / math.sqrt(2 * math.pi) * (NODES[1] - NODES[0])


def mean_of(function, mean, std):
    """E of a function under N(mean, std²)."""
    return float((function(mean + std * NODES) * WEIGHTS).sum())


class Scalar:
    """What ``kink_curvatures`` looks at of a target."""

    def __init__(self, precision, data_size, temperature):
        self.precision = {"w": torch.tensor(precision, dtype=torch.float64)}
        self.data_size, self.temperature = data_size, temperature


def solved(mean, curvature, slope, precision, data_size, temperature=1.0):
    """Return the curvature of the kink, and the standard deviation with it."""
    target = Scalar(precision, data_size, temperature)
    numbers = ({"w": torch.tensor(value, dtype=torch.float64)} for value in (mean, curvature, slope))
    kink = float(kink_curvatures(target, *numbers, PRECISE)["w"])
    return kink, math.sqrt(temperature / (data_size * (curvature + kink) + precision))


def nearest(mean, curvature, slope, precision, data_size, temperature):
    """The standard deviation at which N(mean, s²) is nearest to exp(-(N (c |w| + h w²/2) + δ w²/2) / T), by search."""

    def divergence(log_std):
        std = math.exp(log_std)
        energy = data_size * (slope * mean_of(torch.abs, mean, std) + curvature * std**2 / 2) + precision * std**2 / 2
        return energy / temperature - log_std

    low, high = -14.0, 5.0
    for _ in range(80):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        low, high = (a, high) if divergence(a) > divergence(b) else (low, b)
    return math.exp((low + high) / 2)


CASES = [
    (0.0, 0.0, 0.01, 1e-6, 1000, 1.0),
    (0.0, 0.05, 0.02, 1.0, 500, 1.0),
    (0.3, 0.01, 0.05, 1.0, 100, 1.0),
    (0.05, 1e-3, 0.5, 2.0, 200, 0.1),
    (-0.4, 2e-4, 0.1, 1.0, 1000, 1.0),  # m / s near 3, where a fixed-point iteration goes to and fro
    (1.5, 0.01, 0.02, 0.5, 300, 1.0),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_gaussian_is_the_nearest(case):
    assert solved(*case)[1] == pytest.approx(nearest(*case), rel=1e-4)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_curvature_is_that_of_the_expectation(case):
    """The second derivative of E|w| with respect to the mean, by differences."""
    mean, _, slope, *_ = case
    kink, std = solved(*case)
    step = std / 50
    values = [mean_of(torch.abs, mean + shift, std) for shift in (-step, 0.0, step)]
    assert kink == pytest.approx(slope * (values[0] - 2 * values[1] + values[2]) / step**2, rel=1e-3, abs=1e-9)


def test_a_weight_of_zero_has_the_width_that_is_known():
    assert solved(0.0, 0.0, 0.01, 1e-9, 1000)[1] == pytest.approx(math.sqrt(math.pi / 2) / 10, rel=1e-5)


@law(200)
@given(
    mean=st.floats(-3, 3), curvature=st.floats(0, 10), slope=st.floats(0, 10), precision=st.floats(1e-4, 1e3),
    data_size=st.integers(1, 100_000), temperature=st.sampled_from([1.0, 0.1, 1e-3]),
)  # fmt: skip
def test_the_equation_is_solved(mean, curvature, slope, precision, data_size, temperature):
    kink, std = solved(mean, curvature, slope, precision, data_size, temperature)
    density = math.exp(-((mean / std) ** 2) / 2) / math.sqrt(2 * math.pi)
    left = std**2 * (data_size * curvature + precision) + 2 * data_size * slope * std * density
    assert left == pytest.approx(temperature, rel=1e-4)
    assert kink >= 0


def test_a_slope_that_is_negative_counts_for_nothing():
    assert solved(0.1, 0.2, -3.0, 1.0, 100) == solved(0.1, 0.2, 0.0, 1.0, 100)
    assert solved(0.1, 0.2, 0.0, 1.0, 100)[0] == 0.0


def test_few_halvings_come_close():
    generator = torch.Generator().manual_seed(0)
    mean, curvature, slope = torch.rand(3, 1000, generator=generator, dtype=torch.float64) * 0.1
    target = Scalar(1.0, 1000, 1.0)
    rough, exact = (kink_curvatures(target, {"w": mean}, {"w": curvature}, {"w": slope}, n)["w"] for n in (10, PRECISE))
    stds = [(1000 * (curvature + kink) + 1).rsqrt() for kink in (rough, exact)]
    torch.testing.assert_close(*stds, rtol=0.02, atol=0)


SIZE, OFFSET, RADIUS, NOISE = 4000, 10.0, 0.1, 1.0
SLOPE = OFFSET * RADIUS / NOISE**2
"""Of the loss below: the output is 0 ± |w| r, the target far away, so that the loss is (Y + |w| r)² / 2σ²."""

METHODS = {
    "vogn": cb.VOGN(lr=0.05, initial_std=0.001),
    "noisy-adam": cb.NoisyAdam(lr=0.05, initial_std=0.001),
    "laplace": cb.Laplace(lr=1e-4, structure="diagonal", fisher="empirical"),
    "laplace, last layer": cb.Laplace(lr=1e-4, structure="last-layer", fisher="empirical"),
}


def one_weight(algorithm, temperature=1.0):
    """Infer one weight on which the likelihood depends by its magnitude alone."""
    net = nn.Linear(1, 1, bias=False).double()
    with torch.no_grad():
        net.weight.fill_(1e-5)
    likelihood = cb.RobustGaussian(NOISE, cb.TwoPoint(RADIUS, 0.0), domain=None, ramp=None)
    data = torch.zeros(SIZE, 1, dtype=torch.float64), torch.full((SIZE, 1), OFFSET, dtype=torch.float64)
    return cb.fit(
        net, data, algorithm=algorithm, likelihood=likelihood, prior=cb.GaussianPrior(std=10.0), epochs=3,
        batch_size=10, temperature=temperature, schedule=cb.Schedule("cosine", floor=0.0), progress=False,
    )  # fmt: skip


@pytest.mark.parametrize(("name", "temperature"), in_turn(METHODS, [1.0, 0.25]))
def test_one_weight_is_as_wide_as_its_kink_allows(name, temperature):
    posterior = one_weight(METHODS[name], temperature)
    std = float(posterior.sample(4000, torch.Generator().manual_seed(0))["weight"].std())
    assert std == pytest.approx(math.sqrt(math.pi / 2) * temperature / (SIZE * SLOPE), rel=0.05)


@pytest.mark.parametrize("algorithm", [cb.VOGN(lr=0.05, kinks=False), cb.NoisyAdam(lr=0.05, kinks=False)], ids=str)
def test_without_kinks_it_is_far_too_wide(algorithm):
    """Squared gradients give 1 / (sqrt(N) c), or less by the root of the batch size."""
    assert float(one_weight(algorithm).std["weight"]) > 10 / (SIZE * SLOPE)


@pytest.mark.parametrize("name", ["vogn", "noisy-adam"])
def test_a_likelihood_without_kinks_is_left_alone(name):
    target, params, _ = target_for(LIKELIHOODS["pgd"])
    state = METHODS[name].init(target, params, torch.Generator())
    assert state.slopes == state.kinks == {}


@pytest.mark.parametrize("name", ["vogn", "noisy-adam"])
def test_a_step_with_kinks_written_out(name):
    """With a curvature of kinks in the state, samples are narrower and steps shorter by exactly that."""
    likelihood = LIKELIHOODS["ibp"]
    target, params, batch = target_for(likelihood, torch.float64)
    noise = likelihood.draw(1.0, batch, None)
    algorithm = METHODS[name]
    state = algorithm.init(target, params, torch.Generator())
    curvature = state.fisher if name == "noisy-adam" else state.curvature
    kinks = {n: torch.full_like(p, 7.0) for n, p in params.items()}
    after, _ = algorithm.update(target, state._replace(kinks=kinks), batch, noise, torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(1)
    sample = {
        n: p + torch.randn(p.shape, generator=generator, dtype=p.dtype)
        / (target.data_size * (curvature[n] + 7.0) + target.precision[n]).sqrt()
        for n, p in params.items()
    }  # fmt: skip
    _, gradient, magnitudes = target.mean_loss_and_slopes(sample, Batch(*batch), noise)
    own = after.fisher if name == "noisy-adam" else after.curvature
    for n, p in params.items():
        torch.testing.assert_close(after.slopes[n], 0.01 * magnitudes[n])
        delta = target.precision[n] / target.data_size
        pull = sample[n] if name == "noisy-adam" else p
        expected = p - 0.05 * (gradient[n] + delta * pull) / (own[n] + delta + 7.0)
        torch.testing.assert_close(after.mean[n], expected)
    assert float(max(slope.abs().max() for slope in after.slopes.values())) > 0


class TestLaplace:
    """The kinks of many weights, around the weights that MAP found."""

    @staticmethod
    def fitted(structure, kinks=True, **settings):
        algorithm = cb.Laplace(lr=0.01, structure=structure, fisher="empirical", kinks=kinks)
        net, likelihood = network().double(), LIKELIHOODS["ibp"]
        settings = {"train": data_for(likelihood, torch.float64), "temperature": 0.5, **settings}
        return fit(likelihood, net, algorithm=algorithm, **settings)

    @staticmethod
    def slopes(posterior):
        """Derivatives of the summed loss with respect to |w|, from all data at once."""
        likelihood = LIKELIHOODS["ibp"]
        batch = data_for(likelihood, torch.float64)
        noise = likelihood.draw(1.0, batch, None)
        found = likelihood.value_and_slopes(posterior.graph, posterior.mean, posterior.buffers, batch, noise, -1.0)[2]
        return {name: slope.clamp(min=0) for name, slope in found.items()}

    def test_the_diagonal_solves_its_equation(self):
        with_kinks, without = self.fitted("diagonal"), self.fitted("diagonal", kinks=False)
        slopes = self.slopes(with_kinks)
        assert slopes.keys() == {"1.weight", "3.weight"}
        for name, std in with_kinks.std.items():
            kink = 0.0
            if name in slopes:
                density = torch.exp(-(with_kinks.mean[name] / std).square() / 2) / math.sqrt(2 * math.pi)
                kink = 2 * slopes[name] * density * std
            left = std.square() * 0.5 / without.std[name].square() + kink
            torch.testing.assert_close(left, torch.full_like(std, 0.5), rtol=1e-6, atol=0)

    def test_the_last_layer_nearly_solves_its_equations(self):
        """Two rounds of a few percent: exact for any one weight given the others."""
        with_kinks, without = self.fitted("last-layer"), self.fitted("last-layer", kinks=False)
        covariance, plain = (posterior.factor @ posterior.factor.T for posterior in (with_kinks, without))
        mean = torch.cat([with_kinks.mean[name].flatten() for name in with_kinks.names])
        std = covariance.diagonal().sqrt()
        slope = torch.zeros_like(std)
        slope[: with_kinks.mean["3.weight"].numel()] = self.slopes(with_kinks)["3.weight"].flatten()
        kinks = 2 * slope * torch.exp(-(mean / std).square() / 2) / math.sqrt(2 * math.pi) / std
        expected = torch.linalg.inv(torch.linalg.inv(plain) + torch.diag(kinks) / 0.5)
        torch.testing.assert_close(std, expected.diagonal().sqrt(), rtol=0.05, atol=0)
        assert float((std / plain.diagonal().sqrt()).min()) < 0.8
