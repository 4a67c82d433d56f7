"""Many models as one program: each is what ``fit`` gives, and none knows of the others."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import certibayes as cb
from certibayes.errors import Diverged, InvalidInput, UnsupportedLayer
from certibayes.inference import _group, normal_like
from certibayes.inference._batches import TensorSource, epochs_together
from certibayes.inference._capture import made
from certibayes.inference._streams import Streams
from certibayes.likelihoods import CROWNIBP, Batch

from .cases import BATCH_SIZE, LIKELIHOODS, SIZE, assert_same_posterior, batch_norm_net, classes, data_for, inputs
from .cases import network as make_network

EPOCHS, STEPS = 7, 3
TEMPERATURES = (1.0, 0.5, 0.1)
# Wide enough to start with that a step moves the weights by more than their rounding.
ALGORITHMS = {
    "map": cb.MAP(lr=0.01),
    "map, sgd": cb.MAP(lr=0.05, optimizer="sgd"),
    "swag": cb.SWAG(lr=0.05, start=0.0, rank=3),
    "swag, diagonal": cb.SWAG(lr=0.05, start=0.0, rank=0, every=2),
    "noisy-adam": cb.NoisyAdam(lr=0.05, initial_std=0.3),
    "vogn": cb.VOGN(lr=0.05, initial_std=0.3),
    "bbb": cb.BBB(lr=0.01, initial_std=0.1),
    "ivon": cb.IVON(lr=0.05, initial_std=0.3),
    "sghmc": cb.SGHMC(lr=0.05, cycles=1, samples=4, exploration=0.5),
    "laplace": cb.Laplace(lr=0.01, structure="diagonal"),
}
PAIRS = [
    *((name, "ibp") for name in ALGORITHMS),
    *((name, likelihood) for name in ("map", "vogn") for likelihood in LIKELIHOODS if likelihood != "ibp"),
]
COMMON = {"epochs": EPOCHS, "batch_size": BATCH_SIZE, "progress": False}


def network(seed=0, dtype=torch.float32):
    return make_network(seed).to(dtype)


def apart(train, runs, **common):
    """What ``fit`` makes of each run."""
    return [cb.fit(own.pop("net"), train, **{**COMMON, **common, **own}) for own in map(dict, runs)]


def together(train, runs, **common):
    return cb.fit_many(None, train, runs, **{**COMMON, **common})


def assert_close(found, expected, tolerance, only=""):
    """Every tensor up to ``tolerance`` times its largest element."""
    assert type(found) is type(expected)
    assert found.tensors().keys() == expected.tensors().keys()
    for name, tensor in expected.tensors().items():
        if name.startswith(only):
            difference = float((found.tensors()[name] - tensor).abs().max())
            assert difference <= tolerance * float(tensor.abs().max()), name


def seeded(count=3, dtype=torch.float32, **settings):
    return [{"net": network(seed, dtype), "seed": seed, **settings} for seed in range(count)]


@pytest.fixture
def groups(monkeypatch):
    """Which runs were trained together."""
    seen, real = [], _group.grouped

    def grouped(*arguments):
        found = real(*arguments)
        seen.extend(found)
        return found

    monkeypatch.setattr(_group, "grouped", grouped)
    return seen


class TestAgreementWithFit:
    @staticmethod
    def varied(algorithm, dtype):
        """Runs that differ in all that may differ within a group."""
        schedules = (None, cb.Schedule("cosine"), cb.Schedule("exponential", warmup=0.2))
        return [
            {
                "net": network(seed, dtype),
                "seed": seed,
                "temperature": TEMPERATURES[seed],
                "algorithm": dataclasses.replace(algorithm, lr=algorithm.lr * (1 + seed / 4)),
                "prior": cb.GaussianPrior(variance_scale=10.0 * (seed + 1)),
                "schedule": schedules[seed],
            }
            for seed in range(3)
        ]

    @pytest.mark.parametrize(("name", "likelihood"), PAIRS)
    def test_in_float64(self, name, likelihood, groups):
        likelihood = LIKELIHOODS[likelihood]
        train, runs = data_for(likelihood, torch.float64), self.varied(ALGORITHMS[name], torch.float64)
        found = together(train, runs, likelihood=likelihood)
        assert groups == [[0, 1, 2]]
        for one, other in zip(found, apart(train, runs, likelihood=likelihood), strict=True):
            assert_close(one, other, 1e-10)
            assert one.metadata.keys() == other.metadata.keys()
            history = [posterior.metadata.pop("history") for posterior in (one, other)]
            assert one.metadata == other.metadata
            for record, expected in zip(*history, strict=True):
                assert record == pytest.approx(expected, rel=1e-8)

    @pytest.mark.parametrize("name", ALGORITHMS)
    def test_in_float32(self, name):
        likelihood = LIKELIHOODS["ibp"]
        train, runs = data_for(likelihood), self.varied(ALGORITHMS[name], torch.float32)
        for one, other in zip(
            together(train, runs, likelihood=likelihood), apart(train, runs, likelihood=likelihood), strict=True
        ):
            # SWAG's variance is a difference of numbers that are nearly the same.
            assert_close(one, other, 1e-5, only="mean:" if "swag" in name else "")

    @pytest.mark.parametrize("name", ["map", "vogn", "bbb"])
    def test_over_radii_and_their_probabilities(self, name, groups):
        runs = [
            {"net": network(0, torch.float64), "likelihood": cb.RobustCategorical(p_eps, ramp=ramp)}
            for p_eps, ramp in (
                (cb.TwoPoint(0.1, 0.25), None),
                (cb.TwoPoint(0.05, 0.5), cb.LinearRamp()),
                (cb.TwoPoint(0.1, 0.9), cb.LinearRamp(0.2, 0.6)),
            )
        ]
        train = data_for(LIKELIHOODS["ibp"], torch.float64)
        found = together(train, runs, algorithm=ALGORITHMS[name])
        assert groups == [[0, 1, 2]]
        for one, other in zip(found, apart(train, runs, algorithm=ALGORITHMS[name]), strict=True):
            assert_close(one, other, 1e-10)

    @pytest.mark.parametrize("name", ["map", "swag", "vogn", "sghmc"])
    def test_with_statistics_of_batch_norm(self, name, groups):
        train = data_for(LIKELIHOODS["ibp"], torch.float64)
        runs = [{"net": batch_norm_net(seed).double(), "seed": seed} for seed in range(3)]
        settings = {"algorithm": ALGORITHMS[name], "likelihood": LIKELIHOODS["ibp"], "validation": 0.25}
        found = together(train, runs, **settings)
        assert groups == [[0, 1, 2]]
        for one, other in zip(found, apart(train, runs, **settings), strict=True):
            assert_close(one, other, 1e-9)
            for buffer, tensor in other.buffers.items():
                torch.testing.assert_close(one.buffers[buffer], tensor, rtol=1e-9, atol=1e-12)

    @pytest.mark.parametrize("name", ["map", "vogn"])
    @pytest.mark.parametrize("adversary", [cb.IBP(), CROWNIBP()], ids=repr)
    def test_with_convolutions(self, name, adversary):
        def net(seed):
            torch.manual_seed(seed)
            return nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)).double()

        train = (torch.rand(SIZE, 1, 3, 3, dtype=torch.float64), classes())
        runs = [{"net": net(seed), "seed": seed} for seed in range(2)]
        settings = {"algorithm": ALGORITHMS[name], "likelihood": cb.RobustCategorical(eps=0.05, adversary=adversary)}
        for one, other in zip(together(train, runs, **settings), apart(train, runs, **settings), strict=True):
            assert_close(one, other, 1e-10)

    def test_with_frozen_parameters(self):
        runs = seeded(dtype=torch.float64)
        for own in runs:
            own["net"][1].requires_grad_(False)
        train = data_for(LIKELIHOODS["ibp"], torch.float64)
        for one, other in zip(together(train, runs, algorithm="bbb"), apart(train, runs, algorithm="bbb"), strict=True):
            assert_close(one, other, 1e-10)
            assert one.metadata["frozen"] == other.metadata["frozen"]

    def test_with_data_of_their_own(self, groups):
        """Each holds out other examples, so none of them has another's data."""
        runs = seeded(dtype=torch.float64)
        settings = {"algorithm": ALGORITHMS["vogn"], "validation": 0.25, "batch_size": 6}
        train = data_for(LIKELIHOODS["ibp"], torch.float64)
        found = together(train, runs, **settings)
        assert groups == [[0, 1, 2]]
        for one, other in zip(found, apart(train, runs, **settings), strict=True):
            assert_close(one, other, 1e-10)
            assert one.metadata["held_out"] == pytest.approx(other.metadata["held_out"])
            assert one.metadata["data"] == other.metadata["data"]

    @pytest.mark.parametrize("algorithm", [cb.HMC(lr=0.01, leapfrog=3, burn_in=1), cb.DeepEnsemble(members=2)])
    def test_what_is_not_elementwise_has_the_same_bits(self, algorithm, groups):
        runs = seeded(2)
        train = data_for(LIKELIHOODS["ibp"])
        found = together(train, runs, algorithm=algorithm)
        assert groups == [[0], [1]]
        for one, other in zip(found, apart(train, runs, algorithm=algorithm), strict=True):
            assert_same_posterior(one, other)

    def test_loaders_have_the_same_bits(self, groups):
        train = DataLoader(TensorDataset(inputs(), classes()), batch_size=BATCH_SIZE, shuffle=True)
        found = together(train, seeded(2), algorithm="map")
        assert groups == [[0], [1]]
        for one, other in zip(found, apart(train, seeded(2), algorithm="map"), strict=True):
            assert_same_posterior(one, other)

    def test_post_hoc(self):
        algorithm = cb.Laplace(structure="last-layer")
        train = data_for(LIKELIHOODS["ibp"])
        found = together(train, seeded(), algorithm=algorithm, epochs=0)
        for one, other in zip(found, apart(train, seeded(), algorithm=algorithm, epochs=0), strict=True):
            assert_same_posterior(one, other)


