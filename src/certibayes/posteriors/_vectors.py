"""Parameters as one vector, in the order of ``net.parameters()``, as laplace-torch and torch itself write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from certibayes.errors import InvalidInput
from certibayes.networks import Network
from certibayes.support.names import nearest
from certibayes.support.tensors import as_tensor


def parameters_from_vectors(network: Network, given: Any, names: Sequence[str] | None, what: str) -> dict[str, Tensor]:
    """Cut vectors into parameters.

    Args:
        network: whose parameters they are.
        given: (S, P), in the order of ``torch.nn.utils.parameters_to_vector(net.parameters())``.
        names: of the parameters that the vectors hold, in their order. By default all of the network; or all that are
            not frozen (``requires_grad``), if the vectors have as many numbers as those.
        what: how an error names the vectors.

    Returns:
        The parameters that the vectors hold, each (S, ...), in the precision of the network and where it is.

    Raises:
        InvalidInput: the vectors have another length, or a name is unknown.
    """
    vectors = as_tensor(given, what).detach()
    if vectors.dim() != 2 or not len(vectors):
        raise InvalidInput(
            f"{what} must be vectors (S, P), one row for each of at least one sample; got {tuple(vectors.shape)}."
        )
    own, length = network.params, vectors.shape[1]
    chosen = _known(network, names) if names is not None else list(own)
    trained = [name for name in own if name not in network.frozen]
    if names is None and length != _numbers(network, chosen) and length == _numbers(network, trained):
        chosen = trained
    if length != _numbers(network, chosen):
        raise InvalidInput(
            f"{what} has {length} numbers for each sample, but {'the network' if names is None else ', '.join(names)} "
            f"has {_numbers(network, chosen)}.{_advice(network, length)}"
        )
    pieces = vectors.split([own[name].numel() for name in chosen], dim=1)
    return {name: piece.reshape(-1, *own[name].shape).to(own[name]) for name, piece in zip(chosen, pieces, strict=True)}


def _numbers(network: Network, names: Sequence[str]) -> int:
    return sum(network.params[name].numel() for name in names)


def _known(network: Network, names: Sequence[str]) -> list[str]:
    if isinstance(names, str):
        raise InvalidInput(f"names must be a list of parameters, such as [{names!r}].")
    for name in names:
        if name not in network.params:
            raise InvalidInput(f"the network has no parameter {name!r}{nearest(name, network.params)}.")
    if not len(names) or len(set(names)) < len(names):
        raise InvalidInput(f"names must be at least one parameter, each once; got {list(names)}.")
    return list(names)


def _advice(network: Network, length: int) -> str:
    """Name the last parameters, if the vectors are as long as some of them: samples of the last layer, most likely."""
    names = list(network.params)
    for start in range(len(names) - 1, 0, -1):
        if _numbers(network, names[start:]) == length:
            return f" If they are those of the last layer, say so: names={names[start:]}."
    return " Vectors are those of torch.nn.utils.parameters_to_vector(net.parameters())."
