"""The idx format of MNIST and its relatives: a big-endian header, then bytes; plain or gzipped."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from certibayes.data.dataset import Split
from certibayes.errors import CorruptFile

# Two zero bytes, 0x08 for unsigned bytes, then the number of dimensions.
LABELS_MAGIC = 0x00000801
IMAGES_MAGIC = 0x00000803

IMAGE_SHAPE = (1, 28, 28)

_GZIP_SIGNATURE = b"\x1f\x8b"


def read_split(images: Path, labels: Path) -> Split:
    """Read a pair of files in the shape of MNIST.

    Args:
        images: The idx3 file, N images of 28 by 28.
        labels: The idx1 file, N labels from 0 to 9.

    Returns:
        Inputs (N, 1, 28, 28) and targets (N,).

    Raises:
        CorruptFile: A file is damaged or in another format, or the two do not match.
    """
    pixels, classes = read_images(images), read_labels(labels)
    if pixels.shape[1:] != IMAGE_SHAPE[1:]:
        raise CorruptFile(f"{images} is not in the shape of MNIST: its images are {pixels.shape[1:]}.")
    if len(pixels) != len(classes):
        raise CorruptFile(f"{images} has {len(pixels)} images, but {labels} has {len(classes)} labels.")
    return Split.of_images(pixels.reshape(-1, *IMAGE_SHAPE), classes)


def read_images(path: Path) -> NDArray[np.uint8]:
    """Read an idx3 file.

    Args:
        path: The file, gzipped or not.

    Returns:
        The images, (N, rows, columns).

    Raises:
        CorruptFile: The file is truncated, too long, or not an idx3 file.
    """
    return _read(path, IMAGES_MAGIC, "images")


def read_labels(path: Path, classes: int = 10) -> NDArray[np.uint8]:
    """Read an idx1 file.

    Args:
        path: The file, gzipped or not.
        classes: Every label must be below this.

    Returns:
        The labels, (N,).

    Raises:
        CorruptFile: The file is truncated, too long, not an idx1 file, or holds a label out of range.
    """
    labels = _read(path, LABELS_MAGIC, "labels")
    if labels.size and int(labels.max()) >= classes:
        raise CorruptFile(f"{path} is corrupt: label {labels.max()} is not below {classes}.")
    return labels


def _read(path: Path, magic: int, what: str) -> NDArray[np.uint8]:
    content = _decompressed(path)
    dimensions = magic & 0xFF
    header = struct.Struct(f">{1 + dimensions}I")
    if len(content) < header.size:
        raise CorruptFile(f"{path} is corrupt: {len(content)} bytes are too few for an idx header.")
    found, *shape = header.unpack_from(content)
    if found != magic:
        raise CorruptFile(f"{path} is not an idx file of {what}: it begins {found:#010x}, not {magic:#010x}.")
    found_bytes, promised = len(content) - header.size, math.prod(shape)
    if found_bytes != promised:
        raise CorruptFile(f"{path} is corrupt: its header promises {promised} bytes and {found_bytes} follow.")
    return np.frombuffer(content, dtype=np.uint8, offset=header.size).reshape(shape)


def _decompressed(path: Path) -> bytes:
    content = path.read_bytes()
    # The content decides, not the name: some tools unpack a .gz in passing and keep its name.
    if not content.startswith(_GZIP_SIGNATURE):
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise CorruptFile(f"{path} is corrupt: it does not decompress ({error}).") from error
