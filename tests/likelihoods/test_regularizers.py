"""Regularizers of bounds, against the formulas written out in numpy."""

import numpy as np
import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.bounds import IDEAL
from certibayes.errors import InvalidInput
from certibayes.likelihoods import Likelihood
from certibayes.likelihoods._regularizers import bound_penalty
from certibayes.networks.batch_norm import training_graph

from . import test_batch_norm
from .cases import Case, assert_same, case_of, images, mlp_case

ETA = 0.1


def likelihood_with(tightness=0.0, balance=0.0, **settings):
    return cb.RobustCategorical(cb.TwoPoint(ETA), ramp=cb.Curriculum(tightness=tightness, balance=balance), **settings)


def mlp_net(*hidden, seed=0):
    return cb.networks.mlp(6, hidden, 3, seed=seed).double()


def loud(net):
    """With weights whose bounds widen from layer to layer."""
    with torch.no_grad():
        for p in net.parameters():
            p *= 3.0
    return net


def normed() -> Case:
    """A residual network with batch norm, on a batch large enough for units that are active, and inactive."""
    case = test_batch_norm.case()
    return case._replace(params={name: 3.0 * p for name, p in case.params.items()})


def penalty(case: Case, likelihood, progress: float = 0.2, params=None):
    noise = likelihood.draw(progress, case.batch, torch.Generator().manual_seed(0))
    return likelihood.penalty(case.graph, {**case.tensors, **(params or {})}, case.batch, noise)


def boxes_of_an_mlp(case: Case, radius: float):
    """Half-widths of the inputs, and (center, half-width) of what each ReLU takes in."""
    x = case.batch.inputs.numpy()
    lower, upper = np.clip(x - radius, 0, 1), np.clip(x + radius, 0, 1)
    first, found = (upper - lower) / 2, []
    layers = [n.removesuffix(".weight") for n in case.params if n.endswith("weight")]
    for name in layers[:-1]:
        weight, bias = (case.params[f"{name}.{kind}"].numpy() for kind in ("weight", "bias"))
        center = (upper + lower) / 2 @ weight.T + bias
        width = (upper - lower) / 2 @ abs(weight).T
        found.append((center, width))
        lower, upper = np.maximum(center - width, 0), np.maximum(center + width, 0)
    return first, found


def expected_tightness(case, radius):
    first, layers = boxes_of_an_mlp(case, radius)
    return np.mean([max(0.5 - first.mean() / width.mean(), 0) / 0.5 for _, width in layers])


def expected_balance(case, radius):
    terms = []
    for center, width in boxes_of_an_mlp(case, radius)[1]:
        active, inactive = center - width > 0, center + width < 0
        means = (center * active).mean(), (-center * inactive).mean()
        squares = (center - center.mean()) ** 2
        variances = (squares * active).mean(), (squares * inactive).mean()
        ratios = [min(pair) / max(pair) if max(pair) > 0 else 0.5 for pair in (means, variances)]
        terms.append(sum(max(0.5 - ratio, 0) / 0.5 for ratio in ratios))
    return np.mean(terms)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("progress", [0.1, 0.2, 0.3])
def test_values_are_those_of_the_formulas(seed, progress):
    case = case_of(loud(mlp_net(40, 30, 20, seed=seed)), images(12, 6, seed=seed))
    share = cb.SmoothRamp(0.0, 0.35)(progress)
    factor = 1 - share
    for likelihood, expected in (
        (likelihood_with(tightness=0.5), 0.5 * expected_tightness(case, share * ETA)),
        (likelihood_with(balance=2.0), 2.0 * expected_balance(case, share * ETA)),
    ):
        assert float(penalty(case, likelihood, progress)) == pytest.approx(factor * expected, rel=1e-6)
    both = penalty(case, likelihood_with(0.5, 2.0), progress)
    parts = penalty(case, likelihood_with(tightness=0.5), progress) + penalty(
        case, likelihood_with(balance=2.0), progress
    )
    torch.testing.assert_close(both, parts)


