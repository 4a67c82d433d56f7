"""What a user may give as a domain."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from certibayes.errors import InvalidInput
from certibayes.regions import (
    as_domain,
    domain_to_json,
    require_domain,
    require_radius_within,
    resolve_domain,
    take_domain,
)

X = torch.tensor([[0.5, 10.0], [0.25, 20.0]])
LOW, HIGH = torch.tensor([[0.0, 5.0]]), torch.tensor([[1.0, 20.0]])
PAIRS = [
    (0, 1),
    [0.0, 1.0],
    torch.tensor([0.0, 1.0]),
    np.array([0.0, 1.0], dtype=np.float32),
    (np.float32(0), torch.tensor(1)),
]


@pytest.mark.parametrize("domain", PAIRS, ids=lambda domain: type(domain).__name__)
def test_every_kind_of_pair_becomes_two_floats(domain):
    found = as_domain(domain)
    assert found == (0.0, 1.0) and all(type(end) is float for end in found)
    assert json.dumps(domain_to_json(found)) == "[0.0, 1.0]"


def test_ends_of_features_become_tensors_and_can_be_written():
    for domain in ((LOW, HIGH), (LOW.tolist(), HIGH.numpy()), torch.stack([LOW, HIGH])):
        low, high = as_domain(domain)
        assert low.dtype == high.dtype == torch.float64
        assert json.dumps(domain_to_json((low, high))) == "[[[0.0, 5.0]], [[1.0, 20.0]]]"
    require_domain(X, (low, high))


def test_one_end_may_be_a_number():
    low, high = as_domain((0.0, HIGH))
    assert low.tolist() == [[0.0, 0.0]] and high.tolist() == HIGH.tolist()
    low, high = as_domain((LOW, torch.inf))
    assert high.tolist() == [[torch.inf, torch.inf]]


@pytest.mark.parametrize(
    "domain", [(1.0, 0.0), (0.0, 0.0), (0.0, float("nan")), (HIGH, LOW), (0.0, 0.5, 1.0), 1.0, "ab", [0.0]]
)
def test_what_is_no_domain_is_refused(domain):
    with pytest.raises(InvalidInput, match="a domain is"):
        as_domain(domain)


@pytest.mark.parametrize("shape", [(2,), (3, 2), (1, 3), (1, 1), (2, 2, 1)])
def test_shapes_that_do_not_fit_are_refused_with_those_that_do(shape):
    with pytest.raises(InvalidInput, match=r"\(1, \*shape\).*\(B, \*shape\)"):
        require_domain(X, (torch.full(shape, -100.0), torch.full(shape, 100.0)))


def test_points_outside_are_refused():
    with pytest.raises(InvalidInput, match=r"1 input values lie outside.*is 20, of point 1 in feature 1.*\[5, 19\]"):
        require_domain(X, (LOW, HIGH - torch.tensor([[0.0, 1.0]])))
    with pytest.raises(InvalidInput, match=r"run from 0\.25 to 20, outside the domain \(0\.0, 1\.0\)"):
        require_domain(X, (0.0, 1.0))


def test_ends_are_compared_in_the_precision_of_the_points():
    x = torch.full((1, 2), 0.1)
    require_domain(x, (0.0, 0.1))
    require_domain(x, (0.0, torch.full((1, 2), 0.1, dtype=torch.float64)))


def test_taking_points_takes_their_domains():
    low, high = as_domain((torch.stack([LOW[0], LOW[0] - 1]), HIGH))
    some = take_domain((low, high), torch.tensor([1]))
    assert some[0].tolist() == [[-1.0, 4.0]] and some[1].tolist() == HIGH.tolist()
    assert take_domain((0.0, 1.0), torch.tensor([1])) == (0.0, 1.0)
    assert take_domain(None, slice(1)) is None


def test_the_owner_s_domain_is_taken_where_none_is_given():
    owner = SimpleNamespace(domain=(0, 1))
    assert resolve_domain("predictor", owner) == (0.0, 1.0)
    assert resolve_domain((-1, 2), owner) == (-1.0, 2.0)
    assert resolve_domain(None, owner) is None
    assert resolve_domain("predictor", SimpleNamespace(domain=None)) is None
    assert resolve_domain("predictor", object()) is None
    low, high = resolve_domain((LOW, HIGH), owner)
    assert low.tolist() == LOW.tolist() and high.tolist() == HIGH.tolist()


def test_another_word_is_refused():
    with pytest.raises(InvalidInput, match='must be "predictor"'):
        resolve_domain("posterior", SimpleNamespace(domain=(0.0, 1.0)))


# Radii that are wider


def test_a_radius_wider_than_the_domain_is_questioned():
    with pytest.raises(InvalidInput, match=r"^eps=8 is wider than the domain \[0, 1\].*8 of 255 .* eps=8/255"):
        require_radius_within((0.0, 1.0), 8)
    with pytest.raises(InvalidInput, match=r"^largest=3 is wider than the domain \[-1, 1\]"):
        require_radius_within((-1.0, 1.0), 3.0, name="largest")
    with pytest.raises(InvalidInput, match="eps=8 is"):
        require_radius_within((0.0, 1.0), torch.tensor([0.1, 8.0]))


def test_a_radius_up_to_the_width_is_not():
    require_radius_within((0.0, 1.0), 1.0)
    require_radius_within((0.2, 0.3), 0.1)  # 0.3 - 0.2 is less than 0.1 in floats
    require_radius_within((0.0, torch.inf), 1e9)
    require_radius_within(None, 8)
    for norm in ("l2", "l1"):
        require_radius_within((0.0, 1.0), 8, norm)


def test_features_with_different_ranges():
    domain = as_domain((LOW, HIGH))  # 1 and 15 wide
    require_radius_within(domain, 15.0)
    require_radius_within(domain, torch.tensor([[1.0, 15.0]]))
    require_radius_within((LOW.double(), LOW.double()), torch.tensor([[1.0, 15.0]]))  # neither can change
    for eps in (16.0, torch.tensor([[2.0, 15.0]]), torch.tensor([[0.0, 15.5]])):
        with pytest.raises(InvalidInput, match="is wider than the domain of its feature"):
            require_radius_within(domain, eps)


def test_domains_of_single_points_count_one_by_one():
    low = torch.zeros(2, 3, dtype=torch.float64)
    high = torch.tensor([[1.0, 1.0, 1.0], [5.0, 1.0, 1.0]], dtype=torch.float64)
    require_radius_within((low, high), torch.tensor([1.0, 5.0]))
    with pytest.raises(InvalidInput, match="eps=5"):
        require_radius_within((low, high), 5.0)
