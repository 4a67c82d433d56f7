"""What an entry says of a call, and the tables of entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from torch import fx, nn

from certibayes.networks import operations as ops


@dataclass(frozen=True)
class Chain:
    """Several operations in a row, of which ``main`` has the weights.

    A ``Reshape(())`` at the very end takes its shape from the example.
    """

    main: ops.Operation
    before: tuple[ops.Operation, ...] = ()
    after: tuple[ops.Operation, ...] = ()

    @property
    def all(self) -> tuple[ops.Operation, ...]:
        """All of them in order."""
        return (*self.before, self.main, *self.after)


@dataclass(frozen=True)
class ByShape:
    """What depends on the shape of one example that is read: ``meaning(shape)`` gives the operations."""

    meaning: Callable[[tuple[int, ...]], Meaning]


@dataclass(frozen=True)
class Beside:
    """Several operations on one tensor, and what they make side by side along a dimension; that of the batch is 0."""

    operations: tuple[ops.Operation, ...]
    dim: int


@dataclass(frozen=True)
class AfterEach:
    """Several tensors, each of which ``first`` is applied to, and what is done with all that comes of it."""

    first: ops.Operation
    meaning: ops.Operation | Chain


@dataclass(frozen=True)
class Parts:
    """What makes several tensors of one: ``operations(shape)`` gives one for each, as ``x.chunk(2, 1)[i]`` picks it."""

    operations: Callable[[tuple[int, ...]], Sequence[Meaning]]


Meaning: TypeAlias = "ops.Operation | Chain | ByShape | Beside | AfterEach | None"
"""What a layer does; None passes its input through."""


@dataclass(frozen=True)
class Lowered:
    """What a call means: ``operation`` applied to ``inputs`` with weights by role.

    An operation of None passes its input through. Reshapes are recognized by ``reshapes``: their
    target shape is read off the example instead of the arguments, which may depend on the batch size.
    """

    operation: Meaning | Parts
    inputs: tuple[Any, ...] = ()
    weights: dict[str, Any] = field(default_factory=dict)
    reshapes: bool = False


ModuleEntry = Callable[[Any], tuple[Meaning, dict[str, str]]]
FunctionEntry = Callable[..., Lowered]
Entry = TypeVar("Entry", ModuleEntry, FunctionEntry)

modules: dict[type[nn.Module], ModuleEntry] = {}
functions: dict[Any, FunctionEntry] = {}


def lower_module(*types: type[nn.Module]) -> Callable[[ModuleEntry], ModuleEntry]:
    """Decorate the entry of one or several module types."""

    def register(entry: ModuleEntry) -> ModuleEntry:
        modules.update(dict.fromkeys(types, entry))
        return entry

    return register


def lower_function(*targets: Any) -> Callable[[FunctionEntry], FunctionEntry]:
    """Decorate the entry of one or several functions, or of tensor methods given by name."""

    def register(entry: FunctionEntry) -> FunctionEntry:
        functions.update(dict.fromkeys(targets, entry))
        return entry

    return register


def pair(value: Any) -> ops.Pair:
    """Write ``3`` as ``(3, 3)``, the way torch reads it."""
    numbers = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return (int(numbers[0]), int(numbers[-1]))


def weights_of(module: nn.Module, *names: str) -> dict[str, str]:
    """Return those attributes of a module that there are, each as its own role."""
    return {name: name for name in names if getattr(module, name, None) is not None}


def is_number(value: Any) -> bool:
    """Tell whether an argument is a constant number."""
    return isinstance(value, (int, float))


def is_weight(value: Any) -> bool:
    """Tell whether an argument is a parameter or a buffer."""
    return isinstance(value, fx.Node) and value.op == "get_attr"


def is_constant(value: Any) -> bool:
    """Tell whether an argument is a weight, or computed from weights alone, which is refused where it is looked up."""
    return isinstance(value, fx.Node) and bool(value.meta.get("constant"))
