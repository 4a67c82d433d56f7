"""Batch norm: statistics from clean training data, refreshed between epochs, constant inside a step."""

import dataclasses
import signal

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import certibayes as cb
from certibayes.errors import Interrupted, InvalidInput
from certibayes.inference import Target
from certibayes.inference._flat import FLAT, FlatTarget
from certibayes.likelihoods import Batch
from certibayes.networks import trace

from ..strategies import in_turn
from .cases import (
    ALGORITHMS,
    EPOCHS,
    LIKELIHOODS,
    SIZE,
    STEPS,
    assert_same_posterior,
    batch_norm_net,
    classes,
    fit,
    inputs,
)

EXACT = {"rtol": 2.0**-13, "atol": 2.0**-13}
"""Statistics are rounded to 14 binary digits."""


REFRESHED = {key: a for key, a in ALGORITHMS.items() if not (a.full_batch or key == "ensemble")}


@pytest.mark.parametrize(("key", "name"), in_turn(REFRESHED, ["standard", "ibp", "pgd"]))
class TestTraining:
    def test_the_posterior_carries_statistics_of_its_own_network(self, key, name):
        algorithm = REFRESHED[key]
        if isinstance(algorithm, (cb.SGHMC, cb.SnapshotEnsemble)):
            pytest.skip("its samples carry their own; see below")
        posterior = fit(LIKELIHOODS[name], net=batch_norm_net(), algorithm=algorithm)
        point = posterior.params if isinstance(posterior, cb.Point) else posterior.mean
        hidden = inputs() @ point["0.weight"].T + point["0.bias"]
        torch.testing.assert_close(posterior.buffers["1.running_mean"], hidden.mean(0), **EXACT)
        torch.testing.assert_close(posterior.buffers["1.running_var"], hidden.var(0, correction=0), **EXACT)

    def test_they_change_between_epochs_and_never_inside_one(self, key, name, monkeypatch):
        algorithm = REFRESHED[key]
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


@pytest.mark.parametrize("key", ["ensemble", "snapshot"])
def test_every_member_of_an_ensemble_carries_its_own(key):
    posterior = fit(net=batch_norm_net(), algorithm=ALGORITHMS[key])
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


MODE = {
    key: "constant" if isinstance(a, (cb.VOGN, cb.HMC)) else "batch" for key, a in ALGORITHMS.items()
}  # fmt: skip