class TestGroups:
    @pytest.mark.parametrize(
        ("own", "expected"),
        [
            ([{"seed": 1}, {"seed": 2}, {"seed": 3}], [[0, 1, 2]]),
            ([{"algorithm": cb.MAP(lr=0.1)}, {"algorithm": "map"}, {}], [[0, 1, 2]]),
            ([{"algorithm": cb.MAP(betas=(0.8, 0.999))}, {}, {}], [[0], [1, 2]]),
            ([{"algorithm": "bbb"}, {}, {"algorithm": "bbb"}, {}], [[0, 2], [1, 3]]),
            ([{"likelihood": LIKELIHOODS["pgd"]}, {}, {"likelihood": LIKELIHOODS["ibp"]}], [[0], [1, 2]]),
            ([{"likelihood": cb.RobustCategorical(cb.TwoPoint(0.1, 0.0))}, {}], [[0], [1]]),
            ([{"likelihood": cb.RobustCategorical(cb.TwoPoint(0.1), domain=None)}, {}], [[0], [1]]),
            ([{"likelihood": cb.RobustCategorical(cb.Rayleigh(0.1, draws=k))} for k in (1, 2, 1)], [[0, 2], [1]]),
            ([{"likelihood": "standard"}, {}, {"likelihood": "standard"}], [[0, 2], [1]]),
            ([{"epochs": 1}, {}, {}], [[0], [1, 2]]),
            ([{"batch_size": 6}, {}, {}], [[0], [1, 2]]),
            ([{"validation": 0.5}, {}, {}], [[0], [1, 2]]),
            ([{"net": cb.networks.mlp(4, [5], 3, seed=0)}, {}, {}], [[0], [1, 2]]),
            ([{"prior": cb.GaussianPrior(std=1.0)}, {"schedule": cb.Schedule("cosine")}, {}], [[0, 1, 2]]),
            ([{"temperature": (1.0, 0.1)}, {"temperature": 0.5}, {}], [[0], [1, 2]]),  # MAP knows no temperature
        ],
    )
    def test_runs_of_one_program_are_one_group(self, own, expected, groups):
        settings = {"algorithm": cb.MAP(), "likelihood": LIKELIHOODS["ibp"], "epochs": 2}
        posteriors = cb.fit_many(network(), data_for(LIKELIHOODS["ibp"]), own, **{**COMMON, **settings})
        assert groups == expected
        for posterior, run in zip(posteriors, own, strict=True):
            wanted = {**COMMON, **settings, **run}
            assert posterior.metadata["epochs"] == wanted["epochs"]
            assert posterior.metadata["seed"] == wanted.get("seed", 0)
            name = posterior.metadata["algorithm"]["name"].lower()
            assert name == (wanted["algorithm"] if isinstance(wanted["algorithm"], str) else "map")

    def test_settings_of_regressions_that_are_no_noise(self, groups):
        runs = [{"likelihood": cb.RobustGaussian(noise, eps=0.1)} for noise in (0.5, 1.0, 0.5)]
        cb.fit_many(network(), data_for(LIKELIHOODS["regression"]), runs, algorithm="map", **{**COMMON, "epochs": 1})
        assert groups == [[0, 2], [1]]

    def test_an_algorithm_with_steps_of_its_own_is_left_alone(self, groups):
        class ByName(cb.MAP):
            """Treats its layers in different ways."""

            def update(self, target, state, batch, noise, generator):
                assert "1.weight" in state.params
                return super().update(target, state, batch, noise, generator)

        together(data_for(LIKELIHOODS["ibp"]), seeded(2), algorithm=ByName())
        assert groups == [[0], [1]]

    def test_settings_that_are_no_fields_count(self, groups):
        class Named(cb.MAP):
            def __init__(self, name):
                super().__init__()
                object.__setattr__(self, "name", name)

        runs = [{"net": network(), "algorithm": Named(name)} for name in "aba"]
        together(data_for(LIKELIHOODS["ibp"]), runs)
        assert groups == [[0, 2], [1]]

    def test_a_group_makes_as_many_steps_as_one_model(self, monkeypatch):
        seen, real = [], cb.VOGN.update

        def update(self, target, state, *rest):
            seen.append(len(state.lr))
            return real(self, target, state, *rest)

        monkeypatch.setattr(cb.VOGN, "update", update)
        together(data_for(LIKELIHOODS["ibp"]), seeded(5), algorithm="vogn")
        assert seen == [5] * EPOCHS * STEPS

    @pytest.mark.parametrize(
        ("size", "expected"), [(1, [[0], [1], [2], [3]]), (3, [[0, 1, 2], [3]]), (9, [[0, 1, 2, 3]])]
    )
    def test_group_size(self, size, expected, groups):
        train = data_for(LIKELIHOODS["ibp"])
        found = together(train, seeded(4), algorithm="map", group_size=size)
        assert groups == expected
        for one, other in zip(found, apart(train, seeded(4), algorithm="map"), strict=True):
            assert_close(one, other, 1e-5)

    def test_a_cpu_takes_as_many_as_its_caches_like(self, groups, monkeypatch):
        monkeypatch.setattr(_group, "ON_CPU", 110)  # a network has 51 weights
        together(data_for(LIKELIHOODS["ibp"]), seeded(5), algorithm="map")
        assert groups == [[0, 1], [2, 3], [4]]

    def test_the_order_of_runs_is_the_order_of_posteriors(self):
        train, runs = data_for(LIKELIHOODS["ibp"], torch.float64), seeded(3, torch.float64)
        there = together(train, runs, algorithm="bbb")
        back = together(train, runs[::-1], algorithm="bbb")
        for one, other in zip(there, back[::-1], strict=True):
            assert_close(one, other, 1e-12)


