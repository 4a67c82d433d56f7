import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from certibayes.data import _svhn_mat as svhn_mat
from certibayes.data import load
from certibayes.errors import CorruptFile, MissingData, MissingPackage

from .tiny_files import images, write_svhn

PIXELS = images(4, 3, 32, 32).transpose(2, 3, 1, 0)
LABELS = np.array([[1], [2], [9], [10]], np.uint8)


def test_ten_means_zero_and_the_image_index_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "test_32x32.mat"
    savemat(path, {"X": PIXELS, "y": LABELS})
    pixels, labels = svhn_mat.read_mat(path)
    np.testing.assert_array_equal(pixels, images(4, 3, 32, 32))
    assert labels.tolist() == [1, 2, 9, 0]


def test_loads_both_splits(tmp_path: Path) -> None:
    write_svhn(tmp_path / "svhn" / "train_32x32.mat", 20)
    write_svhn(tmp_path / "svhn" / "test_32x32.mat", 10)
    data = load("svhn", tmp_path)
    assert data.train.inputs.shape == (20, 3, 32, 32)
    assert data.test.targets.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]


def test_the_training_file_may_be_absent(tmp_path: Path) -> None:
    write_svhn(tmp_path / "svhn" / "test_32x32.mat")
    data = load("svhn", tmp_path)
    assert data.train.inputs.shape == (0, 3, 32, 32)
    assert data.train.targets.shape == (0,)
    assert data.test.inputs.shape == (10, 3, 32, 32)


def test_the_test_file_may_not_be_absent(tmp_path: Path) -> None:
    write_svhn(tmp_path / "svhn" / "train_32x32.mat")
    with pytest.raises(MissingData, match="test_32x32"):
        load("svhn", tmp_path)


@pytest.mark.parametrize(
    "variables",
    [
        {"X": PIXELS},
        {"y": LABELS},
        {"X": PIXELS.astype(np.float64), "y": LABELS},
        {"X": PIXELS[:28], "y": LABELS},
        {"X": PIXELS, "y": LABELS[:3]},
        {"X": PIXELS, "y": LABELS - 1},
        {"X": PIXELS, "y": LABELS + 1},
        {"X": PIXELS, "y": LABELS + 0.5},
        {"X": PIXELS, "y": np.array(["a", "b", "c", "d"], dtype=object)},
    ],
)
def test_refuses_foreign_variables(tmp_path: Path, variables) -> None:
    path = tmp_path / "test_32x32.mat"
    savemat(path, variables)
    with pytest.raises(CorruptFile, match=r"test_32x32\.mat"):
        svhn_mat.read_mat(path)


@pytest.mark.parametrize("keep", [0, 3, 100, 130, 3000, -1])
def test_refuses_a_truncated_file(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "svhn" / "test_32x32.mat"
    write_svhn(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CorruptFile, match=r"Delete it and run `certibayes data get svhn"):
        load("svhn", tmp_path)


def test_refuses_a_foreign_file(tmp_path: Path) -> None:
    path = tmp_path / "test_32x32.mat"
    path.write_bytes(b"<!DOCTYPE html>" * 50)
    with pytest.raises(CorruptFile, match="MATLAB"):
        svhn_mat.read_mat(path)


def test_a_directory_is_not_called_corrupt(tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught:
        svhn_mat.read_mat(tmp_path)
    assert not isinstance(caught.value, CorruptFile)


def test_without_scipy_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(MissingPackage, match=r'pip install "certibayes\[svhn\]"'):
        svhn_mat.read_mat(tmp_path / "test_32x32.mat")