class TestModes:
    @pytest.mark.parametrize("key", MODE)
    def test_the_default_is_what_the_algorithm_can_have_and_the_posterior_says_which(self, key):
        posterior = fit(LIKELIHOODS["ibp"], net=batch_norm_net(), algorithm=ALGORITHMS[key])
        assert posterior.metadata["batch_norm"] == MODE[key]
        assert bool(torch.isfinite(posterior.predictor()(inputs())).all())

    def test_networks_without_batch_norm_have_no_mode(self):
        assert "batch_norm" not in fit().metadata

    @pytest.mark.parametrize("key", [key for key, mode in MODE.items() if mode == "constant"])
    def test_methods_that_need_each_example_by_itself_cannot_have_the_batch(self, key):
        with pytest.raises(InvalidInput, match='batch_norm="constant"'):
            fit(net=batch_norm_net(), algorithm=ALGORITHMS[key], batch_norm="batch")

    def test_there_is_no_other_mode(self):
        with pytest.raises(InvalidInput, match='"batch" or "constant"'):
            fit(net=batch_norm_net(), batch_norm="eval")

    @pytest.mark.parametrize("mode", ["batch", "constant"])
    def test_nothing_to_choose_without_batch_norm(self, mode):
        with pytest.raises(InvalidInput, match="Leave it out"):
            fit(batch_norm=mode)

    def test_nor_where_all_of_it_is_frozen(self):
        net = batch_norm_net()
        net[1].requires_grad_(False)
        assert "batch_norm" not in fit(net=net).metadata
        with pytest.raises(InvalidInput, match="frozen"):
            fit(net=net, batch_norm="batch")

    def test_a_frozen_batch_norm_keeps_its_statistics_in_training_too(self):
        net = nn.Sequential(*batch_norm_net()[:3], nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
        net[1].running_mean.normal_(generator=torch.Generator().manual_seed(0))
        net[1].requires_grad_(False)
        posterior = fit(LIKELIHOODS["ibp"], net=net)
        assert torch.equal(posterior.buffers["1.running_mean"], net[1].running_mean)
        assert not torch.equal(posterior.buffers["4.running_mean"], net[4].running_mean)

    def test_one_step_is_that_of_torch_in_training_mode(self):
        """Gradient descent on the standard likelihood, by autograd through nn.BatchNorm1d in train mode."""
        net, x, y = batch_norm_net().double(), inputs(dtype=torch.float64), classes()
        algorithm = cb.MAP(lr=0.1, optimizer="sgd", betas=(0.0, 0.0))
        posterior = fit(
            net=net, train=(x, y), algorithm=algorithm, epochs=1, batch_size=len(x), prior=cb.GaussianPrior(std=1e6)
        )
        nn.functional.cross_entropy(net.train()(x), y).backward()
        for name, p in net.named_parameters():
            torch.testing.assert_close(posterior.params[name], p.detach() - 0.1 * p.grad, rtol=1e-6, atol=1e-9)

    def test_the_predictor_of_a_small_training_set_is_torch_in_training_mode(self):
        net = batch_norm_net()
        posterior = fit(LIKELIHOODS["ibp"], net=net, algorithm=ALGORITHMS["map-adam"])
        net.load_state_dict({**net.state_dict(), **posterior.params})
        expected = nn.functional.log_softmax(net.train()(inputs()), -1)
        torch.testing.assert_close(posterior.predictor()(inputs()), expected, rtol=0.0, atol=2e-3)

    @pytest.mark.parametrize("mode", ["batch", "constant"])
    def test_the_two_modes_train_to_different_weights(self, mode):
        posterior = fit(net=batch_norm_net(), batch_norm=mode)
        other = fit(net=batch_norm_net(), batch_norm="constant" if mode == "batch" else "batch")
        assert not torch.equal(posterior.params["0.weight"], other.params["0.weight"])

    def test_laplace_has_its_curvature_under_the_final_statistics(self):
        """Squares of the gradients of single examples exist there, since the statistics are constants."""
        algorithm = cb.Laplace(structure="diagonal", fisher="empirical")
        posterior = fit(net=batch_norm_net(), algorithm=algorithm)
        again = fit(net=_module_of(posterior), algorithm=algorithm, epochs=0)
        for name, std in posterior.std.items():
            torch.testing.assert_close(again.std[name], std, rtol=1e-5, atol=1e-7)


def _module_of(posterior):
    net = batch_norm_net()
    net.load_state_dict({**net.state_dict(), **posterior.mean, **posterior.buffers})
    return net


class TestSmallBatches:
    def test_a_batch_of_one_has_no_statistics(self):
        with pytest.raises(InvalidInput, match="one example"):
            fit(net=batch_norm_net(), batch_size=1)

    def test_nor_has_a_training_set_of_one(self):
        with pytest.raises(InvalidInput, match="one example"):
            fit(net=batch_norm_net(), train=(inputs(1), classes(1)))

    def test_constants_do_not_mind(self):
        posterior = fit(net=batch_norm_net(), batch_size=1, epochs=1, batch_norm="constant")
        assert posterior.metadata["batch_norm"] == "constant"

    @pytest.mark.parametrize("settings", [{"batch_size": 1}, {"batch_size": 23}], ids=str)
    def test_a_loader_that_yields_one_is_found_before_training(self, settings):
        loader, started = DataLoader(TensorDataset(inputs(), classes()), **settings), []
        with pytest.raises(InvalidInput, match="drop_last"):
            fit(net=batch_norm_net(), train=loader, on_start=lambda: started.append(1))
        assert not started

    def test_one_that_drops_the_last_may_be_used(self):
        loader = DataLoader(TensorDataset(inputs(), classes()), batch_size=23, drop_last=True)
        assert fit(net=batch_norm_net(), train=loader).metadata["batch_norm"] == "batch"

    def test_batches_of_a_sampler_are_looked_at_as_they_come(self):
        loader = DataLoader(TensorDataset(inputs(), classes()), batch_sampler=[[0, 1, 2], [3]])
        with pytest.raises(InvalidInput, match="one example"):
            fit(net=batch_norm_net(), train=loader)


class Twice(nn.Module):
    """The same batch norm after two layers."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.norm(self.second(torch.relu(self.norm(self.first(x))))))


def test_a_layer_that_is_used_twice_has_room_for_one_use():
    with pytest.raises(InvalidInput, match="norm is used more than once"):
        fit(net=Twice())
    assert fit(net=Twice(), batch_norm="constant").metadata["batch_norm"] == "constant"


class TestSamples:
    """Every sample that predicts has the statistics of its own weights."""

    @pytest.mark.parametrize("key", ["swag", "swag-diagonal", "vogn", "bbb", "ivon", "noisy-adam", "laplace"])
    def test_of_every_gaussian(self, key):
        posterior = fit(LIKELIHOODS["ibp"], net=batch_norm_net(), algorithm=ALGORITHMS[key])
        samples = posterior.predictor(5).samples
        for i in range(5):
            hidden = inputs() @ samples["0.weight"][i].T + samples["0.bias"][i]
            torch.testing.assert_close(samples["1.running_mean"][i], hidden.mean(0), **EXACT)
            torch.testing.assert_close(samples["1.running_var"][i], hidden.var(0, correction=0), **EXACT)

    def test_those_of_the_default_predictor_are_kept(self):
        posterior = fit(net=batch_norm_net(), algorithm=ALGORITHMS["swag"])
        assert {seed: kept["1.running_mean"].shape for seed, kept in posterior.statistics.items()} == {0: (35, 6)}
        assert posterior.predictor().digest == posterior.predictor(35, seed=0, data=inputs()).digest

    def test_a_last_layer_needs_none(self):
        posterior = fit(net=batch_norm_net(), algorithm=ALGORITHMS["laplace-last-layer"])
        assert not posterior.statistics_vary and not posterior.statistics
        assert posterior.predictor(3, seed=7).size == 3

    def test_held_out_figures_are_those_of_the_predictor(self):
        posterior = fit(net=batch_norm_net(), algorithm=ALGORITHMS["swag"], validation=(inputs(), classes()))
        loss = nn.functional.nll_loss(posterior.predictor()(inputs()), classes())
        assert posterior.metadata["held_out"]["validation_loss"] == pytest.approx(float(loss), rel=1e-5)

    def test_a_temperature_is_chosen_with_them(self):
        posterior = fit(net=batch_norm_net(), algorithm=ALGORITHMS["swag"], temperature=(1.0, 0.1), validation=0.25)
        assert len(posterior.metadata["temperature_curve"]) == 2
        assert posterior.predictor().size == 35


@pytest.mark.parametrize("key", ["map-adam", "swag", "bbb", "sghmc", "ensemble", "snapshot"])
def test_a_resumed_run_gives_the_same_bits(key, tmp_path):
    """Stopped in the middle of the second epoch."""
    algorithm, begun = ALGORITHMS[key], []
    whole = fit(LIKELIHOODS["ibp"], net=batch_norm_net(), algorithm=algorithm, validation=(inputs(), classes()))

    class Stopping(type(algorithm)):
        def update(self, *arguments):
            begun.append(1)
            if len(begun) == STEPS + 2:
                signal.raise_signal(signal.SIGINT)
            return super().update(*arguments)

    Stopping.__name__ = type(algorithm).__name__
    settings = {"net": batch_norm_net(), "checkpoint": tmp_path, "validation": (inputs(), classes())}
    with pytest.raises(Interrupted):
        fit(LIKELIHOODS["ibp"], algorithm=Stopping(**dataclasses.asdict(algorithm)), **settings)
    resumed = fit(LIKELIHOODS["ibp"], algorithm=algorithm, resume=True, **settings)
    assert_same_posterior(resumed, whole)


def test_weights_as_one_vector_are_the_same_target():
    likelihood = LIKELIHOODS["ibp"]
    network = trace(batch_norm_net().double(), inputs(dtype=torch.float64))
    precision = cb.GaussianPrior().precisions(network.graph, network.params)
    target = Target(network.graph, network.buffers, likelihood, precision, SIZE, batch_norm="batch")
    batch = Batch(inputs(dtype=torch.float64), classes())
    noise = likelihood.draw(1.0, batch, torch.Generator().manual_seed(0))
    flat = FlatTarget.of(target, network.params)
    value, gradient = target.mean_loss_and_gradient(network.params, batch, noise)
    found, vector = flat.mean_loss_and_gradient({FLAT: flat.layout.join(network.params)}, batch, noise)
    torch.testing.assert_close(found, value)
    torch.testing.assert_close(vector[FLAT], flat.layout.join(gradient))
    constant = Target(network.graph, network.buffers, likelihood, precision, SIZE)
    assert not torch.allclose(constant.mean_loss_and_gradient(network.params, batch, noise)[0], value)
