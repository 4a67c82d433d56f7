"""Inputs from elsewhere: another data set, or familiar images made foreign, for which nothing has to be downloaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from certibayes import data
from certibayes.data import DataSet
from certibayes.errors import InvalidInput
from certibayes.support.seeds import derived_seed

USUAL = {
    "digits": "shuffled",
    "mnist": "fashion-mnist",
    "fashion-mnist": "mnist",
    "cifar10": "svhn",
    "svhn": "cifar10",
}
"""What is foreign to a data set unless something else is named; for MNIST and CIFAR-10 as in the paper."""


def _inverted(x: Tensor, domain: tuple[float, float]) -> Tensor:
    # Rounding may leave the domain by a hair where its ends do not add up exactly.
    return (sum(domain) - x).clamp(*domain)


def _shuffled(x: Tensor, domain: tuple[float, float]) -> Tensor:
    flat = x.flatten(1)
    order = torch.randperm(flat.shape[1], generator=_generator("shuffled"))
    return flat[:, order].reshape(x.shape)


def _noise(x: Tensor, domain: tuple[float, float]) -> Tensor:
    low, high = domain
    return low + (high - low) * torch.rand(x.shape, generator=_generator("noise"), dtype=x.dtype)


def _generator(name: str) -> torch.Generator:
    return torch.Generator().manual_seed(derived_seed(0, "foreign", name))


MADE: dict[str, Callable[[Tensor, tuple[float, float]], Tensor]] = {
    "inverted": _inverted,
    "shuffled": _shuffled,
    "noise": _noise,
}
"""Foreign inputs made of familiar ones: light for dark, one permutation of all pixels, uniform noise."""


def usual_foreign(dataset: str) -> str:
    """Return what is foreign to a data set unless something else is named."""
    return USUAL.get(dataset, "shuffled")


def load_foreign(name: str, familiar: DataSet, data_dir: str | Path | None = None, limit: int | None = None) -> Tensor:
    """Return foreign test inputs (m, ...) of the same shape as the familiar ones.

    Args:
        name: of another data set, or one of ``MADE``.
        familiar: the data set that they are foreign to.
        data_dir: where data sets lie.
        limit: take only the first so many.
    """
    if not familiar.classes:
        raise InvalidInput(f"{familiar.name} is a regression; its predictors have no class probabilities to doubt.")
    if name in MADE:
        return MADE[name](familiar.test.inputs[:limit], familiar.domain or (0.0, 1.0))
    if name not in data.names():
        known = ", ".join((*data.names(), *MADE))
        raise InvalidInput(f"there are no out-of-distribution inputs {name!r}; known are {known}.")
    if name == familiar.name:
        raise InvalidInput(f"{name} is not foreign to itself; name another data set, or one of {', '.join(MADE)}.")
    found = data.load(name, data_dir).test.inputs[:limit]
    shapes = tuple(tuple(inputs.shape[1:]) for inputs in (found, familiar.test.inputs))
    if shapes[0] != shapes[1]:
        raise InvalidInput(
            f"inputs of {name} have shape {shapes[0]} and those of {familiar.name} {shapes[1]}; the same network must "
            f"take both. Name a data set of the same shape, or one of {', '.join(MADE)}."
        )
    return found
