"""The ELBO against closed forms: a conjugate model, and divergences of Gaussians by torch.distributions."""

import math

import pytest
import torch
from torch import distributions, nn

import certibayes as cb
from certibayes.errors import InvalidInput

NOISE, STD = 0.5, 0.8


def linear(dtype=torch.float64):
    return nn.Linear(3, 1, bias=False).to(dtype)


def regression_data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    y = x @ torch.tensor([[0.7], [-0.4], [0.2]], dtype=torch.float64)
    return x, y + NOISE * torch.randn(40, 1, generator=generator, dtype=torch.float64)


def conjugate():
    """Mean and covariance of the exact posterior, and log p(D) / N."""
    x, y = regression_data()
    precision = x.T @ x / NOISE**2 + torch.eye(3, dtype=torch.float64) / STD**2
    covariance = torch.linalg.inv(precision)
    marginal = STD**2 * x @ x.T + NOISE**2 * torch.eye(40, dtype=torch.float64)
    evidence = distributions.MultivariateNormal(torch.zeros(40, dtype=torch.float64), marginal).log_prob(y[:, 0])
    return (covariance @ x.T @ y / NOISE**2).T, covariance, float(evidence) / 40


def bound(posterior, **settings):
    settings = {"likelihood": cb.RobustGaussian(NOISE), "prior": cb.GaussianPrior(std=STD), **settings}
    posterior.metadata["task"] = "regression"
    return cb.elbo(posterior, regression_data(), **settings)


def test_the_exact_posterior_has_the_evidence_itself():
    mean, covariance, evidence = conjugate()
    posterior = cb.LastLayerGaussian(linear(), {"weight": mean}, torch.linalg.cholesky(covariance), ["weight"])
    found = bound(posterior, samples=2000)
    assert found.standard_error < 0.01
    assert found.elbo == pytest.approx(evidence, abs=4 * found.standard_error)


def test_the_mean_field_bound_is_below_by_the_known_divergence():
    """KL(q || p(w | D)) is what the bound misses."""
    mean, covariance, evidence = conjugate()
    std = torch.linalg.inv(covariance).diagonal().rsqrt()
    posterior = cb.DiagonalGaussian(linear(), {"weight": mean}, {"weight": std[None]})
    gap = distributions.kl_divergence(
        distributions.MultivariateNormal(mean[0], torch.diag(std.square())),
        distributions.MultivariateNormal(mean[0], covariance),
    )
    found = bound(posterior, samples=2000)
    assert found.elbo == pytest.approx(evidence - float(gap) / 40, abs=4 * found.standard_error)
    assert found.elbo == found.log_likelihood - found.kl


def gaussians():
    generator = torch.Generator().manual_seed(1)
    mean = {"weight": torch.randn(1, 3, generator=generator, dtype=torch.float64)}
    std = {"weight": torch.rand(1, 3, generator=generator, dtype=torch.float64) + 0.1}
    factors = {"weight": torch.randn(2, 1, 3, generator=generator, dtype=torch.float64)}
    root = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    diagonal = torch.diag(std["weight"][0].square())
    rows = factors["weight"][:, 0]
    return {
        "diagonal": (cb.DiagonalGaussian(linear(), mean, std), diagonal),
        "low rank": (cb.LowRankGaussian(linear(), mean, std, factors), diagonal + rows.T @ rows),
        "last layer": (cb.LastLayerGaussian(linear(), mean, root, ["weight"]), root @ root.T),
    }


@pytest.mark.parametrize("kind", ["diagonal", "low rank", "last layer"])
def test_the_divergence_is_that_of_gaussians(kind):
    posterior, covariance = gaussians()[kind]
    prior = torch.tensor([[0.5, 1.0, 2.0]], dtype=torch.float64)
    posterior.prior_variances = {"weight": prior}
    posterior.metadata["prior"] = {"name": "LearnedPrior", "variances": 3}
    expected = distributions.kl_divergence(
        distributions.MultivariateNormal(posterior.mean["weight"][0], covariance),
        distributions.MultivariateNormal(torch.zeros(3, dtype=torch.float64), torch.diag(prior[0])),
    )
    found = bound(posterior, prior=None, samples=2)
    assert found.kl * 40 == pytest.approx(float(expected))
    assert found.learned_variances == 3


