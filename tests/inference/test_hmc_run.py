"""A run of HMC: where chains start, what is kept, one function of the weights throughout, and settings refused."""

import math

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import certibayes as cb
from certibayes.bounds import Rounding
from certibayes.errors import InvalidInput, RunExists
from certibayes.inference import Target

from .cases import (
    EPOCHS,
    LIKELIHOODS,
    SIZE,
    Mapped,
    assert_same_posterior,
    batch_norm_net,
    classes,
    fit,
    fixed_hmc,
    inputs,
    target_for,
)
from .conjugate import fit_linear, linear_net, problem


class TestTheRun:
    @pytest.fixture
    def calls(self, monkeypatch):
        """How often the potential was computed, trajectory by trajectory."""
        counts, real_potential, real_update = [], Target.potential_and_gradient, cb.HMC.update

        def potential(self, *arguments):
            counts[-1] += 1
            return real_potential(self, *arguments)

        def update(self, *arguments):
            counts.append(0)
            return real_update(self, *arguments)

        monkeypatch.setattr(Target, "potential_and_gradient", potential)
        monkeypatch.setattr(cb.HMC, "update", update)
        return counts

    def test_burn_in_has_its_own_length(self, calls):
        fit(algorithm=cb.HMC(leapfrog=2, burn_in=3, burn_in_leapfrog=7, chains=2), epochs=2)
        # The first also computes where the chains start; all others start from what they know.
        assert calls == [16, 14, 14, 4, 4]

    def test_burn_in_is_as_long_as_later_unless_said(self, calls):
        fit(algorithm=cb.HMC(leapfrog=2, burn_in=1), epochs=1)
        assert calls == [3, 2]

    def test_a_resumed_run_knows_the_gradient_where_it_stopped(self, calls, tmp_path):
        def break_off(record):
            if record["epoch"] == 2:
                raise RuntimeError("power cut")

        settings = {"algorithm": cb.HMC(lr=0.1, leapfrog=3, burn_in=1, chains=2, mass="fisher"), "epochs": 3}
        with pytest.raises(RuntimeError, match="power cut"):
            fit(callbacks=[break_off], checkpoint=tmp_path, **settings)
        assert calls == [8, 6]
        calls.clear()
        fit(checkpoint=tmp_path, resume=True, **settings)
        # A callback is followed by the checkpoint, so the second trajectory is made again.
        assert calls == [6, 6, 6]

    @pytest.mark.parametrize("burn_in", [0, 1, EPOCHS, EPOCHS + 4])
    def test_epochs_are_the_trajectories_that_are_kept(self, calls, burn_in):
        posterior = fit(algorithm=cb.HMC(leapfrog=1, burn_in=burn_in), epochs=EPOCHS)
        assert len(posterior) == posterior.metadata["epochs"] == EPOCHS
        assert len(calls) == EPOCHS + burn_in

    def test_burn_in_is_neither_kept_nor_counted(self, monkeypatch):
        real, places = cb.HMC.update, []

        def update(self, *arguments):
            state, info = real(self, *arguments)
            places.append(state.position.params["1.weight"].clone())
            return state, info

        monkeypatch.setattr(cb.HMC, "update", update)
        posterior = fit(algorithm=cb.HMC(lr=0.01, leapfrog=2, burn_in=4, chains=3), epochs=6)
        assert len(posterior) == posterior.metadata["sampler"]["proposed"] == 18
        assert posterior.metadata["chains"] == 3
        # Chain by chain, and in each in order.
        expected = torch.stack(places[4:], 1).flatten(0, 1)
        assert torch.equal(posterior.stacked["1.weight"], expected)
        accepted = posterior.metadata["sampler"]["acceptance"] * 6
        counted = sum(record["acceptance"] for record in posterior.metadata["history"][4:])
        assert accepted == pytest.approx(counted)

    def test_the_diagnostics_find_their_chains(self):
        pytest.importorskip("arviz_stats")
        posterior = fit_linear(cb.HMC(lr=0.5, leapfrog=3, burn_in=10, chains=4, mass="fisher"), problem(50), epochs=50)
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        assert float(cb.diagnose(posterior, x).predictions.rhat.max()) < 1.2

    @pytest.mark.parametrize("name", ["pgd", "rayleigh"])
    def test_one_function_of_the_weights_for_the_whole_run(self, name, monkeypatch):
        likelihood, seen, drawn = LIKELIHOODS[name], [], []
        real_update, real_draw = cb.HMC.update, type(likelihood).draw

        def update(self, target, state, batch, noise, generator):
            seen.append((batch, noise))
            return real_update(self, target, state, batch, noise, generator)

        def draw(self, progress, *arguments):
            drawn.append(progress)
            return real_draw(self, progress, *arguments)

        monkeypatch.setattr(cb.HMC, "update", update)
        monkeypatch.setattr(type(likelihood), "draw", draw)
        fit(likelihood, algorithm=cb.HMC(leapfrog=1, burn_in=1, chains=2), epochs=3, batch_size=5)
        # At the full radius, whatever the ramp says, and once.
        assert drawn == [1.0]
        (batch, noise), *others = seen
        assert len(others) == 3
        assert torch.equal(batch.inputs, inputs())
        assert torch.equal(batch.targets, classes())
        for other_batch, other_noise in others:
            assert torch.equal(other_batch.inputs, batch.inputs)
            assert torch.equal(other_noise.radii, noise.radii)
            assert noise.starts is None or torch.equal(other_noise.starts, noise.starts)

    @pytest.mark.parametrize("name", ["pgd", "rayleigh"])
    def test_it_is_the_same_function_after_a_resume(self, name, monkeypatch, tmp_path):
        seen, real = [], cb.HMC.update
        settings = {"algorithm": cb.HMC(leapfrog=1, burn_in=1, mass="fisher"), "checkpoint": tmp_path, "epochs": 3}

        def update(self, target, state, batch, noise, generator):
            seen.append(noise)
            return real(self, target, state, batch, noise, generator)

        def break_off(record):
            if record["epoch"] == 2:
                raise RuntimeError("power cut")

        monkeypatch.setattr(cb.HMC, "update", update)
        with pytest.raises(RuntimeError, match="power cut"):
            fit(LIKELIHOODS[name], callbacks=[break_off], **settings)
        fit(LIKELIHOODS[name], resume=True, **settings)
        assert len(seen) >= 4
        assert all(torch.equal(noise.radii, seen[0].radii) for noise in seen)
        assert seen[0].starts is None or all(torch.equal(noise.starts, seen[0].starts) for noise in seen)

    def test_other_chains_do_not_depend_on_batch_size(self):
        algorithm = cb.HMC(lr=0.01, leapfrog=2, burn_in=1)
        one, other = (fit(algorithm=algorithm, batch_size=size) for size in (3, 24))
        assert_same_posterior(one, other)

    def test_a_loader_is_gathered_whole(self):
        algorithm = cb.HMC(lr=0.01, leapfrog=2, burn_in=1)
        loader = DataLoader(TensorDataset(inputs(), classes()), batch_size=7)
        posterior = fit(train=loader, algorithm=algorithm)
        assert_same_posterior(posterior, fit(algorithm=algorithm))
        assert posterior.metadata["data"]["size"] == SIZE

    def test_a_shuffled_loader_loses_nothing(self, monkeypatch):
        seen, real = [], cb.HMC.update
        monkeypatch.setattr(
            cb.HMC, "update", lambda self, t, s, b, *rest: (seen.append(b), real(self, t, s, b, *rest))[1]
        )
        fit(
            train=DataLoader(TensorDataset(inputs(), classes()), batch_size=7, shuffle=True),
            algorithm=fixed_hmc(lr=0.01),
        )
        for batch in seen:
            assert torch.equal(batch.inputs.sort(0).values, inputs().sort(0).values)
            assert torch.equal(batch.inputs, seen[0].inputs)

    def test_a_data_set_whose_size_the_batches_do_not_divide_loses_nothing(self):
        posterior = fit(train=Mapped(23), algorithm=fixed_hmc(lr=0.01), batch_size=8)
        assert posterior.metadata["data"]["size"] == 23

    def test_batch_norm_is_sampled_as_one_function(self):
        posterior = fit(net=batch_norm_net(), algorithm=cb.HMC(lr=0.01, leapfrog=2, burn_in=1, chains=2))
        assert torch.isfinite(posterior.predictor()(inputs())).all()


