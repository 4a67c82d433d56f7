"""The method joint: functions below h, a bound below what any one input gives, and never worse than elided."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import certibayes as cb
from certibayes.attacks import PGD
from certibayes.bounds import Box
from certibayes.bounds.linear import LinearFunction
from certibayes.certification._joint import Others, height, joint_values, offset_of
from certibayes.certification.clock import Clock
from certibayes.certification.stages import LogitBounds, MarginBounds
from certibayes.certification.stages.joint import others_of
from certibayes.certification.state import State
from certibayes.errors import InvalidInput

from ..strategies import ball, few_of, fractions, law, points_of, seeds
from .cases import problem_of

terms = st.sampled_from([0.0, 1e-6, 0.3, 1.0, 30.0, 1e6])


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


@law(200)
@given(
    low=st.floats(-30, 30), width=st.floats(0, 40), slope=st.sampled_from([0.0, 1e-6, 0.01, 0.1, 0.25, 0.5, 1.0, 3.0]),
    more=terms, lower=terms,
)  # fmt: skip
def test_the_linear_function_is_below_h_and_touches_it(low, width, slope, more, lower):
    others = Others(numbers(lower + more), numbers(lower))
    margins = torch.linspace(low, low + width, 2001, dtype=torch.float64)
    e = offset_of(numbers(slope), numbers(low), numbers(low + width), others)
    gaps = height(margins, others) - slope * margins - e
    assert float(gaps.min()) >= -1e-9
    # A grid of 2001 misses the place where they touch by little.
    assert float(gaps.min()) <= 1e-3 * (1 + width * (0.5 + slope))


@law(50)
@given(lower=terms, more=terms)
def test_h_grows_with_the_margin(lower, more):
    margins = torch.linspace(-50, 50, 4001, dtype=torch.float64)
    heights = height(margins, Others(numbers(lower + more), numbers(lower)))
    assert (heights.diff() >= 0).all()
    assert float(heights.abs().max()) <= 1.0


def problem(seed, networks=6, pairs=3, width=5, noise=1.0):
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    shared = normal(1, pairs, width)
    coefficients = shared + noise * normal(networks, pairs, width)
    offsets = 1 + normal(networks, pairs)
    box = Box(normal(pairs, width), 0.5 * normal(pairs, width).abs())
    lowest = (coefficients * box.center).sum(-1) - (coefficients.abs() * box.radius).sum(-1) + offsets
    others = Others(normal(networks, pairs).exp() + 1, normal(networks, pairs).sigmoid())
    return LinearFunction(coefficients, offsets), lowest, others, box


@law(9)
@given(seed=seeds, noise=st.sampled_from([0.1, 1.0, 3.0]))
def test_no_input_gives_less_than_the_bound(seed, noise):
    functions, lowest, others, box = problem(seed, pairs=10, noise=noise)
    found = joint_values(functions, lowest, others, box)
    g = torch.Generator().manual_seed(seed + 1)
    uniform = torch.rand(2000, *box.center.shape, generator=g, dtype=torch.float64) * 2 - 1
    for directions in (uniform, uniform.sign()):
        x = box.center + directions * box.radius
        margins = torch.einsum("kpd,npd->knp", x, functions.coefficients) + functions.offset
        means = height(margins, Others(others.upper[None], others.lower[None])).mean(1)
        assert (means.amin(0) >= found).all()


def test_it_gains_where_networks_disagree_and_loses_nothing_where_they_agree():
    functions, lowest, others, box = problem(0, pairs=60, noise=2.0)
    gain = joint_values(functions, lowest, others, box) - height(lowest, others).mean(0)
    assert float(gain.min()) > -1e-3
    assert float(gain.mean()) > 0.05


def test_better_margins_than_the_linear_functions_are_used():
    functions, lowest, others, box = problem(0)
    known = lowest + 1.0
    assert (joint_values(functions, known, others, box) >= height(known, others).mean(0) - 1e-3).all()


@law(8)
@given(seed=seeds, networks=st.sampled_from([2, 6]), size=st.sampled_from([1e6, 1e10]))
def test_what_cancels_between_networks_and_inputs_is_covered(seed, networks, size):
    """Large coefficients whose sum is small, at one point: all that is left of the sums is what rounding did."""
    pairs, g = 5, torch.Generator().manual_seed(seed)
    half = size * torch.randn(networks // 2, pairs, 40, generator=g, dtype=torch.float64)
    one = torch.cat([half, -half])
    coefficients = torch.cat([one, -one], -1)
    center = torch.rand(pairs, 40, generator=g, dtype=torch.float64).repeat(1, 2) + 0.5
    center = center * (1 + 1e-16 * torch.randn(pairs, 80, generator=g, dtype=torch.float64))
    offsets = 0.5 + torch.rand(networks, pairs, generator=g, dtype=torch.float64)
    box = Box(center, torch.zeros_like(center))
    x, rows, constants = fractions(center), fractions(coefficients), fractions(offsets)
    margins = [
        [float(sum((a * v for a, v in zip(row[p], x[p], strict=True)), start=d[p])) for p in range(pairs)]
        for row, d in zip(rows, constants, strict=True)
    ]
    exact = torch.tensor(margins, dtype=torch.float64)
    others = Others(*(torch.full((networks, pairs), most, dtype=torch.float64) for most in (0.5, 0.1)))
    found = joint_values(LinearFunction(coefficients, offsets), exact - 2, others, box)
    assert bool((found <= height(exact, others).mean(0) + 1e-15).all())


@pytest.mark.parametrize("bounds", ["ibp", "crown"])
@pytest.mark.parametrize("eps", [0.0, 1e-6, 0.2])
def test_what_the_other_classes_add_lies_between_its_bounds_on_the_whole_ball(bounds, eps):
    """T in the denominator: too small a bound from above, or too large a one from below, would prove too much."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        nets = [nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 5)) for _ in range(3)]
        for net in nets:
            net[2].weight.data.mul_(4.0)
    predictor = cb.Samples.from_modules(nets).predictor(3)
    x = torch.rand(6, 4, generator=torch.Generator().manual_seed(1))
    problem = problem_of(predictor, x, eps)
    state = LogitBounds(bounds)(problem, State.start(problem), Clock())
    state = MarginBounds("crown")(problem, state, Clock())
    is_rival = problem.labels[:, None] != torch.arange(5)
    point, rival = is_rival.nonzero().T
    others = others_of(state, point, rival)
    for z in points_of(*ball(x, eps), 60, 0):
        logits = predictor.sample_outputs(z).double()
        terms = torch.exp(logits - logits.gather(-1, problem.labels.expand(3, -1)[..., None]))
        total = (terms * is_rival).sum(-1)[:, point] - terms[:, point, rival]
        assert bool((others.lower <= total).all() and (total <= others.upper).all())
    assert bool((others.lower < others.upper).all())


