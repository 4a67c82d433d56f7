"""Laws of augmentation: no pixel is invented, shapes stay, and every outcome is as likely as the others."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from certibayes.data import RandomCrop, RandomFlip, as_augmentations
from certibayes.errors import InvalidInput


def pictures(size, *shape, seed=0):
    """Images all of whose pixels differ, none of them 0."""
    values = torch.randperm(size * torch.Size(shape).numel(), generator=torch.Generator().manual_seed(seed)) + 1
    return values.view(size, *shape).double()


def uniform(size, numbers, seed=0):
    return torch.rand(size, numbers, generator=torch.Generator().manual_seed(seed))


shapes = st.sampled_from([(1, 4, 5), (3, 4, 4), (6, 3), (2, 3, 5, 4)])


@given(shape=shapes, size=st.integers(1, 9), seed=st.integers(0, 99))
def test_a_flip_is_an_involution_that_keeps_every_pixel(shape, size, seed):
    images, numbers = pictures(size, *shape), uniform(size, 1, seed)
    once = RandomFlip()(images, numbers)
    assert once.shape == images.shape
    assert torch.equal(RandomFlip()(once, numbers), images)
    assert torch.equal(once.sort(-1).values, images.sort(-1).values)


def test_a_flip_mirrors_left_and_right_where_the_number_is_below_one_half():
    images = pictures(4, 1, 3, 3)
    found = RandomFlip()(images, torch.tensor([[0.0], [0.49], [0.5], [0.99]]))
    assert torch.equal(found[:2], images[:2].flip(-1))
    assert torch.equal(found[2:], images[2:])


@given(
    shape=shapes,
    size=st.integers(1, 9),
    padding=st.integers(1, 6),
    fill=st.sampled_from([0.0, -1.0]),
    seed=st.integers(0, 99),
)
def test_a_crop_is_a_window_of_the_padded_image(shape, size, padding, fill, seed):
    """Compared with a loop over images; windows may lie in the padding alone."""
    crop, images = RandomCrop(padding, fill), pictures(size, *shape)
    corners = torch.randint(0, 2 * padding + 1, (size, 2), generator=torch.Generator().manual_seed(seed))
    found = crop.cut(images, corners)
    height, width = shape[-2:]
    for image, (row, column), window in zip(images, corners.tolist(), found, strict=True):
        padded = image.new_full((*shape[:-2], height + 2 * padding, width + 2 * padding), fill)
        padded[..., padding : padding + height, padding : padding + width] = image
        assert torch.equal(window, padded[..., row : row + height, column : column + width])


@given(shape=shapes, padding=st.integers(1, 4))
def test_a_crop_that_does_not_shift_is_the_identity(shape, padding):
    images = pictures(5, *shape)
    assert torch.equal(RandomCrop(padding).cut(images, torch.full((5, 2), padding)), images)


@given(padding=st.integers(1, 1000))
def test_the_largest_random_number_stays_in_the_padded_image(padding):
    """A product of floats is rounded, but not up to the number of places."""
    largest = torch.full((1, 2), 1 - 2.0**-24)
    assert int(float(largest[0, 0] * (2 * padding + 1))) == 2 * padding
    expected = RandomCrop(padding).cut(pictures(1, 1, 2, 2), torch.full((1, 2), 2 * padding))
    assert torch.equal(RandomCrop(padding)(pictures(1, 1, 2, 2), largest), expected)


def test_every_shift_is_as_likely_as_the_others():
    size, places = 25_000, 25
    mark = torch.zeros(size, 1, 5, 5)
    mark[:, :, 2, 2] = 1.0
    counts = RandomCrop(2)(mark, uniform(size, 2)).sum(0).flatten()
    expected = size / places
    statistic = float(((counts - expected) ** 2 / expected).sum())
    assert statistic < 51.2  # the 99.9% quantile of chi-squared with 24 degrees of freedom


def test_flips_are_fair():
    images = torch.tensor([0.0, 1.0]).expand(20_000, 1, 1, 2)
    assert abs(float(RandomFlip()(images, uniform(20_000, 1))[..., 0].mean()) - 0.5) < 0.012  # 3.3 standard errors


def test_images_of_any_precision_keep_it():
    for dtype in (torch.float32, torch.float64):
        images = pictures(3, 1, 4, 4).to(dtype)
        assert RandomCrop()(images, uniform(3, 2)).dtype == RandomFlip()(images, uniform(3, 1)).dtype == dtype


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ()),
        ("", ()),
        ("flip", (RandomFlip(),)),
        ("crop", (RandomCrop(2),)),
        ("flip, crop:4", (RandomFlip(), RandomCrop(4))),
        (RandomCrop(3), (RandomCrop(3),)),
        ([RandomCrop(1), RandomFlip()], (RandomCrop(1), RandomFlip())),
    ],
)
def test_what_a_user_means(value, expected):
    assert as_augmentations(value) == expected


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        ("flipp", "perhaps you mean flip"),
        ("rotate", "there is no augmentation 'rotate'"),
        ("crop:two", "crop:2; got 'crop:two'"),
        ("crop:-1", "crop:2; got 'crop:-1'"),
        ("crop:0", "padding"),
        ("flip:2", "got 'flip:2'"),
        (RandomFlip, r"pass an instance: RandomFlip\(\)"),
        (0.5, "augment is an augmentation"),
        ([RandomFlip(), None], "augment is an augmentation"),
    ],
)
def test_what_is_refused(odd, reason):
    with pytest.raises(InvalidInput, match=reason):
        as_augmentations(odd)


@pytest.mark.parametrize("settings", [{"padding": 0}, {"padding": 1.5}, {"fill": float("nan")}])
def test_settings_that_make_no_sense(settings):
    with pytest.raises(InvalidInput, match=next(iter(settings))):
        RandomCrop(**settings)
