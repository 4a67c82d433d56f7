"""Settings: the fields of a dataclass as a person writes them, as flags or in a file.

Names, types and defaults come from the fields, the help from the ``Attributes`` section of the docstring, so that a
hyperparameter is declared in one place and known everywhere.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from certibayes.errors import InvalidInput

NONE = "none"
"""How None is written where nothing else stands for it; TOML has no null."""

_WORDS = {float: "a number", int: "a whole number", bool: "true or false", str: "a text", NoneType: f'"{NONE}"'}
_NARROWEST = (NoneType, bool, int, float, str)
_SWITCH = {"true": True, "false": False}


@dataclass(frozen=True)
class Setting:
    """One field of a dataclass.

    Attributes:
        name: of the field.
        kind: its type: a number, text, switch or None, a tuple of these, or a union.
        default: its default.
        help: what it means.
    """

    name: str
    kind: Any
    default: Any
    help: str

    def check(self, value: Any, where: str = "") -> Any:
        """Return ``value`` as this setting's type (a list becomes a tuple); an error says ``where`` it was."""
        try:
            return _conform(value, self.kind)
        except TypeError:
            raise InvalidInput(f"{self.name}{where} must be {_words(self.kind)}, got {value!r}.") from None

    def read(self, text: str) -> Any:
        """Return what a flag's text means: ``0.9,0.99`` is a tuple, ``none`` is None where that is allowed.

        Raises:
            ValueError: the text is not of this setting's type.
        """
        try:
            return _parse(text.strip(), self.kind)
        except ValueError:
            raise ValueError(f"{self.name} must be {_words(self.kind)}, got {text!r}.") from None


def as_number(text: str) -> float:
    """Read a number as people write radii: 0.1, 1e-3 or 8/255.

    Raises:
        ValueError: it is neither a number nor a quotient of two.
    """
    above, slash, below = text.partition("/")
    try:
        return float(above) / float(below) if slash else float(above)
    except ZeroDivisionError:
        raise ValueError(f"{text!r} divides by zero.") from None


def settings_of(declaring: type) -> dict[str, Setting]:
    """Return the settings of a dataclass by name; fields that cannot be written as plain values are left out."""
    return dict(_settings_of(declaring))


@cache
def _settings_of(declaring: type) -> dict[str, Setting]:
    kinds, help_texts = get_type_hints(declaring), _attributes(declaring)
    found = {}
    for field in dataclasses.fields(declaring):
        if _is_plain(kinds[field.name]):
            default = None if field.default is dataclasses.MISSING else field.default
            found[field.name] = Setting(field.name, kinds[field.name], default, help_texts.get(field.name, ""))
    return found


def as_text(value: Any) -> str:
    """Write a value as its flag takes it."""
    if isinstance(value, (tuple, list)):
        return ",".join(map(as_text, value))
    return NONE if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def metavar(kind: Any) -> str:
    """Name a type in a help page: ``float``, ``float,float``, ``int|none``."""
    if _is_union(kind):
        return "|".join(map(metavar, get_args(kind)))
    if get_origin(kind) is tuple:
        return ",".join("..." if part is Ellipsis else metavar(part) for part in get_args(kind))
    return NONE if kind is NoneType else str(kind.__name__)


def _attributes(declaring: type) -> dict[str, str]:
    """Read the ``Attributes`` section of a class's docstring and of those of its bases."""
    found: dict[str, str] = {}
    for base in reversed(declaring.__mro__):
        _, _, section = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")
        section = section.partition("\n\n")[0]
        for name, text in re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", section, re.MULTILINE):
            found[name] = " ".join(text.replace("``", "").split())
    return found


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, UnionType)


def _is_plain(kind: Any) -> bool:
    if _is_union(kind) or get_origin(kind) is tuple:
        return all(part is Ellipsis or _is_plain(part) for part in get_args(kind))
    return kind in _WORDS


def _first_that_fits(read: Callable[[Any, Any], Any], value: Any, kinds: Sequence[Any]) -> Any:
    """Read a value as the narrowest of several types: 3 is a whole number rather than any number, and not a text."""
    for kind in sorted(kinds, key=lambda kind: _NARROWEST.index(kind) if kind in _NARROWEST else -1):
        try:
            return read(value, kind)
        except (TypeError, ValueError):
            continue
    raise TypeError if read is _conform else ValueError


def _each(read: Callable[[Any, Any], Any], values: Sequence[Any], kinds: Sequence[Any]) -> tuple[Any, ...]:
    """Read the elements of a tuple; ``zip`` raises ValueError if there are too many or too few."""
    if kinds[-1] is Ellipsis:
        kinds = [kinds[0]] * len(values)
    return tuple(read(value, kind) for value, kind in zip(values, kinds, strict=True))


def _conform(value: Any, kind: Any) -> Any:
    """Return a value as ``kind``, or raise TypeError."""
    if _is_union(kind):
        return _first_that_fits(_conform, value, get_args(kind))
    if get_origin(kind) is tuple and isinstance(value, (list, tuple)):
        try:
            return _each(_conform, value, get_args(kind))
        except ValueError:
            raise TypeError from None
    if kind is NoneType and value in (None, NONE):
        return None
    # A bool is an int to Python, but not to a person.
    if isinstance(value, bool) == (kind is bool):
        if kind is float and isinstance(value, (int, float)):
            return float(value)
        if kind is float and isinstance(value, str) and "/" in value:
            # TOML has no quotients, so that 8/255 is written as a text.
            try:
                return as_number(value)
            except ValueError:
                raise TypeError from None
        if kind in (bool, int, str) and isinstance(value, kind):
            return value
    raise TypeError


def _parse(text: str, kind: Any) -> Any:
    """Return what a text means as ``kind``, or raise ValueError."""
    if _is_union(kind):
        return _first_that_fits(_parse, text, get_args(kind))
    if get_origin(kind) is tuple:
        return _each(_parse, [part.strip() for part in text.split(",") if part.strip()], get_args(kind))
    if kind is NoneType and text == NONE:
        return None
    if kind is bool and text in _SWITCH:
        return _SWITCH[text]
    if kind is float:
        return as_number(text)
    if kind in (int, str):
        return kind(text)
    raise ValueError


def _words(kind: Any) -> str:
    if _is_union(kind):
        return " or ".join(map(_words, get_args(kind)))
    if get_origin(kind) is tuple:
        parts = get_args(kind)
        number = "" if Ellipsis in parts else f"{len(parts)} "
        return f"{number}{'whole numbers' if parts[0] is int else 'numbers'}, such as {_example(parts)}"
    return _WORDS[kind]


def _example(parts: Sequence[Any]) -> str:
    return "256,128" if parts[0] is int else ",".join(["0.9"] * len(parts))
