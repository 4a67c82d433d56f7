"""What ``fit`` reports, what it refuses and what it leaves alone."""

import copy
import math
from typing import ClassVar

import pytest
import torch
from torch.utils.data import DataLoader

import certibayes as cb
from certibayes.errors import Diverged, InvalidInput
from certibayes.networks import trace

from .cases import (
    ALGORITHMS,
    EPOCHS,
    LIKELIHOODS,
    SIZE,
    STEPS,
    Mapped,
    assert_same_posterior,
    classes,
    differ,
    fit,
    inputs,
    network,
)


class TestProgress:
    def test_a_function_is_called_with_steps_made_and_steps_in_all(self, capsys):
        calls = []
        fit(progress=lambda done, total: calls.append((done, total)))
        assert calls == [(STEPS * epoch, STEPS * EPOCHS) for epoch in range(1, EPOCHS + 1)]
        assert capsys.readouterr().err == ""

    def test_a_bar_shows_the_loss_on_standard_error(self, capsys):
        fit(progress=True)
        shown = capsys.readouterr()
        assert "MAP" in shown.err
        assert f"{STEPS * EPOCHS}/{STEPS * EPOCHS}" in shown.err
        assert "loss" in shown.err
        assert shown.out == ""

    def test_false_is_silence(self, capsys):
        fit(progress=False)
        assert capsys.readouterr().err == ""


class Watched(cb.MAP):
    """Notes the seeds of the generators that it is given."""

    seeds: ClassVar[dict[str, int]] = {}

    def update(self, target, state, batch, noise, generator):
        self.seeds["update"] = generator.initial_seed()
        return super().update(target, state, batch, noise, generator)

    def finalize(self, target, state, sweep, generator):
        self.seeds["finalize"] = generator.initial_seed()
        return super().finalize(target, state, sweep, generator)


def test_a_seed_stands_for_the_same_streams_in_every_version():
    """Published posteriors name their seed; these numbers must never change."""
    fit(algorithm=Watched(), seed=4)
    assert Watched.seeds == {"update": 31_050_378_712_789_171, "finalize": 63_274_466_290_341_850}


