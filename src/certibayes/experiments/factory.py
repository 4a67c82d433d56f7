"""Networks of one's own by name: ``package.module:factory`` or ``path/to/file.py:factory``.

A factory is a function, or a class, that is called without arguments and returns an ``nn.Module``.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from certibayes.errors import InvalidInput
from certibayes.support.names import nearest

FORM = "package.module:factory or path/to/file.py:factory"


def names_factory(text: str) -> bool:
    """Tell whether a name is that of a factory, and not of an architecture that is known here."""
    return ":" in text


def network_from(text: str, seed: int) -> nn.Module:
    """Import a factory and let it make a network.

    Args:
        text: where it is. Modules are looked for in the current directory, too.
        seed: of torch's random numbers while the factory runs, so that it makes the same network every time.

    Raises:
        InvalidInput: there is no such module or factory, it cannot be run, or it returns something else.
    """
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise InvalidInput(f"{text!r} is no architecture; write {FORM}.")
    # Whatever is drawn, the caller's random numbers stay as they were.
    with torch.random.fork_rng(devices=[]):
        return _made(text, place, name, seed)


def _made(text: str, place: str, name: str, seed: int) -> nn.Module:
    module = _from_file(Path(place)) if place.endswith(".py") else _imported(place)
    factory: Any = module
    for part in name.split("."):
        if not hasattr(factory, part):
            raise InvalidInput(f"there is no {name!r} in {place}{nearest(name, _functions(module))}.")
        factory = getattr(factory, part)
    if isinstance(factory, nn.Module):
        raise InvalidInput(f"{text} is a module; name a function that returns one, so that each is made afresh.")
    if not callable(factory):
        raise InvalidInput(
            f"{text} is a {type(factory).__name__}, where a function is needed that returns an nn.Module."
        )
    try:
        torch.manual_seed(seed)
        network = factory()
    except Exception as error:  # whatever it does
        raise InvalidInput(
            f"{text} was called without arguments and failed: {type(error).__name__}: {error}. If it needs any, write "
            "a function that fills them in."
        ) from error
    if not isinstance(network, nn.Module):
        raise InvalidInput(f"{text} returned a {type(network).__name__}, where an nn.Module is needed.")
    return network


def _imported(place: str) -> ModuleType:
    with _first_on_path(Path.cwd()):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{place}.".startswith(f"{error.name}."):
                raise _failed(place, error) from error
            raise InvalidInput(
                f"there is no module {error.name!r}, neither installed nor in {Path.cwd()}. A file is named with its "
                f"path: {error.name.replace('.', '/')}.py:factory."
            ) from error
        except Exception as error:  # whatever it does
            raise _failed(place, error) from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InvalidInput(f"there is no file {path}.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InvalidInput(f"{path} cannot be imported.")
    module = importlib.util.module_from_spec(spec)
    # Its neighbors can be imported, as when Python runs the file.
    with _first_on_path(path.resolve().parent):
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # whatever it does
            raise _failed(str(path), error) from error
    return module


def _failed(place: str, error: Exception) -> InvalidInput:
    return InvalidInput(f"{place} cannot be imported: {type(error).__name__}: {error}")


@contextmanager
def _first_on_path(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _functions(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
