from pathlib import Path

import numpy as np
import pytest
import torch

from certibayes import data
from certibayes.data import data_directory, is_available, load, names
from certibayes.errors import CorruptFile, InvalidInput, MissingData

from .tiny_files import images, labels, write_idx_set


def test_names() -> None:
    assert names() == ("digits", "diabetes", "breast-cancer", "mnist", "fashion-mnist", "cifar10", "svhn")


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("mnist", "mnist"),
        ("mnist", "MNIST/raw"),
        ("fashion-mnist", "fashion-mnist"),
        ("fashion-mnist", "FashionMNIST/raw"),
    ],
)
@pytest.mark.parametrize("compressed", [True, False])
def test_loads_mnist_and_its_relative(tmp_path: Path, name: str, folder: str, compressed: bool) -> None:
    assert not is_available(name, tmp_path)
    write_idx_set(tmp_path / folder, compressed)
    assert is_available(name, tmp_path)
    data = load(name, tmp_path)
    assert data.name == name and len(data.classes) == 10 and data.domain == (0.0, 1.0)
    inputs, targets = data.train
    assert inputs.dtype == torch.float32 and targets.dtype == torch.int64
    np.testing.assert_array_equal(inputs.numpy(), images(12, 1, 28, 28).astype(np.float32) / np.float32(255))
    np.testing.assert_array_equal(targets.numpy(), labels(12))
    assert data.test.inputs.shape == (7, 1, 28, 28)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "svhn"])
def test_missing_data_says_where_and_what_to_do(tmp_path: Path, name: str) -> None:
    with pytest.raises(MissingData) as caught:
        load(name, tmp_path)
    assert f"`certibayes data get {name} --data-dir {tmp_path}`" in str(caught.value)
    assert f"looked for {tmp_path}" in str(caught.value)


def test_one_missing_file_is_named(tmp_path: Path) -> None:
    write_idx_set(tmp_path / "mnist")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(MissingData, match="t10k-labels-idx1-ubyte"):
        load("mnist", tmp_path)


def test_a_directory_with_a_space_is_quoted_in_the_command(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=r"--data-dir '.*/my data'`"):
        load("mnist", tmp_path / "my data")


def test_corrupt_data_says_what_to_do(tmp_path: Path) -> None:
    write_idx_set(tmp_path / "mnist")
    path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CorruptFile) as caught:
        load("mnist", tmp_path)
    assert str(path) in str(caught.value)
    assert f"Delete it and run `certibayes data get mnist --data-dir {tmp_path}`." in str(caught.value)


@pytest.mark.parametrize("ask", [load, is_available])
def test_an_unknown_name_is_refused(ask) -> None:
    with pytest.raises(InvalidInput, match=r"Did you mean 'fashion-mnist'\?.*digits, diabetes, breast-cancer, mnist"):
        ask("FashionMNIST")
    with pytest.raises(InvalidInput, match="There is no data set 'imagenet'"):
        ask("imagenet")


def test_data_directory_falls_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CERTIBAYES_DATA", str(tmp_path / "mine"))
    assert data_directory(tmp_path / "given") == tmp_path / "given"
    assert data_directory("~/given") == tmp_path / "given"
    assert data_directory() == tmp_path / "mine"
    monkeypatch.setenv("CERTIBAYES_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_directory() == tmp_path / "cache" / "certibayes" / "data"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert data_directory() == tmp_path / ".cache" / "certibayes" / "data"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_directory() == tmp_path / ".cache" / "certibayes" / "data"


def test_the_environment_chooses_the_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_idx_set(tmp_path / "mnist")
    monkeypatch.setenv("CERTIBAYES_DATA", str(tmp_path))
    assert load("mnist").train.inputs.shape == (12, 1, 28, 28)


def test_regressions_are_known_before_they_are_read():
    assert [name for name in data.names() if data.is_regression(name)] == ["diabetes"]
    for name in ("digits", "diabetes"):
        assert (data.load(name).task == "regression") == data.is_regression(name)
    with pytest.raises(InvalidInput, match="no data set"):
        data.is_regression("diabetis")


def test_reprs_are_a_few_lines():
    assert repr(data.load("digits")).splitlines() == [
        "DataSet('digits', classification of 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)",
        "  train:  Split(10000 inputs (1, 28, 28) from 0 to 1, labels from 0 to 9)",
        "  test:   Split(2000 inputs (1, 28, 28) from 0 to 1, labels from 0 to 9)",
        "  domain: [0, 1]",
    ]
    shown = repr(data.load("diabetes")).splitlines()
    assert shown[0] == "DataSet('diabetes', regression)" and shown[-1] == "  domain: none"
    assert shown[1].startswith("  train:  Split(353 inputs (10,) from -") and ", targets from -" in shown[1]
    empty = data.Split(torch.empty(0, 3), torch.empty(0, dtype=torch.long))
    assert repr(empty) == "Split(empty)"