class TestDivergence:
    """A rate that is far too large; the others must not notice."""

    runs = ({"seed": 0}, {"seed": 1, "algorithm": cb.MAP(lr=1e30, optimizer="sgd")}, {"seed": 2})

    def fitted(self, runs=None, **settings):
        common = {**COMMON, "algorithm": cb.MAP(optimizer="sgd"), "validation": 0.25, "batch_size": 6}
        train = data_for(LIKELIHOODS["ibp"], torch.float64)
        runs = self.runs if runs is None else runs
        return cb.fit_many(network(0, torch.float64), train, runs, **{**common, **settings})

    def test_the_others_are_what_they_are_alone(self, groups):
        found = self.fitted(return_exceptions=True)
        assert groups == [[0, 1, 2]]
        assert isinstance(found[1], Diverged)
        for one, other in zip(found[::2], self.fitted(self.runs[::2]), strict=True):
            assert_close(one, other, 1e-10)
            assert len(one.metadata["history"]) == EPOCHS

    def test_it_is_raised_at_the_end_with_the_others(self):
        with pytest.raises(Diverged, match=r"1 of 3 runs diverged: 1\..*return_exceptions") as raised:
            self.fitted()
        first, gap, last = raised.value.posteriors
        assert gap is None
        assert isinstance(first, cb.Point) and isinstance(last, cb.Point)

    def test_all_of_them(self):
        steps = []
        runs = [self.runs[1], self.runs[1]]
        found = self.fitted(runs, return_exceptions=True, progress=lambda done, total: steps.append(done))
        assert all(isinstance(error, Diverged) for error in found)
        # There is nothing left to train.
        assert not steps or steps[-1] < EPOCHS * STEPS

    def test_alone(self):
        found = self.fitted(group_size=1, return_exceptions=True)
        assert [isinstance(result, Diverged) for result in found] == [False, True, False]

    def test_it_is_still_known_after_a_resume(self, tmp_path):
        expected = self.fitted(return_exceptions=True, checkpoint=tmp_path)
        found = self.fitted(return_exceptions=True, checkpoint=tmp_path, resume=True)
        assert str(found[1]) == str(expected[1])
        assert_same_posterior(found[0], expected[0])

    def test_a_state_that_is_not_finite_though_the_loss_is(self, monkeypatch):
        """A loss shows it one step late."""
        real = cb.MAP.update

        def update(self, target, state, *rest):
            state, info = real(self, target, state, *rest)
            if int(state.step[0]) == EPOCHS * STEPS:
                params = {name: p.index_fill(0, torch.tensor([1]), math.nan) for name, p in state.params.items()}
                state = state._replace(params=params)
            return state, info

        monkeypatch.setattr(cb.MAP, "update", update)
        found = self.fitted([{"seed": seed} for seed in range(3)], return_exceptions=True)
        assert [isinstance(result, Diverged) for result in found] == [False, True, False]


