"""Bounds on logits: every kind holds the float program, each is at least as tight as the one before, within nothing."""

from itertools import pairwise, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import certibayes as cb
from certibayes.attacks import PGD, as_attack
from certibayes.bounds import ideal_box, outward_box
from certibayes.certification import BOUNDS, as_method, logit_bounds, network_bounds
from certibayes.certification.network_bounds import INTERMEDIATES, batch_for
from certibayes.support.stacks import map_samples

from ..strategies import VARIANTS, ZOO, ball, few_of, input_shape, inputs, law, make, points_of, seeds
from .cases import mapped

TESTED = ["relu", "no bias", "residual", "residual images", "max pool, padded, ceil", "tanh"]


def _predictor(name: str, seed: int = 0, networks: int = 2):
    return cb.Samples.from_modules([make(name, seed + index) for index in range(networks)]).predictor(networks)


def _every_kind(predictor, box, intermediates="ibp"):
    return [logit_bounds(predictor, box, bounds=bounds, intermediates=intermediates) for bounds in BOUNDS]


def _assert_nested(ends) -> None:
    for (low, high), (tighter_low, tighter_high) in pairwise(ends):
        assert bool((tighter_low >= low).all() and (tighter_high <= high).all())


def _assert_held(predictor, x, eps, ends, seed) -> None:
    """``eps`` is one radius, or one per point, (B,)."""
    radii = torch.as_tensor(eps, dtype=torch.float64).expand(len(x)).view(-1, *[1] * (x.dim() - 1))
    points = points_of(*ball(x, radii), 20, seed)
    with torch.no_grad():
        outputs = predictor.sample_outputs(points.flatten(0, 1)).double().flatten(2)
    outputs = outputs.unflatten(1, points.shape[:2]).movedim(1, 0)
    for low, high in ends:
        assert bool((low <= outputs).all() and (outputs <= high).all())


WAYS = list(product(sorted(ZOO), INTERMEDIATES))
FAST = [way for way in WAYS if way[0] in TESTED or (way[1] == "ibp" and way[0] not in VARIANTS)]


@pytest.mark.parametrize("way", few_of(WAYS, fast=FAST), ids=", ".join)
def test_every_network_is_held_ever_more_tightly(way, request):
    name, intermediates = way
    if name not in TESTED:
        request.getfixturevalue("few_steps")
    # One network, since hull goes through them one by one.
    predictor, x = _predictor(name, networks=1), inputs(name, 2, 0).repeat(2, *[1] * len(input_shape(name)))
    eps = torch.tensor([0.0, 0.0, 0.05, 0.05], dtype=torch.float64)
    ends = _every_kind(predictor, outward_box(x, eps), intermediates)
    assert all(end.dtype == torch.float64 and end.shape == (1, 4, predictor.classes) for end in sum(ends, ()))
    _assert_nested(ends)
    _assert_held(predictor, x, eps, ends, 0)


@law(4)
@given(seed=seeds, name=st.sampled_from(TESTED), eps=st.sampled_from([1e-6, 1e-3, 0.1, 0.5]))
def test_at_any_radius(seed, name, eps):
    predictor, x = _predictor(name, seed), inputs(name, 2, seed)
    ends = _every_kind(predictor, outward_box(x, eps))
    _assert_nested(ends)
    _assert_held(predictor, x, eps, ends, seed)


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_in_other_norms(norm):
    predictor, x = _predictor("relu"), inputs("relu", 3, 0)
    ends = _every_kind(predictor, outward_box(x, 0.3, norm=norm))
    _assert_nested(ends)
    attacked = cb.attack(predictor, x, predictor.predict(x), eps=0.3, norm=norm, method=PGD(steps=10))
    with torch.no_grad():
        outputs = predictor.sample_outputs(attacked.inputs).double()
    assert all(bool((low <= outputs).all() and (outputs <= high).all()) for low, high in ends)


def test_each_kind_is_another():
    """Optimized slopes and cuts must gain something somewhere, or they are not there at all."""
    ends = _every_kind(_predictor("relu"), outward_box(inputs("relu", 4, 0), 0.3))
    gaps = [float((high - low).mean()) for low, high in ends]
    assert all(loose > 1.001 * tight for loose, tight in pairwise(gaps))


