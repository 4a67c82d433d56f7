"""The intervals of the independent checker hold what programs return, every operation by itself and the whole."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.checker import _enclosure as enclosure
from certibayes.checker._enclosure import Interval, enclose
from certibayes.networks import Graph, Node, operations

from ..strategies import ZOO, ball, exact_affine, fractions, generator, inputs, points_of, traced
from .cases import EXACT, FLOAT32


def test_every_operation_of_the_library_is_known():
    own = {kind for kind in operations.Operation.known.values() if kind.__module__.startswith(operations.__name__)}
    assert own == set(enclosure._RULES)


@pytest.mark.parametrize("name", ZOO)
def test_outputs_of_float_programs_stay_inside(name):
    graph, params = traced(name)
    arrays = {key: value.detach().numpy() for key, value in params.items()}
    x = inputs(name, 6, 0)
    doubled = {key: value.detach().double() for key, value in params.items()}
    for eps in (0.0, 1e-6, 0.02, 0.5):
        lower, upper = ball(x, eps)
        found, known = enclose(graph, arrays, Interval(lower.double().numpy(), upper.double().numpy()), FLOAT32)
        assert known.all() and np.isfinite(found.lower).all()
        exact, _ = enclose(graph, arrays, Interval(lower.double().numpy(), upper.double().numpy()), EXACT)
        assert (found.lower <= exact.lower).all() and (exact.upper <= found.upper).all()
        points = points_of(lower, upper, 12, 0)
        with torch.no_grad():
            narrow = graph.evaluate(params, points.flatten(0, 1)).unflatten(0, points.shape[:2]).double().numpy()
            alone = torch.cat([graph.evaluate(params, part) for part in points[-1].split(1)]).double().numpy()
            double = graph.evaluate(doubled, points.flatten(0, 1).double()).unflatten(0, points.shape[:2]).numpy()
        for outputs in (narrow, alone):
            assert (found.lower <= outputs).all() and (outputs <= found.upper).all()
        slack = 1e-12 * (1 + exact.magnitude)  # a float64 program rounds as well
        assert (exact.lower - slack <= double).all() and (double <= exact.upper + slack).all()


@pytest.mark.parametrize("seed", range(5))
def test_the_exact_range_of_a_small_network_is_inside(seed):
    """Interval arithmetic in fractions, without any rounding, never leaves what the checker computes."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    graph = cb.networks.trace(net, torch.zeros(1, 4)).graph
    arrays = {name: p.detach().numpy() for name, p in net.named_parameters()}
    x = torch.rand(1, 4)
    box = Interval((x - 0.1).double().numpy(), (x + 0.1).double().numpy())
    found, _ = enclose(graph, arrays, box, EXACT)
    for corner in itertools.product((0, 1), repeat=4):
        point = [Fraction(float(box[end][0, i])) for i, end in enumerate(corner)]
        hidden = exact_affine(fractions(net[0].weight.detach()), fractions(net[0].bias.detach()), point)
        out = exact_affine(
            fractions(net[2].weight.detach()), fractions(net[2].bias.detach()), [max(h, Fraction(0)) for h in hidden]
        )
        for value, low, high in zip(out, found.lower[0], found.upper[0], strict=True):
            assert Fraction(float(low)) <= value <= Fraction(float(high))


def test_one_layer_is_enclosed_tightly():
    torch.manual_seed(0)
    net = nn.Linear(50, 3)
    graph = cb.networks.trace(net, torch.zeros(1, 50)).graph
    arrays = {name: p.detach().numpy() for name, p in net.named_parameters()}
    x = torch.rand(2, 50).double().numpy()
    found, _ = enclose(graph, arrays, Interval(x - 0.1, x + 0.1), EXACT)
    radius = 0.1 * np.abs(arrays["weight"].astype(float)).sum(1)
    center = x @ arrays["weight"].astype(float).T + arrays["bias"]
    np.testing.assert_allclose(found.lower, center - radius, atol=1e-12)
    np.testing.assert_allclose(found.upper, center + radius, atol=1e-12)


def test_an_overflow_behind_a_bounded_activation_is_seen():
    net = nn.Sequential(*[nn.Linear(1, 1, bias=False) for _ in range(5)], nn.Tanh(), nn.Linear(1, 2))
    with torch.no_grad():
        for layer in net[:5]:
            layer.weight.fill_(2.0**24)
    graph = cb.networks.trace(net, torch.zeros(1, 1)).graph
    arrays = {name: p.detach().numpy() for name, p in net.named_parameters()}
    x = np.array([[1.0], [0.0]])
    _, known = enclose(graph, arrays, Interval(x, x), FLOAT32)
    assert known.tolist() == [False, True]


