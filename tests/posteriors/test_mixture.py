"""Mixtures of Gaussians: which component a sample comes from, statistics, files, and what cannot be mixed."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from typer.testing import CliRunner

import certibayes as cb
from certibayes.cli import app
from certibayes.errors import CorruptFile, InvalidInput

from .cases import batch_norm_net, inputs, network
from .test_join import gaussian, training_data


def low_rank(seed, net=network, rank=2):
    one = gaussian(seed, net)
    generator = torch.Generator().manual_seed(seed)
    factors = {name: 0.1 * torch.randn(rank, *p.shape, generator=generator) for name, p in one.mean.items()}
    return cb.LowRankGaussian(net(seed), one.mean, one.std, factors)


def last_layer(seed, net=network):
    module = net(seed)
    return cb.LastLayerGaussian(module, dict(module.named_parameters()), 0.1 * torch.eye(18), ["3.weight", "3.bias"])


MAKERS = {"diagonal": lambda seed: gaussian(seed, network), "low rank": low_rank, "last layer": last_layer}


def mixture(kind="diagonal", number=3, **settings):
    return cb.GaussianMixture.of(*(MAKERS[kind](seed) for seed in range(number)), **settings)


class TestTurns:
    def test_equal_components_take_turns(self):
        made = mixture(number=5)
        assert made.turns(35) == [0, 1, 2, 3, 4] * 7
        assert made.turns(7) == [0, 1, 2, 3, 4, 0, 1]

    @given(shares=st.lists(st.integers(1, 9), min_size=1, max_size=6), times=st.integers(1, 4))
    def test_whole_numbers_are_met(self, shares, times):
        one = gaussian(0, network)
        turns = cb.GaussianMixture([one] * len(shares), shares).turns(times * sum(shares))
        assert [turns.count(k) for k in range(len(shares))] == [times * share for share in shares]

    @given(weights=st.lists(st.floats(0.01, 1.0), min_size=1, max_size=6), samples=st.integers(1, 60))
    def test_no_component_is_a_sample_ahead_of_its_weight(self, weights, samples):
        made = cb.GaussianMixture([gaussian(0, network)] * len(weights), weights)
        turns = made.turns(samples)
        assert len(turns) == samples and turns == made.turns(samples + 5)[:samples]
        for k, weight in enumerate(made.weights.tolist()):
            assert turns.count(k) < weight * samples + 1 + 1e-9


class TestSamples:
    @pytest.mark.parametrize("kind", MAKERS)
    def test_a_predictor_holds_samples_of_each_around_its_own_mean(self, kind):
        made = mixture(kind)
        predictor = made.predictor(9)
        widest = dict.fromkeys(made._random, 0.1)
        for i in range(9):
            part = made.components[i % 3]
            for name, mean in part.mean.items():
                difference = (predictor.samples[name][i] - mean).abs().max()
                assert difference < 6 * (widest.get(name, 0.0) + 0.2 * (kind == "low rank")) + 1e-6, name
        assert made.predictor(4).digest == made.predictor(4).digest != made.predictor(4, seed=1).digest

    def test_all_samples_have_noise_of_their_own(self):
        """Not the same numbers for every component, which would correlate their predictions."""
        drawn = cb.GaussianMixture.of(*[gaussian(0, network)] * 3).predictor(6).samples["1.weight"]
        assert len({tuple(sample.flatten().tolist()) for sample in drawn}) == 6

    def test_independent_samples_choose_components_by_weight(self):
        """Exact means, so that each sample says where it is from."""
        parts = [gaussian(seed, network, std=0.0) for seed in range(3)]
        made = cb.GaussianMixture.of(*parts, weights=[5, 3, 2])
        drawn = made.sample(2000, torch.Generator().manual_seed(0))["1.weight"]
        shares = [float((drawn == part.mean["1.weight"]).all(-1).all(-1).float().mean()) for part in parts]
        assert sum(shares) == 1.0
        assert shares == pytest.approx([0.5, 0.3, 0.2], abs=0.04)
        assert made.independent and made.held is None

    def test_samples_bring_the_fixed_parameters_of_their_component(self):
        x, y = training_data(), torch.arange(40) % 3
        fitted = [
            cb.fit(
                network(seed), (x, y), algorithm="noisy-adam", stochastic="last", epochs=1, progress=False, seed=seed
            )
            for seed in range(2)
        ]
        made = cb.GaussianMixture.of(*fitted)
        samples = made.predictor(4).samples
        for i in range(4):
            assert torch.equal(samples["1.weight"][i], fitted[i % 2].buffers["1.weight"])
        drawn = made.sample(8, torch.Generator().manual_seed(0))["1.weight"]
        assert len({tuple(one.flatten().tolist()) for one in drawn}) == 2

    def test_a_mixture_of_kinds(self):
        made = cb.GaussianMixture.of(*(make(seed) for seed, make in enumerate(MAKERS.values())))
        assert made.predictor(6).probabilities(inputs()).shape == (5, 3)

    def test_the_prediction_is_the_mean_over_components(self):
        parts = [gaussian(seed, network, std=0.0) for seed in range(2)]
        found = cb.GaussianMixture.of(*parts, weights=[3, 1]).predictor(8).probabilities(inputs())
        one, other = (part.center().predictor().probabilities(inputs()) for part in parts)
        torch.testing.assert_close(found, 0.75 * one + 0.25 * other)


class TestStatistics:
    def test_those_of_the_components_serve_the_mixture(self):
        parts, x = [gaussian(seed) for seed in range(3)], training_data()
        for part in parts:
            part.keep_statistics(x, samples=9)
        made = cb.GaussianMixture.of(*parts)
        fresh = cb.GaussianMixture.of(*(gaussian(seed) for seed in range(3)))
        assert made.statistics_vary and not fresh.statistics
        assert made.predictor(7).digest == fresh.predictor(7, data=x).digest
        with pytest.raises(InvalidInput, match="are not kept"):
            made.predictor(10)

    def test_of_kinds_that_take_other_random_numbers_they_do_not(self):
        parts, x = [gaussian(0), low_rank(1, batch_norm_net)], training_data()
        for part in parts:
            part.keep_statistics(x, samples=4)
        made = cb.GaussianMixture.of(*parts)
        assert not made.statistics
        made.keep_statistics(x, samples=4)
        assert made.predictor(4).digest == cb.GaussianMixture.of(*parts).predictor(4, data=x).digest

    def test_a_last_layer_keeps_the_buffers_of_its_component(self):
        parts = [last_layer(seed, batch_norm_net) for seed in range(2)]
        made = cb.GaussianMixture.of(*parts)
        assert not made.statistics_vary
        means = made.predictor(2).samples["1.running_mean"]
        assert all(torch.equal(means[k], parts[k].buffers["1.running_mean"]) for k in range(2))


class TestFiles:
    @pytest.mark.parametrize("kind", MAKERS)
    def test_all_of_it_comes_back(self, kind, tmp_path):
        made = mixture(kind, weights=[0.2, 0.3, 0.7])
        for number, part in enumerate(made.components):
            part.prior_variances = {"1.weight": torch.full((1, 4), 0.1 + number)}
        made.save(tmp_path / "one")
        loaded = cb.load(tmp_path / "one")
        loaded.save(tmp_path / "two")
        again = cb.load(tmp_path / "two")
        assert torch.equal(made.weights, again.weights) and len(again) == 3
        assert again.predictor(7, seed=2).digest == made.predictor(7, seed=2).digest
        for one, other in zip(made.components, again.components, strict=True):
            assert type(one) is type(other)
            assert one.predictor(2).digest == other.predictor(2).digest
            assert torch.equal(one.prior_variances["1.weight"], other.prior_variances["1.weight"])
        assert again.metadata == loaded.metadata

    def test_statistics_and_metadata_come_back(self, tmp_path):
        parts = [gaussian(seed, domain=(0.0, 1.0)) for seed in range(2)]
        for seed, part in enumerate(parts):
            part.keep_statistics(training_data(), samples=5)
            part.metadata |= {"algorithm": {"name": "BBB"}, "seed": seed, "history": [{"loss": 1.0}]}
        cb.GaussianMixture.of(*parts).save(tmp_path)
        loaded = cb.load(tmp_path)
        assert loaded.predictor(5).digest == cb.GaussianMixture.of(*parts).predictor(5).digest
        assert loaded.components[1].predictor(5).digest == parts[1].predictor(5).digest
        assert loaded.components[1].metadata == parts[1].metadata
        assert loaded.metadata["algorithm"] == {"name": "BBB"} and loaded.domain == (0.0, 1.0)
        assert [own["seed"] for own in loaded.metadata["joined"]] == [0, 1]
        assert "GaussianMixture: a mixture of 2 Gaussians, each an independent normal" in repr(loaded)

    def test_a_file_without_its_parts_is_refused(self, tmp_path):
        made = mixture()
        made.metadata["joined"].pop()
        made.save(tmp_path)
        with pytest.raises(CorruptFile, match="lacks the weights"):
            cb.load(tmp_path)

    def test_the_command_line_describes_it(self, tmp_path):
        made = mixture()
        for part in made.components:
            part.metadata |= {"algorithm": {"name": "BBB"}, "history": [{"loss": 77.0}, {"loss": 1.0}]}
        cb.GaussianMixture.of(*made.components).save(tmp_path)
        record = json.loads(CliRunner().invoke(app, ["info", str(tmp_path), "--json"]).stdout)
        assert record["posterior"] == "GaussianMixture" and record["weights"] == [1 / 3] * 3
        assert record["joined"] == [{"posterior": "DiagonalGaussian", "final epoch": {"loss": 1.0}}] * 3
        shown = CliRunner().invoke(app, ["info", str(tmp_path)], env={"COLUMNS": "120"})
        assert shown.exit_code == 0 and "BBB" in shown.output and "77" not in shown.output


class TestRest:
    def test_the_center_is_an_ensemble(self):
        made = mixture()
        centers = cb.Samples.from_modules([network(seed) for seed in range(3)])
        assert made.center().predictor().digest == centers.predictor().digest
        with pytest.raises(InvalidInput, match="different weights"):
            mixture(weights=[1, 1, 2]).center()

    def test_compact(self, tmp_path):
        parts, x = [gaussian(seed) for seed in range(2)], training_data()
        for part in parts:
            part.keep_statistics(x, samples=4)
        made = cb.GaussianMixture.of(*parts)
        made.keep_statistics(x, samples=6, seed=3)
        with pytest.raises(InvalidInput, match="compact"):
            made.compact()
        small = made.compact(x)
        small.save(tmp_path)
        assert small.components[0].std["0.weight"].dtype == torch.float16
        assert cb.load(tmp_path).predictor(6, seed=3).digest == small.predictor(6, seed=3).digest
        with pytest.raises(InvalidInput, match="no compact form"):
            mixture("last layer").compact()

    def test_it_is_certified_and_no_attack_breaks_that(self):
        made = cb.GaussianMixture.of(*(gaussian(seed, network, std=0.01, domain=(0.0, 1.0)) for seed in range(3)))
        predictor, x = made.predictor(6), training_data()
        y = predictor.predict(x)
        result = cb.certify(predictor, x, y, eps=1e-3)
        assert bool(result.certified.any())
        assert not bool((cb.attack(predictor, x, y, eps=1e-3).success & result.certified).any())

    def test_statistical_certificates_draw_from_it(self):
        made, x = mixture(), training_data()[:3]
        found = cb.robust_probability(made, x, made.predictor().predict(x), eps=1e-3, samples=20)
        assert found.lower.shape == (3,)

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: cb.GaussianMixture.of(), "at least one posterior"),
            (lambda: cb.GaussianMixture.of([gaussian(0)]), r"argument 0 is a list.*takes a star"),
            (lambda: cb.GaussianMixture.of(gaussian(0), cb.Point(batch_norm_net())), "posterior 1 is a Point"),
            (lambda: cb.GaussianMixture.of(mixture()), "posterior 0 is a mixture already"),
            (lambda: cb.GaussianMixture.of(gaussian(0), gaussian(0, network)), "differ in architecture"),
            (
                lambda: cb.GaussianMixture.of(gaussian(0, network), gaussian(0, lambda seed: network(seed).double())),
                "differ in precision",
            ),
            (lambda: mixture(weights=[1, 2]), "one for each of 3"),
            (lambda: mixture(weights=[1, 0, 2]), "positive"),
            (lambda: mixture(weights=[1, float("nan"), 2]), "positive"),
            (lambda: mixture(weights="equal"), "weights are numbers"),
        ],
        ids=["none", "list", "point", "mixture", "architecture", "precision", "few", "zero", "nan", "word"],
    )
    def test_what_cannot_be_mixed(self, make, message):
        with pytest.raises(InvalidInput, match=message):
            make()


def test_five_seeds_at_once():
    """The way that the guide shows."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(200, 4, generator=generator)
    y = x[:, :3].argmax(-1)
    runs = [{"net": network(seed), "seed": seed} for seed in range(3)]
    made = cb.GaussianMixture.of(
        *cb.fit_many(None, (x, y), runs, algorithm="noisy-adam", epochs=15, batch_size=20, progress=False)
    )
    apart = [part.predictor(9) for part in made.components]
    loss = nn.NLLLoss()
    losses = [float(loss(each(x), y)) for each in apart]
    assert float(loss(made.predictor(27)(x), y)) < sum(losses) / 3
