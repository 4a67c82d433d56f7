"""Normal numbers for the steps of an algorithm: of one model, or of several that are trained as one program.

Each model draws from a generator of its own, the one that it would have alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Streams(NamedTuple):
    """The generators of several models.

    Attributes:
        generators: one for each model.
        sizes: how many numbers a model draws at a time, which sum to the number of its weights. A CPU's generator gives
            other numbers if more of them are drawn at once, and there a model alone draws tensor by tensor.
    """

    generators: tuple[torch.Generator, ...]
    sizes: tuple[int, ...]


def normal_like(tensor: Tensor, generator: torch.Generator | Streams) -> Tensor:
    """Draw one number from N(0, 1) for every element of ``tensor``.

    Algorithms with ``elementwise = True`` draw by this alone: for several models the tensor is (M, P), and each row
    comes from its own model's generator.
    """
    if isinstance(generator, torch.Generator):
        return torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype, device=tensor.device)
    normal = torch.empty_like(tensor)
    for row, own in zip(normal, generator.generators, strict=True):
        for part in row.split(generator.sizes):
            part.normal_(generator=own)
    return normal


def generators_of(generator: torch.Generator | Streams) -> tuple[torch.Generator, ...]:
    """Return all generators, one or several."""
    return (generator,) if isinstance(generator, torch.Generator) else generator.generators


def fresh(generator: torch.Generator | Streams) -> Any:
    """Return others of the same kind, for draws that do not count."""
    if isinstance(generator, torch.Generator):
        return torch.Generator(generator.device)
    return generator._replace(generators=tuple(torch.Generator(own.device) for own in generator.generators))
