"""Downloads that either end in the publisher's own bytes or leave nothing under a final name."""

import hashlib
import http.client
import os
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

from certibayes.data._embedded import EMBEDDED, FOLDER
from certibayes.data._sources import SOURCES, RemoteFile
from certibayes.data._transfer import transfer
from certibayes.data.catalog import check_name
from certibayes.data.layout import data_directory, get_command
from certibayes.errors import DownloadFailed

Progress = Callable[[str, int, int | None], None]


def download(
    name: str,
    data_dir: str | Path | None = None,
    progress: Progress | None = None,
    sources: Mapping[str, tuple[RemoteFile, ...]] = SOURCES,
) -> Path:
    """Download a data set from its publishers.

    A file already there with the right checksum is not fetched again, and a transfer that broke off is taken
    up where it ended. A set that comes with the package needs nothing.

    Args:
        name: One of `certibayes.data.names()`.
        data_dir: Where to; by default ``$CERTIBAYES_DATA``, else the user's cache directory.
        progress: Called with a file's name, the bytes done and the bytes in all (None where unknown).
        sources: The files of each data set and their addresses.

    Returns:
        The directory that holds the data set.

    Raises:
        InvalidInput: There is no such data set.
        DownloadFailed: No mirror gave a file with the right checksum, or it could not be written.
    """
    check_name(name)
    if name in EMBEDDED:
        return FOLDER
    directory = data_directory(data_dir)
    retry = f"Run `{get_command(name, directory)}` to try again"
    for file in sources[name]:
        target = directory / file.path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if not _has_checksum(target, file.md5):
                _fetch(file, target, progress or _silent, retry)
            if file.unpacks_to:
                _unpack(target, directory / file.unpacks_to)
        except DownloadFailed:
            raise
        except OSError as error:
            raise DownloadFailed(f"{target} could not be written ({error}). {retry}.") from error
    return directory


def _silent(name: str, done: int, total: int | None) -> None:
    """Report nothing."""


def _fetch(file: RemoteFile, target: Path, progress: Progress, retry: str) -> None:
    """Put a verified file in place, from the first mirror that has it."""
    partial = target.with_name(target.name + ".partial")
    if _has_checksum(partial, file.md5):  # stopped between the last byte and the final name
        _publish(partial, target)
        return
    failures = []
    for url in file.urls:
        try:
            transfer(url, partial, lambda done, total: progress(target.name, done, total))
        except (OSError, http.client.HTTPException) as error:
            failures.append(f"{url}: {error}")
            continue
        if _has_checksum(partial, file.md5):
            _publish(partial, target)
            return
        partial.unlink()
        failures.append(f"{url}: the checksum is not {file.md5}")
    kept = "; it continues where it stopped." if partial.exists() else "."
    raise DownloadFailed(f"{target.name} could not be downloaded. {'; '.join(failures)}. {retry}{kept}")


def _publish(partial: Path, target: Path) -> None:
    """Give a verified file its final name, once its bytes are on the disk."""
    with partial.open("rb+") as file:
        os.fsync(file.fileno())
    partial.replace(target)


def _has_checksum(path: Path, md5: str) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest() == md5


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive beside itself, in place of whatever stood there.

    The archive is kept: it restores a damaged folder without the network.
    """
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".unpacking-") as temporary:
        fresh = Path(temporary, "fresh")
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(fresh, filter="data")
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise DownloadFailed(f"{archive} could not be unpacked ({error}). Delete it.") from error
        if not (fresh / folder.name).is_dir():
            raise DownloadFailed(f"{archive} has no folder {folder.name}. Delete it.")
        if folder.exists():
            folder.rename(Path(temporary, "stale"))
        (fresh / folder.name).rename(folder)
