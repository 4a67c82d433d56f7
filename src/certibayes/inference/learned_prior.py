"""A Gaussian prior whose variances are learned from the data, by type II maximum likelihood (MacKay, 1992; Neal, 1996).

Weights fall into groups, each with a variance of its own. The bound on the evidence depends on the variance v of a
group G by Σ_{i in G} E_q[ log N(w_i; 0, v) ] alone, which is largest where

    v = mean over G of E_q[w²] = mean over G of m² + s²,

at any temperature. That is the M-step of an EM algorithm; ``fit`` makes one every so many steps. A group that the data
do not need shrinks, mean and standard deviation, at no KL divergence: with the weights that leave one input as a group
this is automatic relevance determination.

Without standard deviations of its own a method cannot learn a prior: p(w | v) grows without bound where a group and its
variance go to 0 together.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from certibayes.errors import InvalidInput
from certibayes.inference.prior import GaussianPrior
from certibayes.networks import Graph, Params
from certibayes.networks.operations import Conv2d, Linear, Operation
from certibayes.support.checks import whole_number
from certibayes.support.names import unknown_name
from certibayes.support.tensors import tensor_bytes

GROUPS = ("inputs", "layers", "weights")
"""Names of groups; see ``LearnedPrior``."""

MOST_STEPS, TOLERANCE = 100, 1e-3
"""EM steps at most where variances are learned at once, and the relative change that ends them."""

Grouping = Callable[[str], Tensor]
"""The group of every entry of the parameter with this name: whole numbers >= 0, in the parameter's shape."""


@dataclass(frozen=True)
class LearnedPrior(GaussianPrior):
    """Zero-mean normal prior with a learned variance for every group of weights.

    For methods whose Gaussian has standard deviations while it is trained (VOGN, NoisyAdam, BBB, IVON), and for
    Laplace, which learns the variances at its end, around the weights that were found; they are then at most those that
    it was trained with.

    Attributes:
        variance_scale: of the variances that learning starts from, as in ``GaussianPrior``.
        std: one standard deviation for every weight to start from instead.
        groups: ``"inputs"``, a variance for the weights that leave one input or one hidden unit: one for each column of
            a linear layer and each input channel of a convolution, one for each bias vector. ``"layers"``, one for each
            tensor. ``"weights"``, one for each weight. Or a function from a parameter's name to a tensor of whole
            numbers >= 0 in its shape; the same number is the same group, in other parameters too.
        every: steps between two updates of the variances, counted within an epoch, at whose end there is one too. A GPU
            makes ten steps at a time; multiples of ten do not break these up.
        start: fraction of training before the first update, with the prior that learning starts from. Groups shrink
            while the network has learned nothing yet, and do not always come back.
        floor: smallest variance. A group that shrinks further is kept at it, which a warning says once.
    """

    groups: str | Grouping = "inputs"
    every: int = 10
    start: float = 0.0
    floor: float = 1e-10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.l1:
            raise InvalidInput("a learned prior has no l1: the variances of such a prior have no closed form.")
        if not callable(self.groups) and self.groups not in GROUPS:
            raise InvalidInput(
                unknown_name("grouping of weights", self.groups, GROUPS)
                + " Or pass a function from a parameter's name to a tensor of group numbers in its shape."
            )
        whole_number(self.every, "every", smallest=1)
        if not 0.0 <= self.start < 1.0:
            raise InvalidInput(f"start is a fraction of training in [0, 1), got {self.start}.")
        if not (math.isfinite(self.floor) and self.floor > 0):
            raise InvalidInput(f"floor is the smallest variance, a positive number, got {self.floor}.")

    def grouped(self, graph: Graph, params: Params) -> Groups:
        """Return which weights share a variance.

        Args:
            graph: the network.
            params: its parameters by name.

        Raises:
            InvalidInput: ``groups`` is a function and does not give a group to every weight.
        """
        chosen = {name: params[name] for name in graph.parameters}
        if callable(self.groups):
            return Groups(_numbered(self.groups, chosen), self.every, self.start, self.floor)
        operations = {name: node.operation for node in graph.nodes for name in _matrix(node.roles)}
        index, start = {}, 0
        for name, p in chosen.items():
            own = _own_groups(self.groups, operations.get(name), p)
            index[name] = own + start
            start += int(own.max()) + 1
        return Groups(index, self.every, self.start, self.floor)

    def describe(self) -> dict[str, Any]:
        """See the base class."""
        groups = self.groups if isinstance(self.groups, str) else getattr(self.groups, "__qualname__", "function")
        return {
            **super().describe(),
            "name": "LearnedPrior",
            "groups": groups,
            "every": self.every,
            "start": self.start,
            "floor": self.floor,
        }


