from pathlib import Path

import numpy as np
import pytest

from certibayes.data import _cifar_binary as cifar_binary
from certibayes.data import load
from certibayes.errors import CorruptFile

from .tiny_files import cifar_bytes, images, labels


def test_reads_a_batch(cifar_dir: Path) -> None:
    pixels, targets = cifar_binary.read_batch(cifar_dir / "cifar-10-batches-bin" / "data_batch_1.bin")
    np.testing.assert_array_equal(pixels, images(4, 3072).reshape(4, 3, 32, 32))
    np.testing.assert_array_equal(targets, labels(4))


def test_loads_all_batches(cifar_dir: Path) -> None:
    data = load("cifar10", cifar_dir)
    assert data.train.inputs.shape == (20, 3, 32, 32)
    assert data.train.targets.tolist() == [0, 1, 2, 3] * 5
    assert data.test.inputs.shape == (4, 3, 32, 32)
    assert data.classes == tuple(f"class{k}" for k in range(10))


@pytest.mark.parametrize("content", [b"", b"short", cifar_bytes(4)[:-1], cifar_bytes(3), cifar_bytes(5)])
def test_refuses_another_size(cifar_dir: Path, content: bytes) -> None:
    path = cifar_dir / "cifar-10-batches-bin" / "data_batch_3.bin"
    path.write_bytes(content)
    with pytest.raises(CorruptFile, match="not a CIFAR-10 batch") as caught:
        load("cifar10", cifar_dir)
    assert str(path) in str(caught.value)
    assert f"Delete it and run `certibayes data get cifar10 --data-dir {cifar_dir}`" in str(caught.value)


def test_refuses_a_label_out_of_range(cifar_dir: Path) -> None:
    path = cifar_dir / "cifar-10-batches-bin" / "test_batch.bin"
    path.write_bytes(b"\x0a" + cifar_bytes(4)[1:])
    with pytest.raises(CorruptFile, match="label 10"):
        load("cifar10", cifar_dir)


@pytest.mark.parametrize("content", [b"", b"cat\ndog\n", b"\xff\xfe\x00"])
def test_refuses_foreign_class_names(cifar_dir: Path, content: bytes) -> None:
    (cifar_dir / "cifar-10-batches-bin" / "batches.meta.txt").write_bytes(content)
    with pytest.raises(CorruptFile, match=r"batches\.meta\.txt"):
        load("cifar10", cifar_dir)
