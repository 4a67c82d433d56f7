"""How a posterior came about, in a few words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


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


def prior_in_words(variances: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> str:
    """Return how many variances of the prior were learned, in which range, such as ``learned: 850 variances, ...``."""
    record = metadata.get("prior") or {}
    least = min(float(each.min()) for each in variances.values())
    most = max(float(each.max()) for each in variances.values())
    number, floor = record.get("variances", "unknown"), record.get("at_floor", 0)
    return f"learned: {number} variances, from {least:.3g} to {most:.3g}, {floor} at the floor"


def _has(record: Any, key: str) -> bool:
    return isinstance(record, Mapping) and record.get(key) is not None


def _name(record: Any) -> str:
    """Return the name in an object's description; what users wrote into metadata themselves may be anything."""
    return str(record["name"]) if _has(record, "name") else str(record)