class TestTheStart:
    def test_given_starts_every_chain_from_the_network(self):
        target, params, _ = target_for(LIKELIHOODS["standard"])
        state = cb.HMC(chains=3, burn_in=0).init(target, params, torch.Generator().manual_seed(0))
        for name, p in params.items():
            assert torch.equal(state.position.params[name], p.expand(3, *p.shape))

    def test_prior_starts_chains_apart_with_the_priors_variance(self):
        target, params, _ = target_for(LIKELIHOODS["standard"])
        algorithm = cb.HMC(chains=4000, burn_in=0, initial="prior")
        state = algorithm.init(target, params, torch.Generator().manual_seed(0))
        for name, p in state.position.params.items():
            drawn, std = p.flatten(1), float(target.precision[name].rsqrt())
            assert (drawn.mean(0).abs() < 5 * std / 4000**0.5).all()
            assert ((drawn.std(0) / std - 1).abs() < 5 / 8000**0.5).all()
            assert len(drawn.unique(dim=0)) == 4000

    def test_the_networks_own_parameters_are_left_alone(self):
        net = linear_net()
        data = problem(50)
        cb.fit(
            net,
            (data.x, data.y),
            algorithm=fixed_hmc(lr=0.01),
            likelihood=cb.RobustGaussian(),
            epochs=3,
            progress=False,
        )
        assert (net.weight == 0).all()