def opposed():
    """Two networks that leave class 0 at opposite ends of the input: no input fools both."""

    def net(sign):
        net = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 2))
        with torch.no_grad():
            net[0].weight.copy_(torch.tensor([[1.0], [-1.0]]))
            net[0].bias.fill_(3.0)
            net[2].weight.copy_(torch.tensor([[sign, -sign], [0.0, 0.0]]))
            net[2].bias.copy_(torch.tensor([1.0, 0.0]))
        return net

    return cb.Samples.from_modules([net(1.0), net(-1.0)]).predictor(2)


def test_one_input_for_all_networks_proves_what_each_alone_cannot():
    """z_0 - z_1 = 1 + 2 s x: at x = -0.8 the first network errs, at 0.8 the second, but not the mean."""
    predictor, x = opposed(), torch.zeros(1, 1)
    assert not bool(cb.certify(predictor, x, eps=0.8, method=cb.Elided("crown")).certified)
    assert bool(cb.certify(predictor, x, eps=0.8, method=cb.Joint("crown")).certified)
    assert bool(cb.certify(predictor, x, eps=0.8, method="best").certified)
    grid = torch.linspace(-0.8, 0.8, 101)[:, None]
    assert (predictor.predict(grid) == 0).all()


@pytest.mark.parametrize("bounds", few_of(["crown", "alpha-crown", "hull"], fast=["crown", "alpha-crown"]))
def test_it_proves_no_less_than_elided_and_no_attack_breaks_it(bounds):
    digits = cb.data.load("digits")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        nets = [cb.networks.mlp(784, [16], 10, seed=seed) for seed in range(3)]
        posterior = cb.Samples.from_modules(nets)
    predictor = posterior.predictor(3)
    x = digits.test.inputs[:20]
    elided, joint = (
        cb.certify(predictor, x, eps=0.01, domain=(0.0, 1.0), method=method)
        for method in (cb.Elided(bounds), cb.Joint(bounds))
    )
    assert (joint.certified | ~elided.certified).all()
    assert 0 < int(joint.certified.sum()) < 20
    proved = joint.certified
    attacked = cb.attack(predictor, x[proved], eps=0.01, domain=(0.0, 1.0), method=PGD(steps=30, restarts=3))
    assert attacked.robust_accuracy == 1.0


def test_intervals_have_no_linear_functions_to_join():
    with pytest.raises(InvalidInput, match="joint needs linear bounds"):
        cb.Joint(bounds="ibp")
