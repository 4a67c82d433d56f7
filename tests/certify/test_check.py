"""The independent checker: it agrees with honest certificates, and forged ones do not get past it."""

import ast
import dataclasses
import itertools
import json
from dataclasses import dataclass
from decimal import Decimal, getcontext
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.bounds import ball
from certibayes.certify import (
    ALL_RULES,
    BOUNDS,
    RULES,
    arithmetic,
    ball_enclosure,
    check,
    claim,
    enclosure,
    rules,
)
from certibayes.certify.check import check_certificate, read_certificate
from certibayes.certify.enclosure import Interval, Program, enclose
from certibayes.errors import CorruptFile, InvalidInput
from certibayes.networks import Graph, Node, operations
from certibayes.prediction import Predictor

from ..strategies import CLASSES, ZOO, exact_affine, fractions, generator, inputs, make, points_of, traced

DOMAIN = (0.0, 1.0)
FLOAT32 = Program(2.0**-24, 2.0**-126)
EXACT = Program(0.0, 2.0**-1022)


def _predictor(name: str = "relu", samples: int = 3, dtype: torch.dtype = torch.float32) -> Predictor:
    modules = [make(name, 0) for _ in range(samples)]
    rng = generator(0)
    with torch.no_grad():
        for module in modules:
            for p in module.parameters():
                p.add_(0.02 * torch.randn(p.shape, generator=rng)).mul_(2.0)
    return cb.Samples.from_modules(modules).predictor(samples).to(dtype)


def _points(name: str = "relu", count: int = 12) -> torch.Tensor:
    return inputs(name, count, 0).sigmoid()


def _record(predictor: Predictor, x: torch.Tensor, labels: torch.Tensor | None = None, **settings) -> dict:
    result = cb.certify(predictor, x, labels, **{"eps": 0.02, "domain": DOMAIN, **settings})
    return json.loads(json.dumps(result.to_json()))


# Independence


@pytest.mark.parametrize("module", [arithmetic, ball_enclosure, check, claim, enclosure])
def test_no_bound_code_is_shared(module):
    imported = []
    for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported += [f"{node.module}.{alias.name}" for alias in node.names]
    ours = [name for name in imported if name.startswith("certibayes")]
    own = tuple(f"certibayes.certify.{name}." for name in ("arithmetic", "ball_enclosure", "claim", "enclosure"))
    allowed = (*own, "certibayes.errors.", "certibayes.networks.", "certibayes.prediction.")
    assert (ours or module is arithmetic) and all(name.startswith(allowed) for name in ours)
    assert "import_module" not in Path(module.__file__).read_text()


def test_every_operation_of_the_library_is_known():
    own = {kind for kind in operations.Operation.known.values() if kind.__module__ == operations.__name__}
    assert own == set(enclosure._RULES)


# Its intervals


@pytest.mark.parametrize("name", ZOO)
def test_outputs_of_float_programs_stay_inside(name):
    graph, params = traced(name)
    arrays = {key: value.detach().numpy() for key, value in params.items()}
    x = inputs(name, 6, 0)
    wide = {key: value.detach().double() for key, value in params.items()}
    for eps in (0.0, 1e-6, 0.02, 0.5):
        lower, upper = ball(x, eps)
        found, known = enclose(graph, arrays, Interval(lower.double().numpy(), upper.double().numpy()), FLOAT32)
        assert known.all() and np.isfinite(found.lower).all()
        exact, _ = enclose(graph, arrays, Interval(lower.double().numpy(), upper.double().numpy()), EXACT)
        assert (found.lower <= exact.lower).all() and (exact.upper <= found.upper).all()
        for point in points_of(lower, upper, 12, 0):
            for batch in (6, 1):
                with torch.no_grad():
                    narrow = torch.cat([graph.evaluate(params, part) for part in point.split(batch)]).double().numpy()
                assert (found.lower <= narrow).all() and (narrow <= found.upper).all()
            double = graph.evaluate(wide, point.double()).detach().numpy()
            slack = 1e-12 * (1 + exact.size)  # a float64 program rounds as well
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
    centre = x @ arrays["weight"].astype(float).T + arrays["bias"]
    np.testing.assert_allclose(found.lower, centre - radius, atol=1e-12)
    np.testing.assert_allclose(found.upper, centre + radius, atol=1e-12)


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


