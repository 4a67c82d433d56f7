"""Points whose bounds overflow are not certified, and keep the reason; the others are answered as if alone."""

import json

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import certibayes as cb
from certibayes.bounds import Box, outward_box
from certibayes.certificates import RegressionCertificate
from certibayes.certification import BOUNDS, METHODS, Method, _layers, certify_in_shards, logit_bounds, margin_bounds
from certibayes.errors import UnsoundBounds
from certibayes.prediction import Predictor

from ..strategies import Functional, few_of, generator
from .cases import mapped

X = torch.tensor([[0.5], [20.0], [0.25], [0.1]])
Y = torch.zeros(4, dtype=torch.int64)
EPS = 0.1
OTHERS = [0, 2, 3]
EVERY_METHOD = [
    *(kind(bounds) for kind in METHODS.values() for bounds in BOUNDS if (kind, bounds) != (cb.Joint, "ibp")),
    *(cb.Best(bounds, budget=1.0) for bounds in ("ibp", "hull")),
    *(cb.Theorem1("crown", "crown"), cb.Joint("hull", "crown")),
]
# Every method and all bounds, also those of layers in between, and splitting.
SOME = [kind(bounds) for kind, bounds in zip(METHODS.values(), (*BOUNDS, *BOUNDS[1:3]), strict=True)]
SOME += EVERY_METHOD[-4:]


pytestmark = pytest.mark.usefixtures("few_steps")


def _net(outputs: int = 2) -> nn.Module:
    """2^96 x beyond ReLUs, and then the logits x and 0.05: from x = 16 on, layers come close to overflow."""
    layers = [part for _ in range(5) for part in (nn.Linear(1, 1, bias=False), nn.ReLU())]
    net = nn.Sequential(*layers, nn.Linear(1, outputs))
    with torch.no_grad():
        # Back in two steps: one factor of 2^-96 would be so close to underflow that bounds had to allow for it.
        for layer, factor in zip(net[:-1:2], (2.0**24, 2.0**24, 2.0**24, 2.0**24, 2.0**-48), strict=True):
            layer.weight.fill_(factor)
        net[-1].weight.zero_()
        net[-1].weight[0] = 2.0**-48
        net[-1].bias.copy_(torch.tensor([0.0, 0.05])[:outputs])
    return net


def _predictor() -> Predictor:
    return cb.Samples.from_modules([_net(), _net()]).predictor(2)


def _assert_only_the_second_is_unanswered(result: cb.Certificate, alone: cb.Certificate) -> None:
    assert list(result.reasons) == [1] and "overflow" in result.reasons[1]
    assert not result.certified[1] and not result.open[1]
    assert bool((result.lower[1] == 0).all() and (result.upper[1] >= 1).all())
    assert "Nothing could be concluded about 1 point: the bounds" in result.statement
    assert "Nothing could be concluded about 1 point: see reasons." in repr(result)
    assert not alone.reasons and "Nothing" not in repr(alone)
    for name in ("certified", "lower", "upper", "labels", "predicted"):
        assert torch.equal(getattr(result, name)[OTHERS], getattr(alone, name)), name


@pytest.mark.parametrize("method", few_of(EVERY_METHOD, fast=SOME), ids=repr)
def test_one_point_that_overflows_takes_nothing_from_the_others(method):
    predictor = _predictor()
    result, alone = (cb.certify(predictor, X[some], Y[some], eps=EPS, method=method) for some in (range(4), OTHERS))
    _assert_only_the_second_is_unanswered(result, alone)
    assert result.certified.tolist() == [True, False, True, False]
    read = cb.Certificate.from_json(json.loads(json.dumps(result.to_json(), allow_nan=False)))
    assert read.reasons == result.reasons and read.statement == result.statement
    if method.seconds is not None:
        assert result.attacked.tolist() == [False, False, False, True] and result.unknown.tolist()[1]


@pytest.mark.parametrize("method", ["auto", "theorem1", "best"])
def test_in_ideal_arithmetic_and_in_float64_likewise(method):
    """There is room for more in float64, and not for everything."""
    predictor = _predictor()
    settings = {"eps": EPS, "method": method}
    ideal, alone = (cb.certify(predictor, X[s], Y[s], rounding="ideal", **settings) for s in (range(4), OTHERS))
    _assert_only_the_second_is_unanswered(ideal, alone)


@pytest.mark.parametrize("method", ["auto", "theorem1"])
def test_batches_and_shards_keep_the_reason_with_its_point(method, tmp_path):
    predictor = _predictor()
    alone = cb.certify(predictor, X[OTHERS], Y[OTHERS], eps=EPS, method=method)
    for size in (1, 3):
        result = cb.certify(predictor, X, Y, eps=EPS, method=method, batch_size=size)
        _assert_only_the_second_is_unanswered(result, alone)
    for _ in range(2):  # made, then read again
        sharded = certify_in_shards(predictor, X, Y, tmp_path, eps=EPS, method=method, shard=1)
        _assert_only_the_second_is_unanswered(sharded, alone)


def test_a_point_that_is_mislabeled_has_the_reason_as_well():
    result = cb.certify(_predictor(), X, 1 - Y, eps=EPS)
    assert list(result.reasons) == [1] and not result.certified.any()


TOGETHER = ("crown", "alpha-crown")


