"""What every operation is: a frozen dataclass of plain settings."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from torch import Tensor

from certibayes.errors import UnsupportedLayer

Weights = dict[str, Tensor]
"""Tensors of one node by role."""

Pair = tuple[int, int]


@dataclass(frozen=True)
class Operation:
    """Base of all operations; subclasses register themselves by name, so that a graph can be stored as JSON."""

    known: ClassVar[dict[str, type[Operation]]] = {}

    def __init_subclass__(cls) -> None:
        """Remember the subclass under its name; a later one of the same name wins."""
        Operation.known[cls.__name__] = cls

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """Compute the output for a batch of inputs, each of shape (B, ...)."""
        raise NotImplementedError

    def fan_in(self, weight: Tensor) -> float:
        """Return how many inputs an output is computed from, by weights of the role "weight"; 1 for vectors."""
        return float(weight[0].numel()) if weight.dim() > 1 else 1.0

    def to_json(self) -> dict[str, Any]:
        """Return the operation's name and settings."""
        return {"type": type(self).__name__, **asdict(self)}

    @staticmethod
    def from_json(record: dict[str, Any]) -> Operation:
        """Rebuild an operation from ``to_json``'s answer."""
        settings = dict(record)
        name = settings.pop("type")
        if name not in Operation.known:
            raise UnsupportedLayer(
                f"this network holds an operation {name!r} that is not known here. If it is your own, import "
                "the module that defines it before loading."
            )
        frozen = {key: tuple(v) if isinstance(v, list) else v for key, v in settings.items()}
        return Operation.known[name](**frozen)
