"""Parameters by name, as users hand them over: checked against a network, and as tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from certibayes.errors import CorruptFile, InvalidInput
from certibayes.networks import Graph, Network, Params
from certibayes.support.stacks import stack
from certibayes.support.tensors import as_tensor


def parameters_of(network: Network, given: Any, what: str) -> dict[str, Tensor]:
    """Return a tensor for every parameter, and for those buffers that are given.

    Args:
        network: whose parameters they are. One that was read from a file carries none of its own to compare shapes
            with; its file has a checksum instead.
        given: a mapping from names to tensors, arrays or lists. Tensors stay as they are; everything else takes the
            precision of the network.
        what: how an error names them.

    Raises:
        InvalidInput: it is no mapping, or names or shapes are not those of the network.
    """
    _require_mapping(given, what)
    _require_names(network.graph, given, what)
    tensors = {name: _as_weight(values, network, f"{what}[{name!r}]") for name, values in given.items()}
    for name, own in {**network.params, **network.buffers}.items():
        if name in tensors:
            _require_shape(tensors[name].shape, own.shape, f"{what}[{name!r}]")
    return tensors


def stacked_parameters_of(network: Network, given: Any, what: str) -> dict[str, Tensor]:
    """Return the parameters of S networks as one dictionary of tensors (S, ...).

    Args:
        network: whose architecture they have.
        given: a mapping from names to tensors, arrays or lists (S, ...); or a sequence of S mappings, one for each
            network, which are stacked.
        what: how an error names them.

    Raises:
        InvalidInput: names or shapes are not those of the network, or differ from sample to sample.
    """
    if isinstance(given, Sequence) and not isinstance(given, str):
        return _stack_of(network, given, what)
    _require_mapping(given, what)
    _require_names(network.graph, given, what)
    tensors = {name: _as_weight(values, network, f"{what}[{name!r}]") for name, values in given.items()}
    leading = {name: tensor.shape[0] if tensor.dim() else 0 for name, tensor in tensors.items()}
    if len(set(leading.values())) != 1 or 0 in leading.values():
        raise InvalidInput(
            f"every tensor of {what} must have the same leading dimension, the number of samples; found {leading}. A "
            "single network is a Point(net)."
        )
    for name, own in {**network.params, **network.buffers}.items():
        if name in tensors:
            _require_shape(tensors[name].shape[1:], own.shape, f"a sample of {what}[{name!r}]")
    return tensors


def named_tensors(prefix: str, graph: Graph, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Pick the tensors stored as ``prefix:name``, one for each parameter."""
    try:
        return {name: tensors[f"{prefix}:{name}"] for name in graph.parameters}
    except KeyError as error:
        raise CorruptFile(f"the posterior file lacks the tensor {error}.") from error


def _stack_of(network: Network, samples: Sequence[Any], what: str) -> dict[str, Tensor]:
    if not samples:
        raise InvalidInput(f"{what} is empty; a posterior of samples needs at least one.")
    each = [parameters_of(network, sample, f"{what}[{number}]") for number, sample in enumerate(samples)]
    for number, sample in enumerate(each):
        if sample.keys() != each[0].keys():
            differing = ", ".join(sorted(sample.keys() ^ each[0].keys()))
            raise InvalidInput(
                f"{what}[{number}] and {what}[0] do not hold the same names: {differing} is in only one."
            )
        for name, tensor in sample.items():
            if tensor.shape != each[0][name].shape:
                raise InvalidInput(
                    f"{what}[{number}] and {what}[0] differ in the shape of {name!r}: {tuple(tensor.shape)} and "
                    f"{tuple(each[0][name].shape)}."
                )
    return stack(each)


def _require_mapping(given: Any, what: str) -> None:
    if isinstance(given, nn.Module):
        raise InvalidInput(
            f"{what} is a module; its parameters are needed, by name: dict(module.named_parameters()). For several "
            "trained modules there is Samples.from_modules([...]), for one Point(net)."
        )
    if not isinstance(given, Mapping):
        raise InvalidInput(
            f"{what} must hold the network's parameters by name, such as dict(net.named_parameters()); got "
            f"{type(given).__name__}."
        )


def _require_names(graph: Graph, given: Params, what: str) -> None:
    missing = [name for name in graph.parameters if name not in given]
    extra = [name for name in given if name not in graph.parameters and name not in graph.buffers]
    if missing or extra:
        raise InvalidInput(
            f"{what} must hold the network's parameters by name. Missing: {missing or 'none'}; unknown: "
            f"{extra or 'none'}. Use dict(net.named_parameters())."
        )


def _require_shape(found: torch.Size, own: torch.Size, what: str) -> None:
    if found != own:
        raise InvalidInput(f"{what} has shape {tuple(found)}, but the network's is {tuple(own)}.")


def _as_weight(values: Any, network: Network, what: str) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach()
    tensor = as_tensor(values, what)
    like = next(iter(network.params.values()), None)
    if like is not None:
        return tensor.to(like)
    return tensor if tensor.is_floating_point() else tensor.to(torch.get_default_dtype())
