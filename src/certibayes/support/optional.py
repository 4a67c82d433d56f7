"""Packages that are not needed by everyone, imported where they are and named with the extra that brings them."""

from __future__ import annotations

import importlib
from typing import Any

from certibayes.errors import MissingPackage


def require_package(name: str, extra: str) -> Any:
    """Import a package or one of its modules.

    Args:
        name: of the module, such as ``"matplotlib.figure"``.
        extra: the extra of certibayes that brings the package, as in ``pip install "certibayes[figures]"``.

    Raises:
        MissingPackage: it cannot be imported; the message holds the command that installs it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise MissingPackage(
            f"this needs {package}, which cannot be imported ({error}). Install it with: "
            f'pip install "certibayes[{extra}]"'
        ) from error
