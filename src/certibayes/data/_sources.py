"""Where the publishers keep the files, and the checksums by which they are known."""

from collections.abc import Mapping
from typing import NamedTuple


class RemoteFile(NamedTuple):
    """A file to download.

    Attributes:
        path: Where it goes, below the data directory.
        md5: Its MD5 checksum.
        urls: Where it is, in the order to be tried; all serve the same bytes.
        unpacks_to: For a tar archive, the folder in it that belongs beside it.
    """

    path: str
    md5: str
    urls: tuple[str, ...]
    unpacks_to: str | None = None


def _in_folder(folder: str, mirrors: tuple[str, ...], checksums: Mapping[str, str]) -> tuple[RemoteFile, ...]:
    return tuple(
        RemoteFile(f"{folder}/{name}", md5, tuple(mirror + name for mirror in mirrors))
        for name, md5 in checksums.items()
    )


SOURCES: Mapping[str, tuple[RemoteFile, ...]] = {
    "mnist": _in_folder(
        "mnist",
        (
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
        ),
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    "fashion-mnist": _in_folder(
        "fashion-mnist",
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
    "cifar10": (
        RemoteFile(
            "cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
            ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
            unpacks_to="cifar-10-batches-bin",
        ),
    ),
    "svhn": _in_folder(
        "svhn",
        ("http://ufldl.stanford.edu/housenumbers/",),
        {
            "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
            "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
        },
    ),
}
