"""The ELBO of mixtures: against quadrature in one and two dimensions, Monte Carlo in more, and a conjugate model."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributions, nn

import certibayes as cb
from certibayes.errors import InvalidInput
from certibayes.evaluation._divergence import bhattacharyya_distance, information_about_component

from .test_evidence import conjugate, digits, fitted, regression_data

N, STD = 10, 0.8
KINDS = ("diagonal", "low rank", "last layer")


def linear(size):
    return nn.Linear(size, 1, bias=False).double()


def component(kind, size, generator, scale=1.0):
    """A Gaussian over the weights of a linear layer, and the same as one of torch.distributions."""
    mean = scale * torch.randn(1, size, generator=generator, dtype=torch.float64)
    std = 0.2 + torch.rand(1, size, generator=generator, dtype=torch.float64)
    factors = 0.7 * torch.randn(2, 1, size, generator=generator, dtype=torch.float64)
    root = torch.diag(std[0]) + 0.3 * torch.randn(size, size, generator=generator, dtype=torch.float64)
    made, covariance = {
        "diagonal": lambda: (
            cb.DiagonalGaussian(linear(size), {"weight": mean}, {"weight": std}),
            torch.diag(std[0] ** 2),
        ),
        "low rank": lambda: (
            cb.LowRankGaussian(linear(size), {"weight": mean}, {"weight": std}, {"weight": factors}),
            torch.diag(std[0] ** 2) + factors[:, 0].T @ factors[:, 0],
        ),
        "last layer": lambda: (cb.LastLayerGaussian(linear(size), {"weight": mean}, root, ["weight"]), root @ root.T),
    }[kind]()
    made.metadata["task"] = "regression"
    return made, distributions.MultivariateNormal(mean[0], covariance)


def mixture(kinds, size, seed, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    parts, references = zip(*(component(kind, size, generator, scale) for kind in kinds), strict=True)
    made = cb.GaussianMixture.of(*parts, weights=torch.rand(len(parts), generator=generator) + 0.1)
    same_family = distributions.MultivariateNormal(
        torch.stack([one.mean for one in references]), torch.stack([one.covariance_matrix for one in references])
    )
    return made, distributions.MixtureSameFamily(distributions.Categorical(made.weights), same_family)


def bounded_kl(made, size, samples=2, **given):
    x = torch.zeros(N, size, dtype=torch.float64)
    given = {"prior": cb.GaussianPrior(std=STD), "likelihood": cb.RobustGaussian(1.0), **given}
    return cb.elbo(made, (x, x[:, :1]), samples=samples, **given)


def prior_of(size):
    return distributions.MultivariateNormal(torch.zeros(size).double(), STD**2 * torch.eye(size).double())


def mean_kl(made, reference, size):
    apart = distributions.kl_divergence(reference.component_distribution, prior_of(size))
    return float(made.weights @ apart)


def integrated_kl(reference, size, reach=12.0, points=1501):
    """Trapezoids, which are exact to rounding for functions as smooth as these."""
    axis = torch.linspace(-reach, reach, points, dtype=torch.float64)
    at = torch.cartesian_prod(*[axis] * size).view(-1, size)
    log_q = reference.log_prob(at)
    density = log_q.exp()
    cell = float(axis[1] - axis[0]) ** size
    assert float(density.sum() * cell) == pytest.approx(1.0, abs=1e-9)
    return float((density * (log_q - prior_of(size).log_prob(at))).sum() * cell)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("scale", [0.0, 0.3, 1.5])
@pytest.mark.parametrize("kinds", [("diagonal",) * 3, ("low rank", "diagonal"), ("last layer",) * 2, KINDS])
def test_the_divergence_is_bounded_from_above(size, scale, kinds):
    made, reference = mixture(kinds, size, seed=len(kinds), scale=scale)
    found = bounded_kl(made, size)
    exact = integrated_kl(reference, size, points=1501 if size == 1 else 601)
    assert exact <= found.kl * N + 1e-9
    assert found.kl * N <= mean_kl(made, reference, size) + 1e-9
    assert found.models == 1


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), scale=st.floats(0.0, 3.0), number=st.integers(1, 4))
def test_in_one_dimension_for_any_mixture(seed, scale, number):
    made, reference = mixture(("diagonal",) * number, 1, seed, scale)
    assert integrated_kl(reference, 1, reach=25.0, points=4001) <= bounded_kl(made, 1).kl * N + 1e-9


@pytest.mark.parametrize("kinds", [("diagonal",) * 3, ("low rank", "diagonal", "low rank"), ("last layer",) * 3])
def test_in_eight_dimensions(kinds):
    """By Monte Carlo: q's own samples have the mean log q - log p."""
    made, reference = mixture(kinds, 8, seed=0, scale=0.3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        drawn = reference.sample((20000,))
    values = reference.log_prob(drawn) - prior_of(8).log_prob(drawn)
    error = float(values.std()) / math.sqrt(len(values))
    found = bounded_kl(made, 8).kl * N
    assert float(values.mean()) - 4 * error <= found
    assert found <= mean_kl(made, reference, 8) - 0.05


def test_far_apart_the_bound_is_exact_and_of_equal_components_that_of_one():
    generator = torch.Generator().manual_seed(0)
    part, reference = component("diagonal", 2, generator)
    own = float(distributions.kl_divergence(reference, prior_of(2)))
    same = cb.GaussianMixture.of(part, part, part)
    assert bounded_kl(same, 2).kl * N == pytest.approx(own, abs=1e-12)
    far = cb.DiagonalGaussian(linear(2), {"weight": part.mean["weight"] + 30.0}, part.std, metadata=part.metadata)
    apart, exact = cb.GaussianMixture.of(part, far, weights=[3, 1]), mixture(("diagonal",) * 2, 2, 0)[1]
    exact = distributions.MixtureSameFamily(
        distributions.Categorical(apart.weights),
        distributions.MultivariateNormal(
            torch.stack([part.mean["weight"][0], far.mean["weight"][0]]),
            torch.diag(part.std["weight"][0] ** 2).expand(2, 2, 2),
        ),
    )
    gain = mean_kl(apart, exact, 2) - bounded_kl(apart, 2).kl * N
    assert gain == pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)), rel=1e-6)
    assert integrated_kl(exact, 2, reach=40.0, points=1201) == pytest.approx(bounded_kl(apart, 2).kl * N, rel=1e-6)


