"""Choosing the temperature on held-out training data."""

import json
import math
import signal

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import certibayes as cb
from certibayes.errors import Diverged, Interrupted, InvalidInput, RunExists
from certibayes.inference import temperature as search
from certibayes.likelihoods import Batch
from certibayes.support.seeds import derived_seed

from ..strategies import few_of, in_turn
from .cases import ALGORITHMS, EPOCHS, LIKELIHOODS, SIZE, assert_same_posterior, classes, data_for, fit, inputs
from .conjugate import fit_linear, problem

CANDIDATES = (1.0, 0.1, 0.01, 0.001)
HELD = {"validation": 0.25, "batch_size": 6}
KEPT_STEPS = 3
PAIRS = [
    *((name, "ibp") for name in ("vogn", "bbb", "hmc-chains", "sghmc", "swag", "laplace", "laplace-last-layer")),
    *((name, likelihood) for name in ("vogn", "laplace") for likelihood in ("standard", "pgd", "regression")),
]
# One that trains for every candidate, one whose samples are its own, one that is tempered at the end.
FAST = [("vogn", "pgd"), ("hmc-chains", "ibp"), ("laplace-last-layer", "ibp"), ("laplace", "regression")]


def held_out(likelihood, seed=0):
    return cb.inference.held_out(data_for(likelihood), 0.25, seed)


def predictive_loss(posterior, likelihood, seed=0):
    """- mean of log 1/S Σ_s p(y | x, w_s) over the held-out examples, one example and one sample at a time."""
    _, held = held_out(likelihood, seed)
    number = len(posterior) if isinstance(posterior, cb.Samples) else 35
    drawn = posterior.sample(number, torch.Generator().manual_seed(derived_seed(seed, "temperature")))
    noise = likelihood.draw(1.0, held, torch.Generator().manual_seed(derived_seed(seed, "validation noise")))
    logs = []
    for i in range(len(held.inputs)):
        one = Batch(held.inputs[i : i + 1], held.targets[i : i + 1])
        starts = None if noise.starts is None else noise.starts[i : i + 1]
        probability = 0.0
        for s in range(number):
            weights = {name: tensor[s] for name, tensor in drawn.items()}
            value = likelihood.log_likelihood(posterior.graph, weights, one, noise._replace(starts=starts))
            probability += math.exp(float(value))
        logs.append(math.log(probability / number))
    return -sum(logs) / len(logs)


@pytest.fixture
def updates(monkeypatch):
    """Temperatures at which steps were made, and the inputs they saw."""
    seen = []
    for kind in {type(algorithm) for algorithm in ALGORITHMS.values()} - {cb.Laplace}:
        real = kind.update

        def update(self, target, state, batch, *rest, real=real):
            seen.append((target.temperature, batch.inputs))
            return real(self, target, state, batch, *rest)

        monkeypatch.setattr(kind, "update", update)
    return seen


@pytest.mark.parametrize("pair", few_of(PAIRS, fast=FAST), ids="-".join)
def test_the_candidate_that_explains_held_out_data_best_is_chosen(pair):
    algorithm, likelihood = ALGORITHMS[pair[0]], LIKELIHOODS[pair[1]]
    found = fit(likelihood, algorithm=algorithm, temperature="validate", **HELD)
    alone = {t: fit(likelihood, algorithm=algorithm, temperature=t, **HELD) for t in CANDIDATES}
    losses = {t: predictive_loss(posterior, likelihood) for t, posterior in alone.items()}
    curve = found.metadata["temperature_curve"]
    assert [point["temperature"] for point in curve] == list(CANDIDATES)
    for point in curve:
        assert point["validation_loss"] == pytest.approx(losses[point["temperature"]], rel=1e-4, abs=1e-5)
    best = min(curve, key=lambda point: point["validation_loss"])["temperature"]
    assert found.metadata["temperature"] == best
    assert_same_posterior(found, alone[best])


def test_candidates_may_be_given_in_any_order():
    for candidates in ([0.5, 2.0, 1e-4], (1e-4, 0.5, 2.0), np.array([0.5, 2.0])):
        posterior = fit(algorithm=cb.Laplace(lr=0.05, structure="diagonal"), temperature=candidates, **HELD)
        curve = posterior.metadata["temperature_curve"]
        assert [point["temperature"] for point in curve] == list(candidates)
        lowest = min(curve, key=lambda point: point["validation_loss"])
        assert posterior.metadata["temperature"] == lowest["temperature"]


