"""Learned priors: EM against closed forms, groups that the data do not need, and what runs keep of them."""

import dataclasses
import warnings

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.errors import InvalidInput
from certibayes.inference._capture import CapturedUpdate
from certibayes.inference._flat import FLAT
from certibayes.inference.learned_prior import Groups
from certibayes.networks import trace

from .cases import ALGORITHMS, LIKELIHOODS, SIZE, assert_same_posterior, differ, fit, inputs, network, target_for

LEARNING = ("vogn", "noisy-adam", "bbb", "ivon", "laplace", "laplace-last-layer")
OTHERS = sorted(set(ALGORITHMS) - set(LEARNING))


def groups_of(net, example, **settings):
    traced = trace(net, example)
    return cb.LearnedPrior(**settings).grouped(traced.graph, traced.params)


def one_group(size, floor=1e-10):
    return Groups({"w": torch.zeros(size, dtype=torch.long)}, 1, 0.0, floor)


def em_fixed_point(groups, means, count):
    """Observe every weight ``count`` times with variance 1, and do EM from variance 1 until it stands still."""
    precision = torch.ones_like(means)
    for _ in range(3000):
        s2 = 1 / (count + precision)
        precision = groups.learned({"w": count * means * s2}, {"w": s2.sqrt()})["w"]
    return 1 / precision


def test_em_ends_where_the_evidence_is_largest():
    """The mean of n observations of a weight is N(0, v + 1/n), so that v = mean of their squares - 1/n."""
    means = torch.randn(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = em_fixed_point(one_group(50), means, 20)
    torch.testing.assert_close(found, (means.square().mean() - 1 / 20).expand(50))


def test_groups_have_their_own_variances():
    means = torch.randn(40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    means[::2] *= 3
    found = em_fixed_point(Groups({"w": torch.arange(40) % 2}, 1, 0.0, 1e-10), means, 20)
    for part in (slice(0, None, 2), slice(1, None, 2)):
        expected = means[part].square().mean() - 1 / 20
        torch.testing.assert_close(found[part], expected.expand(20))


def test_a_group_that_collapses_is_kept_at_the_floor():
    """All observations at 0: the evidence is largest at variance 0."""
    groups = one_group(8, floor=1e-4)
    found = em_fixed_point(groups, torch.zeros(8, dtype=torch.float64), 100)
    torch.testing.assert_close(found, torch.full((8,), 1e-4, dtype=torch.float64))
    with pytest.warns(UserWarning, match=r"1 of 1 variances .* kept at their floor, 0.0001"):
        assert groups.at_floor({"w": found}) == 1


@pytest.mark.parametrize("name", LEARNING)
def test_a_floor_is_recorded_and_said(name):
    with pytest.warns(UserWarning, match="floor"):
        posterior = fit(algorithm=ALGORITHMS[name], prior=cb.LearnedPrior(floor=100.0))
    assert posterior.metadata["prior"]["at_floor"] == 12


def test_groups_of_linear_layers_are_columns():
    found = groups_of(cb.networks.mlp(4, [6], 3), inputs())
    assert found.number == 4 + 1 + 6 + 1
    columns = torch.arange(4).expand(6, 4)
    assert torch.equal(found.index["1.weight"], columns)
    assert torch.equal(found.index["1.bias"], torch.full((6,), 4))


def test_groups_of_convolutions_are_input_channels():
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 1, groups=2, bias=False), nn.Flatten())
    found = groups_of(net, torch.rand(1, 2, 3, 3))
    assert found.number == 2 + 1 + 4
    assert found.index["0.weight"][:, 1].unique().tolist() == [1]
    # The last three filters see the last two of the four channels.
    assert found.index["2.weight"][:, :, 0, 0].tolist() == [[3, 4]] * 3 + [[5, 6]] * 3


def test_batch_norm_has_a_variance_for_each_tensor():
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
    assert groups_of(net.eval(), inputs()).number == (4 + 1) + 2 + (5 + 1)


@pytest.mark.parametrize(("groups", "number"), [("layers", 4), ("weights", 4 * 6 + 6 + 6 * 3 + 3)])
def test_other_groups(groups, number):
    assert groups_of(network(), inputs(), groups=groups).number == number


