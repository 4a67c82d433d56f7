"""The binary version of CIFAR-10: records of one label byte and 3 x 32 x 32 pixel bytes, red first."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from certibayes.errors import CorruptFile

CLASSES = 10
IMAGE_SHAPE = (3, 32, 32)

# The format has no header: only the known count tells a whole file from one cut between two records.
RECORDS_PER_BATCH = 10_000

_RECORD_BYTES = 1 + 3 * 32 * 32


def read_batch(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read one batch.

    Args:
        path: A ``data_batch_*.bin`` or ``test_batch.bin``.

    Returns:
        Images (N, 3, 32, 32) and labels (N,).

    Raises:
        CorruptFile: The size is not that of a batch, or a label is out of range.
    """
    content = np.fromfile(path, dtype=np.uint8)
    expected = RECORDS_PER_BATCH * _RECORD_BYTES
    if content.size != expected:
        raise CorruptFile(f"{path} is not a CIFAR-10 batch: {content.size} bytes long, not {expected}.")
    records = content.reshape(RECORDS_PER_BATCH, _RECORD_BYTES)
    labels = records[:, 0]
    if int(labels.max()) >= CLASSES:
        raise CorruptFile(f"{path} is corrupt: label {labels.max()} is not below {CLASSES}.")
    return records[:, 1:].reshape(-1, *IMAGE_SHAPE), labels


def read_classes(path: Path) -> tuple[str, ...]:
    """Read the names of the ten classes, one per line, from ``batches.meta.txt``.

    Raises:
        CorruptFile: There are not ten names.
    """
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except UnicodeDecodeError as error:
        raise CorruptFile(f"{path} is corrupt: it is not text.") from error
    names = tuple(line.strip() for line in lines if line.strip())
    if len(names) != CLASSES:
        raise CorruptFile(f"{path} is corrupt: it names {len(names)} classes, not {CLASSES}.")
    return names
