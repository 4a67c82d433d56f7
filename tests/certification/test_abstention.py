"""Certified uncertainty: entropy bounds against brute force over the polytope, and no input ever exceeds a bound."""

import json
import math
from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import certibayes as cb
from certibayes.attacks import PGD
from certibayes.certification import _polytope as polytope
from certibayes.certification.abstention import (
    abstains,
    certify_abstention,
    entropy_bounds,
    highest_entropy,
    lowest_entropy,
    max_confidence,
)
from certibayes.errors import InvalidInput, UnsoundBounds

from ..strategies import ball, generator, law, points_of, seeds

DOMAIN = (0.0, 1.0)


def _predictor(classes: int = 3, scale: float = 1.0) -> cb.Predictor:
    torch.manual_seed(classes)
    nets = [nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, classes)) for _ in range(3)]
    with torch.no_grad():
        for net in nets:
            net[-1].weight.mul_(scale)
    return cb.Samples.from_modules(nets).predictor()


def _certificate(lower: Tensor, upper: Tensor, rounding: str = "ideal") -> cb.Certificate:
    certificate = cb.certify(_predictor(), torch.rand(2, 4), eps=0.1, method="theorem1", rounding=rounding)
    return replace(certificate, lower=lower, upper=upper)


def _polytope(seed: int, points: int, classes: int, width: float, sharpness: float) -> tuple[Tensor, Tensor]:
    """Boxes around random distributions; some have lower ends of 0 and upper ends of 1."""
    rng = generator(seed)
    p = (sharpness * torch.randn(points, classes, generator=rng, dtype=torch.float64)).softmax(-1)
    down, up = torch.rand(2, points, classes, generator=rng, dtype=torch.float64) * width
    return (p - down).clamp(min=0.0), (p + up).clamp(max=1.0)


def _vertices(lower: list[float], upper: list[float]) -> list[list[float]]:
    """All vertices of one polytope, the slow way."""
    found = []
    for k in range(len(lower)):
        others = [(lower[j], upper[j]) for j in range(len(lower)) if j != k]
        for ends in product(*others):
            rest = 1 - math.fsum(ends)
            if lower[k] <= rest <= upper[k]:
                found.append([*ends, rest])
    return found


def _entropy(p: list[float]) -> float:
    return math.fsum(-q * math.log(q) for q in p if q > 0)


def _points_of_polytope(lower: Tensor, upper: Tensor, count: int, seed: int) -> Tensor:
    """Random distributions between the bounds: (count, B, C). Fill up from below in a random order."""
    rng = generator(seed)
    found = []
    for _ in range(count):
        order = torch.rand(lower.shape, generator=rng).argsort(-1)
        fraction = torch.rand(lower.shape, generator=rng, dtype=torch.float64).sqrt()
        p, left = lower.clone(), 1 - lower.sum(-1)
        for factor in (fraction, torch.ones_like(fraction)):
            for i in range(lower.shape[-1]):
                c = order[:, i : i + 1]
                room = (upper.gather(1, c) - p.gather(1, c)).squeeze(1)
                step = torch.minimum(room * factor.gather(1, c).squeeze(1), left).clamp(min=0.0)
                p = p.scatter_add(1, c, step[:, None])
                left = left - step
        found.append(p)
    return torch.stack(found)


# Entropy over the polytope

gaps = st.sampled_from([0.0, 1e-6, 0.05, 0.3, 1.0])
sharpnesses = st.sampled_from([0.1, 1.0, 5.0, 30.0])


@law(40)
@given(seed=seeds, classes=st.integers(2, 5), width=gaps, sharpness=sharpnesses)
def test_the_lowest_entropy_is_that_of_the_best_vertex(seed, classes, width, sharpness):
    lower, upper = _polytope(seed, 4, classes, width, sharpness)
    # A little room, so that the slow way does not miss vertices by rounding.
    lower, upper = lower * (1 - 1e-13), (upper * (1 + 1e-13)).clamp(max=1.0)
    for i, bound in enumerate(lowest_entropy(lower, upper).tolist()):
        vertices = _vertices(lower[i].tolist(), upper[i].tolist())
        assert bound == pytest.approx(min(_entropy(p) for p in vertices), abs=1e-10)