@dataclass(frozen=True)
class Groups:
    """Which weights share a variance, G groups in all.

    Attributes:
        index: the group of every weight, in 0, ..., G - 1, by name and in the parameter's shape.
        every: see ``LearnedPrior``.
        start: see ``LearnedPrior``.
        floor: see ``LearnedPrior``.
    """

    index: dict[str, Tensor]
    every: int
    start: float
    floor: float

    @cached_property
    def number(self) -> int:
        """G."""
        return int(self._flat.max()) + 1

    @cached_property
    def _flat(self) -> Tensor:
        return torch.cat([own.flatten() for own in self.index.values()])

    @cached_property
    def _order(self) -> Tensor:
        """Weights in the order of their groups."""
        return torch.argsort(self._flat, stable=True)

    @cached_property
    def _lengths(self) -> Tensor:
        """Weights in each group, (G,)."""
        return torch.bincount(self._flat, minlength=self.number)

    def due(self, step: int, epoch_steps: int, total_steps: int) -> bool:
        """Tell whether the variances are learned after so many steps."""
        return step > self.start * total_steps and step % epoch_steps % self.every == 0

    def by_group(self, precision: Params) -> Tensor:
        """Return the precisions of all groups, (G,), from those of all weights."""
        firsts = self._order[self._lengths.cumsum(0) - self._lengths]
        each = torch.cat([precision[name].expand(own.shape).flatten() for name, own in self.index.items()])
        return each[firsts]

    def by_weight(self, precisions: Tensor) -> dict[str, Tensor]:
        """Return the precision of every weight, in the parameters' shapes, from those of all groups (G,)."""
        return {name: precisions[own] for name, own in self.index.items()}

    def initial(self, precision: Params) -> dict[str, Tensor]:
        """Return the precision of every weight where learning starts: a group has the mean of its weights' variances.

        Args:
            precision: of the prior to start from, by name, 0-d.
        """
        dtype = next(iter(precision.values())).dtype
        squares = {name: precision[name].double().reciprocal().expand(own.shape) for name, own in self.index.items()}
        return self._explaining(squares, dtype)

    def learned(self, mean: Params, std: Params) -> dict[str, Tensor]:
        """Return the precision of every weight under the prior that explains N(mean, std²) best.

        Args:
            mean: of the weights, by name.
            std: likewise.
        """
        squares = {name: mean[name].square() + std[name].square() for name in self.index}
        return self._explaining(squares, next(iter(mean.values())).dtype)

    def _explaining(self, squares: Params, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the precision of every weight at which a group's variance is the mean of its expected squares."""
        each = torch.cat([squares[name].flatten() for name in self.index])
        # In the order of the groups, each is a sum in one order: the same bits again, also on a GPU.
        totals = torch.segment_reduce(each[self._order].double(), "sum", lengths=self._lengths, axis=0)
        variances = (totals / self._lengths).clamp(min=self.floor)
        return self.by_weight(variances.reciprocal().to(dtype))

    def maximized(self, precision: Params, mean: Params, deviations: Callable[[Params], Params]) -> dict[str, Tensor]:
        """Return the precision of every weight at which the evidence is largest, by EM steps until they change nothing.

        Args:
            precision: to start from, and the smallest: where the likelihood is flat, a mean that is not at the mode
                would let the variance grow without end.
            mean: of the Gaussian, which stays.
            deviations: from the prior's precisions to the standard deviations of the weights that are random. The
                variances of others stay as they are.
        """
        start = precision = dict(precision)
        for _ in range(MOST_STEPS):
            std = deviations(precision)
            # Moments of the prior itself change nothing for weights without standard deviations of their own.
            centers = {name: mean[name] if name in std else torch.zeros_like(mean[name]) for name in self.index}
            others = {name: p.rsqrt() for name, p in precision.items() if name not in std}
            learned = self.learned(centers, {**others, **std})
            before, precision = precision, {name: torch.maximum(learned[name], start[name]) for name in learned}
            if all(torch.allclose(precision[name], before[name], rtol=TOLERANCE, atol=0.0) for name in precision):
                break
        return precision

    def at_floor(self, variances: Params) -> int:
        """Return how many groups have the smallest variance, and warn if any has."""
        number = int((self.by_group(variances).double() <= self.floor * (1 + 1e-5)).sum())
        if number:
            warnings.warn(
                f"{number} of {self.number} variances of the learned prior went to 0 and are kept at their floor, "
                f"{self.floor:g}: the data do not need these weights. LearnedPrior(floor=...) is another floor.",
                stacklevel=2,
            )
        return number

    def variances(self, precision: Params) -> dict[str, Tensor]:
        """Return the variances by parameter; dimensions along which all are equal have length 1."""
        return {name: _without_repeats(p.reciprocal()) for name, p in precision.items()}

    def describe(self) -> dict[str, Any]:
        """Return what goes into a posterior's metadata: how many variances there are, and whose."""
        return {"variances": self.number, "sha256": hashlib.sha256(tensor_bytes(self._flat)).hexdigest()}


def _matrix(roles: Mapping[str, str]) -> list[str]:
    return [roles["weight"]] if "weight" in roles else []


def _own_groups(groups: str, operation: Operation | None, p: Tensor) -> Tensor:
    """Return the groups within one parameter, from 0, in its shape."""
    if groups == "weights":
        return torch.arange(p.numel(), device=p.device).view(p.shape)
    none = torch.zeros(p.shape, dtype=torch.long, device=p.device)
    if groups == "layers":
        return none
    if isinstance(operation, Linear):
        return none + torch.arange(p.shape[1], device=p.device)
    if isinstance(operation, Conv2d):
        # With groups of channels, (out, in / groups, ...): the second half of the filters sees other inputs.
        parts = torch.arange(len(p), device=p.device) // (len(p) // operation.groups)
        inputs = parts[:, None] * p.shape[1] + torch.arange(p.shape[1], device=p.device)
        return none + inputs.view(*inputs.shape, *(1 for _ in p.shape[2:]))
    return none


def _numbered(groups: Grouping, params: Params) -> dict[str, Tensor]:
    """Return the groups that a function gives, numbered without gaps."""
    found = {}
    for name, p in params.items():
        own = groups(name)
        if not isinstance(own, Tensor) or own.is_floating_point() or own.is_complex() or own.dtype == torch.bool:
            raise InvalidInput(
                f"groups gave {_shown(own)} for the parameter {name!r}, which is left without a group. Return a tensor "
                f"of whole numbers of shape {tuple(p.shape)}."
            )
        if own.shape != p.shape:
            raise InvalidInput(
                f"groups do not cover the parameter {name!r}: it has shape {tuple(p.shape)}, and its groups have "
                f"{tuple(own.shape)}. Expand them: index.expand({tuple(p.shape)})."
            )
        if bool((own < 0).any()):
            raise InvalidInput(f"groups has a negative number for the parameter {name!r}; groups count from 0.")
        found[name] = own.to(p.device, torch.long)
    _, numbers = torch.unique(torch.cat([own.flatten() for own in found.values()]), return_inverse=True)
    parts = numbers.split([own.numel() for own in found.values()])
    return {name: part.view(found[name].shape) for name, part in zip(found, parts, strict=True)}


def _shown(value: Any) -> str:
    return f"a tensor of {value.dtype}" if isinstance(value, Tensor) else repr(value)


def _without_repeats(tensor: Tensor) -> Tensor:
    for dim in range(tensor.dim()):
        first = tensor.narrow(dim, 0, 1)
        tensor = first if bool((tensor == first).all()) else tensor
    return tensor.clone()