def test_division_by_zero_is_not_known():
    node = Node("divided", operations.Divide(0.0), ("input",), shape=(2,))
    x = np.ones((3, 2))
    _, known = enclose(Graph((node,), (2,), ()), {}, Interval(x, x), FLOAT32)
    assert not known.any()


def _of_many_magnitudes(shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """Float32 numbers of many magnitudes."""
    rng = generator(seed)
    return torch.randn(shape, generator=rng) * 10.0 ** (4 * torch.rand(shape, generator=rng) - 2)


IMAGES, VECTORS, MAP = (40, 3, 6, 6), (400, 20), (3, 4, 4)
SINGLE = {
    "linear": (operations.Linear(), {"weight": (7, 20), "bias": (7,)}, VECTORS, (7,)),
    "linear, a large bias": (operations.Linear(), {"weight": (7, 1), "bias": (7,)}, (400, 1), (7,)),
    "convolution": (operations.Conv2d(padding=(1, 1)), {"weight": (2, 3, 3, 3), "bias": (2,)}, IMAGES, (2, 6, 6)),
    "leaky relu": (operations.LeakyReLU(0.3), {}, VECTORS, (20,)),
    "tanh": (operations.Tanh(), {}, VECTORS, (20,)),
    "sigmoid": (operations.Sigmoid(), {}, VECTORS, (20,)),
    "average pool": (operations.AvgPool2d((3, 3), (1, 1)), {}, IMAGES, MAP),
    "adaptive average pool": (operations.AdaptiveAvgPool2d((4, 4)), {}, IMAGES, MAP),
    "batch norm": (
        operations.BatchNorm(), dict.fromkeys(("running_mean", "running_var", "weight", "bias"), (3,)), IMAGES,
        (3, 6, 6),
    ),
    "normalize": (operations.Normalize(), {"mean": (3,), "std": (3,)}, IMAGES, (3, 6, 6)),
    "multiply": (operations.Multiply(0.7), {}, VECTORS, (20,)),
    "multiply by a parameter": (operations.Multiply(), {"factor": (20,)}, VECTORS, (20,)),
    "divide": (operations.Divide(0.7), {}, VECTORS, (20,)),
    "divide by a parameter": (operations.Divide(), {"divisor": (20,)}, VECTORS, (20,)),
    "shift": (operations.Shift(0.7, sign=-1), {}, VECTORS, (20,)),
    "shift by a parameter": (operations.Shift(offset_sign=-1), {"offset": (20,)}, VECTORS, (20,)),
    "centered groups": (operations.Center(5), {}, VECTORS, (20,)),
    "norm": (operations.RootMeanSquareNorm(5, 0.1), {"weight": (20,), "bias": (20,)}, VECTORS, (20,)),
    "norm of channels": (
        operations.RootMeanSquareNorm(3, 1e-5, by_channel=True), {"weight": (3,), "bias": (3,)}, IMAGES, (3, 6, 6),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SINGLE)
def test_each_operation_alone_covers_its_own_rounding(name):
    """In a network of several layers one layer's slack could hide that another has none."""
    operation, shapes, points, shape = SINGLE[name]
    weights = {role: _of_many_magnitudes(size, seed + 1) for seed, (role, size) in enumerate(shapes.items())}
    if name == "linear, a large bias":
        weights["bias"] = weights["bias"] * 1e3
    if "running_var" in weights:
        weights["running_var"] = weights["running_var"].abs()
    graph = Graph((Node("only", operation, ("input",), {r: r for r in weights}, shape),), points[1:], tuple(weights))
    x = _of_many_magnitudes(points)
    box = Interval(x.double().numpy(), x.double().numpy())
    found, known = enclose(graph, {role: w.numpy() for role, w in weights.items()}, box, FLOAT32)
    for batch in (len(x), 1):
        out = torch.cat([operation.evaluate(weights, part) for part in x.split(batch)]).double().numpy()
        assert known.all() and (found.lower <= out).all() and (out <= found.upper).all()


@pytest.mark.parametrize("operation", [operations.Add(), operations.Subtract()])
def test_sums_of_nodes_cover_their_own_rounding(operation):
    halved = Node("halved", operations.Multiply(0.5), ("input",), shape=(20,))  # exact
    graph = Graph((halved, Node("sum", operation, ("input", "halved"), shape=(20,))), (20,), ())
    x = _of_many_magnitudes((400, 20)).double().numpy()
    first, _ = enclose(Graph((halved,), (20,), ()), {}, Interval(x, x), FLOAT32)
    found, _ = enclose(graph, {}, Interval(x, x), FLOAT32)
    sign = 1 if isinstance(operation, operations.Add) else -1
    ends = [x + sign * first.lower, x + sign * first.upper]
    # Beyond what the first node brought, the sum's own unit must be there.
    assert (found.lower <= np.min(ends, 0) - 2.0**-25 * np.abs(x) / 4).all()
    assert (found.upper >= np.max(ends, 0) + 2.0**-25 * np.abs(x) / 4).all()


def test_long_sums_cover_this_files_own_rounding():
    weight, x = _of_many_magnitudes((5, 400), 1), _of_many_magnitudes((3, 400), 2)
    graph = Graph((Node("only", operations.Linear(), ("input",), {"weight": "w"}, (5,)),), (400,), ("w",))
    box = Interval(x.double().numpy(), x.double().numpy())
    found, _ = enclose(graph, {"w": weight.numpy()}, box, EXACT)
    for i, j in itertools.product(range(3), range(5)):
        exact = exact_affine([fractions(weight[j])], [Fraction(0)], fractions(x[i]))[0]
        assert Fraction(float(found.lower[i, j])) <= exact <= Fraction(float(found.upper[i, j]))
    # Correlated sums cancel, so what was rounded can be all that is left.
    assert (found.upper - found.lower > 2.0**-53 * (np.abs(box.lower) @ np.abs(weight.double().numpy()).T)).all()


@pytest.mark.parametrize("operation", [operations.Center(), operations.RootMeanSquareNorm()])
def test_long_groups_cover_sums_in_any_order(operation):
    """Equal numbers, added one after the other, round the same way again and again."""
    x = np.repeat(np.array([[0.7], [0.8123], [0.9]], dtype=np.float32), 4096, axis=1)
    terms = x if isinstance(operation, operations.Center) else x * x
    mean = np.add.accumulate(terms, axis=-1, dtype=np.float32)[:, -1:] / np.float32(4096)
    run = x - mean if isinstance(operation, operations.Center) else x / np.sqrt(mean + np.float32(operation.eps))
    graph = Graph((Node("only", operation, ("input",), shape=(4096,)),), (4096,), ())
    found, known = enclose(graph, {}, Interval(x.astype(float), x.astype(float)), FLOAT32)
    assert known.all() and (found.lower <= run).all() and (run <= found.upper).all()


def test_a_norm_is_not_known_where_squares_may_overflow_or_eps_is_lost():
    x = np.array([[2.0**51, 1.0], [2.0, 1.0]])
    for eps, expected in ((1e-5, [False, True]), (1e-30, [False, False])):
        node = Node("only", operations.RootMeanSquareNorm(1, eps), ("input",), shape=(2,))
        _, known = enclose(Graph((node,), (2,), ()), {}, Interval(x, x), FLOAT32)
        assert known.tolist() == expected


def test_sums_that_could_overflow_on_the_way_are_not_known():
    graph = Graph((Node("only", operations.Linear(), ("input",), {"weight": "w"}, (1,)),), (2,), ("w",))
    x = np.array([[2.0**60, 2.0**60], [1.0, 1.0]])
    _, known = enclose(graph, {"w": np.array([[2.0**60, -(2.0**60)]])}, Interval(x, x), FLOAT32)
    assert known.tolist() == [False, True]


def test_a_kink_between_the_ends_counts():
    node = Node("only", operations.LeakyReLU(-0.5), ("input",), shape=(1,))
    found, _ = enclose(Graph((node,), (1,), ()), {}, Interval(np.array([[-1.0]]), np.array([[1.0]])), FLOAT32)
    assert found.lower[0, 0] <= 0.0 and found.upper[0, 0] >= 1.0


def test_a_divisor_that_float32_may_flush_to_zero_is_not_known():
    node = Node("only", operations.Divide(1e-40), ("input",), shape=(1,))
    x = np.array([[1e-40]])
    _, known = enclose(Graph((node,), (1,), ()), {}, Interval(x, x), FLOAT32)
    assert not known.any()


def test_what_underflows_in_a_norm_may_meet_a_large_weight():
    """A program may take a quotient of 2⁻¹²⁷ for 0 before it multiplies it by 2³⁰."""
    node = Node("only", operations.RootMeanSquareNorm(1, 1.0), ("input",), {"weight": "weight"}, shape=(1,))
    x = np.array([[2.0**-127]])
    found, _ = enclose(Graph((node,), (1,), ("weight",)), {"weight": np.array([2.0**30])}, Interval(x, x), FLOAT32)
    assert found.lower[0, 0] <= 0.0 and found.upper[0, 0] >= 2.0**-97
