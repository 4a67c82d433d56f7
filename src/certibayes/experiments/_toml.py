"""Writing TOML, which Python itself only reads: plain values, lists of them, and tables one level deep."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from certibayes.errors import InvalidInput


def to_toml(values: Mapping[str, Any]) -> str:
    """Write values as TOML, those that are tables last, as the format asks.

    Args:
        values: strings, numbers, booleans, lists or tuples of them, or mappings of these.
    """
    tables = {key: value for key, value in values.items() if isinstance(value, Mapping)}
    lines = _lines({key: value for key, value in values.items() if key not in tables})
    for name, table in tables.items():
        lines += ["", f"[{_key(name)}]", *_lines(table)]
    return "\n".join(lines) + "\n"


def _lines(values: Mapping[str, Any]) -> list[str]:
    return [f"{_key(key)} = {_value(value)}" for key, value in values.items()]


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _text(key)


def _text(text: str) -> str:
    # JSON escapes what TOML wants escaped, in the same way, except for the character "delete".
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    raise InvalidInput(f"TOML has no way to write {value!r}.")
