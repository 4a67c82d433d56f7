import math

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.errors import InvalidInput

from .cases import KINDS, batch_norm_net, gaussian, generator, inputs, network, ones_like_each, posterior, stacked


@pytest.mark.parametrize("kind", KINDS)
class TestEveryKind:
    def test_samples_are_stacked(self, kind):
        made = posterior(kind)
        drawn = made.sample(3, generator())
        assert set(drawn) == {*made.graph.parameters, *made.graph.buffers}
        shapes = {name: p.shape for name, p in made.sample(1, generator()).items()}
        for name, tensor in drawn.items():
            assert tensor.shape == (3, *shapes[name][1:])

    def test_a_predictor_is_fixed_by_its_seed(self, kind):
        made, x = posterior(kind), inputs()
        one, same = made.predictor(3, seed=1), made.predictor(3, seed=1)
        assert one.digest == same.digest
        assert torch.equal(one(x), same(x))
        assert torch.equal(one(x), one(x))

    def test_the_predictor_averages_probabilities(self, kind):
        predictor, x = posterior(kind).predictor(3), inputs()
        each = torch.softmax(predictor.sample_outputs(x).double(), -1)
        torch.testing.assert_close(predictor.probabilities(x).double(), each.mean(0), rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(predictor(x).exp(), predictor.probabilities(x))

    def test_the_global_generator_is_left_alone(self, kind):
        state = torch.get_rng_state()
        posterior(kind).predictor(2)
        assert torch.equal(state, torch.get_rng_state())

    def test_changing_a_predictor_does_not_change_the_posterior(self, kind):
        made, x = posterior(kind), inputs()
        before = made.predictor(2, seed=0)(x)
        spoiled = made.predictor(2, seed=0)
        for tensor in spoiled.samples.values():
            tensor.zero_()
        assert torch.equal(made.predictor(2, seed=0)(x), before)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "point"])
def test_at_least_one_sample(kind):
    with pytest.raises(InvalidInput, match="samples must be at least 1"):
        posterior(kind).predictor(0)


@pytest.mark.parametrize("settings", [{"samples": "3"}, {"samples": 2.5}, {"samples": True}, {"seed": "1"}])
def test_slips_of_type_are_named(settings):
    with pytest.raises(InvalidInput, match="must be a whole number"):
        gaussian().predictor(**settings)


class TestPoint:
    def test_it_predicts_as_the_module_does(self):
        net, x = network(), inputs()
        torch.testing.assert_close(cb.Point(net).predictor()(x), torch.log_softmax(net(x), -1))

    def test_it_keeps_its_own_copy(self):
        net, x = network(), inputs()
        point = cb.Point(net)
        before = point.predictor()(x)
        with torch.no_grad():
            for p in net.parameters():
                p.zero_()
        assert torch.equal(point.predictor()(x), before)

    def test_other_parameters_may_be_given(self):
        params = {name: torch.zeros_like(p) for name, p in network().named_parameters()}
        torch.testing.assert_close(
            cb.Point(network(), params).predictor()(inputs()), torch.full((5, 3), -math.log(3.0))
        )

    def test_one_network_is_one_sample(self):
        assert cb.Point(network()).predictor(35).size == 1

    def test_its_samples_are_not_independent(self):
        assert not cb.Point(network()).independent


