"""What a user may give as a radius, and what its shape means."""

import json

import numpy as np
import pytest
import torch

from certibayes.errors import InvalidInput
from certibayes.regions import NORMS, as_radius, radii_for

X = torch.zeros(4, 3)
NUMBERS = [
    0.25,
    1,
    np.float32(0.25),
    np.float64(0.25),
    np.int64(2),
    np.array(0.25),
    torch.tensor(0.25),
    torch.tensor(1),
]


@pytest.mark.parametrize("eps", NUMBERS, ids=lambda eps: type(eps).__name__)
def test_every_kind_of_number_becomes_a_float(eps):
    found = as_radius(eps)
    assert type(found) is float and found == float(eps)
    json.dumps(found)
    assert radii_for(eps, X).tolist() == [[float(eps)]] * 4


@pytest.mark.parametrize("make", [torch.tensor, np.array, list], ids=["tensor", "array", "list"])
def test_one_radius_per_point(make):
    found = radii_for(make([0.0, 0.5, 1.0, 2.0]), X)
    assert found.dtype == torch.float64
    assert found.tolist() == [[0.0], [0.5], [1.0], [2.0]]


def test_an_array_that_may_not_be_written_to_is_fine():
    radii = np.array([0.0, 0.5, 1.0, 2.0])
    radii.flags.writeable = False
    assert radii_for(radii, X).shape == (4, 1)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_what_a_shape_means_does_not_depend_on_the_number_of_points(count):
    """As many points as values used to turn radii of values into radii of points."""
    x, radii = torch.zeros(count, 3), torch.tensor([0.1, 0.2, 0.3])
    if count == 3:
        assert radii_for(radii, x).shape == (3, 1)
    else:
        with pytest.raises(InvalidInput, match=rf"shape \(3,\).*per point has shape \({count},\).*shape \(1, 3\)"):
            radii_for(radii, x)
    assert radii_for(radii[None], x).shape == (1, 3)
    assert radii_for(radii.expand(count, 3), x).shape == (count, 3)


@pytest.mark.parametrize("shape", [(5,), (3,), (4, 1), (2, 3), (4, 3, 1), (1, 1), (0,)])
def test_other_shapes_are_refused_and_both_forms_named(shape):
    with pytest.raises(InvalidInput, match=r"per point has shape \(4,\); one per input value has shape \(1, 3\)"):
        radii_for(torch.zeros(shape), X)


def test_images_need_all_dimensions():
    x = torch.zeros(5, 2, 4, 4)
    for shape in ((1, 2, 4, 4), (5, 2, 4, 4)):
        assert radii_for(torch.ones(shape), x).shape == shape
    assert radii_for(torch.ones(5), x).shape == (5, 1, 1, 1)
    for shape in ((2, 4, 4), (4, 4), (5, 1, 1, 1), (1, 1, 4, 4), (2, 2, 4, 4)):
        with pytest.raises(InvalidInput, match="per input value"):
            radii_for(torch.ones(shape), x)


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_only_l_infinity_has_radii_of_values(norm):
    assert radii_for(torch.ones(4), X, norm).shape == (4, 1)
    for shape in ((1, 3), (4, 3), (4, 1)):
        with pytest.raises(InvalidInput, match="for the norm linf"):
            radii_for(torch.ones(shape), X, norm)


@pytest.mark.parametrize("eps", [-0.1, np.float32("nan"), torch.tensor(torch.inf), [0.1, -0.1, 0.0, 0.0], "0.1", None])
@pytest.mark.parametrize("norm", NORMS)
def test_what_is_no_radius_is_refused(eps, norm):
    with pytest.raises(InvalidInput, match="eps must"):
        radii_for(eps, X, norm)