class TestTemperature:
    def test_candidates_of_all_runs_are_one_group(self, groups):
        settings = {"algorithm": ALGORITHMS["vogn"], "temperature": (1.0, 0.1), "validation": 0.25, "batch_size": 6}
        train = data_for(LIKELIHOODS["ibp"], torch.float64)
        found = together(train, seeded(2, torch.float64), **settings)
        assert groups == [[0, 1, 2, 3]]
        for one, other in zip(found, apart(train, seeded(2, torch.float64), **settings), strict=True):
            assert_close(one, other, 1e-10)
            curves = [posterior.metadata["temperature_curve"] for posterior in (one, other)]
            for point, expected in zip(*curves, strict=True):
                assert point == pytest.approx(expected)
            assert one.metadata["temperature"] == other.metadata["temperature"]

    def test_a_candidate_that_diverges_is_the_worst(self, monkeypatch):
        real = cb.VOGN.update

        def update(self, target, *rest):
            state, info = real(self, target, *rest)
            cold = target.temperature.flatten() < 0.5
            return state, {"loss": torch.where(cold, math.nan, info["loss"])}

        monkeypatch.setattr(cb.VOGN, "update", update)
        settings = {"algorithm": ALGORITHMS["vogn"], "temperature": (0.1, 1.0), "validation": 0.25, "batch_size": 6}
        for posterior in together(data_for(LIKELIHOODS["ibp"]), seeded(2), **settings):
            assert posterior.metadata["temperature"] == 1.0
            cold, warm = posterior.metadata["temperature_curve"]
            assert cold == {"temperature": 0.1, "diverged": 1.0} and "validation_loss" in warm

    def test_where_it_enters_at_the_end_alone(self, groups):
        settings = {"algorithm": ALGORITHMS["swag"], "temperature": "validate", "validation": 0.25, "batch_size": 6}
        found = together(data_for(LIKELIHOODS["ibp"]), seeded(2), **settings)
        assert groups == [[0, 1]]
        assert all(len(posterior.metadata["temperature_curve"]) == 4 for posterior in found)


