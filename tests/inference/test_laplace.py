"""Laplace: the curvature at the mode against closed forms and against every example's gradient, one by one."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import certibayes as cb
from certibayes.errors import InvalidInput
from certibayes.inference import _statistics
from certibayes.inference.laplace import last_layer
from certibayes.likelihoods import Batch, Likelihood
from certibayes.networks import trace
from certibayes.posteriors import _statistics as kept

from ..strategies import few_of
from .cases import (
    CLASSIFICATION,
    LIKELIHOODS,
    SIZE,
    Mapped,
    assert_same_posterior,
    batch_norm_net,
    classes,
    data_for,
    fit,
    inputs,
    network,
)
from .conjugate import NOISE, PRIOR_STD, fit_linear, infer, problem

STRUCTURES = ("diagonal", "last-layer")


def curvature(posterior, likelihood, data):
    """Sum of outer products of all parameters' per-example gradients, at full radius, by a loop and plain autograd."""
    names = list(posterior.graph.parameters)
    noise = likelihood.draw(1.0, data, None)
    total = 0.0
    for x, y in zip(*data, strict=True):
        leaves = {name: posterior.mean[name].clone().requires_grad_(True) for name in names}
        one = Batch(x[None], y[None])
        value = likelihood.log_likelihood(posterior.graph, {**posterior.buffers, **leaves}, one, noise).sum()
        flat = torch.cat([g.flatten() for g in torch.autograd.grad(value, list(leaves.values()))])
        total = total + torch.outer(flat, flat)
    return total


def prior_precision(posterior):
    precision = cb.GaussianPrior().precisions(posterior.graph, posterior.mean)
    return torch.cat([precision[name].expand(posterior.mean[name].numel()) for name in posterior.graph.parameters])


@pytest.mark.parametrize("name", ["standard", "ibp", "ibp-margins", "regression"])
@pytest.mark.parametrize("temperature", [1.0, 0.1])
class TestAgainstEveryExamplesGradient:
    @pytest.fixture
    def settings(self, name, temperature):
        likelihood = LIKELIHOODS[name]
        return {
            "likelihood": likelihood,
            "net": network().double(),
            "train": data_for(likelihood, torch.float64),
            "temperature": temperature,
            # Leaves an incomplete batch at the end.
            "batch_size": 7,
        }

    def test_the_diagonal(self, settings, temperature):
        posterior = fit(
            algorithm=cb.Laplace(lr=0.01, fisher="empirical", structure="diagonal", kinks=False), **settings
        )
        total = curvature(posterior, settings["likelihood"], settings["train"])
        expected = (temperature / (total.diagonal() + prior_precision(posterior))).sqrt()
        found = torch.cat([posterior.std[name].flatten() for name in posterior.graph.parameters])
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)

    def test_the_last_layer_in_full(self, settings, temperature):
        algorithm = cb.Laplace(lr=0.01, structure="last-layer", fisher="empirical", kinks=False)
        posterior = fit(algorithm=algorithm, **settings)
        assert posterior.names == last_layer(posterior.graph)
        total = curvature(posterior, settings["likelihood"], settings["train"])
        total = total + torch.diag(prior_precision(posterior))
        size = sum(posterior.mean[name].numel() for name in posterior.names)
        # The last layer's parameters are the network's last.
        assert tuple(posterior.graph.parameters)[-2:] == posterior.names
        expected = temperature * torch.linalg.inv(total[-size:, -size:])
        torch.testing.assert_close(posterior.factor @ posterior.factor.T, expected, rtol=1e-8, atol=1e-12)


