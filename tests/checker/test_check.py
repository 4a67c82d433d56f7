"""The independent checker: it shares no code with what it checks, and agrees with honest certificates."""

import ast
import dataclasses
import itertools
import json
from dataclasses import dataclass
from decimal import Decimal, getcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import certibayes as cb
from certibayes.certificates import read_record
from certibayes.certification import BOUNDS, METHODS, as_method
from certibayes.certification.rules import pairwise_values
from certibayes.checker import check, check_certificate
from certibayes.checker._arithmetic import Interval, Program
from certibayes.checker._balls import Balls, box_around
from certibayes.checker._belonging import inputs_digest
from certibayes.checker._mean import as_rounded, mean_bounds, networks_of, smallest_lead, softmax_bounds
from certibayes.errors import CorruptFile, InvalidInput
from certibayes.networks import Graph, Node, operations
from certibayes.prediction import Predictor

from ..strategies import CLASSES, ZOO, few_of, generator, in_turn
from .cases import (
    DOMAIN,
    EXACT,
    attackable_points,
    claim_of,
    points_for,
    provenance,
    record_of,
    restated,
    small_predictor,
)

# Independence


FILES = sorted(Path(check.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_no_bound_code_is_shared(file):
    imported = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported += [f"{node.module}.{alias.name}" for alias in node.names]
    ours = [name for name in imported if name.startswith("certibayes")]
    rooms = ("checker", "certificates", "errors", "networks", "prediction")
    # Of what every room may use: how points become tensors, and how progress is shown.
    tensors = ("certibayes.support.tensors.as_tensor", "certibayes.data.points.points_of")
    helpers = (*tensors, "certibayes.support.progress.")
    assert ours or file.stem == "_arithmetic"
    assert all(name.split(".")[1] in rooms or name.startswith(helpers) for name in ours)
    assert "import_module" not in file.read_text()


# Its ball, softmax and rules


@pytest.mark.parametrize("end", [0.1, 0.3, 0.7, 1 / 3])
def test_the_ball_holds_every_input_as_the_program_reads_it(end):
    predictor = small_predictor()
    x = (end + 0.1 * torch.rand(200, 5, dtype=torch.float64, generator=generator(1))).clamp(max=1.0)
    x[:100] = x[:100].float().double()
    x[:5] = torch.tensor(end, dtype=torch.float32).double()
    claimed = claim_of(record_of(predictor, x, domain=(end, 1.0), eps=0.03))
    for eps in (0.0, 1e-12, 1e-8, 0.03):
        ends = (np.full(x.shape, value) for value in (eps, end, 1.0))
        balls = Balls(x.numpy(), *ends)
        box = box_around(balls, claimed)
        for direction in (-1.0, 0.0, 1.0):
            inside = x if direction == 0 else (x + direction * eps).clamp(end, 1.0)
            read = inside.float().double().numpy()
            assert (box.lower <= read).all() and (read <= box.upper).all()
        ideal = box_around(balls, dataclasses.replace(claimed, rounding="ideal"))
        assert (ideal.lower <= x.numpy()).all() and (x.numpy() <= ideal.upper).all()


def _constant(logits: list[float], dtype: torch.dtype = torch.float32) -> Predictor:
    net = nn.Linear(1, len(logits)).to(dtype)
    with torch.no_grad():
        net.weight.zero_()
        net.bias.copy_(torch.tensor(logits, dtype=dtype))
    return cb.Point(net).predictor()


def _mean_of(predictor: Predictor, x: torch.Tensor, program: Program) -> tuple[Interval, np.ndarray]:
    box = Interval(x.double().numpy(), x.double().numpy())
    labels = np.zeros(len(x), dtype=np.int64)
    _, mean, loss = mean_bounds(program, networks_of(predictor), predictor, box, labels)
    return mean, loss


@pytest.mark.parametrize("logits", [[0.0] * 3, [0.0] * 7, [0.0, 20.0], [0.0, 95.0], [0.0, 103.5], [0.0, 110.0, 1.0]])
def test_rounded_probabilities_hold_what_the_program_returns(logits):
    """Down to those that float32 holds with few digits or not at all."""
    predictor, x = _constant(logits), torch.rand(2, 1)
    claimed = claim_of(record_of(predictor, x))
    # In exact arithmetic these logits have no width, so only the last rounding is left.
    mean, loss = _mean_of(predictor, x, EXACT)
    lower, upper = as_rounded(mean, loss, claimed.program)
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
        low, high = softmax_bounds(z)
        lead = smallest_lead(z, np.array([1]))[0]
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
    expected = pairwise_values(*(torch.from_numpy(given) for given in (lower, upper, labels)))[0].amin(-1)
    own = smallest_lead(Interval(lower[0], upper[0]), labels)
    own[np.arange(50), labels] = np.inf
    np.testing.assert_allclose(own.min(1), expected.numpy(), atol=1e-10)


@pytest.mark.parametrize("gap", [0.0, 800.0, 1e5, 1e9])
def test_extreme_logits_raise_nothing(gap):
    z = Interval(np.array([[0.0, gap, -gap]]), np.array([[1.0, gap + 1, 1 - gap]]))
    with np.errstate(all="ignore"):
        low, high = softmax_bounds(z)
        lead = smallest_lead(z, np.array([0]))
    assert np.isfinite(low).all() and np.isfinite(high).all() and np.isfinite(lead).all() and (low <= high).all()


# Honest certificates


@pytest.mark.parametrize("gap", [0.0, 1e-9, 1e-8])
def test_a_lead_that_rounding_could_eat_is_not_confirmed(gap):
    predictor, x = _constant([gap, 0.0, -1.0]), torch.rand(3, 1)
    record = record_of(predictor, x, torch.zeros(3, dtype=torch.int64))
    result = check_certificate({**record, "certified": [True] * 3, "predicted": [0] * 3}, predictor, x)
    assert not result.confirmed.any()


def test_an_overflow_inside_confirms_nothing():
    net = nn.Sequential(*[nn.Linear(1, 1, bias=False) for _ in range(5)], nn.Tanh(), nn.Linear(1, 2))
    with torch.no_grad():
        for layer in net[:5]:
            layer.weight.fill_(2.0**24)
        net[6].weight.copy_(torch.tensor([[1.0], [-1.0]]))
    predictor, x = cb.Point(net).predictor(), torch.ones(2, 1)
    record = record_of(predictor, x * 1e-36, torch.zeros(2, dtype=torch.int64), eps=0.0, domain=None)
    record = restated(
        record, provenance=provenance(record, inputs_digest=inputs_digest(x)), certified=[True] * 2,
        predicted=[0] * 2, lower=[[0.0, 0.0]] * 2, upper=[[1.0, 1.0]] * 2,
    )  # fmt: skip
    result = check_certificate(record, predictor, x)
    assert not result.confirmed.any() and not result.bounds_confirmed.any() and result.holds


@pytest.mark.parametrize("eps", [0.0, 1e-9, 3e-8, 0.02])
@pytest.mark.parametrize("rounding", ["outward", "ideal"])
def test_what_is_tried_never_leaves_ball_or_domain(eps, rounding, monkeypatch):
    """A refutation by an input that the claim is not about would be a slander."""
    predictor, x = small_predictor(), points_for().clamp(max=0.7).double()
    seen, real = [], Predictor.probabilities
    monkeypatch.setattr(Predictor, "probabilities", lambda self, given: seen.append(given) or real(self, given))
    assert check_certificate(record_of(predictor, x, eps=eps, domain=(0.0, 0.7), rounding=rounding), predictor, x).holds
    home = x.to(torch.float32 if rounding == "outward" else torch.float64)
    assert len(seen) > 20
    for point in seen:
        inside = ((point.double() - x).abs() <= eps) & (point >= 0.0) & (point.double() <= 0.7)
        assert bool((inside | (point == home)).all())
    assert eps < 1e-6 or any(bool((point != home).all()) for point in seen)


@pytest.mark.parametrize(("name", "dtype"), in_turn(ZOO, [torch.float32, torch.float64]))
def test_honest_certificates_are_confirmed(name, dtype):
    predictor, x = small_predictor(name, dtype=dtype), points_for(name).to(dtype)
    eps = torch.tensor([0.0, 1e-3, 0.02], dtype=torch.float64).repeat_interleave(len(x))
    x = torch.cat([x, x, x])
    counts = check_certificate(record_of(predictor, x, eps=eps), predictor, x).counts()
    assert counts["refuted"] == counts["bounds_refuted"] == 0
    assert counts["confirmed"] == counts["certified"]
    if dtype == torch.float32 and not name.startswith("factors"):
        assert counts["bounds_confirmed"] == len(x)


@pytest.mark.parametrize(
    ("name", "method"),
    in_turn(["relu", "residual", "normalize, tiny std", "batch norm, tiny variance"], ["theorem1", "pairwise"]),
)
def test_no_honest_certificate_is_refuted(name, method):
    predictor, x = small_predictor(name), points_for(name)
    labels = torch.randint(CLASSES, (len(x),), generator=generator(0))
    for rounding, domain in itertools.product(("outward", "ideal"), (DOMAIN, None)):
        for given in (None, labels):
            record = record_of(predictor, x, given, eps=1e-3, method=method, rounding=rounding, domain=domain)
            result = check_certificate(record, predictor, x)
            assert result.holds, (rounding, domain)
            assert result.counts()["confirmed"] == sum(record["certified"])


WAYS = [pair for pair in itertools.product(METHODS, BOUNDS) if pair != ("joint", "ibp")]
FAST = [(method, bounds) for method, bounds in WAYS if method == "best" or bounds in ("ibp", "crown")]


@pytest.mark.parametrize("way", few_of(WAYS, fast=FAST), ids="-".join)
def test_tighter_methods_are_at_worst_not_confirmed(way):
    """The checker knows intervals only; what they cannot prove is no fault of the certificate."""
    method, bounds = way
    predictor, x = small_predictor(), points_for()
    record = record_of(predictor, x, eps=0.03, method=as_method(method, bounds=bounds))
    result = check_certificate(record, predictor, x)
    plain = record_of(predictor, x, eps=0.03, method="pairwise")
    assert result.holds
    confirmed = torch.tensor(record["certified"]) & torch.tensor(plain["certified"])
    assert torch.equal(result.confirmed, confirmed)
    assert sum(result.counts()[key] for key in ("confirmed", "not_confirmed")) == sum(record["certified"])


def test_points_of_another_precision_and_a_domain_that_floats_cannot_hold():
    predictor, x = small_predictor(), points_for().clamp(max=0.7)
    for points in (x, x.double()):
        record = record_of(predictor, points, domain=(0.0, 0.7))
        result = check_certificate(record, predictor, points)
        assert result.holds and result.counts()["confirmed"] == sum(record["certified"])


def test_one_network_a_hundred_classes_and_no_points():
    torch.manual_seed(0)
    predictor, x = cb.Point(nn.Linear(4, 100)).predictor(), torch.rand(7, 4)
    result = check_certificate(record_of(predictor, x, eps=1e-4), predictor, x, batch_size=3)
    assert result.holds and result.counts()["confirmed"] == result.counts()["certified"] > 0
    empty = check_certificate(record_of(predictor, x[:0]), predictor, x[:0])
    assert empty.holds and empty.counts()["points"] == 0


def test_certificates_with_radii_of_their_own():
    predictor, x = small_predictor(), points_for()
    rng = generator(3)
    for eps in (0.03 * torch.rand(len(x), generator=rng), 0.05 * torch.rand(len(x), 5, generator=rng)):
        record = record_of(predictor, x, eps=eps)
        result = check_certificate(record, predictor, x)
        assert result.holds and result.bounds_confirmed.all()
        assert 0 < result.counts()["confirmed"] == sum(record["certified"])


def test_radii_of_points_and_of_pixels():
    predictor, x = small_predictor(), points_for()
    one = record_of(predictor, x, eps=0.02)
    expected = check_certificate(one, predictor, x)
    for eps in ([0.02] * len(x), [[0.02] * 5], [[0.02] * 5] * len(x)):
        found = check_certificate(restated(one, eps=eps), predictor, x)
        assert found.holds and torch.equal(found.confirmed, expected.confirmed)
    larger = [0.02] * len(x)
    marked = one["certified"].index(True)
    larger[marked] = 0.5
    found = check_certificate({**one, "eps": larger}, predictor, x)
    assert not found.confirmed[marked] and int(found.confirmed.sum()) == int(expected.confirmed.sum()) - 1
    for eps in ([[0.02] * 3], [[0.02]] * len(x), [[[0.02] * 5]]):
        assert "do not fit" in check_certificate({**one, "eps": eps}, predictor, x).problems[0]
    for eps in ([0.02] * 3, [0.02] * 5, [[0.02] * 5] * 2):  # not even the number of points
        with pytest.raises(CorruptFile, match="eps"):
            check_certificate({**one, "eps": eps}, predictor, x)


# Borders


def test_files(tmp_path):
    predictor, x = small_predictor(), points_for()
    record = record_of(predictor, x)
    (tmp_path / "certificate.json").write_text(json.dumps(record))
    assert read_record(tmp_path) == read_record(tmp_path / "certificate.json") == record
    for content in ("{", "[]", "\x00"):
        (tmp_path / "broken.json").write_text(content)
        with pytest.raises(CorruptFile):
            read_record(tmp_path / "broken.json")
    with pytest.raises(FileNotFoundError, match="no certificate"):
        read_record(tmp_path / "nothing.json")


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
    record = record_of(honest, x, eps=0.1)
    record |= {"provenance": provenance(record, digest=predictor.digest)}
    record |= {"certified": [True, True], "lower": [[0.0, 0.0]] * 2, "upper": [[1.0, 1.0]] * 2}
    result = check_certificate(record, predictor, x)
    assert "does not know the operation Squared" in result.note
    assert not result.confirmed.any() and result.refuted.tolist() == [False, True]


def test_regression_is_refused():
    predictor = cb.Point(nn.Linear(3, 2), metadata={"task": "regression"}).predictor()
    with pytest.raises(InvalidInput, match="regression"):
        check_certificate({}, predictor, torch.zeros(1, 3))


def test_points_come_as_certify_takes_them():
    predictor, x = small_predictor(), points_for()
    record = record_of(predictor, x)
    expected = check_certificate(record, predictor, x).counts()
    y = torch.zeros(len(x), dtype=torch.int64)
    for source in (x.numpy(), TensorDataset(x, y), DataLoader(TensorDataset(x, y), batch_size=2)):
        assert check_certificate(record, predictor, source).counts() == expected


def test_progress_and_repeatability():
    predictor, x, record, _ = attackable_points()
    seen = []
    one = check_certificate(record, predictor, x, batch_size=8, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(8, 30), (16, 30), (24, 30), (30, 30)]
    assert one.counts() == check_certificate(record, predictor, x, batch_size=8).counts()
