"""Out-of-distribution inputs: another data set, or images changed beyond recognition, which need no download."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from certibayes import data
from certibayes.data import DataSet
from certibayes.errors import InvalidInput
from certibayes.support.names import unknown_name
from certibayes.support.seeds import derived_seed

USUAL = {
    "digits": "shuffled",
    "mnist": "fashion-mnist",
    "fashion-mnist": "mnist",
    "cifar10": "svhn",
    "svhn": "cifar10",
}
"""The out-of-distribution inputs of a data set unless others are named; for MNIST and CIFAR-10 as in the paper."""


def _inverted(x: Tensor, domain: tuple[Any, Any]) -> Tensor:
    # Rounding may leave the domain by a hair where its ends do not add up exactly.
    return (sum(domain) - x).clamp(*domain)


def _shuffled(x: Tensor, domain: tuple[Any, Any]) -> Tensor:
    flat = x.flatten(1)
    order = torch.randperm(flat.shape[1], generator=_generator("shuffled"))
    return flat[:, order].reshape(x.shape)


def _noise(x: Tensor, domain: tuple[Any, Any]) -> Tensor:
    low, high = domain
    return low + (high - low) * torch.rand(x.shape, generator=_generator("noise"), dtype=x.dtype)


def _independent(x: Tensor, domain: tuple[Any, Any]) -> Tensor:
    flat = x.flatten(1)
    generator = _generator("independent")
    columns = [column[torch.randperm(len(flat), generator=generator)] for column in flat.T]
    return torch.stack(columns, 1).reshape(x.shape)


def _generator(name: str) -> torch.Generator:
    # The word is part of the seed: with another one, stored results could not be repeated.
    return torch.Generator().manual_seed(derived_seed(0, "foreign", name))


MADE: dict[str, Callable[[Tensor, tuple[Any, Any]], Tensor]] = {
    "inverted": _inverted,
    "shuffled": _shuffled,
    "noise": _noise,
    "independent": _independent,
}
"""Inputs made of in-distribution ones: light for dark, one permutation of all pixels, uniform noise, and each column
drawn from those of other inputs, whatever the other columns are."""


def usual_out_of_distribution(dataset: str) -> str:
    """Return the name of a data set's out-of-distribution inputs unless others are named."""
    return USUAL.get(dataset, "shuffled")


def load_out_of_distribution(
    name: str, dataset: DataSet, data_dir: str | Path | None = None, limit: int | None = None
) -> Tensor:
    """Return out-of-distribution test inputs (m, ...) of the same shape as those of a data set.

    Args:
        name: of another data set, or one of ``MADE``.
        dataset: the in-distribution data set.
        data_dir: where data sets lie.
        limit: take only the first so many.
    """
    if not dataset.classes:
        raise InvalidInput(f"{dataset.name} is a regression; its predictors give no class probabilities.")
    if name in MADE:
        return MADE[name](dataset.test.inputs[:limit], dataset.domain or (0.0, 1.0))
    if name not in data.names():
        raise InvalidInput(unknown_name("set of out-of-distribution inputs", name, (*data.names(), *MADE)))
    if name == dataset.name:
        raise InvalidInput(
            f"{name} cannot be out of distribution for itself; name another data set, or one of {', '.join(MADE)}."
        )
    found = data.load(name, data_dir).test.inputs[:limit]
    shapes = tuple(tuple(inputs.shape[1:]) for inputs in (found, dataset.test.inputs))
    if shapes[0] != shapes[1]:
        raise InvalidInput(
            f"inputs of {name} have shape {shapes[0]} and those of {dataset.name} {shapes[1]}; the same network must "
            f"take both. Name a data set of the same shape, or one of {', '.join(MADE)}."
        )
    return found
