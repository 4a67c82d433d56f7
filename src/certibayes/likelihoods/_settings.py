"""How settings show themselves."""

from __future__ import annotations

import inspect
from typing import Any


def short_repr(settings: Any, *without: str) -> str:
    """Return the call that makes an object, without what is at its default: ``IBP(margins=True)``.

    Args:
        settings: an object with an attribute for every argument of its class.
        without: arguments to leave out, because others say the same.
    """
    shown = []
    for name, argument in inspect.signature(type(settings)).parameters.items():
        value = getattr(settings, name, argument.default)
        # Compared as text: the ends of a domain may be tensors, whose comparison is a tensor again.
        if name not in without and repr(value) != repr(argument.default):
            shown.append(f"{name}={getattr(value, '__qualname__', None) or repr(value)}")
    return f"{type(settings).__name__}({', '.join(shown)})"
