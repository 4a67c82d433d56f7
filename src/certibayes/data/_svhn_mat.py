"""The cropped digits of SVHN: a MATLAB file with images ``X`` and labels ``y``."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certibayes.errors import CorruptFile, MissingPackage

IMAGE_SHAPE = (3, 32, 32)

_STORED_SHAPE = (32, 32, 3)  # MATLAB's order, with the image index last


def read_mat(path: Path) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Read ``train_32x32.mat`` or ``test_32x32.mat``.

    Args:
        path: The file.

    Returns:
        Images (N, 3, 32, 32) and the digit in each (N,), where the file writes 10 for the digit 0.

    Raises:
        MissingPackage: scipy is not installed.
        CorruptFile: Not a MATLAB file, or not one with SVHN's variables, shapes and labels.
    """
    loadmat = _loadmat()
    with path.open("rb") as file:
        try:
            content = loadmat(file, variable_names=["X", "y"])
        except Exception as error:  # scipy's parser meets damage with almost any exception
            raise CorruptFile(f"{path} is not a readable MATLAB file ({error}).") from error

    if missing := {"X", "y"} - content.keys():
        raise CorruptFile(f"{path} is not an SVHN file: it has no variable {' or '.join(sorted(missing))}.")
    pixels, labels = np.asarray(content["X"]), np.asarray(content["y"]).reshape(-1)
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[:3] != _STORED_SHAPE:
        raise CorruptFile(f"{path} is not an SVHN file: X is {pixels.dtype} {pixels.shape}.")
    if labels.dtype.kind not in "uif" or len(labels) != pixels.shape[3]:
        raise CorruptFile(f"{path} is corrupt: {pixels.shape[3]} images and {len(labels)} labels.")
    if not np.isin(labels, np.arange(1, 11)).all():
        raise CorruptFile(f"{path} is corrupt: a label is not one of 1 to 10.")
    return np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)), labels % 10


def _loadmat() -> Any:
    # Imported where it is needed: only SVHN needs it, and it is slow to import.
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise MissingPackage(
            'the files of SVHN are read by scipy. Install it with: pip install "certibayes[svhn]"'
        ) from error
    return loadmat