def _spread(shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """Float32 numbers of many sizes."""
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
    "normalise": (operations.Normalize(), {"mean": (3,), "std": (3,)}, IMAGES, (3, 6, 6)),
    "multiply": (operations.Multiply(0.7), {}, VECTORS, (20,)),
    "multiply by a parameter": (operations.Multiply(), {"factor": (20,)}, VECTORS, (20,)),
    "divide": (operations.Divide(0.7), {}, VECTORS, (20,)),
    "divide by a parameter": (operations.Divide(), {"divisor": (20,)}, VECTORS, (20,)),
    "shift": (operations.Shift(0.7, sign=-1), {}, VECTORS, (20,)),
    "shift by a parameter": (operations.Shift(offset_sign=-1), {"offset": (20,)}, VECTORS, (20,)),
}  # fmt: skip


@pytest.mark.parametrize("name", SINGLE)
def test_each_operation_alone_covers_its_own_rounding(name):
    """In a network of several layers one layer's slack could hide that another has none."""
    operation, shapes, points, shape = SINGLE[name]
    weights = {role: _spread(size, seed + 1) for seed, (role, size) in enumerate(shapes.items())}
    if name == "linear, a large bias":
        weights["bias"] = weights["bias"] * 1e3
    if "running_var" in weights:
        weights["running_var"] = weights["running_var"].abs()
    graph = Graph((Node("only", operation, ("input",), {r: r for r in weights}, shape),), points[1:], tuple(weights))
    x = _spread(points)
    box = Interval(x.double().numpy(), x.double().numpy())
    found, known = enclose(graph, {role: w.numpy() for role, w in weights.items()}, box, FLOAT32)
    for batch in (len(x), 1):
        out = torch.cat([operation.evaluate(weights, part) for part in x.split(batch)]).double().numpy()
        assert known.all() and (found.lower <= out).all() and (out <= found.upper).all()


@pytest.mark.parametrize("operation", [operations.Add(), operations.Subtract()])
def test_sums_of_nodes_cover_their_own_rounding(operation):
    halved = Node("halved", operations.Multiply(0.5), ("input",), shape=(20,))  # exact
    graph = Graph((halved, Node("sum", operation, ("input", "halved"), shape=(20,))), (20,), ())
    x = _spread((400, 20)).double().numpy()
    first, _ = enclose(Graph((halved,), (20,), ()), {}, Interval(x, x), FLOAT32)
    found, _ = enclose(graph, {}, Interval(x, x), FLOAT32)
    sign = 1 if isinstance(operation, operations.Add) else -1
    ends = [x + sign * first.lower, x + sign * first.upper]
    # Beyond what the first node brought, the sum's own unit must be there.
    assert (found.lower <= np.min(ends, 0) - 2.0**-25 * np.abs(x) / 4).all()
    assert (found.upper >= np.max(ends, 0) + 2.0**-25 * np.abs(x) / 4).all()


def test_long_sums_cover_this_files_own_rounding():
    weight, x = _spread((5, 400), 1), _spread((3, 400), 2)
    graph = Graph((Node("only", operations.Linear(), ("input",), {"weight": "w"}, (5,)),), (400,), ("w",))
    box = Interval(x.double().numpy(), x.double().numpy())
    found, _ = enclose(graph, {"w": weight.numpy()}, box, EXACT)
    for i, j in itertools.product(range(3), range(5)):
        exact = exact_affine([fractions(weight[j])], [Fraction(0)], fractions(x[i]))[0]
        assert Fraction(float(found.lower[i, j])) <= exact <= Fraction(float(found.upper[i, j]))
    # Correlated sums cancel, so what was rounded can be all that is left.
    assert (found.upper - found.lower > 2.0**-53 * (np.abs(box.lower) @ np.abs(weight.double().numpy()).T)).all()


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


