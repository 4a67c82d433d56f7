"""What cannot be certified is refused at the border, with a message that helps."""

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.errors import InvalidInput

X = torch.full((4, 3), 0.5)
Y = torch.tensor([0, 1, 0, 1])


@pytest.fixture(scope="module")
def predictor():
    torch.manual_seed(0)
    return cb.Point(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))).predictor()


def _with(value: float) -> torch.Tensor:
    x = X.clone()
    x[2, 1] = value
    return x


BAD = {
    "NaN": ({"x": _with(float("nan"))}, "NaN or infinite"),
    "integers": ({"x": torch.ones(4, 3, dtype=torch.uint8)}, "floats are needed"),
    "infinite": ({"x": _with(float("inf"))}, "NaN or infinite"),
    "above the domain": ({"x": _with(1.5), "domain": (0.0, 1.0)}, r"outside the domain.*Normalize"),
    "below the domain": ({"x": _with(-0.1), "domain": (0.0, 1.0)}, "outside the domain"),
    "domain the wrong way round": ({"domain": (1.0, 0.0)}, "smallest, largest"),
    "domain with NaN": ({"domain": (0.0, float("nan"))}, "smallest, largest"),
    "labels too large": ({"y": torch.tensor([0, 1, 2, 0])}, "labels run from 0 to 2.*2 classes"),
    "labels negative": ({"y": torch.tensor([0, 1, -1, 0])}, "labels run from -1"),
    "labels as floats": ({"y": Y.float()}, "must be integers"),
    "labels as truth values": ({"y": Y.bool()}, "must be integers"),
    "labels one-hot": ({"y": torch.eye(2, dtype=torch.int64)[Y]}, "must be integers"),
    "too few labels": ({"y": Y[:3]}, "4 inputs but 3 labels"),
    "eps negative": ({"eps": -0.1}, "finite radius >= 0"),
    "eps NaN": ({"eps": float("nan")}, "finite radius >= 0"),
    "eps infinite": ({"eps": float("inf")}, "finite radius >= 0"),
    "wrong shape": ({"x": torch.zeros(4, 5)}, r"\(4, 5\).*\(3,\)"),
    "no batch dimension": ({"x": torch.zeros(3)}, "batch dimension"),
    "unknown method": ({"method": "majority"}, "method must be one of auto, theorem1, pairwise"),
    "a method's class": ({"method": cb.Best}, r"give an object: method=Best\(\)"),
    "no method": ({"method": None}, "method must be one of"),
    "unknown rounding": ({"rounding": "up"}, 'rounding must be "outward" or "ideal"'),
    "batch size": ({"batch_size": 0}, "batch_size"),
    "beyond 2^30": ({"x": _with(2.0**31)}, r"2\^30"),
    "radius beyond 2^30": ({"eps": 2.0**31}, r"2\^30"),
}


@pytest.mark.parametrize("what", BAD)
def test_refused(predictor, what):
    settings, message = BAD[what]
    arguments = {"x": X, "y": Y, "eps": 0.1, **settings}
    with pytest.raises(InvalidInput, match=message):
        cb.certify(predictor, **arguments)


def test_a_posterior_is_not_a_predictor(predictor):
    with pytest.raises(InvalidInput, match=r"Draw them first.*predictor\(samples"):
        cb.certify(cb.Point(nn.Linear(3, 2)), X, eps=0.1)


def test_a_module_is_not_a_predictor():
    with pytest.raises(InvalidInput, match=r"not Linear.*certibayes\.Point\(net\)\.predictor"):
        cb.certify(nn.Linear(3, 2), X, eps=0.1)


def test_a_regression_predictor_has_no_classes():
    posterior = cb.Point(nn.Linear(3, 2), metadata={"task": "regression"})
    with pytest.raises(InvalidInput, match="regression"):
        cb.certify(posterior.predictor(), X, eps=0.1)


def test_points_on_the_border_of_the_domain_are_allowed(predictor):
    x = torch.tensor([[0.0, 1.0, 0.5]])
    assert len(cb.certify(predictor, x, eps=0.1, domain=(0.0, 1.0))) == 1


@pytest.mark.parametrize("high", [0.1, 0.7, 1 / 3])
def test_the_border_may_be_a_number_that_floats_cannot_hold(predictor, high):
    """Points clipped to [0, 0.1] in float32 end at 0.10000000149, which is what a user means by 0.1."""
    x = torch.ones(2, 3).clamp(max=high)
    assert len(cb.certify(predictor, x, eps=0.1, domain=(0.0, high))) == 2