def test_something_is_penalized_here():
    case = case_of(loud(mlp_net(40, 30, 20)), images(12, 6))
    assert float(penalty(case, likelihood_with(tightness=1.0))) > 0.02
    assert float(penalty(case, likelihood_with(balance=1.0))) > 0.02


@pytest.mark.parametrize("progress", [0.35, 0.5, 1.0])
def test_nothing_is_left_once_the_radius_has_grown(progress):
    case = mlp_case(8, 8, dtype=torch.float32)
    for way in (
        cb.Curriculum(tightness=0.5, balance=0.5),
        cb.Curriculum(multiplier=cb.LinearRamp(0.35, 0.5, first=2.0), tightness=0.5, balance=0.5),
    ):
        assert float(penalty(case, cb.RobustCategorical(eps=0.1, ramp=way), progress)) == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("progress", [0.0, 1e-6, 1e-3, 0.2, 0.35])
def test_gradients_are_finite_from_the_first_step_on(progress, dtype):
    case = mlp_case(8, 8, dtype=dtype)
    likelihood = likelihood_with(0.5, 0.5)
    gradient = torch.func.grad(lambda params: penalty(case, likelihood, progress, params))(case.params)
    assert all(torch.isfinite(g).all() for g in gradient.values())


def test_the_gradient_is_that_of_finite_differences():
    case = case_of(loud(mlp_net(12, 10)), images(9, 6))
    likelihood = likelihood_with(0.5, 0.5)
    gradient = torch.func.grad(lambda params: penalty(case, likelihood, 0.2, params))(case.params)
    generator = torch.Generator().manual_seed(0)
    way = {n: torch.randn(p.shape, generator=generator, dtype=p.dtype) for n, p in case.params.items()}
    ends = [
        penalty(case, likelihood, 0.2, {n: p + s * 1e-7 * way[n] for n, p in case.params.items()}) for s in (1.0, -1.0)
    ]
    slope = sum((gradient[n] * way[n]).sum() for n in way)
    assert float(slope) == pytest.approx(float(ends[0] - ends[1]) / 2e-7, rel=1e-4)


@pytest.mark.parametrize("lam", [0.0, 0.25])
@pytest.mark.parametrize("marked", [lambda graph: graph, training_graph], ids=["constant", "batch"])
@pytest.mark.parametrize(
    "adversary",
    [
        cb.IBP(), cb.IBP(margins=True), cb.IBP(smoothing=0.01), cb.IBP(margins=True, smoothing=0.01), cb.CROWNIBP(),
        cb.SABR(), cb.PGD(steps=2), cb.MTLIBP(),
    ],
    ids=repr,
)  # fmt: skip
def test_one_pass_gives_the_gradient_of_two(adversary, marked, lam):
    case = normed()
    likelihood = cb.RobustCategorical(cb.TwoPoint(ETA, lam), adversary, ramp=cb.Curriculum(tightness=0.5, balance=2.0))
    noise = likelihood.draw(0.2, case.batch, torch.Generator().manual_seed(0))
    given = marked(case.graph), case.params, case.buffers, case.batch, noise, -0.1
    values, gradient = likelihood.value_and_penalized_grad(*given)
    expected = Likelihood.value_and_penalized_grad(likelihood, *given)
    torch.testing.assert_close(values, expected[0])
    assert_same(gradient, expected[1], atol=1e-9, rtol=1e-6)
    plain = likelihood.value_and_grad(*given)[1]
    assert any((gradient[name] - plain[name]).abs().max() > 1e-3 for name in plain)


class Shrinking(cb.RobustCategorical):
    """With a penalty of its own."""

    def penalty(self, graph, params, batch, noise):
        return sum(p.square().sum() for p in params.values())


def test_a_penalty_of_ones_own_is_the_one_that_counts():
    case, likelihood = mlp_case(8, 8), Shrinking(cb.TwoPoint(ETA), ramp=cb.Curriculum(tightness=0.5))
    noise = likelihood.draw(0.2, case.batch, None)
    given = case.graph, case.params, case.buffers, case.batch, noise, -0.1
    expected = {name: g + 2.0 * case.params[name] for name, g in likelihood.value_and_grad(*given)[1].items()}
    assert_same(likelihood.value_and_penalized_grad(*given)[1], expected)