class TestValidation:
    def test_a_fraction_is_held_out(self):
        posterior = fit(validation=0.25, batch_size=6)
        assert posterior.metadata["data"]["size"] == 18
        assert all(0.0 <= record["validation_accuracy"] <= 1.0 for record in posterior.metadata["history"])

    def test_held_out_data_are_not_trained_on(self):
        """Spoil each label in turn: the ones held out change the figures, but never the weights."""
        clean = fit(validation=0.25, batch_size=6)
        held = 0
        for index in range(SIZE):
            spoiled = classes()
            spoiled[index] = (spoiled[index] + 1) % 3
            other = fit(train=(inputs(), spoiled), validation=0.25, batch_size=6)
            held += not differ(clean, other)
        assert held == 6

    def test_a_pair_is_evaluated_by_the_likelihood_at_the_full_radius(self):
        likelihood = LIKELIHOODS["ibp"]
        posterior = fit(likelihood, validation=(inputs(), classes()))
        network_, batch = trace(network(), inputs()), cb.likelihoods.Batch(inputs(), classes())
        noise = likelihood.draw(1.0, batch, None)
        expected = -likelihood.log_likelihood(network_.graph, posterior.params, batch, noise).mean()
        assert posterior.metadata["history"][-1]["validation_loss"] == pytest.approx(float(expected), rel=1e-5)

    def test_the_accuracy_is_that_of_the_point(self):
        posterior = fit(validation=(inputs(), classes()), epochs=20)
        hits = posterior.predictor().predict(inputs()) == classes()
        assert posterior.metadata["history"][-1]["validation_accuracy"] == pytest.approx(float(hits.float().mean()))

    def test_the_robust_accuracy_is_by_the_likelihoods_own_bounds(self):
        likelihood = LIKELIHOODS["ibp"]
        posterior = fit(likelihood, validation=(inputs(), classes()), epochs=20)
        radius = torch.tensor(likelihood.p_eps.eta)
        box = cb.regions.InputRegion(inputs(), radius, domain=likelihood.domain).ideal_box()
        bounds = cb.bounds.interval_bounds(posterior.graph, posterior.params, box)
        worst = cb.bounds.worst_logits(bounds, classes())
        expected = float((worst.argmax(-1) == classes()).float().mean())
        assert posterior.metadata["history"][-1]["validation_robust_accuracy"] == pytest.approx(expected)
        assert "validation_robust_accuracy" not in fit(validation=0.25).metadata["history"][-1]

    def test_regression_has_a_loss_but_no_accuracy(self):
        record = fit(LIKELIHOODS["regression"], validation=0.25, batch_size=6).metadata["history"][-1]
        assert "validation_loss" in record
        assert "validation_accuracy" not in record

    def test_a_pair_does_not_change_the_posterior(self):
        assert not differ(fit(LIKELIHOODS["pgd"], validation=(inputs(), classes())), fit(LIKELIHOODS["pgd"]))

    @pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 1.5, math.nan])
    def test_bad_fractions(self, fraction):
        with pytest.raises(InvalidInput):
            fit(validation=fraction)

    def test_a_loader_cannot_be_split(self):
        with pytest.raises(InvalidInput, match="pair"):
            fit(train=DataLoader(Mapped()), validation=0.1)

    @pytest.mark.parametrize(
        "pair",
        [(inputs(), classes()[:-1]), (torch.full_like(inputs(), math.nan), classes()), (inputs()[:, :-1], classes())],
        ids=["lengths", "nan", "shape"],
    )
    def test_bad_pairs(self, pair):
        with pytest.raises(InvalidInput):
            fit(validation=pair)


class TestRecords:
    def test_callbacks_see_every_epoch(self):
        seen = []
        posterior = fit(callbacks=[seen.append])
        assert [record["epoch"] for record in seen] == [1.0, 2.0, 3.0]
        assert all(record.keys() == {"epoch", "loss", "seconds"} for record in seen)
        without_time = [{k: v for k, v in record.items() if k != "seconds"} for record in seen]
        assert without_time == posterior.metadata["history"]

    def test_the_loss_is_the_mean_over_the_epoch(self):
        """At a rate of 0 every batch meets the same network."""
        likelihood = cb.Categorical()
        posterior = fit(algorithm=cb.MAP(lr=0.0))
        traced, batch = trace(network(), inputs()), cb.likelihoods.Batch(inputs(), classes())
        noise = likelihood.draw(1.0, batch, None)
        expected = -float(likelihood.log_likelihood(traced.graph, traced.params, batch, noise).mean())
        for record in posterior.metadata["history"]:
            assert record["loss"] == pytest.approx(expected, rel=1e-5)

    def test_the_schedule_is_applied(self):
        """A rate of 0 from the half on would be another run; so is a decaying one."""
        rates = []

        class Watching(cb.MAP):
            def update(self, target, state, *rest):
                rates.append(float(state.lr))
                return super().update(target, state, *rest)

        fit(algorithm=Watching(lr=0.5), schedule=cb.Schedule("cosine", floor=0.0))
        total = EPOCHS * STEPS
        expected = [0.25 * (1 + math.cos(math.pi * step / total)) for step in range(total)]
        assert rates == pytest.approx(expected, rel=1e-5)

    def test_the_ramp_is_applied(self):
        radii = []

        class Watching(cb.MAP):
            def update(self, target, state, batch, noise, generator):
                radii.append(float(noise.radii[0]))
                return super().update(target, state, batch, noise, generator)

        fit(LIKELIHOODS["ibp"], algorithm=Watching())
        total = EPOCHS * STEPS
        assert radii == pytest.approx([0.1 * step / total for step in range(total)])

    def test_the_bar_goes_to_standard_error(self, capsys):
        fit(progress=True, validation=0.25, batch_size=6)
        shown = capsys.readouterr()
        assert shown.out == ""
        assert "MAP" in shown.err

    def test_silence_on_request(self, capsys):
        fit(progress=False)
        shown = capsys.readouterr()
        assert shown.out == shown.err == ""