@pytest.mark.parametrize("kinds", [(one, other) for one in KINDS for other in KINDS])
def test_the_distance_against_dense_matrices(kinds):
    made, reference = mixture(kinds, 5, seed=3)
    (first, second), means = reference.component_distribution.covariance_matrix, reference.component_distribution.mean
    middle, difference = (first + second) / 2, means[0] - means[1]
    expected = difference @ torch.linalg.inv(middle) @ difference / 8
    expected += 0.5 * (torch.logdet(middle) - 0.5 * (torch.logdet(first) + torch.logdet(second)))
    assert bhattacharyya_distance(*made.components, ["weight"]) == pytest.approx(float(expected))
    assert bhattacharyya_distance(*made.components[::-1], ["weight"]) == pytest.approx(float(expected))
    assert information_about_component(made.components[:1], torch.ones(1).double(), ["weight"]) == 0.0


def of_conjugate(scale):
    mean, covariance, evidence = conjugate()
    root = torch.linalg.cholesky(covariance)
    offset = scale * root.sum(1)
    parts = [cb.LastLayerGaussian(linear(3), {"weight": mean + sign * offset}, root, ["weight"]) for sign in (-1, 1)]
    for part in parts:
        part.metadata["task"] = "regression"
    found = cb.elbo(
        cb.GaussianMixture.of(*parts),
        regression_data(),
        likelihood=cb.RobustGaussian(0.5),
        prior=cb.GaussianPrior(std=0.8),
        samples=2000,
    )
    return found, evidence