@law(40)
@given(seed=seeds, classes=st.sampled_from([2, 3, 5, 10, 11, 30]), width=gaps, sharpness=sharpnesses)
def test_no_distribution_leaves_the_entropy_bounds(seed, classes, width, sharpness):
    lower, upper = _polytope(seed, 5, classes, width, sharpness)
    smallest, largest = entropy_bounds(_certificate(lower, upper))
    assert bool((smallest <= largest).all() and (smallest >= 0).all())
    inside = _points_of_polytope(lower, upper, 40, seed)
    torch.testing.assert_close(inside.sum(-1), torch.ones_like(inside[..., 0]))
    entropy = torch.special.entr(inside).sum(-1)
    assert bool((smallest <= entropy).all() and (entropy <= largest).all())


@law(30)
@given(seed=seeds, classes=st.integers(2, 30), width=gaps, sharpness=sharpnesses)
def test_the_highest_entropy_is_reached(seed, classes, width, sharpness):
    """The filled distribution sums to 1 and has the bound for its entropy: no duality gap."""
    lower, upper = _polytope(seed, 5, classes, width, sharpness)
    bound = highest_entropy(lower, upper)
    low, high = torch.zeros(5, 1).double(), torch.ones(5, 1).double()
    for _ in range(80):
        middle = (low + high) / 2
        above = torch.clamp(middle, lower, upper).sum(-1, keepdim=True) >= 1
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    filled = torch.clamp(high, lower, upper)
    torch.testing.assert_close(filled.sum(-1), torch.ones(5).double(), atol=1e-9, rtol=0)
    torch.testing.assert_close(bound, torch.special.entr(filled).sum(-1), atol=1e-7, rtol=0)


@law(30)
@given(seed=seeds, classes=st.integers(2, 8), width=gaps, sharpness=sharpnesses)
def test_chords_lose_at_most_one_coordinate(seed, classes, width, sharpness):
    lower, upper = _polytope(seed, 20, classes, width, sharpness)
    exact = lowest_entropy(lower, upper)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(polytope, "MOST_CLASSES_ENUMERATED", 0)
        chords = lowest_entropy(lower, upper)
    assert bool((chords <= exact + 1e-9).all())
    # The largest distance between h and a chord on [l, u] is less than that on [0, u - l], (u - l) / e.
    assert bool((exact - chords <= (upper - lower).amax(-1) / math.e + 1e-9).all())


def test_known_entropies():
    def bounds(lower: list[float], upper: list[float]) -> tuple[float, float]:
        row = (torch.tensor([values], dtype=torch.float64) for values in (lower, upper))
        smallest, largest = entropy_bounds(_certificate(*row))
        return float(smallest), float(largest)

    assert bounds([0.0] * 4, [1.0] * 4) == pytest.approx((0.0, math.log(4)), abs=1e-8)
    assert bounds([0.25] * 4, [0.25] * 4) == pytest.approx((math.log(4), math.log(4)), abs=1e-8)
    assert bounds([0.0] * 4, [0.5] * 4) == pytest.approx((math.log(2), math.log(4)), abs=1e-8)
    assert bounds([1.0, 0.0], [1.0, 0.0]) == pytest.approx((0.0, 0.0), abs=1e-8)
    assert bounds([0.9, 0.0], [1.0, 0.1]) == pytest.approx((0.0, _entropy([0.9, 0.1])), abs=1e-8)
    # Three classes at 0.3 and one at 0.1; the chords alone would give -log 0.3.
    assert bounds([0.0] * 10, [0.3] * 10)[0] == pytest.approx(_entropy([0.3] * 3 + [0.1]), abs=1e-8)
    assert bounds([0.0] * 12, [0.3] * 12)[0] == pytest.approx(-math.log(0.3), abs=1e-8)


def test_bounds_that_hold_no_distribution_are_refused():
    for lower, upper in (([0.6, 0.6], [1.0, 1.0]), ([0.0, 0.0], [0.4, 0.4]), ([0.5, 0.6], [0.5, 0.4])):
        with pytest.raises(UnsoundBounds):
            entropy_bounds(_certificate(torch.tensor([lower]).double(), torch.tensor([upper]).double()))
    with pytest.raises(UnsoundBounds):
        entropy_bounds(_certificate(torch.full((1, 2), torch.nan).double(), torch.ones(1, 2).double()))


# Real predictors


