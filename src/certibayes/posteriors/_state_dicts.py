"""Weights that were saved elsewhere, put into a module: every name must find its place, and every place its name.

Programs that train wrap a network, and its names then have a part in front: ``module.`` (DataParallel), ``_orig_mod.``
(torch.compile), ``model.`` (a trainer). A part that all names share is removed where the names fit without it, and what
was removed is recorded. Nothing else is guessed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from certibayes.errors import InvalidInput
from certibayes.support.names import nearest
from certibayes.support.tensor_files import read_tensor_file

COMPILED = "_orig_mod"
"""What torch.compile puts into names, also in the middle of them."""

AVERAGED = "n_averaged"
"""A number that torch.optim.swa_utils.AveragedModel stores beside the weights."""

COUNTER = "num_batches_tracked"
"""How names of batch norm end that nothing depends on, so that they may be there or not."""

SHOWN = 4
"""Names that an error lists at most."""


class LoadedModule(NamedTuple):
    """A module with weights from elsewhere.

    Attributes:
        module: a copy of the network.
        source: where the weights are from.
        changes: what was done to their names, such as ``"without the prefix 'module.'"``.
    """

    module: nn.Module
    source: str
    changes: tuple[str, ...]


def module_from(net: nn.Module, given: str | Path | Mapping[str, Any], number: int) -> LoadedModule:
    """Return a copy of a module with the weights of a file or a dictionary.

    Args:
        net: the architecture; it stays as it is.
        given: what ``module.state_dict()`` returned, or a file of it; or a dictionary that holds such a one, as
            checkpoints do.
        number: of the dictionary, for errors.

    Raises:
        InvalidInput: names or shapes are not those of the network.
        FileNotFoundError: there is no such file.
        CorruptFile: the file cannot be read.
    """
    is_file = isinstance(given, (str, Path))
    source = str(given) if is_file else f"state dict {number}"
    state, changes = _fitting(net, read_tensor_file(given) if isinstance(given, (str, Path)) else given, source)
    module = copy.deepcopy(net)
    module.load_state_dict(state, strict=False)
    for name, found in module.state_dict().items():
        if name in state and not _equal(found, state[name]):
            raise InvalidInput(
                f"{source} has values of its own for {name!r}, which the network does not keep: there it is the same "
                "tensor as another one, with other values. The weights are those of another architecture."
            )
    return LoadedModule(module, source, changes)


def _equal(found: Tensor, given: Tensor) -> bool:
    # Of NaN the tracer tells, with advice.
    return torch.equal(found.nan_to_num(), given.to(found).nan_to_num())


class _Candidate(NamedTuple):
    """Tensors by the names that they may have in the network, and what was done to get there."""

    state: dict[str, Tensor]
    changes: tuple[str, ...]

    def common(self, own: Mapping[str, Tensor]) -> int:
        """Return how many names are those of the network."""
        return len(self.state.keys() & own.keys())

    def fits(self, own: Mapping[str, Tensor]) -> bool:
        """Tell whether all of them are, and no other."""
        return not _counted(self.state.keys() ^ own.keys())


def _fitting(net: nn.Module, given: Any, source: str) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return the tensors for each name of the network, and what was done to their names."""
    own = {name: tensor for name, tensor in net.state_dict().items() if isinstance(tensor, Tensor)}
    # For each set of tensors the way of reading its names that is nearest to the network's.
    sets = [
        max(_readings(state, place), key=lambda reading: (reading.fits(own), reading.common(own)))
        for place, state in _sets_of_tensors(given, source)
    ]
    fitting = [candidate for candidate in sets if candidate.fits(own)]
    if len(fitting) > 1:
        places = " and ".join(candidate.changes[0] for candidate in fitting)
        raise InvalidInput(
            f"{source} holds several sets of weights that fit, {places}. Say which one you mean: "
            "torch.load(path, weights_only=True)[key] instead of the path."
        )
    if not fitting:
        nearest_one = max(sets, key=lambda candidate: candidate.common(own))
        raise InvalidInput(_mismatch(net, nearest_one, own, source))
    (chosen,) = fitting
    for name, tensor in chosen.state.items():
        if name in own and tensor.shape != own[name].shape:
            raise InvalidInput(
                f"{source}: {name!r} has shape {tuple(tensor.shape)}, but the network's is {tuple(own[name].shape)}."
            )
    return {name: tensor for name, tensor in chosen.state.items() if name in own}, chosen.changes


