"""Certification rules against brute force: what mean softmax differences can really do over boxes of logits."""

from itertools import product

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from certibayes.certification._softmax import probability_bounds, sum_of_others
from certibayes.certification.rules import mean_probability_bounds, pairwise_values, theorem1_differences

from ..strategies import generator, law, seeds


def theorem1(lower: Tensor, upper: Tensor, labels: Tensor) -> Tensor:
    """What the rule proves about a point: the smallest of its differences, (B,)."""
    return theorem1_differences(*mean_probability_bounds(lower, upper), labels).amin(-1)


def pairwise(lower: Tensor, upper: Tensor, labels: Tensor) -> Tensor:
    """Likewise, of the mean over networks."""
    return pairwise_values(lower, upper, labels).mean(0).amin(-1)


RULES = {"theorem1": theorem1, "pairwise": pairwise}

gaps = st.sampled_from([0.0, 1e-3, 0.3, 3.0, 50.0])
scales = st.sampled_from([0.1, 3.0, 30.0])


def _boxes(seed: int, networks: int, points: int, classes: int, scale: float, width: float) -> tuple[Tensor, Tensor]:
    rng = generator(seed)
    lower = torch.randn(networks, points, classes, generator=rng, dtype=torch.float64) * scale
    return lower, lower + torch.rand(lower.shape, generator=rng, dtype=torch.float64) * width


def _labels(points: int, classes: int) -> Tensor:
    return torch.arange(points) % classes


def _margins(logits: Tensor, labels: Tensor) -> Tensor:
    """Probability of the label minus that of the best rival, under the mean of networks: (..., N, B, C) -> (..., B)."""
    mean = logits.softmax(-1).mean(-3)
    is_label = labels[:, None] == torch.arange(mean.shape[-1])
    own = mean.masked_fill(~is_label, 0.0).sum(-1)
    return own - mean.masked_fill(is_label, -torch.inf).amax(-1)


def _corners(classes: int) -> Tensor:
    return torch.tensor(list(product((0.0, 1.0), repeat=classes)), dtype=torch.float64)


def _smallest_differences(lower: Tensor, upper: Tensor, labels: Tensor) -> Tensor:
    """Per network and rival, the smallest softmax_y - softmax_c over all corners: (N, B, C), inf for the label."""
    best = torch.full_like(lower, torch.inf)
    is_label = labels[:, None] == torch.arange(lower.shape[-1])
    for corner in _corners(lower.shape[-1]):
        p = torch.where(corner.bool(), upper, lower).softmax(-1)
        own = p.masked_fill(~is_label, 0.0).sum(-1, keepdim=True)
        best = torch.minimum(best, own - p)
    return best.masked_fill(is_label, torch.inf)


@pytest.mark.parametrize("rule", RULES)
@law(25)
@given(seed=seeds, scale=scales, width=gaps)
def test_no_logits_of_the_box_fall_below_the_margin(rule, seed, scale, width):
    lower, upper = _boxes(seed, 3, 4, 4, scale, width)
    labels = _labels(4, 4)
    margin = RULES[rule](lower, upper, labels)
    noise = torch.rand(300, *lower.shape, generator=generator(seed + 1), dtype=torch.float64)
    noise[:150] = noise[:150].round()
    assert bool((_margins(lower + noise * (upper - lower), labels) >= margin - 1e-15).all())


@law(25)
@given(seed=seeds, scale=scales, width=gaps, classes=st.integers(2, 5))
def test_pairwise_is_the_brute_force_minimum(seed, scale, width, classes):
    lower, upper = _boxes(seed, 3, 5, classes, scale, width)
    labels = _labels(5, classes)
    expected = _smallest_differences(lower, upper, labels).mean(0).amin(-1)
    torch.testing.assert_close(pairwise(lower, upper, labels), expected, atol=1e-12, rtol=0)


@law(25)
@given(seed=seeds, scale=scales, width=gaps, classes=st.sampled_from([2, 3, 10, 100]))
def test_pairwise_is_never_worse_than_theorem1(seed, scale, width, classes):
    lower, upper = _boxes(seed, 4, 6, classes, scale, width)
    labels = _labels(6, classes)
    assert bool((pairwise(lower, upper, labels) >= theorem1(lower, upper, labels) - 1e-11).all())