def test_a_weight_without_a_width_is_infinitely_far_from_the_prior():
    posterior = cb.DiagonalGaussian(linear(), gaussians()["diagonal"][0].mean, {"weight": torch.zeros(1, 3).double()})
    assert bound(posterior, samples=2).elbo == -math.inf


def test_weights_that_are_fixed_have_no_divergence():
    net = cb.networks.mlp(4, [5], 3)
    params = dict(net.named_parameters())
    size = 5 * 3 + 3
    posterior = cb.LastLayerGaussian(net, params, 0.1 * torch.eye(size), ["3.weight", "3.bias"])
    x = torch.rand(10, 4)
    found = cb.elbo(posterior, (x, torch.zeros(10, dtype=torch.long)), likelihood="standard", prior=cb.GaussianPrior())
    assert found.random == ("3.weight", "3.bias")
    assert found.weights == size


def digits():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(600, 8, generator=generator)
    return x, x[:, :3].argmax(-1)


def fitted(train, **settings):
    settings = {"algorithm": cb.NoisyAdam(lr=0.02), "epochs": 20, "batch_size": 50, "progress": False, **settings}
    net = cb.networks.mlp(8, [16], 3, seed=0)
    return cb.fit(net, train, likelihood=cb.RobustCategorical(eps=0.02), temperature=1.0, **settings)


def test_learned_variances_raise_the_bound(tmp_path):
    train = digits()
    given, learned = fitted(train), fitted(train, prior=cb.LearnedPrior())
    learned.save(tmp_path)
    one, another = cb.elbo(given, train), cb.elbo(cb.load(tmp_path), train)
    assert one.comparable(another)
    assert another.elbo > one.elbo + 5 * (one.standard_error + another.standard_error)
    assert (one.learned_variances, another.learned_variances) == (0, 8 + 1 + 16 + 1)
    assert one.likelihood["name"] == "RobustCategorical"
    standard = cb.elbo(learned, train, likelihood="standard")
    assert not standard.comparable(another)
    assert standard.log_likelihood > another.log_likelihood
    assert standard.kl == another.kl
    assert standard.summary()["elbo"] == standard.elbo
    assert "26 learned variances" in repr(another)


def test_the_same_seed_gives_the_same_bound():
    train = digits()
    posterior = fitted(train, epochs=1)
    assert cb.elbo(posterior, train, seed=1) == cb.elbo(posterior, train, seed=1)
    assert cb.elbo(posterior, train, seed=1) != cb.elbo(posterior, train, seed=2)


def test_every_gaussian_of_a_network_with_batch_norm():
    net = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    train = digits()
    posterior = cb.fit(net, train, algorithm=cb.BBB(), epochs=1, progress=False)
    assert math.isfinite(cb.elbo(posterior, train, samples=40).elbo)


def refused(words, posterior, data, **settings):
    with pytest.raises(InvalidInput, match=words):
        cb.elbo(posterior, data, **settings)


def test_bad_input():
    train = digits()
    posterior = fitted(train, epochs=1)
    x, y = train
    refused("inferred from 600 examples", posterior, (x[:300], y[:300]))
    refused("600 inputs but 10 targets", posterior, (x, y[:10]))
    refused("pair", posterior, x)
    refused("standard", posterior, train, likelihood="robust")
    refused("samples", posterior, train, samples=1)
    refused("Gaussian over weights", posterior.center(), train)
    posterior.metadata.pop("prior")
    refused("which prior", posterior, train)
    refused("l1", posterior, train, prior=cb.GaussianPrior(l1=0.1))
    posterior.metadata.pop("likelihood")
    refused("which likelihood", posterior, train)
