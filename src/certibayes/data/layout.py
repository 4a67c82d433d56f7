"""Where the files of a data set lie on disk."""

import os
import shlex
from pathlib import Path
from typing import NamedTuple

from certibayes.errors import MissingData


class Layout(NamedTuple):
    """The places in which a data set is looked for.

    Attributes:
        folders: Folders below the data directory, in order of preference.
        files: The names of the files.
        suffixes: What may follow each name, in order of preference.
        optional: The files that may be absent.
    """

    folders: tuple[str, ...]
    files: tuple[str, ...]
    suffixes: tuple[str, ...] = ("",)
    optional: frozenset[str] = frozenset()


_IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_CIFAR_FILES = (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin", "batches.meta.txt")

# The first folder is where `download` puts the files; the others are where torchvision does.
LAYOUTS = {
    "mnist": Layout(("mnist", "MNIST/raw"), _IDX_FILES, (".gz", "")),
    "fashion-mnist": Layout(("fashion-mnist", "FashionMNIST/raw"), _IDX_FILES, (".gz", "")),
    "cifar10": Layout(("cifar-10-batches-bin",), _CIFAR_FILES),
    "svhn": Layout(("svhn",), ("train_32x32.mat", "test_32x32.mat"), optional=frozenset({"train_32x32.mat"})),
}


def data_directory(data_dir: str | Path | None = None) -> Path:
    """Say which directory holds the data sets.

    Args:
        data_dir: The answer, if not None.

    Returns:
        `data_dir`, else ``$CERTIBAYES_DATA``, else ``certibayes/data`` in the user's cache directory.
    """
    if chosen := data_dir or os.environ.get("CERTIBAYES_DATA"):
        return Path(chosen).expanduser()
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification says that a relative path here is to be ignored.
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "certibayes" / "data"


def get_command(name: str, directory: Path) -> str:
    """Write the command that downloads a data set into a directory."""
    return f"certibayes data get {name} --data-dir {shlex.quote(str(directory))}"


def locate(name: str, directory: Path) -> dict[str, Path]:
    """Find the files of a data set.

    Args:
        name: A key of `LAYOUTS`.
        directory: The data directory.

    Returns:
        Each file's name, without suffix, and its path; an optional file that is absent has no entry.

    Raises:
        MissingData: A file is nowhere it was looked for.
    """
    layout, found = LAYOUTS[name], {}
    for file in layout.files:
        candidates = [directory / folder / (file + end) for folder in layout.folders for end in layout.suffixes]
        if path := next((path for path in candidates if path.is_file()), None):
            found[file] = path
        elif file not in layout.optional:
            raise MissingData(
                f"{name} is not in {directory}: looked for {' and '.join(map(str, candidates))}. "
                f"Run `{get_command(name, directory)}` to download it, "
                "or set CERTIBAYES_DATA to the directory that has it."
            )
    return found