@law(25)
@given(seed=seeds, scale=scales, width=gaps)
def test_probability_bounds_hold_all_corners_and_are_reached(seed, scale, width):
    lower, upper = _boxes(seed, 2, 3, 4, scale, width)
    smallest, largest = probability_bounds(lower, upper)
    reached = torch.stack([torch.where(c.bool(), upper, lower).softmax(-1) for c in _corners(4)])
    assert bool((reached >= smallest).all()) and bool((reached <= largest).all())
    torch.testing.assert_close(reached.amin(0), smallest, atol=1e-12, rtol=1e-10)
    torch.testing.assert_close(reached.amax(0), largest, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("rule", RULES)
@law(10)
@given(seed=seeds, scale=scales, width=st.sampled_from([0.3, 3.0]))
def test_margins_grow_when_boxes_shrink(rule, seed, scale, width):
    lower, upper = _boxes(seed, 3, 4, 5, scale, width)
    labels = _labels(4, 5)
    inner = RULES[rule](lower + 0.1 * (upper - lower), upper - 0.1 * (upper - lower), labels)
    assert bool((inner >= RULES[rule](lower, upper, labels) - 1e-12).all())


# Extreme logits


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("gap", [1e3, 1e6])
def test_huge_gaps_give_a_margin_of_one(rule, gap):
    logits = torch.tensor([[[gap, 0.0, -gap]]], dtype=torch.float64)
    margin = float(RULES[rule](logits, logits, torch.tensor([0])))
    assert 1 - 1e-6 < margin <= 1.0
    assert float(RULES[rule](logits, logits, torch.tensor([2]))) == pytest.approx(-1, abs=1e-6)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("value", [0.0, -1e3, 1e6])
def test_equal_logits_prove_nothing(rule, value):
    logits = torch.full((2, 1, 4), value, dtype=torch.float64)
    margin = float(RULES[rule](logits, logits, torch.tensor([1])))
    assert -1e-6 < margin <= 0.0


@pytest.mark.parametrize("rule", RULES)
def test_with_one_class_everything_is_proved(rule):
    lower, upper = torch.zeros(2, 3, 1, dtype=torch.float64), torch.ones(2, 3, 1, dtype=torch.float64)
    assert bool((RULES[rule](lower, upper, torch.zeros(3, dtype=torch.int64)) > 0).all())


@example(seed=0, scale=100.0, width=1000.0)  # a lower end that is subnormal beside its own upper end
@law(30)
@given(seed=seeds, scale=st.sampled_from([100.0, 700.0, 3000.0, 1e6]), width=st.sampled_from([1.0, 1000.0, 1e7]))
def test_extreme_boxes_stay_sound(seed, scale, width):
    """Exponents underflow here, so nothing may be divided by what underflowed."""
    lower, upper = _boxes(seed, 3, 4, 3, scale, width)
    labels = _labels(4, 3)
    is_label = labels[:, None] == torch.arange(3)
    lowest, highest = probability_bounds(lower, upper)
    assert bool(torch.isfinite(lowest).all() and torch.isfinite(highest).all())
    differences = _smallest_differences(lower, upper, labels)
    for corner in _corners(3):
        p = torch.where(corner.bool(), upper, lower).softmax(-1)
        assert bool((p >= lowest - 1e-300).all() and (p <= highest + 1e-300).all())  # p underflows itself
    assert bool((theorem1(lower, upper, labels) <= differences.mean(0).amin(-1) + 1e-9).all())
    mean = differences.masked_fill(is_label, torch.inf).mean(0).amin(-1)
    assert bool((pairwise(lower, upper, labels) <= mean + 1e-9).all())


def test_pairwise_survives_a_class_far_above_both():
    """Network 1: relative to the third class's upper end, exp(0) and exp(5) both underflow, yet c beats y by far
    when the third class is at its lower end. Networks 2 and 3 prefer y by little."""
    close = [10.0, 9.8, -10.0]
    lower = torch.tensor([[[0.0, 5.0, -1000.0]], [close], [close]], dtype=torch.float64)
    upper = torch.tensor([[[0.0, 5.0, 1000.0]], [close], [close]], dtype=torch.float64)
    labels = torch.tensor([0])
    reached = _margins(lower, labels)  # the lower corner is a point of the box, and class 1 wins there
    assert float(reached) < -0.2
    assert float(pairwise(lower, upper, labels)) <= float(reached)


@law(30)
@given(seed=seeds, size=st.integers(1, 12))
def test_sum_of_others(seed, size):
    terms = torch.rand(3, size, generator=generator(seed), dtype=torch.float64)
    expected = terms.sum(-1, keepdim=True) - terms
    torch.testing.assert_close(sum_of_others(terms), expected, atol=1e-14, rtol=1e-12)


def test_sum_of_others_does_not_cancel():
    terms = torch.tensor([1.0, 1e-30, 1e-31], dtype=torch.float64)
    torch.testing.assert_close(sum_of_others(terms)[0], torch.tensor(1.1e-30, dtype=torch.float64), atol=0, rtol=1e-12)