class TestBatchNorm:
    """Curvature under constants, those of the trained network, whatever training did."""

    @pytest.mark.parametrize("epochs", [0, 2])
    @pytest.mark.parametrize("name", ["standard", "ibp", "ibp-margins"])
    def test_the_last_layer_in_full(self, name, epochs):
        likelihood = LIKELIHOODS[name]
        net, data = batch_norm_net().double(), data_for(likelihood, torch.float64)
        net[1].running_mean.fill_(0.25)
        net[1].running_var.fill_(0.5)
        algorithm = cb.Laplace(lr=0.01, structure="last-layer", fisher="empirical", kinks=False)
        posterior = fit(likelihood, net, data, algorithm=algorithm, epochs=epochs, temperature=1.0, batch_size=7)
        assert bool((posterior.buffers["1.running_mean"] == 0.25).all()) == (epochs == 0)
        total = curvature(posterior, likelihood, data) + torch.diag(prior_precision(posterior))
        assert tuple(posterior.graph.parameters)[-2:] == posterior.names == ("3.weight", "3.bias")
        expected = torch.linalg.inv(total[-21:, -21:])
        torch.testing.assert_close(posterior.factor @ posterior.factor.T, expected, rtol=1e-8, atol=1e-12)

    @pytest.mark.parametrize("name", ["standard", "ibp-margins"])
    def test_on_a_point_that_was_trained_before(self, name, tmp_path):
        """MAP, then Laplace with epochs=0, is Laplace; so it is after the disk."""
        algorithm = cb.Laplace(lr=0.01, structure="last-layer", fisher="empirical")
        whole = fit(LIKELIHOODS[name], batch_norm_net(), algorithm=algorithm, temperature=0.5)
        point = fit(LIKELIHOODS[name], batch_norm_net(), algorithm=cb.MAP(lr=0.01))
        point.save(tmp_path)
        for start in (point, cb.load(tmp_path)):
            after = fit(LIKELIHOODS[name], start.network, algorithm=algorithm, epochs=0, temperature=0.5)
            assert after.predictor(10).digest == whole.predictor(10).digest

    def test_on_the_mean_of_swag(self):
        swag = fit(net=batch_norm_net(), algorithm=cb.SWAG(lr=0.05, start=0.0, rank=2))
        posterior = fit(net=swag.center().network, algorithm=cb.Laplace(), epochs=0)
        assert posterior.center().predictor().digest == swag.center().predictor().digest

    def test_statistics_are_found_once_for_all_samples(self, monkeypatch):
        found, real = [], _statistics.statistics_of

        def watched(graph, params, x):
            found.append(1)
            return real(graph, params, x)

        for module in (_statistics, kept):
            monkeypatch.setattr(module, "statistics_of", watched)
        point = fit(net=batch_norm_net())
        during = len(found)
        posterior = fit(net=point.network, algorithm=cb.Laplace(), epochs=0)
        drawn = posterior.predictor(35, seed=3).samples
        assert len(found) == during
        assert bool((drawn["1.running_mean"] == point.buffers["1.running_mean"]).all())


class TestLinearRegression:
    @pytest.mark.parametrize("assumed", few_of([0.25, 1.0], fast=[0.25]))
    def test_stds_follow_the_noise_that_is_assumed(self, assumed):
        """Residuals of another size must not enter: the labels are the network's own."""
        data = problem()
        features = torch.cat([data.x, torch.ones(len(data.x), 1, dtype=torch.float64)], 1)
        expected = (features.square().sum(0) / assumed**2 + PRIOR_STD**-2).rsqrt()
        _, std = infer(cb.Laplace(lr=0.05, draws=2, structure="diagonal"), data, assumed, steps=300)
        torch.testing.assert_close(std, expected, rtol=0.05, atol=0)
        _, empirical = infer(cb.Laplace(lr=0.05, fisher="empirical", structure="diagonal"), data, assumed, steps=300)
        torch.testing.assert_close(empirical, expected * assumed / NOISE, rtol=0.1, atol=0)

    def test_the_last_layer_has_the_covariance_of_the_closed_form(self):
        data = problem(400)
        algorithm = cb.Laplace(lr=0.05, structure="last-layer", draws=50)
        posterior = fit_linear(algorithm, data, epochs=400, schedule=cb.Schedule("cosine", floor=0.0))
        mean = torch.cat([posterior.mean["weight"].flatten(), posterior.mean["bias"]])
        assert ((mean - data.mean).abs() < 0.1 * data.stds).all()
        root = torch.linalg.cholesky(data.precision)
        white = root.T @ posterior.factor
        # 20,000 labels: entries of the precision are off by a hundredth.
        torch.testing.assert_close(white @ white.T, torch.eye(4, dtype=torch.float64), rtol=0, atol=0.06)
        mean_field = root.T @ torch.diag(1 / data.precision.diagonal()) @ root
        assert float((mean_field - torch.eye(4)).abs().max()) > 0.3

    @pytest.mark.parametrize("structure", STRUCTURES)
    def test_repeating_the_data_narrows_the_posterior(self, structure):
        std = []
        for repeats in (1, 9):
            posterior = fit_linear(cb.Laplace(structure=structure), problem(500, repeats), epochs=0)
            drawn = posterior.sample(4000, torch.Generator().manual_seed(0))
            std.append(drawn["weight"].std(0))
        torch.testing.assert_close(std[1], std[0] / 3, rtol=0.1, atol=0)


