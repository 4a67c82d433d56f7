"""Tensors and a JSON record in one safetensors file, written whole or not at all, and checked when read.

A file is written under a temporary name, synced, and renamed; so a crash or a full disk leaves the old file
as it was. The record holds a SHA-256 of every tensor, so that a changed byte is noticed. No pickle anywhere.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from certibayes.errors import CorruptFile, InvalidInput
from certibayes.support.tensors import tensor_bytes

KEY = "certibayes"
FORMAT = 2
"""Rises when files of earlier versions can no longer be read: 2 since settings are recorded by the object they belong
to."""

REMEDIES = {
    "posterior": "Train again.",
    "checkpoint": "Train again, in another directory.",
}
"""What to do about a file that is too old, by its kind."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that its name never stands for anything but a complete old or a complete new file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name of its own for each process, so that two writers cannot mix their bytes.
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        try:
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        kept = f" The earlier {path.name} is unchanged." if path.exists() else ""
        raise OSError(error.errno, f"{path} could not be written ({error.strerror}).{kept}") from error


def tensor_digest(tensors: dict[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes."""
    sha = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        sha.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        sha.update(tensor_bytes(tensor))
    return sha.hexdigest()


def _record_digest(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def write_tensors(path: Path, kind: str, tensors: dict[str, Tensor], record: dict[str, Any]) -> None:
    """Write tensors and record.

    Args:
        path: the file.
        kind: what the file is, such as "posterior"; checked when it is read.
        tensors: by name.
        record: anything JSON can hold.
    """
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    try:
        json.dumps(record)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"metadata must be plain numbers, strings, lists and dictionaries ({error}).") from error
    header = {
        "format": FORMAT,
        "kind": kind,
        "record": record,
        "record_sha256": _record_digest(record),
        "tensors_sha256": tensor_digest(plain),
    }
    write_atomically(path, safetensors.torch.save(plain, {KEY: json.dumps(header)}))


def read_tensors(path: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what ``write_tensors`` wrote, or raise an error that says what is wrong with the file."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no {kind} at {path}.")
    # Read once: a live run may replace the file at any moment, and two reads could see two files.
    content = path.read_bytes()
    try:
        tensors = safetensors.torch.load(content)
        length = int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8 : 8 + length]).get("__metadata__", {})
    except (safetensors.SafetensorError, ValueError) as error:
        raise CorruptFile(f"{path} is truncated or not a safetensors file ({error}).") from error
    if KEY not in metadata:
        raise CorruptFile(f"{path} is a safetensors file, but was not written by certibayes.")
    try:
        header = json.loads(metadata[KEY])
        form, found, record = header["format"], header["kind"], header["record"]
        digests = header["record_sha256"], header["tensors_sha256"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise CorruptFile(f"the record in {path} cannot be read ({error}).") from error
    if found != kind:
        raise CorruptFile(f"{path} is a {found}, not a {kind}.")
    if isinstance(form, int) and form < FORMAT:
        raise CorruptFile(
            f"{path} was written by an earlier version of certibayes, whose {kind}s this one does not read. "
            + REMEDIES.get(kind, "Make it again.")
        )
    if form != FORMAT:
        raise CorruptFile(f"{path} has format {form}; this version reads format {FORMAT}. Upgrade certibayes.")
    if digests != (_record_digest(record), tensor_digest(tensors)):
        raise CorruptFile(f"{path} was changed after it was written: its checksum does not match.")
    return tensors, record
