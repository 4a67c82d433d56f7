"""Certified scores: the Brier score against all vertices in exact arithmetic, and no input of a ball scores worse."""

import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import certibayes as cb
from certibayes.attacks import PGD
from certibayes.certification import METHODS, certified_scores
from certibayes.certification import _polytope as polytope
from certibayes.certification._polytope import lowest_sum
from certibayes.errors import UnsoundBounds

from ..strategies import ball, generator, in_turn, law, points_of, seeds
from .test_abstention import _certificate, _points_of_polytope, _polytope, _predictor, gaps, sharpnesses

DOMAIN = (0.0, 1.0)


def stated(lower: Tensor, upper: Tensor, labels: Tensor, certified: bool = False) -> cb.Certificate:
    """A certificate with these bounds."""
    marks = torch.full((len(labels),), certified)
    return replace(_certificate(lower, upper), labels=labels, predicted=labels, certified=marks)


def labels_for(seed: int, points: int, classes: int) -> Tensor:
    return torch.randint(classes, (points,), generator=generator(seed))


def brier(p: Tensor, labels: Tensor) -> Tensor:
    truth = torch.arange(p.shape[-1]) == labels[:, None]
    return (p - truth.to(p)).square().sum(-1)


def worst_vertex(lower: list[float], upper: list[float], label: int) -> Fraction:
    """The largest Brier score over all vertices, in exact arithmetic."""
    low, high = [Fraction(v) for v in lower], [Fraction(v) for v in upper]
    found = []
    for k in range(len(low)):
        for ends in product(*((low[j], high[j]) for j in range(len(low)) if j != k)):
            rest = 1 - sum(ends)
            if low[k] <= rest <= high[k]:
                p = [*ends[:k], rest, *ends[k:]]
                found.append(sum((q - (c == label)) ** 2 for c, q in enumerate(p)))
    return max(found)


# The Brier score over the polytope


@law(25)
@given(seed=seeds, classes=st.integers(2, 5), width=gaps, sharpness=sharpnesses)
def test_the_brier_score_is_that_of_the_worst_vertex(seed, classes, width, sharpness):
    lower, upper = _polytope(seed, 4, classes, width, sharpness)
    # A little room, so that rounding leaves a distribution between them.
    lower, upper = lower * (1 - 1e-13), (upper * (1 + 1e-13)).clamp(max=1.0)
    labels = labels_for(seed, 4, classes)
    found = certified_scores(stated(lower, upper, labels)).brier
    for i, label in enumerate(labels.tolist()):
        exact = worst_vertex(lower[i].tolist(), upper[i].tolist(), label)
        assert exact <= Fraction(float(found[i])) <= exact + Fraction(1, 10**8)


@law(25)
@given(seed=seeds, classes=st.sampled_from([2, 3, 5, 10, 11, 30]), width=gaps, sharpness=sharpnesses)
def test_no_distribution_scores_worse(seed, classes, width, sharpness):
    lower, upper = _polytope(seed, 5, classes, width, sharpness)
    labels = labels_for(seed, 5, classes)
    found = certified_scores(stated(lower, upper, labels))
    inside = _points_of_polytope(lower, upper, 40, seed)
    for p in inside:
        assert bool((brier(p, labels) <= found.brier).all())
        assert bool((-p.gather(-1, labels[:, None]).squeeze(-1).log() <= found.nll).all())


@law(30)
@given(seed=seeds, classes=st.integers(2, 8), width=gaps, sharpness=sharpnesses)
def test_chords_lose_at_most_one_coordinate(seed, classes, width, sharpness):
    lower, upper = _polytope(seed, 20, classes, width, sharpness)
    truth = (torch.arange(classes) == labels_for(seed, 20, classes)[:, None]).double()

    def score() -> Tensor:
        return -lowest_sum(lambda p, points: -(p - truth[points]).square(), lower, upper)

    exact = score()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(polytope, "MOST_CLASSES_ENUMERATED", 0)
        chords = score()
    assert bool((exact <= chords + 1e-9).all())
    # The largest distance between a square and its chord.
    assert bool((chords - exact <= (upper - lower).square().amax(-1) / 4 + 1e-9).all())


def known(lower: list[float], upper: list[float], certified: bool = False) -> tuple[float, float]:
    row = (torch.tensor([values], dtype=torch.float64) for values in (lower, upper))
    found = certified_scores(stated(*row, torch.tensor([0]), certified))
    return float(found.nll), float(found.brier)


def test_known_scores():
    assert known([0.0] * 4, [1.0] * 4) == pytest.approx((math.inf, 2.0), abs=1e-8)
    assert known([0.25] * 4, [0.25] * 4) == pytest.approx((math.log(4), 0.75), abs=1e-8)
    assert known([1.0, 0.0], [1.0, 0.0]) == pytest.approx((0.0, 0.0), abs=1e-8)
    assert known([0.9, 0.0], [1.0, 0.1]) == pytest.approx((-math.log(0.9), 0.02), abs=1e-8)
    # The label has what the others cannot have.
    assert known([0.0, 0.0, 0.0], [1.0, 0.2, 0.1])[0] == pytest.approx(-math.log(0.7), abs=1e-8)


def test_a_proof_is_worth_more_than_the_bounds():
    """No rival is as probable as the label: it has 1/C, and a rival at most half."""
    assert known([0.0] * 4, [1.0] * 4, certified=True) == pytest.approx((math.log(4), 0.875), abs=1e-8)
    assert known([0.0] * 2, [1.0] * 2, certified=True) == pytest.approx((math.log(2), 0.5), abs=1e-8)
    assert known([0.0, 0.0, 0.0], [0.4, 1.0, 1.0], certified=True)[1] == pytest.approx(
        (1 - 1 / 3) ** 2 + 0.5**2 + (1 / 6) ** 2, abs=1e-8
    )


