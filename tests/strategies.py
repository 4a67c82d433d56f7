"""What the laws are checked on: a zoo of small random networks, points of balls, and exact arithmetic.

Every entry of ``ZOO`` is a function without arguments that makes a module; ``make`` seeds it. Add a network here
when you add an operation: ``tests/bounds/test_zoo.py`` fails until the zoo holds every operation that has rules.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from contextlib import contextmanager
from fractions import Fraction
from functools import cache

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from certibayes.bounds import Box
from certibayes.networks import Graph, Network, Normalize, Params, direct_sums, trace
from certibayes.regions import InputRegion

from .layers_in_networks import CLASSES, IMAGE, LAYERS, VECTOR, Functional


def law(examples: int) -> settings:
    """Settings of a hypothesis test that runs the same examples every time."""
    return settings(max_examples=examples, derandomize=True, deadline=None, database=None, print_blob=True)


def few_of(cases: Iterable[object], fast: Container[object]) -> list[object]:
    """Cases of a law for ``pytest.mark.parametrize``: all but the fast ones are left to ``make test-all``."""
    return [case if case in fast else pytest.param(case, marks=pytest.mark.slow) for case in cases]


def in_turn(cases: Iterable[object], kinds: Iterable[object]) -> list[object]:
    """All pairs of a case and a kind, for ``pytest.mark.parametrize`` over both.

    ``make test`` takes every case with one kind, the kinds in turn; the other pairs are left to ``make test-all``.
    """
    kinds = list(kinds)
    return [
        pytest.param(case, kind, marks=() if at % len(kinds) == turn else pytest.mark.slow)
        for at, case in enumerate(cases)
        for turn, kind in enumerate(kinds)
    ]


seeds = st.integers(0, 10_000)
radii = st.sampled_from([1e-6, 1e-3, 0.02, 0.1, 0.5, 2.0])


# The zoo


def randomise_statistics(module: nn.Module) -> nn.Module:
    """Give batch norms statistics and weights that are not 0 and 1."""
    for part in module.modules():
        if isinstance(part, (nn.BatchNorm1d, nn.BatchNorm2d)):
            part.running_mean.normal_()
            part.running_var.uniform_(0.3, 2.0)
            if part.affine:
                nn.init.normal_(part.weight)
                nn.init.normal_(part.bias)
    return module


def _mlp(activation: nn.Module, gain: float = 1.0) -> nn.Module:
    net = nn.Sequential(nn.Linear(5, 8), activation, nn.Linear(8, 6), activation, nn.Linear(6, CLASSES))
    with torch.no_grad():
        net[0].weight.mul_(gain)
    return net


def _on_images(*layers: nn.Module, features: int) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, CLASSES))


def _tiny_variance() -> nn.Module:
    net = _on_images(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), features=48)
    randomise_statistics(net)
    net[1].running_var.uniform_(0.0, 1e-8)
    return net


def _residual() -> nn.Module:
    def forward(self: Functional, x: Tensor) -> Tensor:
        hidden = functional.relu(self.first(x))
        hidden = hidden + functional.relu(self.second(hidden))
        return self.last(hidden - torch.tanh(self.third(hidden)))

    layers = {name: nn.Linear(5, 5) for name in ("first", "second", "third")}
    return Functional(forward, **layers, last=nn.Linear(5, CLASSES))


def _residual_images() -> nn.Module:
    def forward(self: Functional, x: Tensor) -> Tensor:
        hidden = functional.relu(self.norm(self.first(x)))
        pooled = functional.adaptive_avg_pool2d(hidden, 1)
        return self.last((hidden + pooled).flatten(1))  # a residual sum that broadcasts

    norm = randomise_statistics(nn.BatchNorm2d(3))
    return Functional(forward, first=nn.Conv2d(2, 3, 3), norm=norm, last=nn.Linear(48, CLASSES))


def _arithmetic() -> nn.Module:
    def forward(self: Functional, x: Tensor) -> Tensor:
        x = 1 - x * 3.0
        x = (x + self.offset) * self.factor / 0.7
        x = self.first(-x) / self.divisor - 0.25
        x = self.offset - functional.leaky_relu(x, 0.1)
        return self.last(x - self.offset)

    return Functional(
        forward,
        offset=torch.randn(5),
        factor=torch.randn(5),
        divisor=torch.rand(5) + 0.1,
        first=nn.Linear(5, 5),
        last=nn.Linear(5, CLASSES),
    )


def _extreme_factors() -> nn.Module:
    def forward(self: Functional, x: Tensor) -> Tensor:
        return self.last(self.first(x) * self.factor / 1e-4)

    factor = torch.tensor([0.0, 1e6, -1e-6, 1.0, 3.0])
    return Functional(forward, factor=factor, first=nn.Linear(5, 5), last=nn.Linear(5, CLASSES))


def _cancelling_shift() -> nn.Module:
    """The offset is about as large as what it is added to, so almost all digits cancel."""

    def forward(self: Functional, x: Tensor) -> Tensor:
        return self.last((self.first(x) + 1000.0) - self.offset)

    first = nn.Linear(5, 5)
    return Functional(forward, first=first, offset=1000.0 + first.bias.detach(), last=nn.Linear(5, CLASSES))


def _broadcast() -> nn.Module:
    def forward(self: Functional, x: Tensor) -> Tensor:
        grid = x.unsqueeze(-1) + self.offset  # (B, 5, 4)
        grid = grid.unsqueeze(-1) * self.factor  # (B, 5, 4, 2)
        return self.last(functional.relu(grid).flatten(1))

    return Functional(forward, offset=torch.randn(4), factor=torch.randn(2), last=nn.Linear(40, CLASSES))


ZOO: dict[str, Callable[[], nn.Module]] = {
    "relu": lambda: _mlp(nn.ReLU()),
    "leaky relu": lambda: _mlp(nn.LeakyReLU(0.2)),
    "leaky relu, slope above 1": lambda: _mlp(nn.LeakyReLU(3.0)),
    "tanh": lambda: _mlp(nn.Tanh()),
    "tanh, saturated": lambda: _mlp(nn.Tanh(), gain=40.0),
    "sigmoid": lambda: _mlp(nn.Sigmoid()),
    "sigmoid, saturated": lambda: _mlp(nn.Sigmoid(), gain=200.0),
    "one linear layer": lambda: nn.Linear(5, CLASSES),
    "no bias": lambda: nn.Sequential(nn.Linear(5, 6, bias=False), nn.ReLU(), nn.Linear(6, CLASSES, bias=False)),
    "ends in tanh": lambda: nn.Sequential(nn.Linear(5, CLASSES), nn.Tanh()),
    "residual": _residual,
    "arithmetic": _arithmetic,
    "factors 0, 1e6, 1e-6": _extreme_factors,
    "shift that cancels": _cancelling_shift,
    "broadcasting constants": _broadcast,
    "batch norm on vectors": lambda: randomise_statistics(
        nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6, affine=False), nn.ReLU(), nn.Linear(6, CLASSES))
    ),
    "convolution, stride and padding": lambda: _on_images(nn.Conv2d(2, 3, 3, 2, 1), nn.ReLU(), features=27),
    "convolution, dilation and groups": lambda: _on_images(
        nn.Conv2d(2, 4, 3, dilation=2, groups=2, bias=False), nn.ReLU(), features=16
    ),
    "max pool, padded, ceil": lambda: _on_images(
        nn.Conv2d(2, 3, 3, padding="same"), nn.MaxPool2d(3, 2, 1, ceil_mode=True), features=48
    ),
    "max pool, dilated": lambda: _on_images(nn.MaxPool2d(2, 1, dilation=2), features=32),
    "average pool, padded, ceil": lambda: _on_images(
        nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), nn.ReLU(), features=32
    ),
    "average pool, own divisor": lambda: _on_images(nn.AvgPool2d(2, divisor_override=3), nn.Tanh(), features=18),
    "average pool, negative divisor": lambda: _on_images(
        nn.AvgPool2d((2, 3), divisor_override=-2), nn.ReLU(), features=12
    ),
    "adaptive average pool": lambda: _on_images(nn.AdaptiveAvgPool2d((4, None)), nn.ReLU(), features=48),
    "batch norm on images": lambda: randomise_statistics(
        _on_images(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), features=48)
    ),
    "batch norm, tiny variance": _tiny_variance,
    "normalize": lambda: _on_images(Normalize([0.5, -0.2], [0.25, 3.0]), nn.Conv2d(2, 2, 3), nn.ReLU(), features=32),
    "normalize, tiny std": lambda: _on_images(Normalize([0.5, 0.1], [1e-6, 1e-3]), nn.Sigmoid(), features=72),
    "residual images": _residual_images,
    **{name: build for name, (_, build) in LAYERS.items()},
}

VARIANTS = frozenset({
    "average pool, negative divisor", "average pool, own divisor", "batch norm on vectors", "batch norm, tiny variance",
    "circular padding", "clamped, one end", "convolution, dilation and groups", "ends in elu", "ends in gelu",
    "ends in layer norm", "ends in padding", "ends in rms norm", "ends in silu", "ends in tanh",
    "factors 0, 1e6, 1e-6", "gelu by tanh, wide", "instance norm", "layer norm of sequences",
    "leaky relu, slope above 1", "log sigmoid", "max pool, dilated", "no bias", "normalize, tiny std",
    "same padding, even kernel", "selu and celu", "shift that cancels", "sigmoid, saturated", "silu, wide", "stacked",
    "tanh, saturated", "transposed convolution, dilated",
})  # fmt: skip
"""Networks of whose operations the zoo has others: ``make test-all`` alone holds them to the laws (``conftest.py``)."""

_IMAGES = ("convolution", "max pool", "average pool", "adaptive", "batch norm on images", "batch norm, tiny")


def input_shape(name: str) -> tuple[int, ...]:
    """Shape of one input of a zoo network."""
    if name in LAYERS:
        return LAYERS[name][0]
    return IMAGE if name.startswith((*_IMAGES, "normalize", "residual images")) else VECTOR


def make(name: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Make a network of the zoo, in eval mode."""
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would note down, for every kind of accelerator, from where it was called: half of the time.
        torch.default_generator.manual_seed(seed)
        module = ZOO[name]().to(dtype).eval()
    module.input_shape = input_shape(name)
    return module