class TestStart:
    def test_it_is_called_once_whatever_follows(self):
        calls = []
        fit(algorithm=ALGORITHMS["vogn"], temperature=(1.0, 0.1), on_start=lambda: calls.append("start"))
        assert calls == ["start"]

    @pytest.mark.parametrize(
        "wrong",
        [
            {"epochs": 0},
            {"temperature": -1.0},
            {"device": "mars"},
            {"validation": 2.0},
            {"train": (inputs(), classes() + 7)},
            # Only the algorithm itself can tell.
            {"algorithm": cb.SWAG(start=0.9)},
            {"algorithm": cb.SGHMC()},
        ],
        ids=str,
    )
    def test_it_is_not_called_where_settings_are_wrong(self, wrong):
        with pytest.raises(InvalidInput):
            fit(**wrong, on_start=lambda: pytest.fail("on_start was called"))


class TestNothingElseChanges:
    @pytest.mark.parametrize("training", [True, False])
    def test_the_module(self, training):
        net = network().train(training)
        next(net.parameters()).requires_grad_(False)
        before = copy.deepcopy(net.state_dict())
        fit(net=net)
        assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
        assert net.training is training
        assert [p.requires_grad for p in net.parameters()] == [False, True, True, True]
        assert all(p.grad is None for p in net.parameters())

    def test_the_data(self):
        x, y = inputs(), classes()
        fit(LIKELIHOODS["pgd"], train=(x, y))
        assert torch.equal(x, inputs())
        assert torch.equal(y, classes())

    @pytest.mark.parametrize(
        "make",
        [lambda: (inputs(), classes()), Mapped, lambda: DataLoader(Mapped(), batch_size=8, shuffle=True)],
        ids=["tensors", "data set", "loader"],
    )
    def test_the_global_generator(self, make):
        before = torch.get_rng_state()
        fit(LIKELIHOODS["rayleigh"], train=make(), algorithm=ALGORITHMS["vogn"], validation=(inputs(), classes()))
        assert torch.equal(torch.get_rng_state(), before)

    def test_the_global_generator_does_not_matter(self):
        torch.manual_seed(1)
        one = fit(LIKELIHOODS["pgd"], algorithm=ALGORITHMS["vogn"])
        torch.manual_seed(2)
        assert_same_posterior(fit(LIKELIHOODS["pgd"], algorithm=ALGORITHMS["vogn"]), one)

    def test_the_directory_unless_it_is_asked_to(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        fit()
        assert list(tmp_path.iterdir()) == []


class TestDivergence:
    @pytest.mark.parametrize("algorithm", [cb.MAP(lr=1e30, optimizer="sgd"), cb.VOGN(lr=1e30)], ids=["map", "vogn"])
    def test_a_loss_that_is_not_a_number_stops_the_run(self, algorithm):
        with pytest.raises(Diverged, match="Lower the learning rate"):
            fit(algorithm=algorithm)

    def test_the_message_points_to_the_last_checkpoint(self, tmp_path):
        with pytest.raises(Diverged, match="still good"):
            fit(algorithm=cb.MAP(lr=1e30, optimizer="sgd"), checkpoint=tmp_path)

    def test_a_last_step_that_leaves_the_finite_numbers_is_noticed(self):
        with pytest.raises(Diverged):
            settings = {"algorithm": cb.MAP(lr=1e38, optimizer="sgd"), "epochs": 1, "batch_size": SIZE}
            fit(cb.RobustGaussian(0.1), train=(inputs(), 100 * inputs()[:, :3]), **settings)