@pytest.mark.parametrize(("assumed", "chosen"), [(0.1, 25.0), (2.5, 0.04)])
def test_a_posterior_with_too_little_variance_is_warmed_and_one_with_too_much_is_cooled(assumed, chosen):
    """Noise is 0.5; assuming another makes the posterior wrong by the same factor, which the temperature can undo."""
    data, held = problem(10), problem(400)
    posterior = fit_linear(
        cb.Laplace(lr=0.1, structure="last-layer", draws=50), data, assumed, epochs=200, temperature=(25.0, 1.0, 0.04),
        validation=(held.x, held.y),
    )  # fmt: skip
    assert posterior.metadata["temperature"] == chosen


def test_a_sequence_of_one_is_that_one():
    one = fit(algorithm=ALGORITHMS["vogn"], temperature=[0.1])
    assert "temperature_curve" not in one.metadata
    assert_same_posterior(one, fit(algorithm=ALGORITHMS["vogn"], temperature=0.1))


class TestWhatIsTrained:
    @pytest.mark.parametrize("name", ["swag", "swag-diagonal", "laplace", "laplace-last-layer"])
    def test_once_where_the_temperature_enters_at_the_end(self, name, updates):
        fit(algorithm=ALGORITHMS[name], temperature="validate", **HELD)
        assert len(updates) == EPOCHS * KEPT_STEPS

    @pytest.mark.parametrize("name", ["vogn", "noisy-adam", "ivon", "bbb", "sghmc"])
    def test_once_for_each_candidate_otherwise(self, name, updates):
        fit(algorithm=ALGORITHMS[name], temperature="validate", **HELD)
        steps = EPOCHS * KEPT_STEPS
        assert [t for t, _ in updates] == [t for t in CANDIDATES for _ in range(steps)]

    @pytest.mark.parametrize("name", ["map-adam", "ensemble"])
    def test_one_candidate_where_it_is_nowhere(self, name, updates):
        posterior = fit(algorithm=ALGORITHMS[name], temperature="validate", **HELD)
        assert len(updates) == EPOCHS * KEPT_STEPS
        assert [point["temperature"] for point in posterior.metadata["temperature_curve"]] == [1.0]
        assert posterior.metadata["temperature"] == 1.0

    @pytest.mark.parametrize("name", ["vogn", "swag", "hmc"])
    def test_nothing_that_is_held_out(self, name, updates):
        posterior = fit(algorithm=ALGORITHMS[name], temperature="validate", **HELD)
        _, held = held_out(LIKELIHOODS["standard"])
        assert posterior.metadata["data"]["size"] == SIZE - 6
        trained = {tuple(row) for _, batch in updates for row in batch.tolist()}
        assert len(trained) == SIZE - 6
        assert not trained & {tuple(row) for row in held.inputs.tolist()}

    def test_a_tenth_is_held_out_unless_said(self):
        posterior = fit(algorithm=ALGORITHMS["laplace"], temperature="validate")
        assert posterior.metadata["data"]["size"] == SIZE - 2
        assert posterior.metadata["validation"] is not None

    def test_a_fixed_temperature_holds_nothing_out(self):
        assert fit(algorithm=ALGORITHMS["vogn"], temperature=0.1).metadata["data"]["size"] == SIZE

    def test_a_loader_needs_held_out_data_of_its_own(self):
        settings = {"algorithm": ALGORITHMS["swag"], "temperature": "validate"}
        with pytest.raises(InvalidInput, match="pair"):
            fit(train=DataLoader(TensorDataset(inputs(), classes()), batch_size=8), **settings)
        loader = DataLoader(TensorDataset(inputs()[:16], classes()[:16]), batch_size=8)
        posterior = fit(train=loader, validation=(inputs()[16:], classes()[16:]), **settings)
        assert len(posterior.metadata["temperature_curve"]) == 4


