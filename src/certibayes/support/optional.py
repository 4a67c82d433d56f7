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
    package = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingPackage(
            f"this needs {package}, which cannot be imported ({error}). Install it with: "
            f'pip install "certibayes[{extra}]"'
        ) from error
    except Exception as error:
        # What the package itself imports may fail in any way, such as a torchvision made for another torch.
        raise MissingPackage(
            f"this needs {package}, which is there but cannot be imported ({type(error).__name__}: {error}). "
            "What it imports in turn must fit it, and torch."
        ) from error
