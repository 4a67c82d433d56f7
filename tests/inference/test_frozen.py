"""Parameters with ``requires_grad=False`` are constants for every algorithm, and the posterior says so."""

from functools import cache

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.errors import InvalidInput, RunExists
from certibayes.likelihoods import Batch
from certibayes.networks import trace

from ..strategies import in_turn
from .cases import ALGORITHMS, EPOCHS, LIKELIHOODS, assert_same_posterior, classes, fit, inputs

every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
pairs = pytest.mark.parametrize(("algorithm", "likelihood"), in_turn(ALGORITHMS, ["standard", "ibp", "regression"]))

BODY = ("0.weight", "0.bias", "2.bias")
HEAD = ("2.weight", "4.weight", "4.bias")


def partly_frozen() -> nn.Sequential:
    """A layer that is frozen, one of which only the bias is, and one that is not."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    for name, p in net.named_parameters():
        p.requires_grad_(name not in BODY)
    return net


@cache
def fitted(algorithm, likelihood):
    return fit(LIKELIHOODS[likelihood], partly_frozen(), algorithm=ALGORITHMS[algorithm], seed=4)


@pairs
class TestFrozen:
    def test_they_stay_as_they_were_and_the_others_move(self, algorithm, likelihood):
        own = dict(partly_frozen().named_parameters())
        posterior = fitted(algorithm, likelihood)
        drawn = posterior.sample(2, torch.Generator().manual_seed(0))
        assert posterior.graph.parameters == HEAD
        assert all(torch.equal(drawn[name], own[name].detach().expand_as(drawn[name])) for name in BODY)
        assert not any(torch.equal(drawn[name][0], own[name]) for name in ("4.weight", "4.bias"))

    def test_the_posterior_says_so(self, algorithm, likelihood):
        posterior = fitted(algorithm, likelihood)
        assert posterior.metadata["frozen"] == list(BODY)
        assert "in 3 tensors, 3 more frozen" in repr(posterior)

    def test_they_survive_the_disk(self, algorithm, likelihood, tmp_path):
        posterior = fitted(algorithm, likelihood)
        posterior.save(tmp_path)
        loaded = cb.load(tmp_path)
        assert_same_posterior(loaded, posterior)
        assert loaded.metadata == posterior.metadata
        assert loaded.predictor(2).digest == posterior.predictor(2).digest

    def test_a_run_is_resumed_to_the_same_bits(self, algorithm, likelihood, tmp_path):
        def break_off(record):
            if record["epoch"] == EPOCHS - 1:
                raise RuntimeError("power cut")

        settings = {"algorithm": ALGORITHMS[algorithm], "seed": 4, "checkpoint": tmp_path}
        with pytest.raises(RuntimeError, match="power cut"):
            fit(LIKELIHOODS[likelihood], partly_frozen(), callbacks=[break_off], **settings)
        with pytest.raises(RunExists, match="it differs in"):
            fit(LIKELIHOODS[likelihood], partly_frozen().requires_grad_(True), resume=True, **settings)
        resumed = fit(LIKELIHOODS[likelihood], partly_frozen(), resume=True, **settings)
        assert_same_posterior(resumed, fitted(algorithm, likelihood))


@every_algorithm
def test_it_is_inference_for_the_last_layers_on_what_the_first_give_out(algorithm):
    """In double precision, so that rounding cannot grow into a difference."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        body, head = nn.Sequential(nn.Linear(4, 6), nn.Tanh()).double(), nn.Linear(6, 3).double()
    x = inputs(dtype=torch.float64)
    whole = fit(net=nn.Sequential(body.requires_grad_(False), head), train=Batch(x, classes()), algorithm=algorithm)
    alone = fit(net=head, train=Batch(body(x), classes()), algorithm=algorithm)
    expected = alone.tensors()
    for name, tensor in whole.tensors().items():
        torch.testing.assert_close(tensor, expected[name.replace("1.", "")])


@every_algorithm
def test_a_frozen_feature_extractor_keeps_its_batch_norm(algorithm):
    """Ensembles refuse batch norm because of its statistics; those of a frozen one are the same for all members."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.BatchNorm1d(6, affine=False))
    for norm in (body[1], body[3]):
        norm.running_mean.fill_(0.3)
        norm.running_var.fill_(2.0)
    net = nn.Sequential(body.requires_grad_(False), nn.Linear(6, 3))
    drawn = fit(net=net, algorithm=algorithm).sample(2, torch.Generator().manual_seed(0))
    for name in ("0.1", "0.3"):
        assert bool((drawn[f"{name}.running_mean"] == 0.3).all())
        assert bool((drawn[f"{name}.running_var"] == 2.0).all())
    trained = nn.Sequential(body, nn.BatchNorm1d(6), nn.Linear(6, 3))
    if algorithm is not ALGORITHMS["ensemble"]:
        drawn = fit(net=trained, algorithm=algorithm).sample(2, torch.Generator().manual_seed(0))
        assert bool((drawn["0.1.running_mean"] == 0.3).all()) and not bool((drawn["1.running_mean"] == 0.0).any())


def test_a_layer_whose_matrix_is_frozen_still_has_a_prior_for_its_bias():
    net = nn.Linear(4, 3)
    net.weight.requires_grad_(False)
    posterior = fit(net=net, algorithm=cb.VOGN(lr=0.05))
    assert posterior.graph.parameters == ("bias",)


def test_a_frozen_parameter_that_forward_does_not_use_is_left_out():
    net = partly_frozen()
    net.register_parameter("spare", nn.Parameter(torch.zeros(2), requires_grad=False))
    posterior = fit(net=net)
    assert "spare" not in posterior.graph.buffers and posterior.metadata["frozen"] == list(BODY)


def test_a_network_that_was_traced_before_remembers():
    posterior = fit(net=trace(partly_frozen()))
    assert posterior.metadata["frozen"] == list(BODY)
    assert_same_posterior(posterior, fit(net=partly_frozen()))


def test_laplace_around_a_network_that_is_trained_already():
    net = partly_frozen()
    posterior = fit(net=net, algorithm=cb.Laplace(structure="last-layer"), epochs=0)
    drawn = posterior.sample(3, torch.Generator().manual_seed(0))
    assert bool((drawn["0.weight"] == net[0].weight).all()) and bool((drawn["4.bias"] != net[4].bias).all())


def test_nothing_is_said_where_nothing_is_frozen():
    assert "frozen" not in fit().metadata
    assert "frozen" not in repr(fit())


def test_if_all_is_frozen_there_is_nothing_to_infer():
    with pytest.raises(InvalidInput, match=r"frozen.*requires_grad_\(True\).*Point"):
        fit(net=partly_frozen().requires_grad_(False))


def test_a_frozen_network_can_still_be_a_posterior():
    """Only ``fit`` reads the flag: whoever states a distribution over weights means it."""
    net = partly_frozen().requires_grad_(False)
    params = dict(net.named_parameters())
    assert cb.Point(net).graph.parameters == tuple(params)
    std = {name: torch.full_like(p, 0.1) for name, p in params.items()}
    drawn = cb.DiagonalGaussian(net, params, std).sample(1, torch.Generator().manual_seed(0))
    assert bool((drawn["0.weight"][0] != net[0].weight).any())


def test_certificates_hold_for_networks_with_constants():
    posterior = fitted("vogn", "ibp")
    predictor = posterior.predictor(5)
    x = inputs()
    result = cb.certify(predictor, x, eps=0.01, method="pairwise")
    attacked = cb.attack(predictor, x, eps=0.01)
    assert bool(result.certified.any()) and not bool((result.certified & attacked.success).any())
