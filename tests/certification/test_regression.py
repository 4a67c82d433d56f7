"""Regression certificates: no input of the ball moves a prediction out of its bounds."""

import json
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import certibayes as cb
from certibayes.certification import BOUNDS, certify_regression
from certibayes.certification.regression import _mean_bounds
from certibayes.errors import InvalidInput
from certibayes.prediction import Predictor, RegressionPredictor

from ..strategies import ZOO, Functional, attacked_points, ball, fractions, in_turn, inputs, law, make, points_of, seeds

REGRESSION = {"task": "regression"}
NETWORKS = ("relu", "tanh", "residual", "shift that cancels", "batch norm on images", "average pool, padded, ceil")


def _predictor(name: str = "relu", seed: int = 0, samples: int = 3, scale: float = 1.0) -> RegressionPredictor:
    modules = [make(name, seed + i) for i in range(samples)]
    with torch.no_grad():
        for module in modules:
            for p in module.parameters():
                p.mul_(scale)
    posterior = cb.Samples.from_modules(modules)
    posterior.metadata.update(REGRESSION)
    predictor = posterior.predictor()
    assert isinstance(predictor, RegressionPredictor)
    return predictor


def _linear(weight: list[float], bias: float) -> nn.Module:
    net = nn.Linear(len(weight), 1)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([weight]))
        net.bias.fill_(bias)
    return net


def _assert_holds(result: object, predictor: RegressionPredictor, points: Tensor) -> None:
    """Without any tolerance, whatever the batch size."""
    for batch_size in (len(points), 3):
        parts = points.split(batch_size)
        mean = torch.cat([predictor(part) for part in parts]).detach().double()
        each = torch.cat([predictor.sample_outputs(part) for part in parts], 1).detach().double()
        assert bool((result.lower <= mean).all() and (mean <= result.upper).all())
        assert bool((result.network_lower <= each).all() and (each <= result.network_upper).all())
        assert bool(((mean - result.reference).abs() <= result.deviation).all())


@pytest.mark.parametrize(("name", "dtype"), in_turn(NETWORKS, [torch.float32, torch.float64]))
def test_no_input_of_the_ball_leaves_the_bounds(name, dtype):
    predictor, x = _predictor(name).to(dtype), inputs(name, 8, 0, dtype)
    for eps in (0.0, 1e-6, 0.02, 0.5):
        result = certify_regression(predictor, x, eps=eps)
        lower, upper = ball(x, eps)
        _assert_holds(result, predictor, x)
        for points in (*points_of(lower, upper, 12, 0), *attacked_points(predictor, lower, upper, steps=4)):
            _assert_holds(result, predictor, points)
        assert bool((result.network_lower <= result.upper).all() and (result.lower <= result.network_upper).all())


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize("bounds", BOUNDS)
def test_radii_for_every_point_and_every_value(bounds):
    predictor, x = _predictor(), inputs("relu", 8, 0)
    for eps in (torch.rand(8), torch.rand(1, 5) * (torch.arange(5) > 1), torch.rand(8, 5)):
        result = certify_regression(predictor, x, eps=eps, method=cb.Theorem1(bounds))
        radius = eps[:, None] if eps.shape == (8,) else eps
        for points in points_of(*ball(x, radius.expand(8, 5)), 12, 0):
            _assert_holds(result, predictor, points)
        assert "l-infinity radius given for" in result.statement and "radii" in repr(result)
        json.dumps(result.to_json())


def test_linear_bounds_are_never_looser():
    predictor, x = _predictor(), inputs("relu", 8, 0)
    ibp, crown = (certify_regression(predictor, x, eps=0.1, method=cb.Theorem1(bounds)) for bounds in ("ibp", "crown"))
    assert bool((crown.deviation <= ibp.deviation + 1e-4).all())
    assert float(crown.deviation.mean()) < float(ibp.deviation.mean())
    lower, upper = ball(x, 0.1)
    for points in (*points_of(lower, upper, 12, 0), *attacked_points(predictor, lower, upper)):
        _assert_holds(crown, predictor, points)