def test_the_whole_bound_stays_below_the_evidence():
    equal, evidence = of_conjugate(0.0)
    assert equal.elbo == pytest.approx(evidence, abs=4 * equal.standard_error)
    assert equal.samples == 2000
    for scale in (0.5, 2.0):
        assert of_conjugate(scale)[0].elbo < evidence - 4 * equal.standard_error


class TestModels:
    """Which model a bound is about."""

    def test_of_one_prior_the_mean_and_a_little_more(self):
        train = digits()
        parts = [fitted(train, epochs=1, seed=seed) for seed in range(2)]
        made = cb.elbo(cb.GaussianMixture.of(*parts), train, samples=40)
        alone = [cb.elbo(part, train, samples=40) for part in parts]
        assert made.models == 1 and made.comparable(alone[0])
        kl = sum(each.kl for each in alone) / 2
        assert kl - math.log(2) / 600 - 1e-12 <= made.kl <= kl
        error = made.standard_error + sum(each.standard_error for each in alone)
        assert made.log_likelihood == pytest.approx(sum(each.log_likelihood for each in alone) / 2, abs=5 * error)
        assert "average" not in repr(made)

    def test_of_learned_priors_the_average_of_the_models(self):
        train = digits()
        parts = [fitted(train, epochs=1, seed=seed, prior=cb.LearnedPrior()) for seed in range(2)]
        mixed = cb.GaussianMixture.of(*parts)
        own, given = cb.elbo(mixed, train), cb.elbo(mixed, train, prior=cb.GaussianPrior())
        assert (own.models, own.learned_variances) == (2, 2 * 26) and "average of 2 models" in repr(own)
        assert own.kl == pytest.approx(sum(cb.elbo(part, train).kl for part in parts) / 2)
        assert (given.models, given.learned_variances) == (1, 0)
        same = cb.elbo(cb.GaussianMixture.of(parts[0], parts[0]), train)
        assert (same.models, same.learned_variances) == (1, 26)

    def test_of_fixed_parameters_that_differ_too(self):
        train = digits()
        parts = [fitted(train, epochs=1, seed=seed, stochastic="last") for seed in range(2)]
        assert cb.elbo(cb.GaussianMixture.of(*parts), train).models == 2
        assert cb.elbo(cb.GaussianMixture.of(parts[0], parts[0]), train).models == 1

    def test_batch_norm_statistics_are_no_parameters(self):
        train = digits()
        parts = [
            cb.fit(
                nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)),
                train,
                algorithm=cb.BBB(),
                epochs=1,
                progress=False,
            )
            for _ in range(2)
        ]
        assert cb.elbo(cb.GaussianMixture.of(*parts), train).models == 1

    def test_the_standard_likelihood(self):
        train = digits()
        mixed = cb.GaussianMixture.of(*(fitted(train, epochs=1, seed=seed) for seed in range(2)))
        standard = cb.elbo(mixed, train, likelihood="standard")
        assert standard.likelihood["name"] == "Categorical" and standard.elbo > cb.elbo(mixed, train).elbo
        assert standard.summary()["models"] == 1

    def test_refused(self):
        train = digits()
        one = fitted(train, epochs=1)
        other = fitted(train, epochs=1, seed=1)
        other.metadata["likelihood"] = cb.Categorical().describe()
        with pytest.raises(InvalidInput, match="different likelihoods"):
            cb.elbo(cb.GaussianMixture.of(one, other), train)
        names = ["3.weight", "3.bias"]
        last = cb.LastLayerGaussian(cb.networks.mlp(8, [16], 3), one.mean, torch.eye(51), names, domain=one.domain)
        with pytest.raises(InvalidInput, match="which parameters are random"):
            cb.elbo(cb.GaussianMixture.of(one, last), train, likelihood="standard", prior=cb.GaussianPrior())

    def test_a_component_without_a_width_is_infinitely_far(self):
        made, _ = mixture(("diagonal",) * 2, 2, 0)
        made.components[0].std["weight"].zero_()
        assert bounded_kl(made, 2).elbo == -math.inf