class TestDiagonalGaussian:
    def test_mean_and_standard_deviation_of_its_samples(self):
        net = network()
        mean = {name: torch.full_like(p, 2.0) for name, p in net.named_parameters()}
        std = {name: torch.full_like(p, 0.25) for name, p in net.named_parameters()}
        std["1.weight"][0] = 0.0
        count = 4000
        drawn = cb.DiagonalGaussian(net, mean, std).sample(count, generator())
        for name, tensor in drawn.items():
            deviation = std[name]
            assert ((tensor.mean(0) - 2.0).abs() <= 5 * deviation / math.sqrt(count)).all()
            assert ((tensor.std(0) - deviation).abs() <= 5 * deviation / math.sqrt(2 * count)).all()

    def test_weights_are_independent(self):
        drawn = gaussian(1.0).sample(4000, generator())
        flat = torch.cat([t.flatten(1) for t in drawn.values()], 1)
        correlation = torch.corrcoef(flat.T) - torch.eye(flat.shape[1])
        assert float(correlation.abs().max()) < 6 / math.sqrt(4000)

    def test_without_width_it_is_a_point(self):
        point = cb.Point(network()).predictor()(inputs())
        torch.testing.assert_close(gaussian(0.0).predictor(3)(inputs()), point)

    def test_seeds_differ(self):
        assert gaussian().predictor(2, seed=0).digest != gaussian().predictor(2, seed=1).digest

    def test_its_samples_are_independent(self):
        assert gaussian().independent

    @pytest.mark.parametrize("bad", [-0.1, math.nan])
    def test_bad_standard_deviations(self, bad):
        with pytest.raises(InvalidInput, match="negative or NaN"):
            gaussian(bad)

    def test_shapes_of_mean_and_std_must_agree(self):
        mean = dict(network().named_parameters())
        with pytest.raises(InvalidInput, match="has shape"):
            cb.DiagonalGaussian(network(), mean, {name: p.mean() + 1 for name, p in mean.items()})

    def test_missing_and_unknown_names_are_listed(self):
        mean = dict(network().named_parameters())
        mean["elsewhere"] = mean.pop("1.bias")
        with pytest.raises(InvalidInput, match=r"1\.bias.*elsewhere"):
            cb.DiagonalGaussian(network(), mean, mean)

    def test_diverged_weights_are_refused_by_the_predictor(self):
        mean = {name: torch.full_like(p, math.nan) for name, p in network().named_parameters()}
        std = {name: torch.ones_like(p) for name, p in mean.items()}
        with pytest.raises(InvalidInput, match="diverged"):
            cb.DiagonalGaussian(network(), mean, std).predictor(2)


class TestSamples:
    def test_all_of_them_come_in_order(self):
        held = stacked(6)
        drawn = cb.Samples(network(), held).sample(6, generator(3))
        assert all(torch.equal(drawn[name], tensor) for name, tensor in held.items())

    def test_a_few_are_drawn_without_replacement(self):
        held = stacked(6)
        chosen = cb.Samples(network(), held).sample(4, generator(3))["1.weight"]
        which = [next(i for i in range(6) if torch.equal(w, held["1.weight"][i])) for w in chosen]
        assert len(set(which)) == 4

    def test_parameters_of_one_sample_are_not_mixed_with_anothers(self):
        held = stacked(6)
        drawn = cb.Samples(network(), held).sample(2, generator(1))
        for i in range(2):
            (which,) = [k for k in range(6) if torch.equal(drawn["1.weight"][i], held["1.weight"][k])]
            assert all(torch.equal(drawn[name][i], held[name][which]) for name in held)

    def test_every_sample_is_picked_sooner_or_later(self):
        made = cb.Samples(network(), stacked(4))
        drawn = torch.cat([made.sample(1, generator(seed))["1.bias"] for seed in range(40)])
        assert len(torch.unique(drawn, dim=0)) == 4

    def test_more_than_there_are(self):
        with pytest.raises(InvalidInput, match="7 samples were asked for, but this posterior holds 6"):
            cb.Samples(network(), stacked(6)).sample(7, generator())

    def test_a_predictor_takes_all_by_default(self):
        assert cb.Samples(network(), stacked(6)).predictor().size == 6

    def test_length_and_index(self):
        made = cb.Samples(network(), stacked(6))
        assert len(made) == 6
        assert torch.equal(made[2]["1.bias"], stacked(6)["1.bias"][2])

    def test_its_samples_are_not_independent(self):
        assert not cb.Samples(network(), stacked()).independent

    def test_samples_without_a_leading_dimension_are_refused(self):
        uneven = stacked(6)
        uneven["1.bias"] = uneven["1.bias"][:4]
        with pytest.raises(InvalidInput, match="leading dimension"):
            cb.Samples(network(), uneven)

    def test_no_samples_are_refused(self):
        with pytest.raises(InvalidInput, match="leading dimension"):
            cb.Samples(network(), {name: tensor[:0] for name, tensor in stacked().items()})