class TestTheModelsOwnLabels:
    def test_for_classes_the_curvature_is_the_gauss_newton_matrix(self):
        """Σ_i (diag p - p pᵀ) ⊗ φ φᵀ for the last layer, p the prediction and φ its input with a 1 for the bias."""
        net, x = network().double(), inputs(dtype=torch.float64)
        algorithm = cb.Laplace(structure="last-layer", draws=400)
        posterior = fit(net=net, train=(x, classes()), algorithm=algorithm, epochs=0)
        with torch.no_grad():
            features = net[:-1](x)
            p = functional.softmax(net(x), -1)
        features = torch.cat([features, torch.ones(SIZE, 1, dtype=torch.float64)], 1)
        blocks = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        exact = torch.einsum("nij,na,nb->iajb", blocks, features, features)
        weights, biases = exact[:, :-1], exact[:, -1]
        rows = [torch.cat([weights[..., :-1].flatten(2), weights[..., -1]], 2).flatten(0, 1)]
        rows += [torch.cat([biases[..., :-1].flatten(1), biases[..., -1]], 1)]
        exact = torch.cat(rows) + torch.diag(prior_precision(posterior)[-21:])
        found = torch.linalg.inv(posterior.factor @ posterior.factor.T)
        torch.testing.assert_close(found, exact, rtol=0, atol=0.05 * float(exact.diagonal().max()))

    def test_labels_of_the_data_do_not_enter(self):
        posteriors = [
            fit(train=(inputs(), labels), algorithm=cb.Laplace(structure="diagonal"), epochs=0)
            for labels in (classes(), classes().flip(0))
        ]
        for name, std in posteriors[0].std.items():
            assert torch.equal(posteriors[1].std[name], std)

    def test_more_draws_agree_better(self):
        def variation(draws):
            fits = [
                fit(algorithm=cb.Laplace(draws=draws, structure="diagonal"), epochs=0, seed=seed).std["1.weight"]
                for seed in range(8)
            ]
            return float(torch.stack(fits).std(0).mean())

        assert variation(64) < 0.3 * variation(1)

    def test_a_likelihood_without_a_prediction_says_what_to_do(self):
        class Odd(cb.Categorical):
            predicted_targets = Likelihood.predicted_targets

        with pytest.raises(NotImplementedError, match="empirical"):
            fit(Odd(), algorithm=cb.Laplace(), epochs=0)


SOURCES = {
    "tensors": lambda: (inputs()[:23], classes()[:23]),
    "loader": lambda: DataLoader(TensorDataset(inputs()[:23], classes()[:23]), batch_size=8),
    "shuffled loader": lambda: DataLoader(TensorDataset(inputs()[:23], classes()[:23]), batch_size=8, shuffle=True),
    "data set": lambda: Mapped(23),
}


