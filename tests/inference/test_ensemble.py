"""Deep ensembles: several MAP runs at once, from starts of their own."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import certibayes as cb
from certibayes.errors import InvalidInput

from .cases import LIKELIHOODS, assert_same_posterior, classes, fit, inputs, network, target_for
from .conjugate import coefficients, fit_linear, problem

every_likelihood = pytest.mark.parametrize("likelihood", LIKELIHOODS.values(), ids=LIKELIHOODS)


@every_likelihood
@pytest.mark.parametrize("members", [1, 3])
def test_the_first_member_is_what_map_finds(likelihood, members):
    settings = {"lr": 0.02, "betas": (0.8, 0.99)}
    ensemble = fit(likelihood, algorithm=cb.DeepEnsemble(members=members, **settings), schedule=cb.Schedule("cosine"))
    alone = fit(likelihood, algorithm=cb.MAP(**settings), schedule=cb.Schedule("cosine"))
    assert len(ensemble) == members
    for name, p in alone.params.items():
        torch.testing.assert_close(ensemble[0][name], p, rtol=1e-5, atol=1e-6)


def test_every_member_is_what_map_finds_from_its_start():
    likelihood = LIKELIHOODS["ibp"]
    target, params, batch = target_for(likelihood, torch.float64)
    noise = likelihood.draw(1.0, batch, None)
    algorithm, alone = cb.DeepEnsemble(lr=0.02, members=4), cb.MAP(lr=0.02)
    generator = torch.Generator().manual_seed(0)
    state = algorithm.init(target, params, generator)
    singles = [
        alone.init(target, {name: p[i].clone() for name, p in state.params.items()}, generator) for i in range(4)
    ]
    for _ in range(5):
        state, info = algorithm.update(target, state, batch, noise, generator)
        stepped = [alone.update(target, single, batch, noise, generator) for single in singles]
        singles = [single for single, _ in stepped]
        torch.testing.assert_close(info["loss"], torch.stack([each["loss"] for _, each in stepped]).mean())
    for i, single in enumerate(singles):
        for name, p in single.params.items():
            torch.testing.assert_close(state.params[name][i], p, rtol=1e-10, atol=1e-12)


def test_members_differ():
    posterior = fit(algorithm=cb.DeepEnsemble(lr=0.01, members=4))
    for tensor in posterior.stacked.values():
        assert len(tensor.flatten(1).unique(dim=0)) == 4
    outputs = posterior.predictor().sample_outputs(inputs())
    assert (outputs.std(0) > 1e-3).all()


def test_starts_have_the_mean_and_variance_of_the_networks_own_tensors():
    target, params, _ = target_for(LIKELIHOODS["standard"])
    params["1.weight"] = params["1.weight"] + 3.0
    state = cb.DeepEnsemble(members=3001).init(target, params, torch.Generator().manual_seed(0))
    for name, p in params.items():
        assert torch.equal(state.params[name][0], p)
        others = state.params[name][1:].double()
        mean, std = p.double().mean(), p.double().std(correction=0)
        assert ((others.mean(0) - mean).abs() < 5 * std / 3000**0.5).all()
        assert ((others.std(0) / std - 1).abs() < 5 / 6000**0.5).all()


def test_tensors_that_are_all_alike_start_alike():
    """Biases that start at 0 do so for every member."""
    net = network()
    nn.init.zeros_(net[1].bias)
    target, params, _ = target_for(LIKELIHOODS["standard"])
    params["1.bias"] = net[1].bias.detach()
    state = cb.DeepEnsemble(members=3).init(target, params, torch.Generator().manual_seed(0))
    assert (state.params["1.bias"] == 0).all()
    assert not torch.equal(state.params["1.weight"][1], state.params["1.weight"][2])


def test_on_a_convex_problem_all_members_find_the_same():
    data = problem(100)
    posterior = fit_linear(
        cb.DeepEnsemble(lr=0.1, members=3), data, epochs=400, schedule=cb.Schedule("cosine", floor=0.0)
    )
    found = coefficients(posterior.stacked)[:, 0]
    assert ((found - data.mean).abs() < 0.1 * data.stds).all()


def test_the_networks_own_parameters_are_left_alone():
    net = network()
    before = {name: p.clone() for name, p in net.named_parameters()}
    fit(net=net, algorithm=cb.DeepEnsemble(lr=0.1, members=2))
    assert all(torch.equal(before[name], p) for name, p in net.named_parameters())


def test_a_loader_is_as_good_as_tensors():
    loader = DataLoader(TensorDataset(inputs(), classes()), batch_size=24)
    algorithm = cb.DeepEnsemble(lr=0.01, members=2)
    assert len(fit(train=loader, algorithm=algorithm)) == 2


def test_members_are_no_chains(tmp_path):
    """They have no order, and no convergence to speak of."""
    posterior = fit(algorithm=cb.DeepEnsemble(members=2))
    assert "chains" not in posterior.metadata
    posterior.save(tmp_path)
    assert_same_posterior(cb.load(tmp_path), posterior)


def test_the_temperature_is_nowhere():
    one, other = (fit(algorithm=cb.DeepEnsemble(members=2), temperature=t) for t in (1.0, 0.1))
    assert_same_posterior(one, other)


@pytest.mark.parametrize("bad", [{"members": 0}, {"members": -1}, {"lr": -0.1}, {"betas": (1.0, 0.9)}], ids=str)
def test_bad_settings(bad):
    with pytest.raises(InvalidInput):
        cb.DeepEnsemble(**bad)