@pytest.mark.parametrize("end", [0.1, 0.3, 0.7, 1 / 3])
def test_the_ball_holds_every_input_as_the_program_reads_it(end):
    predictor = _predictor()
    x = (end + 0.1 * torch.rand(200, 5, dtype=torch.float64, generator=generator(1))).clamp(max=1.0)
    x[:100] = x[:100].float().double()
    x[:5] = torch.tensor(end, dtype=torch.float32).double()
    claimed = check.Claim.from_json(_record(predictor, x, domain=(end, 1.0), eps=0.03))
    for eps in (0.0, 1e-12, 1e-8, 0.03):
        box = check._ball(x.numpy(), np.full(x.shape, eps), claimed)
        for direction in (-1.0, 0.0, 1.0):
            inside = x if direction == 0 else (x + direction * eps).clamp(end, 1.0)
            read = inside.float().double().numpy()
            assert (box.lower <= read).all() and (read <= box.upper).all()
        ideal = check._ball(x.numpy(), np.full(x.shape, eps), dataclasses.replace(claimed, rounding="ideal"))
        assert (ideal.lower <= x.numpy()).all() and (x.numpy() <= ideal.upper).all()


# Its softmax and rules


def _constant(logits: list[float], dtype: torch.dtype = torch.float32) -> Predictor:
    net = nn.Linear(1, len(logits)).to(dtype)
    with torch.no_grad():
        net.weight.zero_()
        net.bias.copy_(torch.tensor(logits, dtype=dtype))
    return cb.Point(net).predictor()


def _mean_of(predictor: Predictor, x: torch.Tensor, program: Program) -> tuple[Interval, np.ndarray]:
    box = Interval(x.double().numpy(), x.double().numpy())
    labels = np.zeros(len(x), dtype=np.int64)
    _, mean, loss = check._mean_bounds(program, check._networks(predictor), predictor, box, labels)
    return mean, loss


@pytest.mark.parametrize("logits", [[0.0] * 3, [0.0] * 7, [0.0, 20.0], [0.0, 95.0], [0.0, 103.5], [0.0, 110.0, 1.0]])
def test_rounded_probabilities_hold_what_the_program_returns(logits):
    """Down to those that float32 holds with few digits or not at all."""
    predictor, x = _constant(logits), torch.rand(2, 1)
    claimed = check.Claim.from_json(_record(predictor, x))
    # In exact arithmetic these logits have no width, so only the last rounding is left.
    mean, loss = _mean_of(predictor, x, EXACT)
    lower, upper = check._as_rounded(mean, loss, claimed)
    p = predictor.probabilities(x).double().numpy()
    assert (lower <= p).all() and (p <= upper).all()


@pytest.mark.parametrize("size", [1.0, 30.0, 300.0])
def test_probabilities_hold_in_fifty_digits(size):
    getcontext().prec = 50
    for seed in range(20):
        logits = (torch.randn(6, dtype=torch.float64, generator=generator(seed)) * size).tolist()
        mean, _ = _mean_of(_constant(logits, torch.float64), torch.rand(1, 1), EXACT)
        terms = [Decimal(z).exp() for z in logits]
        for term, low, high in zip(terms, mean.lower[0], mean.upper[0], strict=True):
            assert Decimal(float(low)) <= term / sum(terms) <= Decimal(float(high))
            assert low < high  # numbers that agree to the last digit prove nothing


def test_probabilities_and_leads_hold_at_every_corner():
    rng = np.random.default_rng(0)
    for _ in range(30):
        lower = rng.normal(size=(1, 4)) * 3
        z = Interval(lower, lower + rng.exponential(size=(1, 4)))
        low, high = check._softmax_bounds(z)
        lead = check._smallest_lead(z, np.array([1]))[0]
        corners = [
            np.exp(c) / np.exp(c).sum()
            for c in (np.array(c) for c in itertools.product(*zip(z.lower[0], z.upper[0], strict=True)))
        ]
        np.testing.assert_allclose(low[0], np.min(corners, 0), rtol=1e-12)
        np.testing.assert_allclose(high[0], np.max(corners, 0), rtol=1e-12)
        smallest = np.min([p[1] - p for p in corners], 0)
        np.testing.assert_allclose(np.delete(lead, 1), np.delete(smallest, 1), atol=1e-12)