class TestFromModules:
    def test_each_network_predicts_as_its_module_does(self):
        nets, x = [network(seed) for seed in range(3)], inputs()
        outputs = cb.Samples.from_modules(nets).predictor(3).sample_outputs(x)
        torch.testing.assert_close(outputs, torch.stack([net(x) for net in nets]))

    def test_batch_norm_statistics_stay_with_their_sample(self):
        nets, x = [batch_norm_net(seed) for seed in range(4)], inputs()
        made = cb.Samples.from_modules(nets)
        expected = torch.stack([net(x) for net in nets])
        torch.testing.assert_close(made.predictor(4).sample_outputs(x), expected)
        few = made.predictor(2, seed=3).sample_outputs(x)
        for output in few:
            assert any(torch.allclose(output, one, atol=1e-6) for one in expected)

    def test_modules_in_training_mode_are_taken_in_eval_mode(self):
        net, x = batch_norm_net(), inputs()
        expected = net(x)
        training = batch_norm_net().train()
        found = cb.Samples.from_modules([training]).predictor(1).sample_outputs(x)[0]
        torch.testing.assert_close(found, expected)
        assert training.training

    def test_different_architectures_are_refused(self):
        with pytest.raises(InvalidInput, match="same architecture"):
            cb.Samples.from_modules([network(), cb.networks.mlp(4, [5, 5], 3)])

    def test_different_standard_deviations_are_refused(self):
        with pytest.raises(InvalidInput, match="same architecture"):
            cb.Samples.from_modules([network(), cb.networks.mlp(4, [6], 3)])

    def test_nothing_is_refused(self):
        with pytest.raises(InvalidInput, match="at least one"):
            cb.Samples.from_modules([])


@pytest.mark.parametrize("make", [cb.Point, lambda net, p: cb.DiagonalGaussian(net, p, p)], ids=["point", "gaussian"])
def test_parameters_of_another_shape_are_refused(make):
    params = {name: p.new_zeros(7) for name, p in network().named_parameters()}
    with pytest.raises(InvalidInput):
        make(network(), params)


def test_regression_predicts_the_mean_output():
    made = gaussian()
    made.metadata["task"] = "regression"
    predictor, x = made.predictor(5), inputs()
    torch.testing.assert_close(predictor(x), predictor.sample_outputs(x).mean(0))
    with pytest.raises(InvalidInput, match="regression"):
        predictor.probabilities(x)


def test_a_network_without_parameters_is_refused():
    with pytest.raises(InvalidInput, match=r"no parameters.*make them nn.Parameter"):
        cb.Point(nn.Sequential(nn.Flatten(), nn.Tanh()), input_shape=(4,))


class TestInWords:
    """What a posterior prints."""

    def test_the_network_its_weights_and_the_domain(self):
        assert repr(cb.Point(cb.networks.mlp(4, [5], 3))).splitlines() == [
            "Point: one network",
            "  network: 4 -> Reshape, Linear, ReLU, Linear -> 3",
            "  weights: 43 in 4 tensors",
            "  domain: no limit known",
        ]

    def test_how_it_came_about(self):
        metadata = {
            "algorithm": {"name": "VOGN", "lr": 0.1},
            "likelihood": {"name": "RobustCategorical", "p_eps": {"name": "TwoPoint"}, "adversary": {"name": "IBP"}},
            "temperature": 0.01,
            "frozen": ["a"],
        }
        lines = repr(cb.Point(network(), metadata=metadata, domain=(0, 1))).splitlines()
        assert "  inference: VOGN, RobustCategorical (TwoPoint, IBP), temperature 0.01" in lines
        assert "  weights: 43 in 4 tensors, 1 more frozen" in lines
        assert "  domain: [0, 1]" in lines

    @pytest.mark.parametrize("kind", KINDS)
    def test_every_kind_says_what_it_holds(self, kind):
        """Also where users wrote the metadata themselves."""
        words = {
            "point": "Point: one network",
            "diagonal gaussian": "DiagonalGaussian: an independent normal distribution for each weight",
            "samples": "Samples: 6 samples",
            "modules with batch norm": "Samples: 4 samples",
        }[kind]
        lines = repr(posterior(kind)).splitlines()
        assert lines[0] == words
        assert "  inference: test" in lines
        assert lines[2].startswith("  weights: 4" if kind != "modules with batch norm" else "  weights: 53 in 6")

    def test_chains_and_ranks(self):
        assert "6 samples from 2 chains" in repr(cb.Samples(network(), stacked(), metadata={"chains": 2}))
        mean = dict(network().named_parameters())
        assert "rank 6" in repr(cb.LowRankGaussian(network(), mean, ones_like_each(mean), stacked()))

    def test_a_deep_network_is_cut_short(self):
        text = repr(cb.Point(cb.networks.mlp(4, [5] * 9, 3)))
        assert "4 -> Reshape, Linear, ReLU, Linear, 12 more, Linear, ReLU, Linear, ReLU" not in text
        assert len(text.splitlines()[1]) < 120
        assert " more, " in text