def test_groups_by_a_function_may_reach_over_parameters():
    """Numbers may have gaps; the same one is the same group."""
    shapes = {name: p.shape for name, p in network().named_parameters()}
    found = groups_of(network(), inputs(), groups=lambda name: torch.full(shapes[name], 7 * ("3" in name)))
    assert found.number == 2
    assert torch.equal(found.index["3.weight"].unique(), found.index["3.bias"].unique())


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (lambda name: None, "without a group"),
        (lambda name: torch.zeros(2), "whole numbers"),
        (lambda name: torch.zeros(2, dtype=torch.long), "do not cover"),
        (lambda name: torch.full((6, 4) if "weight" in name else (6,), -1), "negative"),
    ],
)
def test_groups_that_do_not_cover_the_parameters(groups, words):
    with pytest.raises(InvalidInput, match=words):
        fit(algorithm=cb.BBB(), prior=cb.LearnedPrior(groups=groups))


@pytest.mark.parametrize(
    "settings",
    [
        {"groups": "input"},
        {"groups": 3},
        {"every": 0},
        {"start": 1.0},
        {"floor": 0.0},
        {"l1": 0.1},
        {"variance_scale": -1.0},
    ],
)
def test_bad_settings(settings):
    with pytest.raises(InvalidInput):
        cb.LearnedPrior(**settings)


@pytest.mark.parametrize("name", OTHERS)
def test_methods_without_standard_deviations_are_refused(name):
    with pytest.raises(InvalidInput, match="nothing to learn from"):
        fit(algorithm=ALGORITHMS[name], prior=cb.LearnedPrior())


@pytest.mark.parametrize("name", LEARNING)
def test_the_variances_are_in_the_posterior_and_its_file(name, tmp_path):
    posterior = fit(algorithm=ALGORITHMS[name], prior=cb.LearnedPrior())
    assert posterior.metadata["prior"]["name"] == "LearnedPrior"
    assert posterior.metadata["prior"]["variances"] == 4 + 1 + 6 + 1
    assert posterior.prior_variances["3.weight"].shape == (1, 6)
    assert posterior.prior_variances["3.weight"].unique().numel() > 2
    posterior.save(tmp_path)
    loaded = cb.load(tmp_path)
    for parameter, variances in posterior.prior_variances.items():
        assert torch.equal(loaded.prior_variances[parameter], variances)


def test_a_prior_that_is_given_leaves_no_variances():
    assert fit(algorithm=cb.BBB()).prior_variances == {}


def test_the_variances_are_the_mean_squares_of_the_weights():
    posterior = fit(algorithm=cb.BBB(lr=0.01))
    learned = fit(algorithm=cb.BBB(lr=0.01), prior=cb.LearnedPrior(every=2))
    assert differ(posterior, learned)
    squares = learned.mean["1.weight"].square() + learned.std["1.weight"].square()
    torch.testing.assert_close(learned.prior_variances["1.weight"], squares.mean(0, keepdim=True))
    assert learned.prior_variances["1.bias"].shape == (1,)


def test_before_its_start_the_prior_is_the_one_that_learning_starts_from():
    """An update at the end of training alone comes too late to change what BBB has found."""
    given = fit(algorithm=cb.BBB(lr=0.01))
    late = fit(algorithm=cb.BBB(lr=0.01), prior=cb.LearnedPrior(start=0.99))
    assert_same_posterior(late, given)
    assert late.prior_variances
    assert differ(fit(algorithm=cb.BBB(lr=0.01), prior=cb.LearnedPrior(start=0.5)), given)


