"""Many models as one program: each is what ``fit`` gives, and none knows of the others."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import certibayes as cb
from certibayes.inference import _group
from certibayes.likelihoods import CROWNIBP

from .cases import (
    BATCH_SIZE,
    LIKELIHOODS,
    SIZE,
    assert_same_posterior,
    batch_norm_net,
    classes,
    data_for,
    differ,
    inputs,
)
from .many_cases import (
    ALGORITHMS,
    COMMON,
    EPOCHS,
    PAIRS,
    STEPS,
    TEMPERATURES,
    apart,
    assert_close,
    image_net,
    images,
    network,
    seeded,
    together,
)


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

    @pytest.mark.parametrize(("likelihood", "name"), PAIRS)
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

    @pytest.mark.parametrize("name", ["map", "swag", "bbb", "snapshot"])
    def test_each_augments_its_own_data(self, name, groups):
        """The same images, changed by numbers of each model's own seed."""
        runs = [{"net": image_net(0, torch.float64), "seed": seed} for seed in range(3)]
        settings = {"algorithm": ALGORITHMS[name], "likelihood": LIKELIHOODS["ibp"], "augment": "flip,crop:1"}
        train = images(torch.float64)
        found = together(train, runs, **settings)
        assert groups == [[0, 1, 2]]
        for one, other in zip(found, apart(train, runs, **settings), strict=True):
            assert_close(one, other, 1e-10)
            assert one.metadata["augment"] == other.metadata["augment"]
        plain = together(train, runs, **{**settings, "augment": None})
        assert all(differ(one, other) for one, other in zip(found, plain, strict=True))

    def test_and_in_a_way_of_its_own(self, groups):
        ways = ("flip", "crop:1", None, [cb.data.RandomCrop(2, fill=0.5), cb.data.RandomFlip()])
        runs = [{"net": image_net(0, torch.float64), "augment": way} for way in ways]
        train = images(torch.float64)
        found = together(train, runs, algorithm="map")
        assert groups == [[0, 1, 2, 3]]
        for one, other in zip(found, apart(train, runs, algorithm="map"), strict=True):
            assert_close(one, other, 1e-10)
            assert one.metadata.get("augment") == other.metadata.get("augment")

    def test_candidate_temperatures_see_the_same_images(self, groups):
        settings = {"algorithm": ALGORITHMS["bbb"], "temperature": (1.0, 0.1), "augment": "flip", "validation": 0.25}
        runs, train = [{"net": image_net(0, torch.float64)}], images(torch.float64)
        (found,) = together(train, runs, batch_size=6, **settings)
        assert groups == [[0, 1]]
        (expected,) = apart(train, runs, batch_size=6, **settings)
        assert_close(found, expected, 1e-10)

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
