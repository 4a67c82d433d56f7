"""Batch norm: statistics from clean training data, refreshed between epochs, constant inside a step."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import certibayes as cb
from certibayes.errors import UnsupportedLayer
from certibayes.inference._statistics import has_statistics, refresh_statistics
from certibayes.networks import trace

from .cases import ALGORITHMS, EPOCHS, LIKELIHOODS, STEPS, batch_norm_net, classes, fit, inputs, network


def two_layers():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(4, 6),
            nn.BatchNorm1d(6),
            nn.ReLU(),
            nn.Linear(6, 5),
            nn.BatchNorm1d(5),
            nn.ReLU(),
            nn.Linear(5, 3),
        )


def test_they_are_those_of_a_forward_pass_in_training_mode():
    """Torch's own running statistics after one full batch with momentum 1, up to its unbiased variance."""
    net, x = two_layers(), inputs()
    traced = trace(net, x)
    refreshed = refresh_statistics(traced.graph, traced.params, traced.buffers, x)
    for layer in (net[1], net[4]):
        layer.momentum = 1.0
    net.train()(x)
    for index in ("1", "4"):
        bias = len(x) / (len(x) - 1)
        torch.testing.assert_close(refreshed[f"{index}.running_mean"], net[int(index)].running_mean)
        torch.testing.assert_close(refreshed[f"{index}.running_var"] * bias, net[int(index)].running_var)


def test_images_are_averaged_over_pixels():
    net = nn.Sequential(nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(18, 3))
    x = torch.rand(5, 2, 3, 3, generator=torch.Generator().manual_seed(0))
    traced = trace(net, x)
    refreshed = refresh_statistics(traced.graph, traced.params, traced.buffers, x)
    torch.testing.assert_close(refreshed["0.running_mean"], x.mean((0, 2, 3)))
    torch.testing.assert_close(refreshed["0.running_var"], x.var((0, 2, 3), correction=0))


def test_refreshing_is_pure():
    traced = trace(two_layers(), inputs())
    before = {name: tensor.clone() for name, tensor in traced.buffers.items()}
    refresh_statistics(traced.graph, traced.params, traced.buffers, inputs())
    assert all(torch.equal(tensor, traced.buffers[name]) for name, tensor in before.items())


def test_only_networks_with_batch_norm_have_them():
    assert has_statistics(trace(batch_norm_net()).graph)
    assert not has_statistics(trace(network()).graph)


REFRESHED = {key: a for key, a in ALGORITHMS.items() if not (a.full_batch or key == "ensemble")}


@pytest.mark.parametrize("algorithm", REFRESHED.values(), ids=REFRESHED)
@pytest.mark.parametrize("name", ["standard", "ibp", "pgd"])
class TestTraining:
    def test_the_posterior_carries_statistics_of_its_own_network(self, algorithm, name):
        if isinstance(algorithm, cb.SGHMC):
            pytest.skip("its samples carry their own; see below")
        posterior = fit(LIKELIHOODS[name], net=batch_norm_net(), algorithm=algorithm)
        point = posterior.params if isinstance(posterior, cb.Point) else posterior.mean
        hidden = inputs() @ point["0.weight"].T + point["0.bias"]
        torch.testing.assert_close(posterior.buffers["1.running_mean"], hidden.mean(0))
        torch.testing.assert_close(posterior.buffers["1.running_var"], hidden.var(0, correction=0))

    def test_they_change_between_epochs_and_never_inside_one(self, algorithm, name, monkeypatch):
        seen = []
        real = type(algorithm).update

        def update(self, target, *rest):
            seen.append(target.buffers["1.running_mean"].clone())
            return real(self, target, *rest)

        monkeypatch.setattr(type(algorithm), "update", update)
        fit(LIKELIHOODS[name], net=batch_norm_net(), algorithm=algorithm)
        epochs = [seen[i * STEPS : (i + 1) * STEPS] for i in range(EPOCHS)]
        for steps in epochs:
            assert all(torch.equal(one, steps[0]) for one in steps)
        assert not torch.equal(epochs[0][0], epochs[1][0])
        assert not torch.equal(epochs[0][0], torch.zeros(6))


def test_every_sample_of_sghmc_carries_its_own():
    posterior = fit(net=batch_norm_net(), algorithm=ALGORITHMS["sghmc"])
    assert len(posterior) == 2
    for i in range(2):
        sample = posterior[i]
        hidden = inputs() @ sample["0.weight"].T + sample["0.bias"]
        torch.testing.assert_close(sample["1.running_mean"], hidden.mean(0))
        torch.testing.assert_close(sample["1.running_var"], hidden.var(0, correction=0))
    assert not torch.equal(posterior[0]["1.running_mean"], posterior[1]["1.running_mean"])


def test_hmc_samples_one_function_so_they_stay_as_they_were_at_the_start(monkeypatch):
    seen, real = [], cb.HMC.update

    def update(self, target, *rest):
        seen.append(target.buffers["1.running_mean"].clone())
        return real(self, target, *rest)

    monkeypatch.setattr(cb.HMC, "update", update)
    fit(net=batch_norm_net(), algorithm=ALGORITHMS["hmc"])
    hidden = inputs() @ batch_norm_net()[0].weight.T + batch_norm_net()[0].bias
    assert len(seen) == EPOCHS + ALGORITHMS["hmc"].burn_in
    for mean in seen:
        torch.testing.assert_close(mean, hidden.mean(0).detach())


def test_an_ensemble_says_that_it_cannot_keep_them_apart():
    with pytest.raises(UnsupportedLayer, match="fit_many"):
        fit(net=batch_norm_net(), algorithm=ALGORITHMS["ensemble"])


def test_the_modules_own_statistics_are_left_alone():
    net = batch_norm_net().train()
    fit(net=net)
    assert torch.equal(net[1].running_mean, torch.zeros(6))
    assert int(net[1].num_batches_tracked) == 0


def test_the_posterior_survives_the_disk(tmp_path):
    posterior = fit(net=batch_norm_net(), algorithm=ALGORITHMS["vogn"])
    posterior.save(tmp_path)
    assert torch.equal(cb.load(tmp_path).predictor(3)(inputs()), posterior.predictor(3)(inputs()))


def test_a_loader_gives_statistics_of_more_than_one_batch():
    loader = DataLoader(TensorDataset(inputs(), classes()), batch_size=4)
    posterior = fit(net=batch_norm_net(), train=loader)
    hidden = inputs() @ posterior.params["0.weight"].T + posterior.params["0.bias"]
    torch.testing.assert_close(posterior.buffers["1.running_mean"], hidden.mean(0))
