"""Radii and domains by name."""

import math

import pytest
import torch

from certibayes.errors import InvalidInput
from certibayes.regions import domain_by_name, fixed_by_name, radii_by_name

NAMES = ("age", "bmi", "bp")


def test_features_that_are_not_named_do_not_change():
    assert radii_by_name(NAMES, {"bmi": 1.5}).tolist() == [[0.0, 1.5, 0.0]]


def test_fixed_features_have_radius_zero():
    assert fixed_by_name(NAMES, 0.1, ("age",)).tolist() == [[0.0, 0.1, 0.1]]
    assert fixed_by_name(NAMES, torch.tensor([[1.0, 2.0, 3.0]]), ("bp", "bmi")).tolist() == [[1.0, 0.0, 0.0]]
    assert fixed_by_name(NAMES, 0.1, ()) == 0.1


def test_features_without_limits_have_none():
    low, high = domain_by_name(NAMES, {"age": (0, 120)})
    assert low.tolist() == [[0.0, -math.inf, -math.inf]] and high.tolist() == [[120.0, math.inf, math.inf]]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: radii_by_name(NAMES, {"bim": 1.0}), "no feature 'bim'; perhaps you mean bmi. The features are age"),
        (lambda: radii_by_name((), {"bmi": 1.0}), "no named features"),
        (lambda: radii_by_name(NAMES, {"bmi": -1.0}), "finite radii >= 0"),
        (lambda: radii_by_name(NAMES, {"bmi": "a"}), "the radius of bmi must be a number"),
        (lambda: radii_by_name(NAMES, {"bmi": 0.0}), "every radius is 0"),
        (lambda: fixed_by_name(NAMES, 0.1, ("sex",)), "no feature 'sex'"),
        (lambda: fixed_by_name(NAMES, torch.ones(5), ("age",)), "do not tell features apart"),
        (lambda: domain_by_name(NAMES, {"age": (1, 0)}), "the first exceeds the second"),
        (lambda: domain_by_name(NAMES, {"age": 3}), r"the limits of age are \(smallest, largest\)"),
        (lambda: domain_by_name(NAMES, {"age": (0, math.nan)}), "a limit of age must be a number"),
    ],
)
def test_what_makes_no_sense_is_refused(make, words):
    with pytest.raises(InvalidInput, match=words):
        make()