@pytest.mark.parametrize("algorithm", [cb.NoisyAdam(lr=0.02), cb.VOGN(lr=0.02), cb.BBB(lr=0.01)], ids=repr)
def test_an_input_that_says_nothing_loses_its_weights(algorithm):
    """Labels depend on the first three of four features."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(2000, 4, generator=generator)
    train = (x, x[:, :3].argmax(-1))
    posterior = fit(train=train, algorithm=algorithm, prior=cb.LearnedPrior(), epochs=25, batch_size=50)
    variances = posterior.prior_variances["1.weight"].flatten()
    assert variances[3] < 0.2 * variances[:3].min()


@pytest.mark.parametrize("name", LEARNING)
def test_a_resumed_run_has_the_same_bits(name, tmp_path, monkeypatch):
    settings = {"algorithm": ALGORITHMS[name], "prior": cb.LearnedPrior(every=2), "epochs": 2}
    expected = fit(**settings)
    real, begun = type(settings["algorithm"]).update, []

    def update(self, *arguments):
        begun.append(1)
        if len(begun) == 6:
            raise MemoryError
        return real(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(type(settings["algorithm"]), "update", update)
        with pytest.raises(MemoryError):
            fit(checkpoint=tmp_path, **settings)
    found = fit(checkpoint=tmp_path, resume=True, **settings)
    assert_same_posterior(found, expected)
    for parameter, variances in expected.prior_variances.items():
        assert torch.equal(found.prior_variances[parameter], variances)


def test_other_groups_are_another_run(tmp_path):
    fit(algorithm=cb.BBB(), prior=cb.LearnedPrior(), checkpoint=tmp_path)
    with pytest.raises(cb.CertibayesError, match="prior"):
        fit(algorithm=cb.BBB(), prior=cb.LearnedPrior(groups="layers"), checkpoint=tmp_path, resume=True)


@pytest.mark.parametrize("name", ["vogn", "noisy-adam", "bbb", "ivon", "laplace"])
def test_models_trained_together_learn_the_priors_they_learn_alone(name, tmp_path):
    x = inputs(dtype=torch.float64)
    train = (x, x[:, :3].argmax(-1))
    common = {"algorithm": ALGORITHMS[name], "epochs": 3, "batch_size": SIZE // 3, "progress": False}
    nets = [network(seed).double() for seed in range(3)]
    priors = [cb.LearnedPrior(every=2), cb.LearnedPrior(every=2), cb.LearnedPrior(every=2, groups="layers")]
    runs = [{"net": net, "seed": seed, "prior": priors[seed]} for seed, net in enumerate(nets)]
    found = cb.fit_many(None, train, runs, checkpoint=tmp_path, checkpoint_every=-1.0, **common)
    resumed = cb.fit_many(None, train, runs, checkpoint=tmp_path, resume=True, **common)
    for seed, (together, again) in enumerate(zip(found, resumed, strict=True)):
        alone = cb.fit(nets[seed], train, seed=seed, prior=priors[seed], **common)
        assert_same_posterior(again, together)
        for parameter, variances in alone.prior_variances.items():
            torch.testing.assert_close(together.prior_variances[parameter], variances, rtol=1e-8, atol=0.0)


def test_runs_at_one_temperature_do_not_change_the_prior_of_others():
    searched = fit(algorithm=cb.BBB(), prior=cb.LearnedPrior(), temperature=[1.0, 0.1], validation=0.25)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen = searched.metadata["temperature"]
        alone = fit(algorithm=cb.BBB(), prior=cb.LearnedPrior(), temperature=chosen, validation=0.25)
    assert_same_posterior(searched, alone)


def test_recordings_read_a_prior_of_their_own_that_follows():
    target, params, _ = target_for(LIKELIHOODS["standard"])
    groups = cb.LearnedPrior().grouped(target.graph, params)
    start = dataclasses.replace(target, precision=groups.initial(target.precision), groups=groups)
    before = {name: p.clone() for name, p in start.precision.items()}
    algorithm = cb.BBB()
    state = algorithm.init(start, params, torch.Generator())
    update = CapturedUpdate(algorithm, torch.Generator())
    update.places = update._places(start, state)
    learned = start.with_precision(groups.learned(params, algorithm.standard_deviations(start, state)))
    update._bring(learned, state, ())
    place = update.places.target
    torch.testing.assert_close(place.precision[FLAT], place.layout.join(learned.precision), rtol=0, atol=0)
    torch.testing.assert_close(place.prior[FLAT], place.layout.join(learned.prior), rtol=0, atol=0)
    assert all(torch.equal(start.precision[name], p) for name, p in before.items())
