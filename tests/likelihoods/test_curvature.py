"""Closed forms against ``vmap(grad)``, and that against a loop over examples."""

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.likelihoods import Batch, base, per_example_gradients
from certibayes.likelihoods import _curvature as curvature
from certibayes.likelihoods._curvature import applies_to

from .cases import CLASSES, assert_same, case_of, conv_net, full_noise, images, mlp_case


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 6), nn.Linear(6, 6, bias=False), nn.Linear(6, CLASSES)

    def forward(self, x):
        h = torch.relu(self.first(x)) + x
        return self.last(torch.tanh(self.second(h)) + h)


class Shared(nn.Module):
    """One layer used twice: its gradient is a sum over uses, which the closed form does not know."""

    def __init__(self):
        super().__init__()
        self.twice, self.last = nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.last(torch.relu(self.twice(torch.relu(self.twice(x)))))


class ResidualImages(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.last = nn.Linear(16, CLASSES)

    def forward(self, x):
        h = torch.relu(self.first(x))
        h = nn.functional.avg_pool2d(torch.relu(self.second(h)) + h, 2)
        return self.last(torch.flatten(nn.functional.max_pool2d(h, 2, 1), 1))


class SharedFilters(nn.Module):
    def __init__(self):
        super().__init__()
        self.twice, self.last = nn.Conv2d(2, 2, 3, padding=1), nn.Linear(72, CLASSES)

    def forward(self, x):
        return self.last(torch.flatten(torch.relu(self.twice(torch.relu(self.twice(x)))), 1))


class FixedFilters(nn.Module):
    """Filters and weights that are buffers, with biases that are inferred."""

    def __init__(self):
        super().__init__()
        self.register_buffer("filters", torch.randn(3, 2, 3, 3))
        self.register_buffer("weight", torch.randn(CLASSES, 48))
        self.bias, self.last = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(CLASSES))

    def forward(self, x):
        h = torch.relu(nn.functional.conv2d(x, self.filters, self.bias))
        return nn.functional.linear(torch.flatten(h, 1), self.weight, self.last)


def built(make):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


LINEAR_NETWORKS = {
    "one layer": lambda: nn.Linear(6, CLASSES),
    "two layers": lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, CLASSES)),
    "four layers": lambda: nn.Sequential(
        nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 5), nn.LeakyReLU(), nn.Linear(5, CLASSES)
    ),
    "no bias": lambda: nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, CLASSES, bias=False)),
    "normalized": lambda: nn.Sequential(
        cb.networks.Normalize(0.3, 0.5), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, CLASSES)
    ),
    "residual": Residual,
}


def convolution(*layers, features):
    return nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(features, CLASSES))