class TestTheCurve:
    def test_it_survives_the_disk(self, tmp_path):
        posterior = fit(algorithm=ALGORITHMS["vogn"], temperature="validate", **HELD)
        posterior.save(tmp_path)
        found = cb.load(tmp_path)
        assert found.metadata == posterior.metadata
        assert json.loads(json.dumps(posterior.metadata)) == posterior.metadata

    def test_of_classes_it_holds_the_accuracy_of_the_predictor(self):
        posterior = fit(algorithm=ALGORITHMS["hmc"], temperature=(1.0, 0.1), **HELD)
        _, held = held_out(LIKELIHOODS["standard"])
        right = posterior.predictor()(held.inputs).argmax(-1) == held.targets
        chosen = [
            p for p in posterior.metadata["temperature_curve"] if p["temperature"] == posterior.metadata["temperature"]
        ]
        assert chosen[0]["validation_accuracy"] == pytest.approx(float(right.double().mean()))

    def test_of_a_regression_it_holds_none(self):
        posterior = fit(LIKELIHOODS["regression"], algorithm=ALGORITHMS["laplace"], temperature="validate", **HELD)
        assert all(set(p) == {"temperature", "validation_loss"} for p in posterior.metadata["temperature_curve"])

    def test_more_held_out_examples_than_fit_at_once(self, monkeypatch):
        """The mean is over examples, not over parts of them."""
        generator = torch.Generator().manual_seed(0)
        x = torch.rand(1103, 4, generator=generator)
        held = (x, x[:, :3].argmax(-1))
        posterior = fit(algorithm=cb.Laplace(), temperature=(1.0, 0.1), validation=held)
        drawn = posterior.sample(35, torch.Generator().manual_seed(derived_seed(0, "temperature")))
        each = [posterior.graph.evaluate({n: t[s] for n, t in drawn.items()}, x).softmax(-1) for s in range(35)]
        probability = torch.stack(each).double().mean(0).gather(1, held[1][:, None])
        losses = {p["temperature"]: p["validation_loss"] for p in posterior.metadata["temperature_curve"]}
        found = losses[posterior.metadata["temperature"]]
        assert found == pytest.approx(-float(probability.log().mean()), rel=1e-5)


def breaking(monkeypatch, kind, step, action):
    """Let ``action`` happen in the given update; returns how many were begun."""
    real, begun = kind.update, []

    def update(self, *arguments):
        begun.append(1)
        if len(begun) == step:
            action()
        return real(self, *arguments)

    monkeypatch.setattr(kind, "update", update)
    return begun


def trained_by(name):
    """The class whose updates train an algorithm."""
    return cb.MAP if name == "laplace" else type(ALGORITHMS[name])


UNBROKEN = {}


def unbroken(name, **settings):
    """The search that every broken one must end like, made once, and the number of its steps."""
    if name not in UNBROKEN:
        with pytest.MonkeyPatch.context() as patch:
            begun = breaking(patch, trained_by(name), 0, None)
            UNBROKEN[name] = fit(LIKELIHOODS["rayleigh"], **settings), len(begun)
    return UNBROKEN[name]


class TestResume:
    @pytest.mark.parametrize(("name", "part"), in_turn(["vogn", "hmc", "sghmc", "swag", "laplace"], [0.5, 0.9, 0.2]))
    def test_a_search_broken_off_anywhere_goes_on_to_the_same_bits(self, name, part, tmp_path, monkeypatch):
        settings = {"algorithm": ALGORITHMS[name], "temperature": (1.0, 0.1, 0.01), **HELD}
        kind = trained_by(name)
        expected, total = unbroken(name, **settings)
        with monkeypatch.context() as patch:
            breaking(patch, kind, max(1, int(part * total)), lambda: signal.raise_signal(signal.SIGINT))
            with pytest.raises(Interrupted):
                fit(LIKELIHOODS["rayleigh"], checkpoint=tmp_path, **settings)
        with monkeypatch.context() as patch:
            begun = breaking(patch, kind, 0, None)
            resumed = fit(LIKELIHOODS["rayleigh"], checkpoint=tmp_path, resume=True, **settings)
            assert len(begun) == total - max(1, int(part * total))
        assert_same_posterior(resumed, expected)
        assert resumed.metadata["temperature_curve"] == expected.metadata["temperature_curve"]

    def test_a_finished_search_trains_nothing(self, tmp_path, monkeypatch):
        settings = {"algorithm": ALGORITHMS["vogn"], "temperature": "validate", "checkpoint": tmp_path, **HELD}
        expected = fit(**settings)
        begun = breaking(monkeypatch, cb.VOGN, 0, None)
        assert_same_posterior(fit(resume=True, **settings), expected)
        assert begun == []

    def test_a_search_is_not_overwritten(self, tmp_path):
        settings = {"algorithm": ALGORITHMS["vogn"], "temperature": "validate", "checkpoint": tmp_path, **HELD}
        fit(**settings)
        with pytest.raises(RunExists):
            fit(**settings)

    def test_candidates_that_are_close_do_not_share_a_directory(self, tmp_path):
        settings = {"algorithm": ALGORITHMS["vogn"], "temperature": (0.12345678, 0.12345679), **HELD}
        assert_same_posterior(fit(checkpoint=tmp_path, **settings), fit(**settings))


