"""Prospects: which points costly bounds are spent on."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.certification import _branch as branch
from certibayes.certification._prospects import (
    ALIKE,
    OPTIMISM,
    PROBES,
    from_all_over,
    is_hardest,
    is_hopeless,
    is_out_of_reach,
)
from certibayes.certification._stage import run
from certibayes.certification.clock import Clock
from certibayes.certification.stages import LogitBounds, margins
from certibayes.certification.stages.attack import QUICK
from certibayes.certification.state import State

from .cases import EVERY_RIVAL, problem_of

NETWORKS = 10
AUTO = cb.Auto(intermediates="crown")


def test_every_point_has_one_hardest_rival():
    point = torch.tensor([0, 0, 1, 3, 3, 3])
    value = torch.tensor([0.1, -0.2, 0.5, -0.3, -0.3, 0.0])
    hardest = is_hardest(value, point)
    assert hardest.tolist() == [False, True, True, True, False, False]
    order = torch.tensor([5, 2, 0, 3, 1, 4])
    assert is_hardest(value[order], point[order]).sum() == 3
    assert is_hardest(value[:0], point[:0]).shape == (0,)


def seen(count: int, pairs: int = 1):
    return (torch.arange(NETWORKS) < count)[:, None].expand(-1, pairs)


def test_what_is_gained_decides():
    before = torch.full((NETWORKS, 3), -0.6)
    gain = torch.tensor([0.0, 0.6 / OPTIMISM - 0.05, 0.6 / OPTIMISM + 0.05])
    values = torch.where(seen(PROBES, 3), before + gain, before)
    assert is_out_of_reach(before, values, seen(PROBES, 3)).tolist() == [True, True, False]


def test_nothing_is_given_up_too_early_or_when_all_is_done():
    before = torch.full((NETWORKS, 1), -0.6)
    for count in (0, PROBES - 1, NETWORKS):
        assert not is_out_of_reach(before, before, seen(count)).any()
    assert is_out_of_reach(before, before, seen(PROBES)).all()


def counted(monkeypatch):
    """How many roots are bounded in each way."""
    counts: dict[str, int] = {}
    real = branch.Search.begin

    def count(self, known, bounds, *others):
        counts[bounds] = counts.get(bounds, 0) + len(known)
        return real(self, known, bounds, *others)

    monkeypatch.setattr(branch.Search, "begin", count)
    return counts


def alike(networks: int, seed: int):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4))
    params = {name: 3 * value.detach() for name, value in net.named_parameters()}
    std = {name: torch.full_like(value, 0.001) for name, value in params.items()}
    return cb.DiagonalGaussian(net, params, std, input_shape=(6,)).predictor(networks, seed=0)


def test_effort_is_saved_where_it_is_in_vain(monkeypatch):
    predictor = alike(NETWORKS, 0)
    x = torch.rand(4, 6, generator=torch.Generator().manual_seed(1))
    # The attack would take such points out of the way.
    monkeypatch.setattr(State, "with_inputs", lambda self, *_: self)
    counts = counted(monkeypatch)
    found = cb.certify(predictor, x, eps=3.0, method="best")
    assert not found.certified.any()
    assert counts == {"hull": 4 * PROBES, "crown": 4 * (NETWORKS - PROBES)}


def test_it_is_not_saved_where_time_is_given(monkeypatch):
    predictor = alike(3, 0)
    x = torch.rand(2, 6, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(State, "with_inputs", lambda self, *_: self)
    counts = counted(monkeypatch)
    cb.certify(predictor, x, eps=3.0, method=cb.Best(budget=0.1))
    assert "crown" not in counts
    assert counts["hull"] > 2 * 3


def test_networks_without_activations_are_still_bounded_jointly():
    """There linear bounds are exact and nothing is gained by better ones, but one input cannot fool all networks."""
    weight = torch.zeros(NETWORKS, 3, NETWORKS)
    # Every network fears another input; on average each input does little. The second rival is a little easier.
    weight[torch.arange(NETWORKS), 0, torch.arange(NETWORKS)] = 2.0
    weight[:, 1] = -weight[:, 0]
    weight[:, 2] = -0.9 * weight[:, 0]
    nets = []
    for each in weight:
        net = nn.Linear(NETWORKS, 3)
        with torch.no_grad():
            net.weight.copy_(each)
            net.bias.copy_(torch.tensor([0.85, -0.85, -0.85]))
        nets.append(net)
    predictor = cb.Samples.from_modules(nets).predictor(NETWORKS)
    x = torch.zeros(1, NETWORKS)
    ball = {"eps": 0.5, "norm": "l2"}
    assert not cb.certify(predictor, x, method=cb.Elided("crown"), **ball).certified.any()
    joint = cb.certify(predictor, x, method="joint", **ball)
    best = cb.certify(predictor, x, method="best", **ball)
    assert joint.certified.all()
    assert best.certified.all()


def steep(margin: float):
    """A network whose margin is everywhere the same, which intervals do not see."""
    net = nn.Sequential(nn.Linear(2, 1), nn.ReLU(), nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 2))
    values = ([[1.0, 0.0]], [1.0], [[1.0], [1.0]], [0.0, 0.0], [[20.0, -20.0], [0.0, 0.0]], [margin, 0.0])
    for parameter, value in zip(net.parameters(), values, strict=True):
        parameter.data = torch.tensor(value)
    return net


def test_networks_have_their_turns_from_all_over():
    assert from_all_over(8) == [0, 4, 2, 6, 1, 5, 3, 7]
    for networks in (1, 2, 5, 35):
        assert sorted(from_all_over(networks)) == list(range(networks))


def test_a_network_that_counts_for_many_does_not_speak_for_the_others(monkeypatch):
    """The first is just not robust, the second is, by far: together they are."""
    counts = turns(monkeypatch)
    predictor = cb.Samples.from_modules([steep(-0.005), steep(3.0)], input_shape=(2,), weights=[12, 1]).predictor()
    found = cb.certify(predictor, torch.zeros(1, 2), torch.tensor([0]), eps=0.01, domain=None, method=AUTO)
    assert found.certified.all() and len(counts) > ALIKE


def test_what_those_seen_have_in_common_decides():
    signs = torch.tensor([-1.0, 1.0, -1.0, 1.0])[:, None]
    means, deviations = torch.tensor([-0.3, -0.3, 0.1, -0.001]), torch.tensor([0.01, 0.3, 0.01, 0.0])
    values = means + deviations * signs
    # The last are copies of one network, as it seems.
    assert is_hopeless(values, NETWORKS).tolist() == [True, False, False, False]
    assert not is_hopeless(values[: ALIKE - 1], NETWORKS).any()
    assert not is_hopeless(values, ALIKE).any()


def alike_and_deep(seed: int):
    net = cb.networks.mlp(6, [12, 12], 3, seed=seed)
    params = {name: 2.5 * value.detach() for name, value in net.named_parameters()}
    std = {name: torch.full_like(value, 0.02) for name, value in params.items()}
    return cb.DiagonalGaussian(net, params, std).predictor(NETWORKS, seed=0)


def turns(monkeypatch):
    """How many points each network is bounded for, by linear bounds."""
    counts: list[int] = []
    real = margins.margin_bounds

    def count(predictor, box, labels, rivals, rounding, bounds, *others):
        if bounds == "crown":
            counts.append(len(labels))
        return real(predictor, box, labels, rivals, rounding, bounds, *others)

    monkeypatch.setattr(margins, "margin_bounds", count)
    return counts


def test_networks_that_cannot_change_the_answer_are_spared(monkeypatch):
    counts, saved = turns(monkeypatch), 0
    cheap, all_turns = (margins.MarginBounds("ibp"),), margins.MarginBounds("crown")
    as_needed = replace(all_turns, until_decided=True, gives_up=True)
    for seed in range(4):
        predictor = alike_and_deep(seed)
        x = torch.rand(40, 6, generator=torch.Generator().manual_seed(seed))
        for eps in (0.02, 0.05, 0.1):
            problem = problem_of(predictor, x, eps, intermediates="crown")
            before = run((LogitBounds("ibp"), *cheap), problem, State.start(problem), Clock())
            full = all_turns(problem, before, Clock())
            counts.clear()
            state = as_needed(problem, before, Clock())
            assert torch.equal(state.proved, full.proved)
            assert counts == sorted(counts, reverse=True)
            saved += NETWORKS * counts[0] - sum(counts)
    assert saved > 0


@pytest.mark.parametrize("with_logits", [False, True])
def test_one_by_one_every_network_has_the_bounds_that_it_has_among_all(with_logits):
    predictor = alike_and_deep(0)
    x = torch.rand(6, 6, generator=torch.Generator().manual_seed(1))
    # Nothing is ever proved, so that no network is spared.
    problem = problem_of(predictor, x, 0.05, threshold=EVERY_RIVAL, intermediates="crown")
    before = LogitBounds("ibp")(problem, State.start(problem), Clock())
    at_once = margins.MarginBounds("crown", with_logits=with_logits)
    found, expected = (stage(problem, before, Clock()) for stage in (replace(at_once, until_decided=True), at_once))
    for name in ("margins", "lower", "upper", "values"):
        assert torch.equal(getattr(found, name), getattr(expected, name))
    differ = [not torch.equal(found.margins[0], other) for other in found.margins[1:]]
    assert all(differ)


def test_what_is_proved_or_out_of_reach_has_no_further_turn(monkeypatch):
    counts = turns(monkeypatch)
    monkeypatch.setattr(cb.Auto, "_quick_attack", ())
    predictor = alike_and_deep(0)
    x = torch.rand(4, 6, generator=torch.Generator().manual_seed(1))
    found = cb.certify(predictor, x, eps=0.6, method=AUTO)
    assert not found.certified.any() and counts == [4] * ALIKE


@pytest.mark.parametrize("method", [AUTO, cb.Best("crown", "crown")], ids=str)
def test_what_a_quick_attack_breaks_has_no_costly_bounds(method, monkeypatch):
    counts = turns(monkeypatch)
    predictor = alike_and_deep(1)
    x = torch.rand(40, 6, generator=torch.Generator().manual_seed(1))
    found = cb.certify(predictor, x, eps=0.1, method=method)
    with_attack, unbroken = max(counts), cb.attack(predictor, x, eps=0.1, method=QUICK).success.logical_not()
    # Without a budget a certificate speaks of bounds alone.
    assert found.counterexamples is None
    assert 0 < with_attack <= int(unbroken.sum()) < len(x)
    counts.clear()
    monkeypatch.setattr(cb.Auto, "_quick_attack", ())
    monkeypatch.setattr(cb.Best, "_quick_attack", ())
    assert torch.equal(cb.certify(predictor, x, eps=0.1, method=method).certified, found.certified)
    assert found.certified.any() and max(counts) > with_attack


def test_probabilities_of_points_whose_networks_are_spared_hold():
    predictor = alike_and_deep(1)
    x = torch.rand(20, 6, generator=torch.Generator().manual_seed(1))
    found = cb.certify(predictor, x, eps=0.05, method=AUTO)
    assert found.certified.any() and not found.certified.all()
    for seed in range(20):
        signs = (torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)) - 0.5).sign()
        probabilities = predictor.probabilities(x + 0.0499 * signs)
        assert (probabilities >= found.lower).all() and (probabilities <= found.upper).all()
