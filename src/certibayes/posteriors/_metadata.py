"""What is known of a posterior that was made of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

JOINED = "joined"
"""In the metadata of posteriors that were joined: for each of them, what the others do not have in common with it."""

ORIGIN = "origin"
"""In the metadata of posteriors that were trained elsewhere: where their weights are from, in words."""

OF_SAMPLES = ("chains", "sampler", "names", "held_out", "temperature_curve", "deviations", JOINED)
"""Entries about the samples of one posterior, which say nothing about others made of it."""

OF_ONE = (*OF_SAMPLES, "posterior", "history", "versions")
"""And about one training."""


def of_center(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return what holds for the center of a posterior as well."""
    return {name: value for name, value in metadata.items() if name not in OF_SAMPLES}


def of_all(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what posteriors have in common and, under ``"joined"``, all else that is known of each."""
    first, *others = records
    common = {
        name: value
        for name, value in first.items()
        if name not in OF_ONE and all(name in other and other[name] == value for other in others)
    }
    own = [{name: value for name, value in record.items() if name not in common} for record in records]
    return {**common, JOINED: own}