def test_its_rules_agree_with_the_library():
    rng = np.random.default_rng(1)
    lower = rng.normal(size=(1, 50, 10)) * 5
    upper = lower + rng.exponential(size=(1, 50, 10))
    labels = rng.integers(10, size=50)
    expected = rules.pairwise(torch.from_numpy(lower), torch.from_numpy(upper), torch.from_numpy(labels))
    own = check._smallest_lead(Interval(lower[0], upper[0]), labels)
    own[np.arange(50), labels] = np.inf
    np.testing.assert_allclose(own.min(1), expected.numpy(), atol=1e-10)


@pytest.mark.parametrize("gap", [0.0, 800.0, 1e5, 1e9])
def test_extreme_logits_raise_nothing(gap):
    z = Interval(np.array([[0.0, gap, -gap]]), np.array([[1.0, gap + 1, 1 - gap]]))
    with np.errstate(all="ignore"):
        low, high = check._softmax_bounds(z)
        lead = check._smallest_lead(z, np.array([0]))
    assert np.isfinite(low).all() and np.isfinite(high).all() and np.isfinite(lead).all() and (low <= high).all()


# Honest certificates


@pytest.mark.parametrize("gap", [0.0, 1e-9, 1e-8])
def test_a_lead_that_rounding_could_eat_is_not_confirmed(gap):
    predictor, x = _constant([gap, 0.0, -1.0]), torch.rand(3, 1)
    record = _record(predictor, x, torch.zeros(3, dtype=torch.int64))
    result = check_certificate({**record, "certified": [True] * 3, "predicted": [0] * 3}, predictor, x)
    assert not result.confirmed.any()


def test_an_overflow_inside_confirms_nothing():
    net = nn.Sequential(*[nn.Linear(1, 1, bias=False) for _ in range(5)], nn.Tanh(), nn.Linear(1, 2))
    with torch.no_grad():
        for layer in net[:5]:
            layer.weight.fill_(2.0**24)
        net[6].weight.copy_(torch.tensor([[1.0], [-1.0]]))
    predictor, x = cb.Point(net).predictor(), torch.ones(2, 1)
    record = _record(predictor, x * 1e-36, torch.zeros(2, dtype=torch.int64), eps=0.0, domain=None)
    record |= {"inputs_digest": check._inputs_digest(x), "certified": [True] * 2, "predicted": [0] * 2}
    record |= {"lower": [[0.0, 0.0]] * 2, "upper": [[1.0, 1.0]] * 2}
    result = check_certificate(record, predictor, x)
    assert not result.confirmed.any() and not result.bounds_confirmed.any() and result.holds


@pytest.mark.parametrize("eps", [0.0, 1e-9, 3e-8, 0.02])
@pytest.mark.parametrize("rounding", ["outward", "ideal"])
def test_what_is_tried_never_leaves_ball_or_domain(eps, rounding, monkeypatch):
    """A refutation by an input that the claim is not about would be a slander."""
    predictor, x = _predictor(), _points().clamp(max=0.7).double()
    seen, real = [], Predictor.probabilities
    monkeypatch.setattr(Predictor, "probabilities", lambda self, given: seen.append(given) or real(self, given))
    assert check_certificate(_record(predictor, x, eps=eps, domain=(0.0, 0.7), rounding=rounding), predictor, x).holds
    home = x.to(torch.float32 if rounding == "outward" else torch.float64)
    assert len(seen) > 20
    for point in seen:
        inside = ((point.double() - x).abs() <= eps) & (point >= 0.0) & (point.double() <= 0.7)
        assert bool((inside | (point == home)).all())
    assert eps < 1e-6 or any(bool((point != home).all()) for point in seen)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ZOO)
def test_honest_certificates_are_confirmed(name, dtype):
    predictor, x = _predictor(name, dtype=dtype), _points(name).to(dtype)
    for eps in (0.0, 1e-3, 0.02):
        counts = check_certificate(_record(predictor, x, eps=eps), predictor, x).counts()
        assert counts["refuted"] == counts["bounds_refuted"] == 0
        assert counts["confirmed"] == counts["certified"]
        if dtype == torch.float32 and not name.startswith("factors"):
            assert counts["bounds_confirmed"] == len(x)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["relu", "residual", "normalise, tiny std", "batch norm, tiny variance"])