class TestBetweenSteps:
    def test_callbacks_know_the_run(self):
        seen, own = [], []
        runs = seeded(2)
        runs[1]["callbacks"] = [own.append]
        together(data_for(LIKELIHOODS["ibp"]), runs, algorithm="map", callbacks=[seen.append], validation=0.25)
        assert [record["run"] for record in seen] == [0.0] * EPOCHS
        assert [record["run"] for record in own] == [1.0] * EPOCHS
        assert {"epoch", "loss", "seconds", "validation_loss", "validation_accuracy"} <= seen[0].keys()

    def test_progress_counts_the_steps_of_all_groups(self):
        seen = []
        runs = [*seeded(2), {"net": network(), "algorithm": "bbb"}]
        together(data_for(LIKELIHOODS["ibp"]), runs, algorithm="map", progress=lambda *counts: seen.append(counts))
        assert [total for _, total in seen] == [2 * EPOCHS * STEPS] * len(seen)
        assert seen[-1] == (2 * EPOCHS * STEPS, 2 * EPOCHS * STEPS)
        assert seen == sorted(seen)

    def test_on_start_is_called_once_and_only_if_all_is_well(self):
        called = []
        settings = {"algorithm": "map", "on_start": lambda: called.append(1)}
        with pytest.raises(InvalidInput):
            together(data_for(LIKELIHOODS["ibp"]), [*seeded(1), {"net": network(), "epochs": 0}], **settings)
        assert called == []
        together(data_for(LIKELIHOODS["ibp"]), seeded(2), **settings)
        assert called == [1]

    def test_posteriors_do_not_share_memory(self):
        one, other = together(data_for(LIKELIHOODS["ibp"]), seeded(2), algorithm="map")
        before = other.params["1.weight"].clone()
        one.params["1.weight"].untyped_storage().fill_(0)
        assert torch.equal(other.params["1.weight"], before)

    def test_networks_are_left_alone(self):
        runs = seeded(2)
        before = [{name: p.clone() for name, p in own["net"].named_parameters()} for own in runs]
        together(data_for(LIKELIHOODS["ibp"]), runs, algorithm="map")
        for own, params in zip(runs, before, strict=True):
            assert all(torch.equal(p, params[name]) for name, p in own["net"].named_parameters())