def traced(name: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Graph, dict[str, Tensor]]:
    """Graph, and parameters with buffers, of a network of the zoo; the tensors are the caller's own.

    Seeds change weights alone, so one trace serves all of them; ``tests/bounds/test_zoo.py`` holds it to that.
    """
    graph, names = _traced_once(name, dtype)
    tensors = make(name, seed, dtype).state_dict()
    return graph, {key: tensors[key].clone() for key in names}


@cache
def _traced_once(name: str, dtype: torch.dtype) -> tuple[Graph, tuple[str, ...]]:
    graph, params = graph_and_params(trace(make(name, dtype=dtype)))
    return graph, tuple(params)


def graph_and_params(network: Network) -> tuple[Graph, dict[str, Tensor]]:
    return network.graph, {**network.params, **network.buffers}


# Points


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def inputs(name: str, count: int, seed: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
    """Random inputs of a zoo network, around 0."""
    return torch.randn(count, *input_shape(name), generator=generator(seed + 1), dtype=dtype) * scale


def points_of(lower: Tensor, upper: Tensor, count: int, seed: int) -> Tensor:
    """Corners and inner points of boxes (B, ...), as (count, B, ...); none is outside, also in floats."""
    noise = torch.rand(count, *lower.shape, generator=generator(seed + 2), dtype=lower.dtype)
    noise[::2] = noise[::2].round()
    noise[0], noise[1] = 0.0, 1.0
    return torch.clamp(lower + noise * (upper - lower), lower, upper)


def attacked_points(outputs: Callable[[Tensor], Tensor], lower: Tensor, upper: Tensor, steps: int = 8) -> Tensor:
    """For every output and both directions, climb its gradient: (2 * outputs, B, ...).

    All climb at once, as one batch of 2 * outputs * B inputs with B the last to change.
    """
    width = outputs(lower).shape[-1]
    signs = torch.tensor([1.0, -1.0], dtype=lower.dtype).repeat(width)
    climbed = torch.arange(width).repeat_interleave(2)
    x = ((lower + upper) / 2).expand(2 * width, *lower.shape)
    for step in range(steps):
        x = x.detach().requires_grad_(True)
        found = outputs(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        heights = found.gather(-1, climbed.view(-1, 1, 1).expand(-1, len(lower), 1))[..., 0]
        (gradient,) = torch.autograd.grad((signs[:, None] * heights).sum(), x)
        with torch.no_grad():
            step_size = (upper - lower) / (1 + step)
            x = torch.clamp(x + step_size * gradient.sign(), lower, upper)
    return x.detach()


def outputs_at(graph: Graph, params: Params, points: Tensor) -> Tensor:
    """Outputs (points, B, C) of the program that certificates speak of, at points (points, B, ...), in one batch."""
    with torch.no_grad(), direct_sums():
        return graph.evaluate(params, points.flatten(0, 1)).unflatten(0, points.shape[:2])


def assert_inside(values: Tensor, box: Box, slack: float = 0.0) -> None:
    """Fail if any of ``values`` (..., B, C) leaves the box, compared in float64; finite bounds are required."""
    lower, upper = box.ends()
    assert bool(torch.isfinite(lower).all() and torch.isfinite(upper).all()), "bounds are not finite"
    values = values.double()
    assert not bool(torch.isnan(values).any()), "the network itself is NaN"
    room = slack * (1 + lower.abs() + upper.abs())
    below, above = (lower - room - values).max(), (values - upper - room).max()
    assert float(below) <= 0, f"an output is {float(below):.3e} below its lower bound"
    assert float(above) <= 0, f"an output is {float(above):.3e} above its upper bound"


@contextmanager
def threads(count: int):
    """Run a block on a number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# Exact arithmetic


def fractions(tensor: Tensor) -> list:
    """A tensor's numbers as exact fractions, in nested lists."""
    values = tensor.double().tolist()

    def convert(value: object) -> object:
        return [convert(v) for v in value] if isinstance(value, list) else Fraction(value)

    return convert(values)


def exact_affine(weight: list, bias: list, x: list) -> list:
    """W x + b in fractions."""
    rows = zip(weight, bias, strict=True)
    return [sum((w * v for w, v in zip(row, x, strict=True)), start=b) for row, b in rows]


# Balls


def ball(x: Tensor, eps: float | Tensor, domain: tuple | None = None) -> tuple[Tensor, Tensor]:
    """Lower and upper corner of the l-infinity ball around ``x``, intersected with the domain, as floats compute it.

    Radii are anything that broadcasts against ``x``.
    """
    return InputRegion(x, torch.as_tensor(eps, dtype=torch.float64), domain=domain).corners()


def distance(difference: Tensor, norm: str) -> Tensor:
    """The norm of each difference (B, ...), in float64, shaped so that it broadcasts."""
    order = {"linf": torch.inf, "l2": 2, "l1": 1}[norm]
    length = torch.linalg.vector_norm(difference.double().flatten(1), order, dim=1)
    return length.view(-1, *[1] * (difference.dim() - 1))


def into_ball(points: Tensor, x: Tensor, eps: Tensor, norm: str) -> Tensor:
    """Bring points (B, ...) towards x until ``distance`` is at most eps; where nothing else helps, to x itself."""
    away = points.double() - x.double()
    fraction = (eps / distance(away, norm).clamp(min=1e-100)).clamp(max=1.0)
    found = x
    # Rounding to the points' precision may leave the ball again; the last that does not is kept.
    for margin in (1e-2, 1e-4, 1e-6, 0.0):
        nearer = (x.double() + away * (fraction * (1 - margin))).to(x.dtype)
        found = torch.where(distance(nearer.double() - x.double(), norm) <= eps, nearer, found)
    return found
