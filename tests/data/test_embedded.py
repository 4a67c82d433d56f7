import dataclasses

import numpy as np
import pytest
import torch

from certibayes.data import _embedded as embedded
from certibayes.data import download, is_available, load
from certibayes.errors import CorruptFile, InvalidInput


def test_digits() -> None:
    data = load("digits")
    assert data.classes == tuple("0123456789") and data.domain == (0.0, 1.0)
    for split, count in ((data.train, 10_000), (data.test, 2_000)):
        inputs, targets = split
        assert inputs.shape == (count, 1, 28, 28) and inputs.dtype == torch.float32
        assert targets.shape == (count,) and targets.dtype == torch.int64
        assert inputs.min() == 0.0 and inputs.max() == 1.0
        fractions = torch.bincount(targets, minlength=10) / count
        assert fractions.min() > 0.07 and fractions.max() < 0.13


def test_digits_can_be_distinguished() -> None:
    """The nearest class mean is right for about four in five MNIST digits; a shuffled label would show."""
    data = load("digits")
    means = torch.stack([data.train.inputs[data.train.targets == k].mean(dim=0).flatten() for k in range(10)])
    guess = torch.cdist(data.test.inputs.flatten(1), means).argmin(dim=1)
    assert (guess == data.test.targets).float().mean() > 0.75


def test_no_test_digit_is_a_training_digit() -> None:
    data = load("digits")
    seen = {image.numpy().tobytes() for image in data.train.inputs}
    assert not any(image.numpy().tobytes() in seen for image in data.test.inputs)


def test_diabetes() -> None:
    data = load("diabetes")
    assert data.classes == () and data.domain is None
    for split, count in ((data.train, 353), (data.test, 89)):
        assert split.inputs.shape == (count, 10) and split.inputs.dtype == torch.float32
        assert split.targets.shape == (count, 1) and split.targets.dtype == torch.float32
        assert split.inputs.isfinite().all() and split.targets.isfinite().all()
    for values in data.train:
        torch.testing.assert_close(values.mean(dim=0), torch.zeros(values.shape[1]), atol=1e-5, rtol=0)
        torch.testing.assert_close(values.std(dim=0, correction=0), torch.ones(values.shape[1]))


def test_the_documented_scale_gives_back_the_raw_target() -> None:
    raw = np.loadtxt(embedded.FOLDER / "diabetes.csv", delimiter=",", skiprows=1)
    targets = load("diabetes").test.targets[:, 0].numpy()
    np.testing.assert_allclose(150.51841 + 77.18049 * targets, raw[::5, -1], atol=1e-3)


def test_a_damaged_table_is_refused(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "FOLDER", tmp_path)
    for content in ("a,b\n1,2\n", "a,b\n1,x\n"):
        (tmp_path / "diabetes.csv").write_text(content)
        with pytest.raises(CorruptFile, match=r"diabetes\.csv.*Install certibayes again"):
            load("diabetes")


def test_they_are_small_and_need_no_download(tmp_path) -> None:
    assert sum(file.stat().st_size for file in embedded.FOLDER.iterdir()) <= 2_500_000
    for name in ("digits", "diabetes"):
        assert is_available(name, tmp_path)
        assert download(name, tmp_path) == embedded.FOLDER
    assert not any(tmp_path.iterdir())


def test_channel_statistics_are_those_of_the_training_images() -> None:
    digits = load("digits")
    mean, std = digits.channel_statistics()
    pixels = digits.train.inputs.double()
    assert mean == (round(float(pixels.mean()), 4),)
    assert std == (round(float(pixels.std(correction=0)), 4),)
    inputs = torch.rand(50, 3, 4, 5)
    colors = dataclasses.replace(digits, train=digits.train._replace(inputs=inputs))
    each = inputs.double().transpose(0, 1).flatten(1)
    assert colors.channel_statistics()[0] == pytest.approx(each.mean(1).tolist(), abs=1e-4)
    assert colors.channel_statistics()[1] == pytest.approx(each.std(1, correction=0).tolist(), abs=1e-4)


def test_features_have_no_channels() -> None:
    with pytest.raises(InvalidInput, match="no training images"):
        load("diabetes").channel_statistics()
