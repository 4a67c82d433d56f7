"""Many models as one program: models that diverge, temperatures, what happens between steps, and what is refused."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import certibayes as cb
from certibayes.errors import Diverged, InvalidInput, UnsupportedLayer
from certibayes.inference import _group, normal_like
from certibayes.inference._batches import TensorSource, epochs_together
from certibayes.inference._capture import made
from certibayes.inference._streams import Streams
from certibayes.likelihoods import Batch

from .cases import LIKELIHOODS, assert_same_posterior, classes, data_for, inputs
from .many_cases import ALGORITHMS, COMMON, EPOCHS, STEPS, apart, assert_close, network, seeded, together


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
