"""One contract for every algorithm with every likelihood."""

import itertools
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import certibayes as cb

from ..strategies import few_of
from .cases import (
    ALGORITHMS,
    EPOCHS,
    LIKELIHOODS,
    assert_same_posterior,
    data_for,
    differ,
    fit,
    target_for,
)

PAIRS = list(itertools.product(LIKELIHOODS, ALGORITHMS))
OTHERS = [likelihood for likelihood in LIKELIHOODS if likelihood != "ibp"]
# Every algorithm with bounds and with one of the other likelihoods, which take turns.
FAST = [
    *(("ibp", algorithm) for algorithm in ALGORITHMS),
    *zip(itertools.cycle(OTHERS), ALGORITHMS, strict=False),
    *(("regression", "vogn"), ("rayleigh", "hmc-chains")),
]


@pytest.fixture(params=few_of(PAIRS, fast=FAST), ids="-".join)
def pair(request):
    """Every algorithm and every likelihood in ``make test``, every pair of them in ``make test-all``."""
    return request.param


@pytest.fixture
def likelihood(pair):
    return LIKELIHOODS[pair[0]]


@pytest.fixture
def algorithm(pair):
    return ALGORITHMS[pair[1]]


def leaves(state):
    return pytree.tree_flatten(state)[0]


def start(algorithm, likelihood):
    target, params, batch = target_for(likelihood)
    noise = likelihood.draw(0.5, batch, torch.Generator().manual_seed(0))
    return target, algorithm.init(target, params, torch.Generator().manual_seed(0)), batch, noise


def step(algorithm, target, state, batch, noise, seed=0):
    return algorithm.update(target, state, batch, noise, torch.Generator().manual_seed(seed))