def test_no_honest_certificate_is_refuted(name, rule):
    predictor, x = _predictor(name), _points(name)
    labels = torch.randint(CLASSES, (len(x),), generator=generator(0))
    for rounding, domain in itertools.product(("outward", "ideal"), (DOMAIN, None)):
        for given in (None, labels):
            record = _record(predictor, x, given, eps=1e-3, rule=rule, rounding=rounding, domain=domain)
            result = check_certificate(record, predictor, x)
            assert result.holds, (rounding, domain)
            assert result.counts()["confirmed"] == sum(record["certified"])


@pytest.mark.parametrize(
    ("rule", "bounds"), [pair for pair in itertools.product(ALL_RULES, BOUNDS) if pair != ("joint", "ibp")]
)
def test_tighter_methods_are_at_worst_not_confirmed(rule, bounds):
    """The checker knows intervals only; what they cannot prove is no fault of the certificate."""
    predictor, x = _predictor(), _points()
    record = _record(predictor, x, eps=0.03, rule=rule, bounds=bounds)
    result = check_certificate(record, predictor, x)
    plain = _record(predictor, x, eps=0.03, rule="pairwise")
    assert result.holds
    confirmed = torch.tensor(record["certified"]) & torch.tensor(plain["certified"])
    assert torch.equal(result.confirmed, confirmed)
    assert sum(result.counts()[key] for key in ("confirmed", "not_confirmed")) == sum(record["certified"])


def test_points_of_another_precision_and_a_domain_that_floats_cannot_hold():
    predictor, x = _predictor(), _points().clamp(max=0.7)
    for points in (x, x.double()):
        record = _record(predictor, points, domain=(0.0, 0.7))
        result = check_certificate(record, predictor, points)
        assert result.holds and result.counts()["confirmed"] == sum(record["certified"])


def test_one_network_a_hundred_classes_and_no_points():
    torch.manual_seed(0)
    predictor, x = cb.Point(nn.Linear(4, 100)).predictor(), torch.rand(7, 4)
    result = check_certificate(_record(predictor, x, eps=1e-4), predictor, x, batch_size=3)
    assert result.holds and result.counts()["confirmed"] == result.counts()["certified"] > 0
    empty = check_certificate(_record(predictor, x[:0]), predictor, x[:0])
    assert empty.holds and empty.counts()["points"] == 0


def test_certificates_with_radii_of_their_own():
    predictor, x = _predictor(), _points()
    rng = generator(3)
    for eps in (0.03 * torch.rand(len(x), generator=rng), 0.05 * torch.rand(len(x), 5, generator=rng)):
        record = _record(predictor, x, eps=eps)
        result = check_certificate(record, predictor, x)
        assert result.holds and result.bounds_confirmed.all()
        assert 0 < result.counts()["confirmed"] == sum(record["certified"])


def test_radii_of_points_and_of_pixels():
    predictor, x = _predictor(), _points()
    one = _record(predictor, x, eps=0.02)
    expected = check_certificate(one, predictor, x)
    for eps in ([0.02] * len(x), [[0.02] * 5], [[0.02] * 5] * len(x)):
        found = check_certificate({**one, "eps": eps}, predictor, x)
        assert found.holds and torch.equal(found.confirmed, expected.confirmed)
    larger = [0.02] * len(x)
    marked = one["certified"].index(True)
    larger[marked] = 0.5
    found = check_certificate({**one, "eps": larger}, predictor, x)
    assert not found.confirmed[marked] and int(found.confirmed.sum()) == int(expected.confirmed.sum()) - 1
    wrong = check_certificate({**one, "eps": [0.02] * 3}, predictor, x)
    assert "do not fit" in wrong.problems[0]


# Forged certificates


def _attackable(eps: float = 0.2) -> tuple[Predictor, torch.Tensor, dict, torch.Tensor]:
    predictor, x = _predictor(), _points(count=30)
    success = cb.attack(predictor, x, eps=eps, domain=DOMAIN, steps=20, restarts=3).success
    assert success.any()
    return predictor, x, _record(predictor, x, eps=eps), success