@law(25)
@given(seed=seeds, scale=st.sampled_from([1e-12, 1e-3, 1.0, 100.0]), samples=st.integers(1, 6))
def test_rounding_is_covered_at_points(seed, scale, samples):
    predictor, x = _predictor("relu", seed, samples, scale), inputs("relu", 30, seed)
    _assert_holds(certify_regression(predictor, x, eps=0.0), predictor, x)


def test_a_linear_predictor_is_bounded_exactly():
    """f = w.x + b moves by eps |w|_1: mean weight (1.5, -1) moves by 2.5 eps; with x_1 at the domain's end only up."""
    posterior = cb.Samples.from_modules([_linear([1.0, -2.0], 0.5), _linear([2.0, 0.0], -0.5)])
    posterior.metadata.update(REGRESSION)
    x = torch.tensor([[0.5, 0.5], [0.0, 0.5]])
    result = certify_regression(posterior.predictor(), x, eps=0.25, domain=(0.0, 1.0))
    expected = torch.tensor([[0.25, 0.25 - 0.625, 0.25 + 0.625], [-0.5, -0.5 - 0.25, -0.5 + 0.625]]).double()
    torch.testing.assert_close(result.predicted[:, 0].double(), expected[:, 0])
    torch.testing.assert_close(result.lower[:, 0], expected[:, 1], atol=1e-5, rtol=0)
    torch.testing.assert_close(result.upper[:, 0], expected[:, 2], atol=1e-5, rtol=0)
    torch.testing.assert_close(result.network_lower[0, 0], torch.tensor(-0.75).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(result.network_upper[0, 0], torch.tensor(1.0).double(), atol=1e-5, rtol=0)


def test_ideal_bounds_of_a_linear_predictor():
    posterior = cb.Point(_linear([1.0, -2.0], 0.5).double(), metadata=REGRESSION)
    x = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    result = certify_regression(posterior.predictor(), x, eps=0.25, rounding="ideal")
    torch.testing.assert_close(result.lower, torch.tensor([[-0.75]]).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close(result.upper, torch.tensor([[0.75]]).double(), atol=1e-12, rtol=0)
    assert "exact arithmetic" in result.statement


def test_tolerances():
    predictor, x = _predictor(), inputs("relu", 40, 1)
    widest = float(certify_regression(predictor, x, eps=0.05).deviation.amax(-1).median())
    result = certify_regression(predictor, x, eps=0.05, tolerance=widest)
    assert 0 < result.certified_fraction < 1
    kept = x[result.certified]
    clean = predictor(kept).detach()
    for points in points_of(*ball(kept, 0.05), 20, 0):
        assert bool(((predictor(points) - clean).abs() <= widest).all())
    # From targets: right ones a little off, and wrong ones.
    y = predictor(x).detach() + 0.01
    assert certify_regression(predictor, x, y, eps=0.0, tolerance=0.02).certified.all()
    assert not certify_regression(predictor, x, y + 1, eps=0.0, tolerance=0.02).certified.any()
    fractions = [
        certify_regression(predictor, x, eps=0.05, tolerance=t).certified_fraction for t in (0.0, widest, 10.0)
    ]
    assert fractions[0] == 0.0 and fractions[-1] == 1.0
    assert certify_regression(predictor, x, eps=0.05).certified is None


@law(10)
@given(seed=seeds)
def test_bounds_shrink_with_the_ball_and_the_domain(seed):
    predictor, x = _predictor(seed=seed), inputs("relu", 10, seed).sigmoid()
    before = certify_regression(predictor, x, eps=0.3)
    for eps, domain in ((0.3, (0.0, 1.0)), (0.1, (0.0, 1.0)), (0.01, (0.0, 1.0)), (0.0, (0.0, 1.0))):
        result = certify_regression(predictor, x, eps=eps, domain=domain)
        assert bool((result.lower >= before.lower - 1e-5).all() and (result.upper <= before.upper + 1e-5).all())
        before = result


def test_the_diabetes_study():
    """A robustly fitted posterior over real data: bounds hold under attack, and robust training tightens them."""
    data = cb.data.load("diabetes")
    gaps = {}
    for radius in (0.0, 0.1):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))
        posterior = cb.fit(
            net,
            data.train,
            algorithm=cb.VOGN(),
            likelihood=cb.RobustGaussian(noise_std=0.7, p_eps=cb.TwoPoint(radius)),
            epochs=15,
            batch_size=32,
            seed=0,
            progress=False,
        )
        predictor = posterior.predictor(5)
        x, y = data.test.inputs, data.test.targets
        result = certify_regression(predictor, x, y, eps=0.1, tolerance=2.0)
        lower, upper = ball(x, 0.1)
        for points in (x, *points_of(lower, upper, 6, 0), *attacked_points(predictor, lower, upper, steps=8)):
            _assert_holds(result, predictor, points)
        assert 0.3 < result.certified_fraction <= 1.0
        gaps[radius] = float((result.upper - result.lower).mean())
    assert gaps[0.1] < gaps[0.0]