def _sets_of_tensors(given: Any, source: str) -> list[tuple[str, dict[str, Tensor]]]:
    """Return the dictionaries of tensors that were given, or are inside what was given, with the key of each."""
    if isinstance(given, nn.Module):
        raise InvalidInput(f"{source} is a module; for modules there is Samples.from_modules([...]).")
    if not isinstance(given, Mapping):
        raise InvalidInput(
            f"{source} is a {type(given).__name__}, where the tensors of a network are needed by name: "
            "module.state_dict(), or a file of it."
        )
    if _holds_tensors(given):
        return [("", dict(given))]
    inside = [(str(key), dict(value)) for key, value in given.items() if _holds_tensors(value)]
    if not inside:
        keys = ", ".join(repr(key) for key in list(given)[:SHOWN]) or "nothing"
        raise InvalidInput(
            f"{source} holds no dictionary of tensors by name, but {keys}. Save module.state_dict(), which is one."
        )
    return inside


def _holds_tensors(given: Any) -> bool:
    return (
        isinstance(given, Mapping)
        and len(given) > 0
        and all(isinstance(key, str) and isinstance(value, Tensor) for key, value in given.items())
    )


def _readings(state: dict[str, Tensor], place: str) -> Iterator[_Candidate]:
    """Yield tensors by their names, and again each time that a part was removed which wrappers may have put there."""
    changes = (f"under {place!r}",) if place else ()
    yield _Candidate(state, changes)
    if AVERAGED in state and len(state) > 1:
        state = {name: tensor for name, tensor in state.items() if name != AVERAGED}
        yield _Candidate(state, changes)
    plain = {_without_compiled(name): tensor for name, tensor in state.items()}
    if plain.keys() != state.keys() and len(plain) == len(state):
        state, changes = plain, (*changes, f"without {COMPILED + '.'!r}")
        yield _Candidate(state, changes)
    while len({name.partition(".")[0] for name in state}) == 1 and all("." in name for name in state):
        shared = next(iter(state)).partition(".")[0]
        state = {name.partition(".")[2]: tensor for name, tensor in state.items()}
        changes = (*changes, f"without the prefix {shared + '.'!r}")
        yield _Candidate(state, changes)


def _without_compiled(name: str) -> str:
    return ".".join(part for part in name.split(".") if part != COMPILED)


def _counted(names: Iterable[str]) -> list[str]:
    """Return the names that matter, in order."""
    return sorted(name for name in names if name.rpartition(".")[2] != COUNTER)


def _mismatch(net: nn.Module, candidate: _Candidate, own: Mapping[str, Tensor], source: str) -> str:
    unknown, missing = _counted(candidate.state.keys() - own.keys()), _counted(own.keys() - candidate.state.keys())
    parts = []
    if unknown:
        listed = [f"{name!r}{nearest(name, missing)}" for name in unknown[:SHOWN]]
        parts.append(f"the network has no {_and_more(listed, len(unknown))}")
    if missing:
        parts.append(f"missing are {_and_more([repr(name) for name in missing[:SHOWN]], len(missing))}")
    read = f" ({', '.join(candidate.changes)})" if candidate.changes else ""
    return f"{source}{read} does not fit {type(net).__name__}: {'. And '.join(parts)}."


def _and_more(listed: list[str], number: int) -> str:
    more = f" and {number - len(listed)} more" if number > len(listed) else ""
    return ("; " if any("; " in name for name in listed) else ", ").join(listed) + more
