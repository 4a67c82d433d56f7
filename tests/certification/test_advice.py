"""Data of the wrong kind is refused with what to do about it, and what is merely another form is taken."""

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.errors import InvalidInput


@pytest.fixture(scope="module")
def case():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    predictor = cb.Samples.from_modules([net], input_shape=(3, 4, 4), domain=(0.0, 1.0)).predictor()
    x = torch.rand(6, 3, 4, 4)
    return predictor, x, torch.tensor([0, 1, 2, 0, 1, 2])


FORMS = {
    "a pair": lambda x, y: (x, y),
    "a pair of arrays": lambda x, y: (x.numpy(), y.numpy()),
    "a list of pairs": lambda x, y: list(zip(x, y.tolist(), strict=True)),
    "a list of dictionaries": lambda x, y: [{"image": a, "label": b} for a, b in zip(x, y.tolist(), strict=True)],
}


@pytest.mark.parametrize("form", FORMS)
def test_points_with_their_labels(case, form):
    predictor, x, y = case
    plain = cb.certify(predictor, x, y, eps=0.01, method="pairwise")
    found = cb.certify(predictor, FORMS[form](x, y), eps=0.01, method="pairwise")
    assert torch.equal(found.lower, plain.lower) and torch.equal(found.labels, y)
    with pytest.raises(InvalidInput, match="leave y out"):
        cb.certify(predictor, FORMS[form](x, y), y, eps=0.01)


def test_points_of_two_numbers_are_no_pairs():
    predictor = cb.Point(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))).predictor()
    for points in ([(0.1, 0.2), (0.3, 0.4), (0.5, 0.6)], (torch.zeros(2), torch.ones(2))):
        assert len(cb.certify(predictor, points, eps=0.01, method="pairwise").certified) == len(points)


MISUSE = {
    "channels last": (lambda x, y: (x.permute(0, 2, 3, 1), y), r"permute\(0, 3, 1, 2\)"),
    "one image": (lambda x, y: (x[0], y[0]), r"x\[None\]"),
    "bytes": (lambda x, y: ((x * 255).byte(), y), r"x.float\(\) / 255"),
    "gray levels": (lambda x, y: (255 * x, y), "outside the domain"),
    "one-hot labels": (lambda x, y: (x, nn.functional.one_hot(y, 3)), r"y.argmax\(1\)"),
    "labels in a column": (lambda x, y: (x, y[:, None]), r"y\[:, 0\]"),
    "labels from 1": (lambda x, y: (x, y + 1), "counted from 0: y - 1"),
    "labels of floats": (lambda x, y: (x, y.float()), r"y.long\(\).*certify_regression"),
    "words for labels": (lambda x, y: (x, ["cat", "dog"] * 3), "words, such as 'cat'.*names.index"),
}


@pytest.mark.parametrize("what", MISUSE)
def test_misuse_is_told_what_to_do(case, what):
    predictor, x, y = case
    change, advice = MISUSE[what]
    with pytest.raises(InvalidInput, match=advice):
        cb.certify(predictor, *change(x, y), eps=0.01)


def test_a_table_with_its_target_in_it():
    predictor = cb.Point(nn.Linear(4, 2)).predictor()
    with pytest.raises(InvalidInput, match="such as the target"):
        cb.certify(predictor, torch.zeros(3, 5), eps=0.01)


def test_the_task_of_a_network_trained_elsewhere():
    posterior = cb.Point(nn.Linear(4, 1))
    with pytest.raises(InvalidInput, match="perhaps you mean regression"):
        posterior.task = "regresion"
    posterior.task = "regression"
    assert cb.certify_regression(posterior.predictor(), torch.zeros(3, 4), eps=0.0).lower.shape == (3, 1)
    with pytest.raises(InvalidInput, match="certify_regression bounds its predictions"):
        cb.certify(posterior.predictor(), torch.zeros(3, 4), eps=0.01)
