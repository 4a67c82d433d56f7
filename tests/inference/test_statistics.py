"""Batch norm: statistics from clean training data, refreshed between epochs, constant inside a step."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import certibayes as cb
from certibayes.errors import InvalidInput
from certibayes.inference import Target
from certibayes.networks import trace

from .cases import ALGORITHMS, EPOCHS, LIKELIHOODS, STEPS, batch_norm_net, classes, fit, inputs, network


EXACT = {"rtol": 2.0**-13, "atol": 2.0**-13}
"""Statistics are rounded to 14 binary digits."""


REFRESHED = {key: a for key, a in ALGORITHMS.items() if not (a.full_batch or key == "ensemble")}
OWN = (cb.SGHMC, cb.DeepEnsemble)
"""Their samples carry their own statistics."""


@pytest.mark.parametrize("algorithm", REFRESHED.values(), ids=REFRESHED)
@pytest.mark.parametrize("name", ["standard", "ibp", "pgd"])
class TestTraining:
    def test_the_posterior_carries_statistics_of_its_own_network(self, algorithm, name):
        if isinstance(algorithm, cb.SGHMC):
            pytest.skip("its samples carry their own; see below")
        posterior = fit(LIKELIHOODS[name], net=batch_norm_net(), algorithm=algorithm)
        point = posterior.params if isinstance(posterior, cb.Point) else posterior.mean
        hidden = inputs() @ point["0.weight"].T + point["0.bias"]
        torch.testing.assert_close(posterior.buffers["1.running_mean"], hidden.mean(0), **EXACT)
        torch.testing.assert_close(posterior.buffers["1.running_var"], hidden.var(0, correction=0), **EXACT)

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
        torch.testing.assert_close(sample["1.running_mean"], hidden.mean(0), **EXACT)
        torch.testing.assert_close(sample["1.running_var"], hidden.var(0, correction=0), **EXACT)
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
        torch.testing.assert_close(mean, hidden.mean(0).detach(), **EXACT)


def test_every_member_of_an_ensemble_carries_its_own():
    posterior = fit(net=batch_norm_net(), algorithm=ALGORITHMS["ensemble"])
    means = []
    for i in range(len(posterior)):
        member = posterior[i]
        hidden = inputs() @ member["0.weight"].T + member["0.bias"]
        torch.testing.assert_close(member["1.running_mean"], hidden.mean(0), **EXACT)
        torch.testing.assert_close(member["1.running_var"], hidden.var(0, correction=0), **EXACT)
        means.append(member["1.running_mean"])
    assert not torch.equal(means[0], means[1])


def test_an_ensemble_has_no_constants_for_each_member():
    with pytest.raises(InvalidInput, match="member to member"):
        fit(net=batch_norm_net(), algorithm=ALGORITHMS["ensemble"], batch_norm="constant")


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
    torch.testing.assert_close(posterior.buffers["1.running_mean"], hidden.mean(0), **EXACT)
