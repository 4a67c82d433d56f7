import gzip
from pathlib import Path

import numpy as np
import pytest

from certibayes.data import _idx as idx
from certibayes.errors import CorruptFile

from .tiny_files import idx_bytes, images, labels


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
@pytest.mark.parametrize("name", ["file", "file.gz"])
def test_reads_what_was_written(tmp_path: Path, compress, name) -> None:
    path = tmp_path / name
    path.write_bytes(compress(idx_bytes(images(3, 5, 4))))
    np.testing.assert_array_equal(idx.read_images(path), images(3, 5, 4))
    path.write_bytes(compress(idx_bytes(labels(13))))
    np.testing.assert_array_equal(idx.read_labels(path), labels(13))


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "too few"),
        (b"\0\0\x08", "too few"),
        (b"<!DOCTYPE html><html>not found</html>", "begins"),
        (idx_bytes(labels(100)), "begins"),
        (idx_bytes(images(3, 28, 28))[:-1], "promises"),
        (idx_bytes(images(3, 28, 28)) + b"\0", "promises"),
        (gzip.compress(idx_bytes(images(3, 28, 28)))[:-50], "decompress"),
        (gzip.compress(idx_bytes(images(3, 28, 28)))[:-5] + b"\0\0\0\0\0", "decompress"),
        (b"\x1f\x8b" + bytes(40), "decompress"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "promises"),
    ],
)
def test_refuses_damage(tmp_path: Path, content: bytes, fault: str) -> None:
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(content)
    with pytest.raises(CorruptFile, match=fault) as caught:
        idx.read_images(path)
    assert str(path) in str(caught.value)


def test_refuses_a_label_out_of_range(tmp_path: Path) -> None:
    path = tmp_path / "labels"
    path.write_bytes(idx_bytes(np.array([0, 9, 10], np.uint8)))
    with pytest.raises(CorruptFile, match="label 10"):
        idx.read_labels(path)


@pytest.mark.parametrize(("shape", "count", "fault"), [((27, 28), 3, "shape of MNIST"), ((28, 28), 4, "4 labels")])
def test_refuses_files_that_do_not_belong_together(tmp_path: Path, shape, count, fault) -> None:
    (tmp_path / "images").write_bytes(idx_bytes(images(3, *shape)))
    (tmp_path / "labels").write_bytes(idx_bytes(labels(count)))
    with pytest.raises(CorruptFile, match=fault):
        idx.read_split(tmp_path / "images", tmp_path / "labels")