@pytest.mark.parametrize(("bounds", "together"), [*((b, False) for b in BOUNDS), *((b, True) for b in TOGETHER)])
def test_bounds_on_logits_and_margins_are_infinite_where_nothing_is_known(bounds, together, monkeypatch):
    """For the network and the point in question, and no other; also where CROWN narrows all networks at once."""
    intermediates = "crown" if together else "ibp"
    if together:
        mapped(monkeypatch)
    calm = _net()
    with torch.no_grad():
        calm[0].weight.fill_(2.0**23)
    predictor, box = cb.Samples.from_modules([_net(), calm]).predictor(2), outward_box(X, EPS)
    lower, upper = logit_bounds(predictor, box, bounds=bounds, intermediates=intermediates)
    assert bool((lower[0, 1] == -torch.inf).all() and (upper[0, 1] == torch.inf).all())
    assert torch.isfinite(lower[1]).all() and torch.isfinite(upper[1]).all()
    assert torch.isfinite(lower[0, OTHERS]).all() and torch.isfinite(upper[0, OTHERS]).all()
    if bounds != "hull":
        margins = margin_bounds(predictor, box, Y, torch.tensor([[1]] * 4), "outward", bounds, intermediates)
        assert bool((margins[0, 1] == -torch.inf).all()) and torch.isfinite(margins[1]).all()
        assert torch.isfinite(margins[0, OTHERS]).all()
    # All networks are needed for a certificate.
    assert list(cb.certify(predictor, X, Y, eps=EPS).reasons) == [1]


@pytest.mark.parametrize("method", [cb.Theorem1("ibp"), cb.Theorem1("crown"), cb.Elided("crown", "crown")], ids=repr)
@pytest.mark.parametrize("together", [False, True])
def test_finite_bounds_that_are_inverted_raise(method, together, monkeypatch):
    """No sound rule makes them; also where only one point of one network has them."""
    second = _net()
    with torch.no_grad():
        second[-1].bias[1] = 7.0

    def wrong(box: Box) -> tuple[Tensor, Tensor]:
        return torch.ones(len(box.center), dtype=torch.bool), (box.center == 7.0).any()

    monkeypatch.setattr(_layers, "within_range", wrong)
    # What radii tell of range they do not tell of this.
    monkeypatch.setattr(_layers, "radius_within_range", lambda box, rounding: False)
    if together:
        mapped(monkeypatch)
    predictor = cb.Samples.from_modules([_net(), second]).predictor(2)
    with pytest.raises(UnsoundBounds, match="lies above its upper bound"):
        cb.certify(predictor, X, Y, eps=EPS, method=method)


# A deep network


def _residual(blocks: int) -> nn.Module:
    def forward(self: Functional, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block[1](functional.relu(block[0](x)))
        return self.last(x.flatten(1))

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        pairs = [nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)) for _ in range(blocks)]
        net = Functional(
            forward, first=nn.Conv2d(1, 3, 3, padding=1), blocks=nn.ModuleList(pairs), last=nn.Linear(48, 3)
        )
        # So large that a radius of 1e-3 makes the difference between bounds of 10^29 and overflow.
        for layer in net.blocks.parameters():
            layer.data.mul_(2.95)
    net.input_shape = (1, 4, 4)
    return net


DEEP = [cb.Auto(), cb.Theorem1(), cb.Elided("crown"), cb.Best("crown")]


@pytest.mark.parametrize("method", few_of(DEEP, fast=DEEP[:3]), ids=repr)
def test_a_residual_network_of_55_convolutions(method: Method):
    """Only where the radius is so large that intervals explode is nothing known."""
    predictor = cb.Point(_residual(27)).predictor()
    x = torch.rand(4, 1, 4, 4, generator=generator(0))
    radii = torch.tensor([0.0, 1e-3, 0.0, 0.0])
    result = cb.certify(predictor, x, eps=radii, domain=(0.0, 1.0), method=method)
    assert list(result.reasons) == [1]
    alone = cb.certify(predictor, x[OTHERS], eps=0.0, domain=(0.0, 1.0), method=method)
    assert torch.equal(result.certified[OTHERS], alone.certified) and not result.certified[1]
    assert not cb.certify(predictor, x[:1], eps=1e-3, domain=(0.0, 1.0), method=method).certified.any()


# Regression


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("points", [[0, 1, 2, 3], [1]], ids=["one of four", "the only one"])
def test_regression_likewise(bounds, points, tmp_path):
    posterior = cb.Samples.from_modules([_net(1), _net(1)])
    posterior.metadata.update({"task": "regression"})
    predictor, x, unknown = posterior.predictor(), X[points], points.index(1)
    result = cb.certify_regression(predictor, x, eps=EPS, tolerance=0.2, method=cb.Theorem1(bounds))
    assert list(result.reasons) == [unknown] and "overflow" in result.reasons[unknown]
    for low, high in ((result.lower, result.upper), (result.network_lower, result.network_upper)):
        assert bool((low[unknown] == -torch.inf).all() and (high[unknown] == torch.inf).all())
    assert result.certified.tolist() == [point != 1 for point in points]
    assert "overflow" in result.statement
    others = [index for index in range(len(points)) if index != unknown]
    if others:
        alone = cb.certify_regression(predictor, x[others], eps=EPS, tolerance=0.2, method=cb.Theorem1(bounds))
        assert torch.equal(result.lower[others], alone.lower) and torch.equal(result.upper[others], alone.upper)
    record = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert [row is None for row in record["lower"]] == [point == 1 for point in points]
    read = RegressionCertificate.from_json(record)
    assert read.reasons == result.reasons and torch.equal(read.certified, result.certified)
    assert torch.equal(read.lower, result.lower) and torch.equal(read.network_upper, result.network_upper)
    (tmp_path / "c.json").write_text(json.dumps(record))
    assert cb.load_certificate(tmp_path / "c.json").statement == result.statement
