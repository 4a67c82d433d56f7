"""Names that people type: the known one that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def nearest(name: object, known: Iterable[str]) -> str:
    """Return ``"; perhaps you mean NAME"`` where a known name is close to what was typed, and nothing otherwise.

    Case, and the difference between a dash and an underscore, are no distance.
    """
    plain = {other.lower().replace("_", "-"): other for other in known}
    close = difflib.get_close_matches(str(name).lower().replace("_", "-"), plain, n=1)
    return f"; perhaps you mean {plain[close[0]]}" if close else ""


def shortened(names: Sequence[str], most: int = 30) -> str:
    """Return names with commas between them; of many, the first and how many more there are."""
    left = len(names) - most
    return ", ".join(names) if left <= 0 else f"{', '.join(names[:most])} and {left} more"


def unknown_name(what: str, name: object, known: Iterable[str]) -> str:
    """Return the sentence that refuses a name: there is none such, perhaps another was meant, and these are known."""
    known = list(known)
    return f"there is no {what} {name!r}{nearest(name, known)}. Known are {', '.join(known)}."
