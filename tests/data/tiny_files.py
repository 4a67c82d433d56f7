"""Tiny files in the publishers' formats."""

import gzip
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.io import savemat


def images(count: int, *shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8)


def labels(count: int) -> NDArray[np.uint8]:
    return (np.arange(count) % 10).astype(np.uint8)


def idx_bytes(array: NDArray[np.uint8]) -> bytes:
    return struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


def write_idx_set(folder: Path, compressed: bool = True, train: int = 12, test: int = 7) -> None:
    folder.mkdir(parents=True)
    for part, count in (("train", train), ("t10k", test)):
        for kind, array in (("images-idx3", images(count, 28, 28)), ("labels-idx1", labels(count))):
            content = idx_bytes(array)
            name = f"{part}-{kind}-ubyte"
            if compressed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)


def cifar_bytes(count: int) -> bytes:
    return np.concatenate([labels(count)[:, None], images(count, 3072)], axis=1).tobytes()


def write_svhn(path: Path, count: int = 10) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = images(count, 3, 32, 32).transpose(2, 3, 1, 0)
    savemat(path, {"X": pixels, "y": labels(count)[:, None] + 1}, do_compression=True)