@pytest.mark.parametrize("likelihood", ["standard", "ibp", "rayleigh", "pgd"])
def test_noise_and_rates_that_are_drawn_ahead_are_those_of_each_step(likelihood, monkeypatch):
    """As on a GPU, where a group brings those of many steps there at once."""
    settings = {
        "algorithm": ALGORITHMS["vogn"],
        "likelihood": LIKELIHOODS[likelihood],
        "schedule": cb.Schedule("cosine"),
    }
    expected = together(data_for(LIKELIHOODS["ibp"]), seeded(), **settings)

    class Ahead(_group.Group):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.captured = lambda *given: made(self.algorithm, *given, self.generator)

    monkeypatch.setattr(_group, "Group", Ahead)
    for one, other in zip(together(data_for(LIKELIHOODS["ibp"]), seeded(), **settings), expected, strict=True):
        assert_same_posterior(one, other)


class TestNormalLike:
    @given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4), models=st.integers(1, 3))
    @settings(max_examples=30, deadline=None)
    def test_each_row_is_what_its_generator_gives_alone(self, sizes, models):
        def generators():
            return tuple(torch.Generator().manual_seed(seed) for seed in range(models))

        drawn = normal_like(torch.empty(models, sum(sizes)), Streams(generators(), tuple(sizes)))
        for row, generator in zip(drawn, generators(), strict=True):
            assert torch.equal(row, torch.cat([normal_like(torch.empty(size), generator) for size in sizes]))

    def test_of_one_generator_it_is_randn(self):
        drawn = normal_like(torch.empty(3, 4, dtype=torch.float64), torch.Generator().manual_seed(0))
        same = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        assert torch.equal(drawn, same)