@pytest.mark.parametrize("scale", [0.1, 1.0, 20.0])
@pytest.mark.parametrize("classes", [2, 3, 12])
def test_no_input_of_the_ball_exceeds_a_bound(classes, scale):
    predictor = _predictor(classes, scale)
    x = torch.rand(12, 4, generator=generator(0))
    for eps in (0.0, 0.03, 0.3):
        certificate = cb.certify(predictor, x, eps=eps, domain=DOMAIN)
        confidence = max_confidence(certificate)
        smallest, largest = entropy_bounds(certificate)
        attacked = cb.attack(predictor, x, eps=eps, domain=DOMAIN, method=PGD(steps=5, restarts=1)).inputs
        for point in [x, attacked, *points_of(*ball(x, eps, DOMAIN), 15, 0)]:
            assert bool((predictor.probabilities(point).double().amax(-1) <= confidence).all())
            log_p = predictor(point)
            for entropy in (
                cb.uncertainty(predictor, point).predictive_entropy,
                -(log_p.exp() * log_p).sum(-1).double(),  # in float32
            ):
                assert bool((smallest <= entropy).all() and (entropy <= largest).all())
        if eps == 0.0:
            assert bool((largest - smallest < 1e-2).all())


def test_noise_images_are_abstained_on():
    """A posterior fitted to few digits for a moment is provably unsure of noise."""
    train = cb.data.load("digits").train
    torch.manual_seed(0)
    net = cb.networks.mlp(784, [32], 10)
    posterior = cb.fit(
        net,
        type(train)(train.inputs[:1000], train.targets[:1000]),
        algorithm=cb.VOGN(),
        likelihood=cb.RobustCategorical(p_eps=cb.TwoPoint(0.02)),
        epochs=1,
        batch_size=100,
        seed=0,
        progress=False,
    )
    predictor = posterior.predictor(5)
    noise = torch.rand(50, 1, 28, 28, generator=generator(1))
    result = certify_abstention(cb.certify(predictor, noise, eps=0.005, domain=DOMAIN), tau=0.9)
    assert result.certified.any()
    for point in points_of(*ball(noise, 0.005, DOMAIN), 10, 0):
        p = predictor.probabilities(point).double()
        assert bool((p.amax(-1) <= result.confidence).all())
        assert bool((p.amax(-1) <= 0.9)[result.certified].all())
        entropy = torch.special.entr(p).sum(-1)
        assert bool((result.entropy_lower <= entropy).all() and (entropy <= result.entropy_upper).all())


def test_abstaining_shrinks_with_the_radius_and_grows_with_tau():
    predictor, x = _predictor(3), torch.rand(30, 4, generator=generator(3))
    counts = [int(abstains(cb.certify(predictor, x, eps=eps), 0.6).sum()) for eps in (0.0, 0.1, 0.5, 5.0)]
    assert counts == sorted(counts, reverse=True) and counts[0] > 0 and counts[-1] == 0
    certificate = cb.certify(predictor, x, eps=0.1)
    counts = [int(abstains(certificate, tau).sum()) for tau in (0.1, 0.4, 0.6, 0.9)]
    assert counts == sorted(counts) and counts[0] == 0


@pytest.mark.parametrize("tau", [0.0, -1.0, 1.5, float("nan")])
def test_a_threshold_is_a_confidence(tau):
    with pytest.raises(InvalidInput, match="tau"):
        abstains(_certificate(torch.zeros(1, 2).double(), torch.ones(1, 2).double()), tau)


def test_the_result_says_what_was_proved():
    certificate = cb.certify(_predictor(), torch.rand(6, 4), eps=0.125, domain=DOMAIN, method="theorem1")
    result = certify_abstention(certificate, 0.75)
    for word in ("0.75", "0.125", "entropy", "confidence", certificate.digest[:16], "ibp"):
        assert word in result.statement
    record = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert len(result) == 6 and len(record["entropy_lower"]) == 6 and record["tau"] == 0.75
    assert record["certified"] == result.certified.tolist()
    assert record["certificate"]["eps"] == 0.125


def test_an_empty_batch():
    result = certify_abstention(cb.certify(_predictor(), torch.rand(0, 4), eps=0.1), 0.5)
    assert len(result) == 0 and result.entropy_lower.shape == (0,)