def test_one_pass_goes_through_vmap():
    case, likelihood = normed(), likelihood_with(0.5, 2.0, adversary=cb.IBP(margins=True))
    noise = likelihood.draw(0.2, case.batch, None)

    def gradient(params):
        graph = training_graph(case.graph)
        return likelihood.value_and_penalized_grad(graph, params, case.buffers, case.batch, noise, -0.1)[1]

    other = {name: 1.5 * p for name, p in case.params.items()}
    both = torch.vmap(gradient)({name: torch.stack([p, other[name]]) for name, p in case.params.items()})
    for number, params in enumerate((case.params, other)):
        assert_same({name: g[number] for name, g in both.items()}, gradient(params), atol=1e-9, rtol=1e-6)


def test_units_of_which_none_is_decided_have_no_balance():
    """With a huge radius every unit may be active or not."""
    case = mlp_case(8, 8)
    wide = cb.RobustCategorical(cb.TwoPoint(50.0), domain=None, ramp=cb.Curriculum(balance=0.5))
    assert float(penalty(case, wide, 0.3)) == 0.0


def test_widths_are_compared_behind_the_normalization():
    """Which changes the unit of the inputs, and nothing else: here all half-widths are 4 times as wide."""
    std, progress = 0.25, 0.2
    layers = list(loud(mlp_net(12, 8)))[1:]
    case = case_of(
        nn.Sequential(cb.networks.Normalize([0.0], [std]).double(), nn.Flatten(), *layers), images(7, 1, 2, 3)
    )
    share = cb.SmoothRamp(0.0, 0.35)(progress)
    # The network without the normalization, on inputs that are in the new unit already.
    plain = case_of(nn.Sequential(nn.Flatten(), *layers), images(7, 1, 2, 3) / std)
    radius = share * ETA / std
    free = cb.RobustCategorical(cb.TwoPoint(ETA), domain=None, ramp=cb.Curriculum(tightness=1.0))
    box = cb.regions.ideal_box(plain.batch.inputs, radius)
    expected = (1 - share) * bound_penalty(plain.graph, plain.tensors, box, IDEAL, 1.0, 0.0)
    assert float(expected) > 0.1
    torch.testing.assert_close(penalty(case, free, progress), expected)


@pytest.mark.parametrize("adversary", [cb.IBP(margins=True), cb.CROWNIBP(), cb.PGD(steps=2)], ids=repr)
def test_they_do_not_depend_on_the_adversary(adversary):
    case = mlp_case(8, 8)
    found = penalty(case, likelihood_with(0.5, 0.5, adversary=adversary))
    torch.testing.assert_close(found, penalty(case, likelihood_with(0.5, 0.5)))


def test_they_go_through_vmap():
    case = mlp_case(8, 8)
    likelihood = likelihood_with(0.5, 0.5)

    def slopes(params):
        return torch.func.grad(lambda weights: penalty(case, likelihood, 0.2, weights))(params)

    other = {name: 1.5 * p for name, p in case.params.items()}
    stacked = {name: torch.stack([p, other[name]]) for name, p in case.params.items()}
    both = torch.vmap(slopes)(stacked)
    for number, params in enumerate((case.params, other)):
        assert_same({name: g[number] for name, g in both.items()}, slopes(params))


def test_off_by_default_and_at_no_radius():
    assert not cb.RobustCategorical(eps=0.1).regularized and not cb.Categorical().regularized
    assert likelihood_with(balance=0.5).regularized
    assert not cb.RobustCategorical(cb.TwoPoint(0.0), ramp=cb.Curriculum(tightness=0.5)).regularized
    case = mlp_case()
    assert float(cb.Categorical().penalty(case.graph, case.params, case.batch, None)) == 0.0


def test_a_network_without_relus_is_refused():
    case = case_of(cb.networks.mlp(6, [8], 3, activation="tanh"), images(5, 6))
    with pytest.raises(InvalidInput, match="bounds of ReLU layers"):
        likelihood_with(tightness=0.5).validate(case.graph, case.batch)