@pytest.mark.parametrize("shared", [True, False])
def test_epochs_side_by_side_are_the_epochs_themselves(shared):
    data = Batch(inputs(), classes())
    sources = [TensorSource(data, 5)] * 3 if shared else [TensorSource(data, 5) for _ in range(3)]
    expected = [list(source.epoch(seed, 1)) for seed, source in enumerate(sources)]
    for step, batch in enumerate(epochs_together(sources, range(3), 1)):
        assert len(batch.inputs) == 5
        for i in range(3):
            assert torch.equal(batch.inputs[:, i], expected[i][step].inputs)
            assert torch.equal(batch.targets[:, i], expected[i][step].targets)
    assert step == 2


class TestRefused:
    @pytest.mark.parametrize(
        ("runs", "words"),
        [
            ([], "empty"),
            ({"seed": 0}, "list of dictionaries"),
            ("seeds", "list of dictionaries"),
            (3, "list of dictionaries"),
            ([{"seed": 0}, 1], "run 1 is no dictionary"),
            ([{"sed": 0}], "run 0 has 'sed'.*seed"),
            ([{"device": "cpu"}], "'device', which no run"),
            ([{"checkpoint": "a"}], "'checkpoint', which no run"),
            ([{}, {"seed": 0.5}], "run 1: seed"),
            ([{}, {"epochs": 0}], "run 1: epochs"),
            ([{"net": None}], "run 0: there is no net"),
            ([{"train": None}], "run 0: there is no train"),
            ([{"algorithm": None}], "run 0: there is no algorithm"),
            ([{}, {"temperature": -1.0}], "run 1: temperature"),
            ([{"callbacks": print}], "run 0: callbacks.*list"),
        ],
    )
    def test_runs(self, runs, words):
        with pytest.raises(InvalidInput, match=words):
            cb.fit_many(network(), data_for(LIKELIHOODS["ibp"]), runs, algorithm="map", progress=False)

    @pytest.mark.parametrize("size", [0, -1, 1.5, "all"])
    def test_group_size(self, size):
        with pytest.raises(InvalidInput, match="group_size"):
            together(data_for(LIKELIHOODS["ibp"]), seeded(1), algorithm="map", group_size=size)

    def test_an_error_keeps_its_kind(self):
        runs = [*seeded(1), {"net": torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Softsign())}]
        with pytest.raises(UnsupportedLayer, match="run 1: "):
            together(data_for(LIKELIHOODS["ibp"]), runs, algorithm="map")