@pytest.mark.parametrize("structure", STRUCTURES)
class TestTheData:
    @pytest.fixture
    def visited(self, monkeypatch):
        """Inputs of all batches whose curvature was computed."""
        seen = []
        for kind in ("_diagonal", "_last_layer"):
            real = getattr(cb.Laplace, kind)

            def watched(self, target, state, labeled, slopes, real=real):
                labeled = list(labeled)
                seen.extend(batch.inputs for batch, _ in labeled)
                return real(self, target, state, labeled, slopes)

            monkeypatch.setattr(cb.Laplace, kind, watched)
        return seen

    @pytest.mark.parametrize("source", SOURCES)
    @pytest.mark.parametrize("epochs", [0, 1])
    def test_every_example_is_visited_once(self, structure, source, epochs, visited):
        """Training may drop an incomplete batch; a sum over the data may not."""
        fit(train=SOURCES[source](), algorithm=cb.Laplace(structure=structure), epochs=epochs, batch_size=8)
        found, expected = torch.cat(visited)[:, 0].sort().values, inputs()[:23, 0].sort().values
        assert found.tolist() == expected.tolist()

    def test_a_loader_gives_what_tensors_give(self, structure):
        algorithm = cb.Laplace(structure=structure)
        loader = DataLoader(TensorDataset(inputs(), classes()), batch_size=8)
        assert_same_posterior(fit(train=loader, algorithm=algorithm, epochs=0), fit(algorithm=algorithm, epochs=0))

    def test_how_it_is_cut_into_batches_does_not_matter(self, structure):
        algorithm = cb.Laplace(structure=structure, fisher="empirical")
        data = (inputs(dtype=torch.float64), classes())
        one, other = (
            fit(net=network().double(), train=data, algorithm=algorithm, epochs=0, batch_size=b) for b in (5, 24)
        )
        for name, tensor in one.tensors().items():
            torch.testing.assert_close(other.tensors()[name], tensor, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("structure", STRUCTURES)
class TestTheMean:
    @pytest.mark.parametrize("optimizer", ["adam", "sgd"])
    def test_it_is_what_map_finds(self, structure, optimizer):
        settings = {"lr": 0.02, "optimizer": optimizer, "betas": (0.8, 0.9)}
        found = fit(LIKELIHOODS["pgd"], algorithm=cb.Laplace(structure=structure, **settings))
        expected = fit(LIKELIHOODS["pgd"], algorithm=cb.MAP(**settings))
        for name, p in expected.params.items():
            assert torch.equal(found.mean[name], p)
        assert found.metadata["history"] == expected.metadata["history"]

    @pytest.mark.parametrize("likelihood", CLASSIFICATION.values(), ids=CLASSIFICATION)
    def test_without_epochs_it_is_the_network_itself(self, structure, likelihood):
        net = network(3)
        posterior = fit(likelihood, net=net, algorithm=cb.Laplace(structure=structure), epochs=0)
        for name, p in net.named_parameters():
            assert torch.equal(posterior.mean[name], p)
        assert posterior.metadata["history"] == []
        assert posterior.metadata["epochs"] == 0

    def test_without_epochs_the_networks_own_statistics_are_left_as_they_are(self, structure):
        net = batch_norm_net()
        with torch.no_grad():
            net[1].running_mean.fill_(0.25)
            net[1].running_var.fill_(0.5)
        posterior = fit(net=net, algorithm=cb.Laplace(structure=structure), epochs=0)
        assert (posterior.buffers["1.running_mean"] == 0.25).all()
        assert (posterior.buffers["1.running_var"] == 0.5).all()

    def test_the_temperature_does_not_change_it(self, structure):
        one, other = (fit(algorithm=cb.Laplace(structure=structure), temperature=t) for t in (1.0, 0.01))
        for name, p in one.mean.items():
            assert torch.equal(other.mean[name], p)


def test_other_methods_need_epochs():
    with pytest.raises(InvalidInput, match="epochs"):
        fit(algorithm=cb.MAP(), epochs=0)


class TestTheLastLayer:
    def test_it_is_the_last_one_with_parameters(self):
        net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3), nn.Tanh())
        assert last_layer(trace(net, inputs()).graph) == ("2.weight", "2.bias")

    def test_without_a_bias(self):
        net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3, bias=False))
        posterior = fit(net=net, algorithm=cb.Laplace(structure="last-layer"), epochs=0)
        assert posterior.names == ("2.weight",)
        assert posterior.factor.shape == (15, 15)

    def test_all_other_weights_stay_fixed(self):
        posterior = fit(algorithm=cb.Laplace(structure="last-layer"))
        drawn = posterior.sample(5, torch.Generator().manual_seed(0))
        for name, mean in posterior.mean.items():
            same = (drawn[name] == mean).flatten(1).all(1)
            assert bool(same.all()) != (name in posterior.names)

    def test_it_lives_in_the_networks_precision(self):
        posterior = fit(algorithm=cb.Laplace(structure="last-layer"))
        assert {t.dtype for t in posterior.sample(2, torch.Generator()).values()} == {torch.float32}


@pytest.mark.parametrize("bad", [{"structure": "full"}, {"fisher": "exact"}, {"draws": 0}, {"lr": -1.0}], ids=str)
def test_bad_settings(bad):
    with pytest.raises(InvalidInput):
        cb.Laplace(**bad)


def test_a_last_layer_too_large_for_its_covariance_is_reported_before_training(monkeypatch):
    monkeypatch.setattr("certibayes.inference.laplace.LARGEST", 20)
    monkeypatch.setattr(cb.Laplace, "update", lambda *_: pytest.fail("a step was made"))
    with pytest.raises(InvalidInput, match=r'has 21 parameters.*structure="diagonal"'):
        fit(algorithm=cb.Laplace())