def test_every_zoo_network_can_be_certified():
    for name in ZOO:
        x = inputs(name, 4, 0)
        predictor = _predictor(name, samples=2)
        _assert_holds(certify_regression(predictor, x, eps=0.0), predictor, x)


def test_batches_and_progress():
    seen = []
    predictor, x = _predictor(), inputs("relu", 10, 0)
    whole = certify_regression(predictor, x, eps=0.1)
    parts = certify_regression(predictor, x, eps=0.1, batch_size=4, progress=lambda *done: seen.append(done))
    assert seen == [(4, 10), (8, 10), (10, 10)]
    torch.testing.assert_close(whole.lower, parts.lower, atol=1e-6, rtol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(certify_regression(predictor, x, eps=0.1).lower, whole.lower)


def test_an_empty_batch():
    result = certify_regression(_predictor(), inputs("relu", 0, 0), eps=0.1, tolerance=1.0)
    assert len(result) == 0 and result.lower.shape == (0, 3) and result.certified_fraction == 0.0
    json.dumps(result.to_json())


def test_words_and_json():
    predictor, x = _predictor(), inputs("relu", 5, 0).sigmoid()
    result = certify_regression(predictor, x, eps=0.125, domain=(0.0, 1.0), tolerance=0.5, method="theorem1")
    for word in ("0.125", "[0, 1]", "3 fixed weight samples", "ibp", "float32", "l-infinity", "0.5", "itself"):
        assert word in result.statement
    assert predictor.digest[:16] in result.statement
    record = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert record["statement"] == result.statement and record["domain"] == [0.0, 1.0] and record["norm"] == "linf"
    assert len(record["lower"]) == len(record["certified"]) == 5 and record["provenance"]["digest"] == predictor.digest
    assert "of 5 points certified up to 0.5 at eps=0.125, ibp, outward" in repr(result)
    unlimited = certify_regression(predictor, x, predictor(x), eps=0.125)
    assert "certified" not in unlimited.statement and "values in" not in unlimited.statement
    assert unlimited.to_json()["certified"] is None and "(5 points at eps=0.125, " in repr(unlimited)
    assert "target" in certify_regression(predictor, x, predictor(x), eps=0.1, tolerance=1.0).statement


BAD = {
    "NaN": ({"x": torch.full((2, 5), torch.nan)}, "NaN or infinite"),
    "outside the domain": ({"x": torch.full((2, 5), 3.0), "domain": (0.0, 1.0)}, "outside the domain"),
    "shape": ({"x": torch.zeros(2, 4)}, r"\(2, 4\)"),
    "targets' shape": ({"y": torch.zeros(2)}, r"targets must be \(2, 3\)"),
    "targets' type": ({"y": torch.zeros(2, 3, dtype=torch.int64)}, "floats"),
    "eps": ({"eps": -1.0}, "eps"),
    "method": ({"method": "magic"}, "method"),
    "tolerance": ({"tolerance": -1.0}, "tolerance"),
    "tolerance NaN": ({"tolerance": float("nan")}, "tolerance"),
    "rounding": ({"rounding": "up"}, "rounding"),
    "batch size": ({"batch_size": 0}, "batch_size"),
    "beyond 2^30": ({"x": torch.full((2, 5), 2.0**31)}, r"2\^30"),
}


@pytest.mark.parametrize("what", BAD)
def test_refused(what):
    settings, message = BAD[what]
    with pytest.raises(InvalidInput, match=message):
        certify_regression(_predictor(), **{"x": torch.zeros(2, 5), "eps": 0.1, **settings})


def test_only_regression_predictors_are_taken():
    classifier: Predictor = cb.Point(make("relu")).predictor()
    for wrong in (classifier, cb.Point(make("relu"), metadata=REGRESSION), make("relu")):
        with pytest.raises(InvalidInput, match="regression predictor"):
            certify_regression(wrong, torch.zeros(2, 5), eps=0.1)
    with pytest.raises(InvalidInput, match="float32 or float64"):
        certify_regression(_predictor().to(torch.bfloat16), torch.zeros(2, 5), eps=0.1)


def test_the_range_of_generated_inputs_is_not_degenerate():
    """A guard for the tests themselves: balls of eps 0.5 do move predictions."""
    predictor, x = _predictor(), inputs("relu", 8, 0)
    moved = torch.stack([predictor(p) for p in points_of(*ball(x, 0.5), 12, 0)]).detach()
    assert float((moved.amax(0) - moved.amin(0)).mean()) > 0.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@law(20)
@given(seed=seeds, networks=st.integers(1, 40), octaves=st.sampled_from([0, 8, 60]))
def test_means_of_outputs_that_are_known_exactly_hold_in_any_order(dtype, seed, networks, octaves):
    """Outputs of all magnitudes cancel, the program rounds their mean, and no width of bounds hides what is lost."""
    rng = torch.Generator().manual_seed(seed)
    outputs = torch.randn(networks, 6, 1, generator=rng, dtype=torch.float64)
    outputs = (outputs * 2.0 ** torch.randint(0, octaves + 1, outputs.shape, generator=rng)).to(dtype).double()
    # Half of them are those of the others with the other sign, and nearly cancel.
    outputs[: networks // 2] = -outputs[networks - networks // 2 :] * (1 + 2.0**-20)
    outputs = outputs.to(dtype).double()
    exact = [sum(column, Fraction(0)) / networks for column in zip(*fractions(outputs.squeeze(-1)), strict=True)]
    lower, upper = (fractions(end.squeeze(-1)) for end in _mean_bounds(outputs, outputs, None))
    assert all(low <= mean <= high for low, mean, high in zip(lower, exact, upper, strict=True))
    lower, upper = _mean_bounds(outputs, outputs, dtype)
    for _ in range(10):
        shuffled = outputs[torch.randperm(networks, generator=rng)]
        one_by_one = sum(shuffled, torch.zeros_like(shuffled[0])) / networks
        for program in (shuffled.mean(0), one_by_one):
            ran = program.to(dtype).double()
            assert bool((lower <= ran).all() and (ran <= upper).all())


def test_points_in_float64_have_their_own_ball_also_where_no_layer_rounds():
    """The network reads the nearest floats; how far a point is from its own shows where nothing is widened after it."""
    net = Functional(lambda self, x: torch.cat([torch.relu(x), self.last(x)], 1), last=nn.Linear(1, 1))
    predictor = cb.Point(net, input_shape=(1,), metadata={"task": "regression"}).predictor()
    x = 1 + torch.rand(5000, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    eps = 0.99 * x
    result = certify_regression(predictor, x, eps=eps, domain=(x - 10, x))
    for end in (x - eps, x):
        ran = predictor(end.float()).double()
        assert bool((result.lower <= ran).all() and (ran <= result.upper).all())
