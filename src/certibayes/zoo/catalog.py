"""The entries of the zoo: a directory each, with a posterior and what was measured about it.

NAME/posterior.safetensors   the posterior
NAME/card.md                 its model card, for people
NAME/spec.toml               the settings it was trained with
NAME/run.json                the same settings, versions and, under ``zoo``, the figures of the card

So an entry is a run like any other, and every function and command that takes a run takes an entry's directory.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from certibayes.errors import CorruptFile, InvalidInput
from certibayes.posteriors import FILE_NAME, Posterior
from certibayes.posteriors import load as load_posterior
from certibayes.support.names import unknown_name

DIRECTORY = Path(__file__).parent / "entries"
"""Where the entries of the package are."""

CARD, RECORD, SPEC = "card.md", "run.json", "spec.toml"
FIGURES = "zoo"
"""Where the figures are in an entry's record."""

LARGEST_ENTRY, LARGEST_ZOO = 8_000_000, 40_000_000
"""Bytes that an entry, and all of them, may take: they come with every copy of the package."""


@dataclass(frozen=True, repr=False)
class Entry:
    """A posterior of the zoo, in a few words and figures.

    Attributes:
        name: what ``load`` takes.
        description: in one line.
        dataset: what it was trained and tested on.
        eps: radius of the certificates, in l-infinity.
        certified: fraction of all test inputs that are classified correctly whatever changes within ``eps``.
        accuracy: fraction that is classified correctly without changes.
        samples: weight samples of the predictor that both are about, ``load(name).predictor(samples)``.
        digest: of that predictor; a certificate names the predictor it is about by it.
    """

    name: str
    description: str
    dataset: str
    eps: float
    certified: float
    accuracy: float
    samples: int
    digest: str

    def __repr__(self) -> str:
        """Say the name, what it is, and what was proved."""
        return (
            f"<{self.name}: {self.description}; {self.certified:.2%} of {self.dataset} certified at ±{self.eps:.4g}, "
            f"accuracy {self.accuracy:.2%}; predictor({self.samples}) is {self.digest[:12]}...>"
        )


def names() -> tuple[str, ...]:
    """Return the names of all entries."""
    return tuple(sorted(path.parent.name for path in DIRECTORY.glob(f"*/{FILE_NAME}")))


def directory(name: str) -> Path:
    """Return where an entry is.

    Raises:
        InvalidInput: there is no entry of that name.
    """
    if name not in names():
        raise InvalidInput(unknown_name("posterior in the zoo with the name", name, names()))
    return DIRECTORY / name


def figures(name: str) -> dict[str, Any]:
    """Return everything that was measured about an entry, by name."""
    path = directory(name) / RECORD
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))[FIGURES])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptFile(
            f"{path} does not hold the figures of {name} ({error!r}). Install certibayes anew."
        ) from error


def load(name: str) -> Posterior:
    """Load a posterior of the zoo.

    Args:
        name: of an entry; ``list()`` has all of them.

    Raises:
        InvalidInput: there is no entry of that name.
    """
    return load_posterior(directory(name))


def card(name: str) -> str:
    """Return the model card of an entry, in Markdown: data, network, recipe, what was proved, and limits of use."""
    return (directory(name) / CARD).read_text(encoding="utf-8")


def list() -> tuple[Entry, ...]:
    """Return all entries of the zoo."""
    return tuple(_entry(name) for name in names())


def _entry(name: str) -> Entry:
    found = figures(name)
    try:
        return Entry(**{field.name: found[field.name] for field in fields(Entry)})
    except KeyError as error:
        raise CorruptFile(f"the figures of {name} lack {error}. Install certibayes anew.") from error