@pytest.mark.parametrize("bounds", few_of(BOUNDS[1:], fast=["crown", "alpha-crown"]))
def test_little_memory_makes_parts_and_little_difference(bounds):
    predictor, box = _predictor("relu"), outward_box(inputs("relu", 5, 0), 0.1)
    assert batch_for(predictor, 2 * predictor.classes, 1, bounds) == 1
    for found, expected in zip(
        logit_bounds(predictor, box, bounds=bounds, memory=1), logit_bounds(predictor, box, bounds=bounds), strict=True
    ):
        # An ascent takes slightly other steps in other batches.
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)


def test_tighter_kinds_have_fewer_points_at_once():
    predictor = _predictor("relu")
    counts = [batch_for(predictor, 6, 2**20, bounds) for bounds in BOUNDS[1:]]
    assert counts == sorted(counts, reverse=True) and counts[0] > counts[1] > counts[2] > 1


@pytest.mark.parametrize("method", few_of(["theorem1", "pairwise"], fast=["pairwise"]))
def test_tighter_bounds_prove_no_less_and_sometimes_more(method):
    counts = [0] * len(BOUNDS)
    for seed in range(2):
        predictor, x = _predictor("relu", seed), inputs("relu", 8, seed).repeat(3, 1)
        eps = torch.tensor([0.07, 0.16, 0.25], dtype=torch.float64).repeat_interleave(8)
        found = [cb.certify(predictor, x, eps=eps, method=as_method(method, bounds=bounds)) for bounds in BOUNDS]
        for looser, tighter in pairwise(found):
            assert bool((tighter.certified | ~looser.certified).all())
            # Softmax in float64 is monotone but for its last digits.
            assert bool((tighter.lower >= looser.lower - 1e-14).all() and (tighter.upper <= looser.upper + 1e-14).all())
        counts = [count + int(result.certified.sum()) for count, result in zip(counts, found, strict=True)]
        kept = found[-1].certified
        labels = found[-1].labels
        if bool(kept.any()):
            assert (
                cb.attack(
                    predictor, x[kept], labels[kept], eps=eps[kept], method=as_attack("ensemble", steps=10)
                ).robust_accuracy
                == 1.0
            )
    assert counts[0] < counts[1] < counts[2] <= counts[3], counts


@pytest.mark.parametrize("bounds", ["ibp", "crown", "alpha-crown"])
@pytest.mark.parametrize("intermediates", INTERMEDIATES)
def test_all_but_hull_can_be_mapped_over_networks(bounds, intermediates, monkeypatch):
    """As on a GPU; what CROWN selects is selected outside of the map."""
    predictor, box = _predictor("relu"), outward_box(inputs("relu", 3, 0), 0.1)
    expected = logit_bounds(predictor, box, bounds=bounds, intermediates=intermediates)
    seen = []
    vmap = torch.vmap

    def watched(function, *settings, **others):
        seen.append(function)
        return vmap(function, *settings, **others)

    mapped(monkeypatch)
    monkeypatch.setattr(torch, "vmap", watched)
    found = logit_bounds(predictor, box, bounds=bounds, intermediates=intermediates)
    assert seen
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)


def test_hull_goes_through_networks_one_by_one(monkeypatch):
    seen = []

    def one_by_one(function, stacked, mapped):
        seen.append(mapped)
        return map_samples(function, stacked, mapped)

    monkeypatch.setattr(network_bounds, "map_samples", one_by_one)
    logit_bounds(_predictor("relu"), outward_box(inputs("relu", 1, 0), 0.1), bounds="hull")
    assert seen == [False]


@pytest.mark.parametrize("bounds", BOUNDS)
def test_in_ideal_arithmetic_a_point_is_no_box_that_is_inverted(bounds):
    """Ends that meet may cross by rounding, where nothing is rounded outwards."""
    net = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, 5))
    predictor = cb.Samples.from_modules([net]).predictor(1)
    x = torch.rand(40, 20, generator=torch.Generator().manual_seed(0))
    lower, upper = logit_bounds(predictor, ideal_box(x, 0.0), "ideal", bounds)
    assert bool((lower <= upper).all())
    assert float((upper - lower).max()) < 1e-5
