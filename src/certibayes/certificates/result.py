"""What all results have in common: a statement built from the record, JSON, a file, and where they come from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from certibayes.certificates import reading
from certibayes.certificates.provenance import Provenance
from certibayes.certificates.showing import Shown
from certibayes.errors import CorruptFile
from certibayes.support.files import write_atomically


class Stated(Shown):
    """A record of what was proved, with its words."""

    kind: ClassVar[str]
    """What the record is, as its file says."""

    def __eq__(self, other: object) -> bool:
        """Tell whether two records say the same, so that what was loaded equals what was saved."""
        return type(self) is type(other) and isinstance(other, Stated) and self.content() == other.content()

    def __hash__(self) -> int:
        """Return a number that records which say the same have in common."""
        return hash(self.content())

    @property
    def statement(self) -> str:
        """What was proved, in words built from this record alone."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain lists, numbers and strings, with the statement beside it."""
        raise NotImplementedError

    def content(self) -> bytes:
        """Return the record as its file holds it, so that ``sha256sum`` of the file can be compared with a page."""
        return (json.dumps(self.to_json(), allow_nan=False) + "\n").encode()

    def save(self, path: Path | str) -> None:
        """Write the record as JSON; an earlier file is replaced whole or not at all."""
        write_atomically(Path(path), self.content())

    def page(
        self,
        path: Path | str,
        x: Tensor | None = None,
        *,
        names: Sequence[str] = (),
        features: Sequence[str] = (),
        show: int | Sequence[int] = 12,
        title: str = "",
    ) -> None:
        """Write a page of HTML that says what was proved, in words for a reader who has never seen a certificate.

        The page holds everything it needs, prints, and runs no scripts. It is not the proof: the record is, which the
        page names by its SHA-256.

        Args:
            path: the file.
            x: the points (B, ...), exactly as they were certified, so that they can be shown: images (B, 1 or 3, H, W)
                as pictures, others as numbers.
            names: of the classes, or of the outputs of a regression.
            features: names of the input values, where these are shown as numbers.
            show: how many points are shown, or which.
            title: in the place of the kind of certificate.

        Raises:
            InvalidInput: x is not what was certified, or names do not fit.
        """
        from certibayes.certificates._page import write_page  # it knows every kind of result

        write_page(self, path, x, names=names, features=features, show=show, title=title)  # type: ignore[arg-type]


class Traced:
    """Something with a provenance, whose parts can be asked of it directly."""

    provenance: Provenance

    @property
    def digest(self) -> str:
        """SHA-256 of the predictor."""
        return self.provenance.digest

    @property
    def inputs_digest(self) -> str:
        """SHA-256 of the points, as ``tensor_digest({"inputs": x})`` computes it."""
        return self.provenance.inputs_digest

    @property
    def samples(self) -> int:
        """Number N of weight samples of the predictor."""
        return self.provenance.samples

    @property
    def seed(self) -> int | None:
        """Seed of the weight samples, where it is known."""
        return self.provenance.seed

    @property
    def device(self) -> str:
        """Where it was proved, ``"cpu"`` or ``"cuda"``."""
        return self.provenance.device

    @property
    def dtype(self) -> str:
        """Precision of the predictor."""
        return self.provenance.dtype

    @property
    def version(self) -> str:
        """Version of certibayes."""
        return self.provenance.version

    @property
    def bounds(self) -> str:
        """How networks were bounded."""
        return self.provenance.settings["bounds"]

    @property
    def method(self) -> str:
        """How the bounds of N networks were combined."""
        return self.provenance.settings["method"]

    @property
    def intermediates(self) -> str:
        """What linear bounds knew of the layers in between: ``"ibp"`` for intervals, or ``"crown"``."""
        return self.provenance.settings.get("intermediates", "ibp")


class Proved(Traced, Stated):
    """A result with a provenance and a statement."""


def require_same_words(record: dict[str, Any], result: Stated) -> None:
    """Raise unless a stored statement is the one that the record gives."""
    if reading.text(record["statement"], "the statement") != result.statement:
        raise CorruptFile("the statement is not what the record says; one of the two was changed after it was written.")