IMAGE = (2, 6, 6)
CONVOLUTIONS = {
    "plain": lambda: convolution(nn.Conv2d(2, 3, 3), features=48),
    "no bias": lambda: convolution(nn.Conv2d(2, 3, 3, bias=False), features=48),
    "stride": lambda: convolution(nn.Conv2d(2, 3, (2, 3), stride=(2, 3)), features=18),
    "stride leaves a rest": lambda: convolution(nn.Conv2d(2, 3, 3, stride=2), features=12),
    "padding": lambda: convolution(nn.Conv2d(2, 3, 3, padding=(1, 2)), features=144),
    "dilation": lambda: convolution(nn.Conv2d(2, 3, (2, 3), dilation=(3, 2)), features=18),
    "all at once": lambda: convolution(
        nn.Conv2d(2, 4, (3, 2), (2, 1), (2, 1), (1, 2), groups=2, bias=False), features=96
    ),
    "1 x 1": lambda: convolution(nn.Conv2d(2, 3, 1), features=108),
    "groups": lambda: convolution(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 2, groups=2), features=54),
    "depthwise": lambda: convolution(
        nn.Conv2d(2, 4, 3, groups=2), nn.Tanh(), nn.Conv2d(4, 4, 2, groups=4), features=36
    ),
    "normalized": lambda: nn.Sequential(
        cb.networks.Normalize((0.3, 0.4), (0.5, 0.6)), convolution(nn.Conv2d(2, 3, 3), features=48)
    ),
    "pool": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, CLASSES, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ),
    "residual": ResidualImages,
    "fixed filters": FixedFilters,
}
OTHER_NETWORKS = {
    "shared": (Shared, (6,)),
    "batch norm": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES)),
        (6,),
    ),
    "linear over images": (lambda: nn.Sequential(nn.Linear(6, 2), nn.Flatten(), nn.Linear(24, CLASSES)), IMAGE),
    "shared filters": (SharedFilters, IMAGE),
    "batch norm of images": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, CLASSES)),
        IMAGE,
    ),
}
CLOSED = {
    "standard": cb.Categorical(),
    "lam=1": cb.RobustCategorical(cb.TwoPoint(0.1, 1.0)),
    "lam=0.25": cb.RobustCategorical(cb.TwoPoint(0.1, 0.25)),
    "lam=0": cb.RobustCategorical(cb.TwoPoint(0.1, 0.0)),
    "no domain": cb.RobustCategorical(cb.TwoPoint(0.1, 0.25), domain=None),
    "attack without radius": cb.RobustCategorical(cb.TwoPoint(0.0), cb.PGD()),
    "fixed single radius": cb.RobustCategorical(cb.Rayleigh(0.1, quadrature=1)),
    "smoothing": cb.RobustCategorical(cb.TwoPoint(0.1, 0.25), cb.IBP(smoothing=0.1)),
    "pgd": cb.RobustCategorical(cb.TwoPoint(0.1, 0.25), cb.PGD(steps=2)),
    "pgd, lam=0": cb.RobustCategorical(cb.TwoPoint(0.1, 0.0), cb.PGD(steps=2)),
    "three radii": cb.RobustCategorical(cb.Rayleigh(0.1, draws=3)),
    "quadrature": cb.RobustCategorical(cb.Exponential(0.1, quadrature=2)),
    "pgd, three radii": cb.RobustCategorical(cb.Rayleigh(0.1, draws=3), cb.PGD(steps=2)),
}
REGRESSION = {
    "standard": cb.RobustGaussian(0.5),
    "lam=1": cb.RobustGaussian(0.5, cb.TwoPoint(0.1, 1.0)),
    "lam=0.25": cb.RobustGaussian(0.5, cb.TwoPoint(0.1, 0.25)),
    "lam=0": cb.RobustGaussian(0.5, cb.TwoPoint(0.1, 0.0)),
    "domain": cb.RobustGaussian(0.5, cb.TwoPoint(0.1, 0.25), domain=(0.0, 1.0)),
    "attack without radius": cb.RobustGaussian(0.5, cb.TwoPoint(0.0), cb.PGD()),
    "smoothing": cb.RobustGaussian(0.5, cb.TwoPoint(0.1, 0.25), cb.IBP(smoothing=0.1)),
}
OPEN = {
    "margins": cb.RobustCategorical(cb.TwoPoint(0.1, 0.25), cb.IBP(margins=True)),
}


def compute(likelihood, case, noise):
    return likelihood.value_grad_and_squares(case.graph, case.params, case.buffers, case.batch, noise)


def by_loop(likelihood, case, noise):
    """One example at a time, by plain autograd."""
    gradient = {name: torch.zeros_like(p) for name, p in case.params.items()}
    squares = {name: torch.zeros_like(p) for name, p in case.params.items()}
    values = []
    for b in range(len(case.batch.inputs)):
        one = case._replace(batch=Batch(case.batch.inputs[b : b + 1], case.batch.targets[b : b + 1]))
        alone = noise if noise.starts is None else noise._replace(starts=noise.starts[b : b + 1])
        values.append(one.log_likelihood(likelihood, alone))
        for name, g in one.gradient(likelihood, alone).items():
            gradient[name] += g
            squares[name] += g.square()
    return base.Gradients(torch.cat(values), gradient, squares, {})