class TestSmoothing:
    @pytest.fixture
    def used(self, monkeypatch):
        """The smoothing of every bound that was asked for while sampling."""
        seen, real = set(), Rounding.magnitude

        def magnitude(self, weight):
            seen.add(self.smoothing)
            return real(self, weight)

        monkeypatch.setattr(Rounding, "magnitude", magnitude)
        return seen

    def test_bounds_are_smoothed_while_sampling(self, used):
        fit(LIKELIHOODS["ibp"], algorithm=cb.HMC(leapfrog=1, burn_in=1, smoothing=0.02, mass="fisher"))
        assert used == {0.02}

    def test_it_is_on_record(self):
        posterior = fit(LIKELIHOODS["ibp"], algorithm=cb.HMC(leapfrog=1, burn_in=1, smoothing=0.02))
        assert posterior.metadata["algorithm"]["smoothing"] == 0.02

    def test_another_smoothing_is_another_run(self, tmp_path):
        settings = {"likelihood": LIKELIHOODS["ibp"], "checkpoint": tmp_path}
        fit(algorithm=cb.HMC(leapfrog=1, burn_in=1, smoothing=0.02), **settings)
        with pytest.raises(RunExists, match=r"algorithm\.smoothing"):
            fit(algorithm=cb.HMC(leapfrog=1, burn_in=1, smoothing=0.05), resume=True, **settings)


class TestBadSettings:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("lr", -1.0),
            ("lr", math.nan),
            ("leapfrog", 0),
            ("burn_in", -1),
            ("burn_in_leapfrog", 0),
            ("burn_in_leapfrog", -2),
            ("chains", 0),
            ("chunk", 0),
            ("target_acceptance", 0.0),
            ("target_acceptance", 1.0),
            ("target_acceptance", math.nan),
            ("mass", 0.0),
            ("mass", -1.0),
            ("mass", math.nan),
            ("mass", math.inf),
            ("mass", "unit"),
            ("initial", "posterior"),
            ("smoothing", -1e-3),
            ("smoothing", math.nan),
            ("smoothing", math.inf),
        ],
    )
    def test_they_are_named(self, name, value):
        with pytest.raises(InvalidInput, match=name.removeprefix("burn_in_")):
            cb.HMC(**{name: value})
