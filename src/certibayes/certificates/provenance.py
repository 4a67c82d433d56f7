"""Where a result comes from: one record for all kinds of results."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from certibayes._version import __version__
from certibayes.certificates import reading
from certibayes.certificates._names import BOUNDS, DEVICES, DTYPES, INTERMEDIATES, METHODS, VERSIONS
from certibayes.errors import CorruptFile

KEYS = ("version", "digest", "inputs_digest", "samples", "seed", "device", "dtype", "settings")

SETTINGS = {"bounds": BOUNDS, "method": METHODS, "intermediates": INTERMEDIATES}
"""Settings, and the names each of them may have."""


class _Digest:
    """A field that holds a digest, or a function that computes it when it is first asked for."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.place = f"_{name}"

    def __get__(self, instance: Any, owner: type | None = None) -> str:
        if instance is None:
            # To a dataclass this means that the field has no default.
            raise AttributeError(self.place)
        found = instance.__dict__[self.place]
        if not isinstance(found, str):
            found = instance.__dict__[self.place] = found()
        return found

    def __set__(self, instance: Any, value: str | Callable[[], str]) -> None:
        instance.__dict__[self.place] = value


@dataclass(frozen=True)
class Provenance:
    """Where a result comes from.

    Attributes:
        digest: SHA-256 of the predictor, or of the posterior that weights were drawn from.
        inputs_digest: SHA-256 of the points, as ``tensor_digest({"inputs": x})`` computes it. It may be given as a
            function, which is called when the digest is first asked for: on a GPU it takes longer than many a proof.
        samples: number N of weight samples of the predictor, or of draws from the posterior.
        device: where it was computed, ``"cpu"`` or ``"cuda"``.
        dtype: precision of the networks.
        settings: how it was proved: ``bounds``, ``method`` and ``intermediates``, as far as they apply.
        seed: of the weight samples; None where it is not known.
        version: of certibayes.
    """

    digest: str
    samples: int
    device: str
    dtype: str
    inputs_digest: _Digest = _Digest()
    settings: Mapping[str, str] = field(default_factory=dict)
    seed: int | None = None
    version: str = __version__

    def __getstate__(self) -> dict[str, Any]:
        """Return what is copied and pickled, where no function may stand for a digest."""
        self.inputs_digest  # noqa: B018 - computes it
        return self.__dict__

    def __repr__(self) -> str:
        settings = "".join(f", {name}={value}" for name, value in self.settings.items())
        return (
            f"Provenance(predictor {self.digest[:12]}, inputs {self.inputs_digest[:12]}, {self.samples} samples, "
            f"seed={self.seed}, {self.device}, {self.dtype}{settings}, certibayes {self.version})"
        )

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain numbers, strings and dictionaries."""
        return {name: getattr(self, name) for name in KEYS} | {"settings": dict(self.settings)}

    @staticmethod
    def from_json(record: Any, settings: tuple[str, ...]) -> Provenance:
        """Read ``to_json``'s answer.

        Args:
            record: as it was read.
            settings: names of the settings that a result of this kind has.

        Raises:
            CorruptFile: something is missing, unknown or not what its name promises.
        """
        reading.require_keys(record, KEYS, "the provenance")
        reading.require_keys(record["settings"], settings, "the settings")
        chosen = {name: reading.choice(record["settings"][name], SETTINGS[name], name) for name in settings}
        return Provenance(
            digest=_digest(record["digest"], "the predictor's digest"),
            inputs_digest=_digest(record["inputs_digest"], "the points' digest"),
            samples=reading.count(record["samples"], "samples", minimum=1),
            device=reading.choice(record["device"], DEVICES, "the device"),
            dtype=reading.choice(record["dtype"], DTYPES, "the dtype"),
            settings=chosen,
            seed=None if record["seed"] is None else reading.count(record["seed"], "the seed", minimum=None),
            version=reading.choice(record["version"], VERSIONS, "the version"),
        )


def _digest(value: Any, what: str) -> str:
    if not (isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value)):
        raise CorruptFile(f"{what} is not a SHA-256: {value!r}.")
    return value