def agree(found, expected):
    torch.testing.assert_close(found.values, expected.values, rtol=1e-9, atol=1e-12)
    assert_same(found.gradient, expected.gradient, rtol=1e-9, atol=1e-12)
    assert_same(found.squares, expected.squares, rtol=1e-9, atol=1e-12)


def closed_form_agrees(likelihood, case, monkeypatch):
    noise = full_noise(likelihood, case.batch)
    expected = per_example_gradients(likelihood, case.graph, case.params, case.buffers, case.batch, noise)
    monkeypatch.setattr(base, "per_example_gradients", None)  # a fall-back would not be a test of the closed form
    agree(compute(likelihood, case, noise), expected)


@pytest.mark.parametrize("likelihood", CLOSED.values(), ids=CLOSED)
@pytest.mark.parametrize("net", LINEAR_NETWORKS.values(), ids=LINEAR_NETWORKS)
def test_the_closed_form_is_exact(net, likelihood, monkeypatch):
    closed_form_agrees(likelihood, case_of(built(net), images(6, 6)), monkeypatch)


@pytest.mark.parametrize("likelihood", CLOSED.values(), ids=CLOSED)
@pytest.mark.parametrize("net", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_convolutions_are_exact(net, likelihood, monkeypatch):
    closed_form_agrees(likelihood, case_of(built(net), images(5, *IMAGE)), monkeypatch)


@pytest.mark.parametrize("likelihood", REGRESSION.values(), ids=REGRESSION)
@pytest.mark.parametrize(
    ("net", "shape"),
    [(LINEAR_NETWORKS["four layers"], (6,)), (CONVOLUTIONS["all at once"], IMAGE), (ResidualImages, IMAGE)],
    ids=["linear", "convolution", "residual"],
)
def test_regression_is_exact(net, shape, likelihood, monkeypatch):
    closed_form_agrees(likelihood, case_of(built(net), images(5, *shape), images(5, CLASSES, seed=4)), monkeypatch)


@pytest.mark.parametrize("name", ["paper-cifar", "paper-cifar-supplement", "cnn-small"])
def test_the_architectures_are_exact(name, monkeypatch):
    net = cb.networks.build(name, (3, 12, 12), CLASSES)
    closed_form_agrees(CLOSED["lam=0.25"], case_of(net, images(3, 3, 12, 12)), monkeypatch)


@pytest.mark.parametrize("chunk", [1, 500, 10**9], ids=["one by one", "with a rest", "at once"])
def test_convolutions_go_through_the_batch_in_chunks(chunk, monkeypatch):
    case = case_of(built(CONVOLUTIONS["groups"]), images(5, *IMAGE))
    lengths = set()
    filter_gradients = curvature._filter_gradients

    def recorded(*args):
        each = filter_gradients(*args)
        lengths.add(len(each))
        return each

    monkeypatch.setattr(curvature, "CHUNK", chunk)
    monkeypatch.setattr(curvature, "_filter_gradients", recorded)
    closed_form_agrees(CLOSED["lam=0.25"], case, monkeypatch)
    # 16 pixels of 18 inputs in the first layer, 9 of 16 in the second.
    assert lengths == {1: {1}, 500: {1, 2, 3}, 10**9: {5}}[chunk]


@pytest.mark.parametrize("likelihood", OPEN.values(), ids=OPEN)
def test_where_no_closed_form_is_known_examples_are_done_one_by_one(likelihood):
    case = mlp_case(8, 5)
    noise = full_noise(likelihood, case.batch)
    agree(compute(likelihood, case, noise), by_loop(likelihood, case, noise))


@pytest.mark.parametrize("likelihood", [*CLOSED.values(), *OPEN.values()], ids=[*CLOSED, *OPEN])
def test_convolutions_agree_with_a_loop(likelihood):
    case = case_of(conv_net(), images(4, 1, 5, 5))
    noise = full_noise(likelihood, case.batch)
    agree(compute(likelihood, case, noise), by_loop(likelihood, case, noise))


@pytest.mark.parametrize(("net", "shape"), OTHER_NETWORKS.values(), ids=OTHER_NETWORKS)
def test_networks_the_closed_form_does_not_fit_fall_back(net, shape):
    case = case_of(built(net), images(5, *shape))
    assert not applies_to(case.graph)
    likelihood = CLOSED["lam=0.25"]
    noise = full_noise(likelihood, case.batch)
    agree(compute(likelihood, case, noise), by_loop(likelihood, case, noise))


@pytest.mark.parametrize("adversary", [cb.IBP(), cb.IBP(margins=True), cb.PGD(steps=2)], ids=str)
@pytest.mark.parametrize("radius", [cb.TwoPoint(0.1, 0.25), cb.Exponential(0.1, quadrature=3)], ids=str)
def test_regression_agrees_with_a_loop(radius, adversary):
    case = case_of(cb.networks.mlp(6, [7], 2), images(5, 6), images(5, 2, seed=4))
    likelihood = cb.RobustGaussian(0.5, radius, adversary)
    noise = full_noise(likelihood, case.batch)
    agree(compute(likelihood, case, noise), by_loop(likelihood, case, noise))


def test_the_squares_are_per_example_not_of_the_mean():
    case = mlp_case()
    found = compute(cb.Categorical(), case, full_noise(cb.Categorical(), case.batch))
    of_sum = {name: g.square() for name, g in found.gradient.items()}
    assert not torch.allclose(found.squares["1.weight"], of_sum["1.weight"])
    # Cauchy-Schwarz: the square of a sum of B terms is at most B times the sum of squares.
    for name, squares in found.squares.items():
        assert (of_sum[name] <= len(case.batch.inputs) * squares + 1e-12).all()


@pytest.mark.parametrize("case", [mlp_case(), case_of(conv_net(), images(4, 1, 5, 5))], ids=["linear", "convolution"])
def test_a_weight_of_exactly_zero_has_the_derivative_of_autograd(case):
    first, last = (name for name in case.params if name.endswith("weight"))
    case.params[first][0, 0] = 0.0
    case.params[last][1] = 0.0
    likelihood = CLOSED["lam=0.25"]
    noise = full_noise(likelihood, case.batch)
    agree(compute(likelihood, case, noise), by_loop(likelihood, case, noise))


def test_the_radius_may_be_zero():
    """As in the first step of a ramp."""
    case = mlp_case(8, 5)
    likelihood = CLOSED["lam=0.25"]
    noise = likelihood.draw(0.0, case.batch, None)
    agree(compute(likelihood, case, noise), by_loop(likelihood, case, noise))


def test_float32_is_close_to_float64():
    wide = mlp_case(8, 5)
    narrow = mlp_case(8, 5, dtype=torch.float32)
    narrow = narrow._replace(
        params={name: p.float() for name, p in wide.params.items()},
        batch=Batch(wide.batch.inputs.float(), wide.batch.targets),
    )
    likelihood = CLOSED["lam=0.25"]
    expected = compute(likelihood, wide, full_noise(likelihood, wide.batch))
    found = compute(likelihood, narrow, full_noise(likelihood, narrow.batch))
    assert_same({n: s.double() for n, s in found.squares.items()}, expected.squares, rtol=1e-3, atol=1e-6)


def test_inputs_are_left_alone():
    case = mlp_case()
    likelihood = CLOSED["lam=0.25"]
    before = {name: p.clone() for name, p in case.params.items()}
    compute(likelihood, case, full_noise(likelihood, case.batch))
    assert_same(case.params, before, rtol=0, atol=0)


def test_the_closed_form_is_used_where_it_should_be():
    assert applies_to(mlp_case(8, 5).graph)
    assert applies_to(case_of(conv_net(), images(2, 1, 5, 5)).graph)
