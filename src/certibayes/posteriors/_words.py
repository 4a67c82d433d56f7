"""How a posterior came about, in a few words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def inference_in_words(metadata: Mapping[str, Any]) -> str:
    """Return algorithm, likelihood and temperature, such as ``VOGN, RobustCategorical (TwoPoint, IBP), ...``."""
    parts = [_name(metadata["algorithm"])]
    likelihood = metadata.get("likelihood")
    if likelihood is not None:
        details = [_name(likelihood[key]) for key in ("p_eps", "adversary") if _has(likelihood, key)]
        parts.append(_name(likelihood) + (f" ({', '.join(details)})" if details else ""))
    if "temperature" in metadata:
        parts.append(f"temperature {metadata['temperature']:g}")
    return ", ".join(parts)


def _has(record: Any, key: str) -> bool:
    return isinstance(record, Mapping) and record.get(key) is not None


def _name(record: Any) -> str:
    """Return the name in an object's description; what users wrote into metadata themselves may be anything."""
    return str(record["name"]) if _has(record, "name") else str(record)