def test_a_mark_on_an_attackable_point_is_refuted_or_not_confirmed():
    predictor, x, record, attackable = _attackable()
    assert not any(mark for mark, broken in zip(record["certified"], attackable.tolist(), strict=True) if broken)
    forged = {**record, "certified": [True] * len(x)}
    result = check_certificate(forged, predictor, x)
    assert not result.confirmed[attackable].any()
    assert result.refuted[attackable].any() and not result.holds
    assert not result.refuted[~attackable].any()


@pytest.mark.parametrize("eps", [0.3, 1.0])
def test_a_larger_radius_confirms_nothing_that_can_be_attacked(eps):
    predictor, x = _predictor(), _points(count=30)
    record = {**_record(predictor, x, eps=1e-3), "eps": eps}
    attacked = cb.attack(predictor, x, eps=eps, domain=DOMAIN, steps=20, restarts=3).success
    result = check_certificate(record, predictor, x)
    assert attacked.any() and not result.confirmed[attacked].any() and not result.holds


def test_tightened_bounds_are_refuted_or_not_confirmed():
    predictor, x = _predictor(), _points()
    record = _record(predictor, x)
    own = predictor.probabilities(x).double()
    honest = check_certificate(record, predictor, x)
    assert honest.bounds_confirmed.all()
    lower, upper = (torch.tensor(record[end], dtype=torch.float64) for end in ("lower", "upper"))
    for share in (0.999, 0.5, 1e-3):
        forged = {
            **record,
            "lower": (own + share * (lower - own)).tolist(),
            "upper": (own + share * (upper - own)).tolist(),
        }
        result = check_certificate(forged, predictor, x)
        assert not result.bounds_confirmed.any()
        assert share > 0.1 or result.bounds_refuted.all()
    tight = own.tolist()
    for forged in ({"lower": tight}, {"upper": tight}):  # one side alone is enough
        assert check_certificate({**record, **forged}, predictor, x).bounds_refuted.all()
    lower, upper = lower + 1e-3 * (own - lower), upper + 1e-3 * (own - upper)
    for forged in ({"lower": lower.tolist()}, {"upper": upper.tolist()}):
        assert not check_certificate({**record, **forged}, predictor, x).bounds_confirmed.any()
    inverted = {**record, "lower": record["upper"], "upper": record["lower"]}
    assert check_certificate(inverted, predictor, x).bounds_refuted.all()


def test_a_wrong_label_is_refuted_at_the_point_itself():
    predictor, x = _predictor(), _points()
    record = _record(predictor, x, eps=0.0)
    labels = [(label + 1) % CLASSES for label in record["labels"]]
    result = check_certificate({**record, "labels": labels, "predicted": labels}, predictor, x)
    assert result.refuted.all()
    honest_labels = check_certificate({**record, "predicted": labels}, predictor, x)
    assert honest_labels.refuted.all()  # marked, and by its own words not predicted as the label


def test_changed_weights_are_noticed_also_behind_torchs_back():
    predictor, x = _predictor(), _points()
    record = _record(predictor, x)
    before = predictor.digest
    next(iter(predictor.samples.values())).data.view(-1)[0] += 1e-3
    assert predictor.digest == before  # such a change leaves no trace for the predictor's own cache
    result = check_certificate(record, predictor, x)
    assert not result.holds and "another predictor" in result.problems[0]
    assert not result.confirmed.any()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: torch.nextafter(x, torch.ones_like(x)), "other points"),
        (lambda x: x.flip(0), "other points"),
        (lambda x: x[:-1], "other points"),
        (lambda x: x.double(), "other points"),
    ],
)
def test_changed_points_are_noticed(change, words):
    predictor, x = _predictor(), _points()
    result = check_certificate(_record(predictor, x), predictor, change(x))
    assert not result.holds and words in result.problems[0] and result.counts()["confirmed"] == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"digest": "0" * 64}, "another predictor"),
        ({"inputs_digest": "0" * 64}, "other points"),
        ({"dtype": "float64"}, "runs in float32"),
        ({"samples": 4}, "4 weight samples"),
        ({"domain": [0.45, 0.55]}, "outside the domain"),
        ({"labels": [7] * 12}, "classes that the predictor does not have"),
        ({"lower": [[0.0]] * 12, "upper": [[1.0]] * 12}, "not about 3 classes"),
    ],
)
def test_what_does_not_belong_together_is_named(change, words):
    predictor, x = _predictor(), _points()
    result = check_certificate({**_record(predictor, x), **change}, predictor, x)
    assert not result.holds and any(words in problem for problem in result.problems)