def test_a_proof_that_contradicts_the_bounds_by_a_hair_is_left_out():
    """As ideal rounding may have it; the polytope must not become empty."""
    nll, score = known([0.1, 0.4, 0.4], [0.2, 0.8, 0.8], certified=True)
    assert nll == pytest.approx(-math.log(0.1), abs=1e-8) and 0.8 < score < 2.0


def test_bounds_that_hold_no_distribution_are_refused():
    with pytest.raises(UnsoundBounds):
        known([0.6, 0.6], [1.0, 1.0])


# Real predictors


@pytest.mark.parametrize(("method", "kind"), in_turn(METHODS, [(2, 1.0), (3, 20.0), (12, 1.0)]))
def test_no_attack_scores_worse(method, kind, few_steps):
    classes, scale = kind
    predictor, x = _predictor(classes, scale), torch.rand(12, 4, generator=generator(0))
    y = labels_for(1, 12, classes)
    # Half of the points with their predicted class, so that some are certified.
    y[::2] = predictor.predict(x)[::2]
    for eps in (0.0, 0.03, 0.3):
        certificate = cb.certify(predictor, x, y, eps=eps, domain=DOMAIN, method=method)
        found = cb.certified_scores(certificate)
        require_not_exceeded(found, predictor, x, y, eps)
        if eps == 0.0:
            assert bool((found.brier - brier(predictor.probabilities(x).double(), y) < 1e-2).all())


def require_not_exceeded(found, predictor, x, y, eps):
    attacked = [
        cb.attack(predictor, x, y, eps=eps, domain=DOMAIN, method=PGD(steps=20, restarts=2, losses=[loss])).inputs
        for loss in ("cross-entropy", "margin")
    ]
    points = torch.stack([x, *attacked, *ascents(predictor, x, y, eps), *points_of(*ball(x, eps, DOMAIN), 15, 0)])
    with torch.no_grad():
        logs = predictor(points.flatten(0, 1)).unflatten(0, points.shape[:2])
        probabilities = predictor.probabilities(points.flatten(0, 1)).unflatten(0, points.shape[:2])
    for log_p, p in zip(logs, probabilities, strict=True):
        own = log_p.gather(-1, y[:, None]).squeeze(-1)
        assert bool((-own.double() <= found.nll).all())
        for each in (log_p.double().exp(), log_p.exp(), p):
            assert bool((brier(each, y).double() <= found.brier).all())


def ascents(predictor, x, y, eps):
    """Inputs found by steps up the Brier score and the loss themselves, also of points that are misclassified."""
    low, high = (x - eps).clamp(min=0.0), (x + eps).clamp(max=1.0)
    for score in (lambda log_p: brier(log_p.exp(), y), lambda log_p: -log_p.gather(-1, y[:, None])):
        point = x.clone()
        for _ in range(20):
            point.requires_grad_(True)
            (gradient,) = torch.autograd.grad(score(predictor(point)).sum(), point)
            point = torch.minimum(torch.maximum(point.detach() + 0.2 * eps * gradient.sign(), low), high)
            yield torch.minimum(torch.maximum(point, x - eps), x + eps).clamp(0.0, 1.0)


@law(8)
@given(seed=seeds, eps=st.sampled_from([1e-3, 0.05, 0.2]), sharpness=st.sampled_from([0.3, 3.0, 30.0]))
def test_random_networks(seed, eps, sharpness):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        nets = [nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4)) for _ in range(2)]
    with torch.no_grad():
        for net in nets:
            net[-1].weight.mul_(sharpness)
    predictor = cb.Samples.from_modules(nets).predictor()
    x, y = torch.rand(6, 4, generator=generator(seed)), labels_for(seed, 6, 4)
    y[:3] = predictor.predict(x)[:3]
    found = certified_scores(cb.certify(predictor, x, y, eps=eps, domain=DOMAIN))
    require_not_exceeded(found, predictor, x, y, eps)


def test_larger_balls_score_no_better():
    predictor, x = _predictor(3), torch.rand(20, 4, generator=generator(2))
    found = [certified_scores(cb.certify(predictor, x, eps=eps, method="theorem1")) for eps in (0.0, 0.01, 0.1, 1.0)]
    for one, other in pairwise(found):
        assert bool((one.nll <= other.nll).all() and (one.brier <= other.brier).all())
        assert one.accuracy >= other.accuracy


def test_a_point_without_bounds_may_score_anything():
    net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)))
    with torch.no_grad():
        for layer in net:
            layer.weight.fill_(1e9)
    certificate = cb.certify(cb.Point(net).predictor(), torch.rand(2, 4), torch.tensor([0, 1]), eps=1.0)
    assert certificate.reasons
    found = certified_scores(certificate)
    assert bool(found.nll.isinf().all()) and float(found.brier.min()) == pytest.approx(2.0, abs=1e-4)


def test_the_record_says_what_was_proved():
    predictor, x = _predictor(), torch.rand(6, 4, generator=generator(1))
    certificate = cb.certify(predictor, x, eps=0.125, domain=DOMAIN, method="theorem1")
    found = certified_scores(certificate)
    assert set(found.summary()) == {"accuracy", "nll", "brier", "entropy_lower", "entropy_upper"}
    assert found.summary()["nll"] == pytest.approx(float(found.nll.mean()))
    assert "Brier score at most" in repr(found) and certificate.digest[:16] in found.statement
    assert len(found) == 6
    empty = certified_scores(cb.certify(predictor, x[:0], eps=0.1))
    assert len(empty) == 0 and math.isnan(empty.summary()["nll"])
