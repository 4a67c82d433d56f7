"""One function, many weight samples: a loop on a CPU, vmap in chunks on a GPU.

Everything in this library is written for one network. Stacked samples are dictionaries whose tensors have a
leading dimension S. On a CPU a plain loop is faster than vmap; on a GPU vmap fills the device, and the
chunk is halved until it fits in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Result = TypeVar("Result")
Params = Mapping[str, Tensor]
"""Parameters (and buffers) by name, as ``named_parameters`` gives them."""


def count(stacked: Params) -> int:
    """Return the number S of stacked samples."""
    return int(next(iter(stacked.values())).shape[0])


def pick(stacked: Params, index: int) -> dict[str, Tensor]:
    """Return one sample."""
    return {name: tensor[index] for name, tensor in stacked.items()}


def stack(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Stack samples along a new leading dimension."""
    return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}


def joined(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Put stacks of samples one after another."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def first(stacked: Params, number: int) -> dict[str, Tensor]:
    """Return the first samples of a stack."""
    return {name: tensor[:number] for name, tensor in stacked.items()}


def are_mapped(stacked: Params) -> bool:
    """Tell whether ``map_samples`` takes these samples all at once: where they are on a GPU."""
    return next(iter(stacked.values())).is_cuda


def map_samples(function: Callable[[dict[str, Tensor]], Result], stacked: Params, mapped: bool = True) -> Result:
    """Return ``function`` of every sample; each tensor of its result stacked, (S, ...).

    ``function`` takes the parameters of one network and returns a tensor, or tensors in tuples and dictionaries; where
    vmap cannot trace it, it must not be ``mapped``, and sees one network after the other on every device.
    """
    if are_mapped(stacked) and mapped:
        parts, join = list(_in_chunks(function, stacked)), torch.cat
    else:
        parts, join = [function(pick(stacked, i)) for i in range(count(stacked))], torch.stack
    return pytree.tree_map(lambda *tensors: join(tensors), *parts)


def _in_chunks(function: Callable[[dict[str, Tensor]], Result], stacked: Params) -> Iterator[Result]:
    """Yield ``function`` of chunks of samples, each result with a leading dimension of that chunk's size."""
    total = count(stacked)
    chunk, start = total, 0
    while start < total:
        part = {name: tensor[start : start + chunk] for name, tensor in stacked.items()}
        try:
            result = torch.vmap(function)(part)
        except torch.cuda.OutOfMemoryError:
            if chunk == 1:
                raise
            chunk = (chunk + 1) // 2
            torch.cuda.empty_cache()
            continue
        yield result
        start += chunk


def map_trees(function: Callable[..., Any], *stacked: Any) -> Any:
    """Return ``torch.vmap`` of a function of trees; what is no tensor in them, or in its result, is the same for all.

    Args:
        function: of one sample's part of each tree.
        *stacked: trees of tensors with a leading dimension S, and of anything else.
    """
    found: list[Any] = []

    def tensors_of(*trees: Any) -> tuple[Tensor, ...]:
        found[:] = pytree.tree_flatten(function(*trees))
        return tuple(leaf for leaf in found[0] if isinstance(leaf, Tensor))

    dims = pytree.tree_map(lambda leaf: 0 if isinstance(leaf, Tensor) else None, stacked)
    tensors = iter(torch.vmap(tensors_of, in_dims=dims)(*stacked))
    leaves, structure = found
    return pytree.tree_unflatten([next(tensors) if isinstance(leaf, Tensor) else leaf for leaf in leaves], structure)


def is_mapped(tensor: Tensor) -> bool:
    """Tell whether this is one of many that ``torch.vmap`` goes through, so that nobody can look at it."""
    return isinstance(tensor, Tensor) and bool(torch._C._functorch.is_batchedtensor(tensor))


def is_recorded(tensor: Tensor) -> bool:
    """Tell whether anybody differentiates by this tensor, also outside of a map, which torch itself does not tell."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        if tensor.requires_grad:
            return True
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor.requires_grad


def map_levels(tensors: Iterable[Tensor]) -> set[int]:
    """Return which maps these tensors are inside of; one, unless maps are nested."""
    return {torch._C._functorch.maybe_get_level(tensor) for tensor in tensors if is_mapped(tensor)}


def in_memory(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors inside a map as they lie in memory, all samples first, with dimensions that still broadcast."""
    dims = max(tensor.dim() for tensor in tensors)

    def lying(tensor: Tensor) -> Tensor:
        if not is_mapped(tensor):
            return tensor
        samples = torch._C._functorch.get_unwrapped(tensor).movedim(torch._C._functorch.maybe_get_bdim(tensor), 0)
        return samples[(slice(None), *(None for _ in range(dims - tensor.dim())))]

    return [lying(tensor) for tensor in tensors]


def inside_map(samples: Tensor, level: int) -> Tensor:
    """Return what a map of this level sees of samples, (S, ...)."""
    return torch._C._functorch._add_batch_dim(samples, 0, level)


def add_product(total: Tensor, one: Tensor, other: Tensor, value: float = 1.0) -> Tensor:
    """Return total + value * one * other, in the memory of ``total``, which is lost.

    Fresh memory would cost more than the arithmetic. Only inside ``torch.vmap``, which makes ``addcmul_`` sample by
    sample, is it taken. Also part of ``fused`` formulas.
    """
    if is_mapped(total):
        return torch.addcmul(total, one, other, value=value)
    return total.addcmul_(one, other, value=value)