class TestUpdate:
    def test_the_state_is_a_named_tuple_of_tensors(self, algorithm, likelihood):
        _, state, _, _ = start(algorithm, likelihood)
        assert isinstance(state, tuple)
        assert hasattr(state, "_fields")
        assert all(isinstance(leaf, Tensor) for leaf in leaves(state))
        assert state.step.shape == state.lr.shape == ()

    def test_shapes_types_and_structure_never_change(self, algorithm, likelihood):
        target, state, batch, noise = start(algorithm, likelihood)
        after, _ = step(algorithm, target, state, batch, noise)
        assert pytree.tree_structure(after) == pytree.tree_structure(state)
        for one, other in zip(leaves(state), leaves(after), strict=True):
            assert (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
            assert not other.requires_grad

    def test_the_old_state_data_and_noise_are_left_alone(self, algorithm, likelihood):
        target, state, batch, noise = start(algorithm, likelihood)
        # One step first: moments that are still zero hide in-place arithmetic.
        state, _ = step(algorithm, target, state, batch, noise)
        watched = leaves((state, tuple(batch), noise.radii, target.precision, target.buffers))
        before = [leaf.clone() for leaf in watched]
        step(algorithm, target, state, batch, noise)
        assert all(torch.equal(one, other) for one, other in zip(before, watched, strict=True))

    def test_it_is_a_function_of_its_arguments(self, algorithm, likelihood):
        target, state, batch, noise = start(algorithm, likelihood)
        one, info = step(algorithm, target, state, batch, noise, seed=3)
        same, same_info = step(algorithm, target, state, batch, noise, seed=3)
        assert all(torch.equal(a, b) for a, b in zip(leaves(one), leaves(same), strict=True))
        assert torch.equal(info["loss"], same_info["loss"])

    def test_something_moves_and_stays_finite(self, algorithm, likelihood):
        target, state, batch, noise = start(algorithm, likelihood)
        after, _ = step(algorithm, target, state, batch, noise)
        assert float(after.step) == float(state.step) + 1
        assert all(torch.isfinite(leaf).all() for leaf in leaves(after))
        moved = [
            not torch.equal(p, algorithm.mean_params(after)[name]) for name, p in algorithm.mean_params(state).items()
        ]
        assert all(moved)

    def test_info_holds_the_loss_as_a_scalar_tensor(self, algorithm, likelihood):
        target, state, batch, noise = start(algorithm, likelihood)
        _, info = step(algorithm, target, state, batch, noise)
        assert info["loss"].shape == ()
        assert not info["loss"].requires_grad

    def test_the_global_generator_is_left_alone(self, algorithm, likelihood):
        target, state, batch, noise = start(algorithm, likelihood)
        before = torch.get_rng_state()
        step(algorithm, target, state, batch, noise)
        assert torch.equal(before, torch.get_rng_state())

    def test_no_rate_means_no_move(self, algorithm, likelihood):
        target, state, batch, noise = start(algorithm, likelihood)
        still = state._replace(lr=torch.zeros_like(state.lr))
        after, _ = step(algorithm, target, still, batch, noise)
        for name, p in algorithm.mean_params(state).items():
            assert torch.equal(algorithm.mean_params(after)[name], p)

    def test_it_can_be_described(self, algorithm, likelihood):
        record = algorithm.describe()
        assert record["name"] == type(algorithm).__name__
        assert record["lr"] == algorithm.lr


SEED = 4


@cache
def fitted(algorithm, likelihood):
    """One run of each for all tests that only look at it."""
    return fit(likelihood, algorithm=algorithm, seed=SEED)


class TestFit:
    def test_the_same_seed_gives_the_same_bits(self, algorithm, likelihood):
        assert_same_posterior(fit(likelihood, algorithm=algorithm, seed=SEED), fitted(algorithm, likelihood))

    def test_another_seed_gives_another_posterior(self, algorithm, likelihood):
        assert differ(fit(likelihood, algorithm=algorithm, seed=SEED + 1), fitted(algorithm, likelihood))

    def test_a_run_broken_off_in_a_callback_is_resumed_to_the_same_bits(self, algorithm, likelihood, tmp_path):
        def break_off(record):
            if record["epoch"] == EPOCHS - 1:
                raise RuntimeError("power cut")

        with pytest.raises(RuntimeError, match="power cut"):
            fit(likelihood, algorithm=algorithm, seed=SEED, checkpoint=tmp_path, callbacks=[break_off])
        resumed = fit(likelihood, algorithm=algorithm, seed=SEED, checkpoint=tmp_path, resume=True)
        assert_same_posterior(resumed, fitted(algorithm, likelihood))

    def test_the_posterior_predicts_and_says_how_it_came_about(self, algorithm, likelihood):
        posterior = fit(likelihood, algorithm=algorithm, temperature=0.5)
        assert torch.isfinite(posterior.predictor(2)(torch.rand(2, 4))).all()
        for key, value in {"temperature": 0.5, "seed": 0, "epochs": EPOCHS}.items():
            assert posterior.metadata[key] == value
        assert posterior.metadata["algorithm"]["name"] == type(algorithm).__name__
        assert posterior.metadata["likelihood"]["name"] == type(likelihood).__name__
        assert posterior.task == ("regression" if isinstance(likelihood, cb.RobustGaussian) else "classification")

    def test_the_posterior_survives_the_disk_with_its_metadata(self, algorithm, likelihood, tmp_path):
        posterior = fitted(algorithm, likelihood)
        posterior.save(tmp_path)
        loaded = cb.load(tmp_path)
        assert_same_posterior(loaded, posterior)
        assert loaded.metadata == posterior.metadata


class Scaled(nn.Module):
    """The mean and standard deviation of the data, and a temperature of the logits, as single numbers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor(0.5))
        self.register_buffer("std", torch.tensor(0.9))
        self.layer, self.scale = nn.Linear(4, 3), nn.Parameter(torch.tensor(1.1))

    def forward(self, x):
        return self.layer((x - self.mean) / self.std) * self.scale


def test_single_numbers_as_parameters_and_buffers(algorithm, likelihood, tmp_path):
    posterior = fit(likelihood, Scaled(), algorithm=algorithm)
    posterior.save(tmp_path)
    for samples in (1, 2):
        predictor = posterior.predictor(samples)
        assert predictor.digest == cb.load(tmp_path).predictor(samples).digest
        assert torch.isfinite(predictor(torch.rand(2, 4))).all()


def test_the_likelihood_rises(algorithm, likelihood):
    """Every algorithm learns under every likelihood, evaluated on all data at the full radius."""
    data = data_for(likelihood)
    # Chains also move down by chance, so they are given longer.
    epochs = 20 if isinstance(algorithm, (cb.HMC, cb.SGHMC)) else 8
    posterior = fit(likelihood, algorithm=algorithm, epochs=epochs, validation=data)
    history = posterior.metadata["history"]
    assert history[-1]["validation_loss"] < history[0]["validation_loss"]
