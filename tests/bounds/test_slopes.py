"""Zero and adaptive slopes: the better of both, never worse than either, and what certificates make of them."""

import pytest
import torch
from hypothesis import given
from torch import nn

import certibayes as cb
from certibayes.bounds import LinearBounder, Relaxation, ideal_box, layer_boxes, outward, outward_box
from certibayes.bounds.linear import margin_specification
from certibayes.bounds.optimize import optimized_lower
from certibayes.bounds.slopes import CHOSEN, WORDS, adaptive_slopes, better_lower
from certibayes.certification import _branch as branch
from certibayes.certification import margin_bounds
from certibayes.certification import network_bounds as of_networks
from certibayes.certification.stages import margins as stage
from certibayes.networks import direct_sums

from ..strategies import ZOO, attacked_points, ball, inputs, law, outputs_at, points_of, radii, seeds, traced

LABELS = torch.tensor([0, 1, 2])
EPS = torch.linspace(0.01, 0.15, 80, dtype=torch.float64)


def bounder_of(name, seed, eps):
    graph, params = traced(name, seed, torch.float64)
    boxes = layer_boxes(graph, params, ideal_box(inputs(name, 3, seed, torch.float64), eps))
    return LinearBounder(graph, params, boxes), margin_specification(LABELS, graph.classes, torch.float64)[0]


@pytest.mark.parametrize("name", ["relu", "leaky relu", "tanh", "residual", "convolution, stride and padding"])
@law(4)
@given(seed=seeds, eps=radii)
def test_the_better_of_both_is_never_worse_than_either(name, seed, eps):
    assert name in ZOO
    bounder, specification = bounder_of(name, seed, eps)
    better, optimized = better_lower(bounder, specification), optimized_lower(bounder, specification, steps=2)
    chosen = better_lower(bounder, specification, (*WORDS, CHOSEN))
    for slopes in WORDS:
        alone = bounder.lower(specification, Relaxation(slopes))
        assert (better >= alone).all()
        assert (chosen >= alone).all()
        assert (optimized >= alone).all()


def test_each_is_better_somewhere():
    bounder, specification = bounder_of("relu", 0, 0.1)
    zero, adaptive = (bounder.lower(specification, Relaxation(slopes)) for slopes in WORDS)
    assert (zero > adaptive).any()
    assert (adaptive > zero).any()


def test_adaptive_slopes_as_numbers_are_those_of_the_word():
    bounder, specification = bounder_of("relu", 0, 0.3)
    numbers = {name: slopes[:, None] for name, slopes in adaptive_slopes(bounder).items()}
    by_number, by_word = (bounder.lower(specification, Relaxation(slopes)) for slopes in (numbers, "adaptive"))
    torch.testing.assert_close(by_number, by_word)
    assert all(bool(((slopes == 0) | (slopes == 1)).all()) for slopes in numbers.values())


@pytest.mark.parametrize("name", ZOO)
@law(2)
@given(seed=seeds, eps=radii)
def test_chosen_slopes_are_sound_in_floats(name, seed, eps):
    graph, params = traced(name, seed)
    x, rounding = inputs(name, 3, seed), outward(torch.float32)
    specification = margin_specification(LABELS, graph.classes, torch.float32)[0]
    with torch.no_grad(), direct_sums():
        boxes = layer_boxes(graph, params, outward_box(x, eps), rounding)
        bounder = LinearBounder(graph, params, boxes, rounding, in_place=True)
        lower = better_lower(bounder, specification, (*WORDS, CHOSEN))
    points = points_of(*ball(x, eps), 16, seed)
    if eps > 0:
        points = torch.cat([points, attacked_points(lambda z: graph.evaluate(params, z), *ball(x, eps))])
    outputs = outputs_at(graph, params, points).double().flatten(2)
    margins = torch.einsum("bsc,pbc->pbs", specification.flatten(2).double(), outputs)
    # The differences of two floats are exact in float64 but for their last digits.
    assert (margins >= lower - 1e-15 * outputs.abs().amax()).all()


def test_choosing_unit_by_unit_gains():
    bounder, specification = bounder_of("relu", 0, 0.1)
    better = better_lower(bounder, specification)
    chosen = better_lower(bounder, specification, (*WORDS, CHOSEN))
    assert float((chosen - better).mean()) > 0


def predictor_and_points():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        nets = [nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3)) for _ in range(3)]
    return cb.Samples.from_modules(nets).predictor(3), torch.rand(80, 6, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("method", [cb.Elided("crown"), cb.Auto(), cb.Best("crown"), cb.Theorem1("crown")], ids=repr)
def test_certificates_prove_what_either_proves(method, monkeypatch):
    predictor, x = predictor_and_points()
    counts = {}
    both = cb.certify(predictor, x, eps=EPS, method=method).certified
    # Searches choose between the two as well; here they begin with slopes 0.
    monkeypatch.setattr(branch, "WORDS", ("zero", "zero"))
    for rounds in ((("zero",),), (("adaptive",),)):
        monkeypatch.setattr(of_networks, "ONE_BY_ONE", rounds)
        alone = cb.certify(predictor, x, eps=EPS, method=method).certified
        assert (both | ~alone).all()
        counts[rounds] = int(alone.sum())
    assert int(both.sum()) > min(counts.values())
    assert cb.attack(predictor, x[both], eps=EPS[both]).robust_accuracy == 1.0


def test_adaptive_slopes_are_for_what_slope_zero_leaves_open(monkeypatch):
    predictor, x = predictor_and_points()
    seen = []

    def watched(predictor, box, *arguments):
        seen.append((next(words for words in arguments if isinstance(words, tuple)), len(box.center)))
        return margin_bounds(predictor, box, *arguments)

    monkeypatch.setattr(stage, "margin_bounds", watched)
    cb.certify(predictor, x, eps=EPS, method=cb.Elided("crown"))
    (first, all_points), (second, fewer) = seen
    assert (first, second) == (("zero",), ("adaptive",))
    assert 0 < fewer < all_points


def test_margins_take_the_best_of_the_slopes_that_they_are_given():
    predictor, x = predictor_and_points()
    y = predictor.predict(x)
    rivals = (y[:, None] + torch.arange(1, 3)) % 3
    box = outward_box(x, 0.2)
    alone = [margin_bounds(predictor, box, y, rivals, slopes=(slopes,)) for slopes in WORDS]
    assert torch.equal(margin_bounds(predictor, box, y, rivals), torch.maximum(*alone))