class TestDivergence:
    @staticmethod
    def spoil(monkeypatch, temperatures):
        real = cb.VOGN.update

        def update(self, target, *rest):
            state, info = real(self, target, *rest)
            return state, {"loss": info["loss"] * math.nan} if target.temperature in temperatures else info

        monkeypatch.setattr(cb.VOGN, "update", update)

    @pytest.mark.parametrize("bad", CANDIDATES)
    def test_a_candidate_that_diverges_is_a_point_of_the_curve(self, bad, monkeypatch):
        self.spoil(monkeypatch, {bad})
        posterior = fit(algorithm=ALGORITHMS["vogn"], temperature="validate", **HELD)
        curve = posterior.metadata["temperature_curve"]
        assert [point["temperature"] for point in curve] == list(CANDIDATES)
        assert [point["temperature"] for point in curve if "diverged" in point] == [bad]
        assert posterior.metadata["temperature"] != bad

    def test_if_all_diverge_so_does_the_search(self, monkeypatch):
        self.spoil(monkeypatch, set(CANDIDATES))
        with pytest.raises(Diverged, match="every temperature"):
            fit(algorithm=ALGORITHMS["vogn"], temperature="validate", **HELD)

    @pytest.mark.parametrize("losses", [(math.nan, 2.0, 1.0), (2.0, math.nan, 1.0), (math.inf, 2.0, 1.0)])
    def test_a_loss_that_is_no_number_is_never_the_lowest(self, losses, monkeypatch):
        """Bounds may overflow although the weights are finite."""
        figures = iter(losses)
        monkeypatch.setattr(search, "predictive_figures", lambda *_: {"validation_loss": next(figures)})
        posterior = fit(algorithm=ALGORITHMS["swag"], temperature=(3.0, 2.0, 1.0), **HELD)
        assert posterior.metadata["temperature"] == 1.0


@pytest.mark.parametrize(
    "bad",
    [
        *(0.0, -1.0, math.nan, math.inf, "best", ""),
        *([], (), {}, [1.0, 0.0], (0.1, -1.0), [1.0, math.nan], [1.0, 1.0], [1, 1.0], [None, 1.0], ["cold"]),
    ],
    ids=str,
)
def test_bad_temperatures(bad):
    with pytest.raises(InvalidInput, match="temperature"):
        fit(algorithm=ALGORITHMS["vogn"], temperature=bad)


@pytest.mark.parametrize("given", [1, np.float32(0.5), np.float64(0.5), torch.tensor([0.5]).numpy()[0]], ids=repr)
def test_any_number_will_do(given):
    posterior = fit(algorithm=ALGORITHMS["vogn"], temperature=given)
    assert posterior.metadata["temperature"] == float(given)
    assert type(posterior.metadata["temperature"]) is float


@pytest.mark.parametrize(
    ("likelihood", "temperature"),
    [("standard", 1.0), ("pgd", 1.0), ("ibp", 0.01), ("crown-ibp", 0.01), ("sabr", 0.01), ("mtl-ibp", 0.01)],
)
def test_where_none_is_given_it_is_one_unless_the_likelihood_depends_on_bounds(likelihood, temperature):
    assert fit(LIKELIHOODS[likelihood], algorithm=ALGORITHMS["vogn"]).metadata["temperature"] == temperature
    assert fit(LIKELIHOODS[likelihood], algorithm=ALGORITHMS["swag"]).metadata["temperature"] == 1.0
    assert fit(LIKELIHOODS[likelihood], algorithm=ALGORITHMS["vogn"], temperature=1).metadata["temperature"] == 1.0
