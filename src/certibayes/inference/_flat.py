"""All weights in one vector, so that an elementwise rule takes one kernel and not one for each tensor.

Algorithms are written for dictionaries of tensors. Those that treat every weight alike are as right for a dictionary
with a single entry, the weights one after another; ``FlatTarget`` unpacks them again where the network needs them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from certibayes.inference.algorithm import Algorithm
from certibayes.inference.target import Target
from certibayes.likelihoods import PAIRS, Batch, Gradients, Noise
from certibayes.networks import Params

FLAT = "weights"
"""The one name in a dictionary of flat weights."""


@dataclass(frozen=True)
class Layout:
    """Where each tensor lies in the vector of all weights.

    Attributes:
        shapes: of the tensors, by name, in their order.
    """

    shapes: dict[str, torch.Size]

    def __hash__(self) -> int:
        return hash(tuple(self.shapes.items()))

    def join(self, named: Params) -> Tensor:
        """Return tensors (..., *shape) as one of shape (..., P), with the same leading dimensions."""
        return torch.cat([named[name].flatten(-len(s)) if s else named[name][..., None] for name, s in self._items], -1)

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the tensors (..., *shape) in a vector (..., P), without copying."""
        parts = torch.split(flat, [math.prod(shape) for shape in self.shapes.values()], -1)
        return {
            name: part.unflatten(-1, s) if s else part[..., 0]
            for (name, s), part in zip(self._items, parts, strict=True)
        }

    def joined(self, tree: Any) -> Any:
        """Return a state with every dictionary of named tensors in it joined; what is under ``PAIRS`` stays apart."""
        return self._mapped(tree, lambda named: {FLAT: self.join(named)}, self.shapes.keys())

    def named(self, tree: Any) -> Any:
        """Return a state with every joined dictionary in it split, without copying."""
        return self._mapped(tree, lambda flat: self.split(flat[FLAT]), {FLAT})

    @property
    def _items(self) -> list[tuple[str, torch.Size]]:
        return list(self.shapes.items())

    @staticmethod
    def _mapped(tree: Any, change: Callable[[Any], Any], names: Any) -> Any:
        def known(node: Any) -> bool:
            return isinstance(node, dict) and node.keys() - {PAIRS} == names

        def changed(node: Any) -> Any:
            return {**change(node), **{name: node[name] for name in node.keys() & {PAIRS}}}

        return pytree.tree_map(lambda node: changed(node) if known(node) else node, tree, is_leaf=known)


def is_elementwise(algorithm: Algorithm[Any]) -> bool:
    """Tell whether an algorithm's steps may be given all weights as one vector.

    Only the class that defines ``update`` can know: one that derives from it with steps of its own may look at names.
    """
    owner = next(kind for kind in type(algorithm).__mro__ if "update" in vars(kind))
    return bool(vars(owner).get("elementwise", False))


@dataclass(frozen=True)
class FlatTarget(Target):
    """A target whose parameters are given as {FLAT: vector}.

    Attributes:
        layout: of the named parameters.
    """

    layout: Layout = Layout({})

    @classmethod
    def of(cls, target: Target, params: Params) -> FlatTarget:
        """Make a target of flat parameters that is the same function of them."""
        layout = Layout({name: p.shape for name, p in params.items()})
        same = {field.name: getattr(target, field.name) for field in fields(Target)}
        for name in ("precision", "l1"):
            if same[name]:
                each = {weight: same[name][weight].expand(p.shape) for weight, p in params.items()}
                same[name] = {FLAT: layout.join(each)}
        return cls(**same, layout=layout)

    def weights(self, params: Params) -> dict[str, Tensor]:
        """See the base class."""
        return super().weights(self.layout.split(params[FLAT]))

    def named(self, params: Params) -> Params:
        """See the base class."""
        return self.layout.split(params[FLAT])

    def value_and_gradient(
        self, params: Params, batch: Batch, noise: Noise, scale: float, penalized: bool = False
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """See the base class."""
        values, gradient = super().value_and_gradient(self.layout.split(params[FLAT]), batch, noise, scale, penalized)
        return values, {FLAT: self.layout.join(gradient)}

    def value_and_slopes(
        self, params: Params, batch: Batch, noise: Noise, scale: float
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """See the base class."""
        values, *slopes = super().value_and_slopes(self.layout.split(params[FLAT]), batch, noise, scale)
        gradient, magnitudes = (self.layout.joined(part) for part in slopes)
        return values, gradient, magnitudes

    def likelihood_gradients(self, params: Params, batch: Batch, noise: Noise) -> Gradients:
        """See the base class."""
        values, *sums = super().likelihood_gradients(self.layout.split(params[FLAT]), batch, noise)
        return Gradients(values, *(self.layout.joined(part) for part in sums))
