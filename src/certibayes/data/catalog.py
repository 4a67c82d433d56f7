"""The data sets by name."""

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from certibayes.data import _cifar_binary as cifar_binary
from certibayes.data import _idx as idx
from certibayes.data import _svhn_mat as svhn_mat
from certibayes.data._embedded import EMBEDDED
from certibayes.data.dataset import UNIT_INTERVAL, DataSet, Split
from certibayes.data.files import Reading, names_file, read_file
from certibayes.data.layout import LAYOUTS, data_directory, get_command, locate
from certibayes.errors import CorruptFile, InvalidInput, MissingData

DIGITS = tuple("0123456789")
FASHION = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)

_REGRESSIONS = frozenset({"diabetes"})


def names() -> tuple[str, ...]:
    """List the data sets, those that come with the package first."""
    return (*EMBEDDED, *LAYOUTS)


def is_regression(name: str) -> bool:
    """Tell whether a data set has real-valued targets instead of classes."""
    check_name(name)
    return name in _REGRESSIONS


def load(
    name: str | Path, data_dir: str | Path | None = None, *, target: str | None = None, task: str | None = None
) -> DataSet:
    """Read a data set into memory.

    ``digits``, ``diabetes`` and ``breast-cancer`` come with the package; the others are read from the files of their
    publishers, or of your own. SVHN mostly serves as out-of-distribution inputs, so its training file may be absent:
    the training split is then empty.

    Args:
        name: One of `names()`, or a file of your own. A ``.csv`` is a table whose first line names the columns; a
            column ``split`` says train or test for each row. ``.npz`` and ``.pt`` hold arrays ``x`` and ``y``, or
            ``x_train``, ``y_train``, ``x_test`` and ``y_test``. Where a file does not say which points to test on,
            every fifth is, from the first on.
        data_dir: Where the files of publishers are; by default ``$CERTIBAYES_DATA``, else the user's cache directory.
        target: For a file, the column or array to be predicted.
        task: For a file, ``"classification"`` or ``"regression"``, where its targets leave that open.

    Returns:
        The data set. Images are (N, 1, 28, 28) for MNIST and its relatives, (N, 3, 32, 32) for CIFAR-10 and
        SVHN.

    Raises:
        InvalidInput: There is no such data set.
        MissingData: Its files are not in the data directory.
        CorruptFile: One of its files is damaged or not of this data set.
    """
    if names_file(str(name)):
        return read_file(name, Reading(target, task))
    name = str(name)
    check_name(name)
    if target is not None or task is not None:
        raise InvalidInput(f"target and task are for files of your own; {name} has its own.")
    directory = data_directory(data_dir)
    try:
        return EMBEDDED[name]() if name in EMBEDDED else _READERS[name](locate(name, directory))
    except CorruptFile as error:
        # Only here is it known which set the file belongs to, and so how to get it again.
        remedy = (
            "Install certibayes again." if name in EMBEDDED else f"Delete it and run `{get_command(name, directory)}`."
        )
        raise CorruptFile(f"{error} {remedy}") from error


def is_available(name: str, data_dir: str | Path | None = None) -> bool:
    """Tell whether `load` would find the files of a data set, without reading them."""
    check_name(name)
    if name in EMBEDDED:
        return True
    try:
        locate(name, data_directory(data_dir))
    except MissingData:
        return False
    return True


def check_name(name: str) -> None:
    """Refuse a name that no data set has.

    Raises:
        InvalidInput: The message lists the names, and suggests the nearest.
    """
    if name not in names():
        near = difflib.get_close_matches(str(name).lower(), names(), n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise InvalidInput(
            f"There is no data set {name!r}.{hint} The data sets are {', '.join(names())}. A file of your own ends in "
            ".csv, .npz or .pt."
        )


def _mnist(files: Mapping[str, Path]) -> DataSet:
    return DataSet("mnist", *_idx_splits(files), DIGITS, UNIT_INTERVAL)


def _fashion_mnist(files: Mapping[str, Path]) -> DataSet:
    return DataSet("fashion-mnist", *_idx_splits(files), FASHION, UNIT_INTERVAL)


def _idx_splits(files: Mapping[str, Path]) -> tuple[Split, Split]:
    train, test = (
        idx.read_split(files[f"{part}-images-idx3-ubyte"], files[f"{part}-labels-idx1-ubyte"])
        for part in ("train", "t10k")
    )
    return train, test


def _cifar10(files: Mapping[str, Path]) -> DataSet:
    classes = cifar_binary.read_classes(files["batches.meta.txt"])
    batches = [cifar_binary.read_batch(files[f"data_batch_{k}.bin"]) for k in range(1, 6)]
    pixels, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    test = Split.of_images(*cifar_binary.read_batch(files["test_batch.bin"]))
    return DataSet("cifar10", Split.of_images(pixels, labels), test, classes, UNIT_INTERVAL)


def _svhn(files: Mapping[str, Path]) -> DataSet:
    nothing: NDArray[np.uint8] = np.empty((0, *svhn_mat.IMAGE_SHAPE), np.uint8)
    path = files.get("train_32x32.mat")
    train = svhn_mat.read_mat(path) if path else (nothing, nothing[:, 0, 0, 0])
    test = svhn_mat.read_mat(files["test_32x32.mat"])
    return DataSet("svhn", Split.of_images(*train), Split.of_images(*test), DIGITS, UNIT_INTERVAL)


_READERS: dict[str, Callable[[Mapping[str, Path]], DataSet]] = {
    "mnist": _mnist,
    "fashion-mnist": _fashion_mnist,
    "cifar10": _cifar10,
    "svhn": _svhn,
}