BROKEN = {
    "no digest": lambda r: r.pop("digest"),
    "no points": lambda r: r.pop("inputs_digest"),
    "NaN bound": lambda r: r["lower"][0].__setitem__(0, float("nan")),
    "NaN radius": lambda r: r.__setitem__("eps", float("nan")),
    "negative radius": lambda r: r.__setitem__("eps", -0.1),
    "infinite radius": lambda r: r.__setitem__("eps", float("inf")),
    "another norm": lambda r: r.__setitem__("norm", "l3"),
    "another rounding": lambda r: r.__setitem__("rounding", "magic"),
    "another dtype": lambda r: r.__setitem__("dtype", "bfloat16"),
    "inverted domain": lambda r: r.__setitem__("domain", [1.0, 0.0]),
    "NaN domain": lambda r: r.__setitem__("domain", [0.0, float("nan")]),
    "too few marks": lambda r: r["certified"].pop(),
    "marks that are numbers": lambda r: r.__setitem__("certified", [2] * 12),
    "labels that are fractions": lambda r: r.__setitem__("labels", [0.5] * 12),
    "labels that are words": lambda r: r.__setitem__("labels", "abc"),
    "ragged bounds": lambda r: r["upper"][0].pop(),
    "too few bounds": lambda r: r["upper"].pop(),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_no_certificate_is_told(what):
    predictor, x = _predictor(), _points()
    record = _record(predictor, x)
    BROKEN[what](record)
    with pytest.raises(CorruptFile):
        check_certificate(record, predictor, x)


def test_files(tmp_path):
    predictor, x = _predictor(), _points()
    record = _record(predictor, x)
    (tmp_path / "certificate.json").write_text(json.dumps(record))
    assert read_certificate(tmp_path) == read_certificate(tmp_path / "certificate.json") == record
    for content in ("{", "[]", "\x00"):
        (tmp_path / "broken.json").write_text(content)
        with pytest.raises(CorruptFile):
            read_certificate(tmp_path / "broken.json")
    with pytest.raises(FileNotFoundError, match="no certificate"):
        read_certificate(tmp_path / "nothing.json")


@dataclass(frozen=True)
class Squared(operations.Operation):
    """An operation that the checker has never heard of."""

    def evaluate(self, weights, *inputs):
        return inputs[0] ** 2


def test_an_unknown_operation_confirms_nothing_and_is_still_attacked():
    node = Node("squared", Squared(), ("input",), shape=(2,))
    predictor = Predictor(Graph((node,), (2,), ("unused",)), {"unused": torch.zeros(1, 1)})
    x = torch.tensor([[0.9, 0.2], [0.5, 0.45]])
    honest = Predictor(Graph((Node("n", operations.ReLU(), ("input",), shape=(2,)),), (2,), ()), predictor.samples)
    record = _record(honest, x, eps=0.1) | {"digest": predictor.digest}
    record |= {"certified": [True, True], "lower": [[0.0, 0.0]] * 2, "upper": [[1.0, 1.0]] * 2}
    result = check_certificate(record, predictor, x)
    assert "does not know the operation Squared" in result.note
    assert not result.confirmed.any() and result.refuted.tolist() == [False, True]


def test_regression_is_refused():
    predictor = cb.Point(nn.Linear(3, 2), metadata={"task": "regression"}).predictor()
    with pytest.raises(InvalidInput, match="regression"):
        check_certificate({}, predictor, torch.zeros(1, 3))


def test_progress_and_repeatability():
    predictor, x, record, _ = _attackable()
    seen = []
    one = check_certificate(record, predictor, x, batch_size=8, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(8, 30), (16, 30), (24, 30), (30, 30)]
    assert one.counts() == check_certificate(record, predictor, x, batch_size=8).counts()
