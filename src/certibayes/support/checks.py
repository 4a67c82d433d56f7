"""Checks at the borders: what must hold before anything is bounded, attacked or trained on."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from certibayes.errors import InvalidInput
from certibayes.support.tensors import as_tensor

LARGEST = 2.0**30
"""Weights and inputs beyond this are refused, so that the rounding of bounds may leave out what is smaller than
floats can be."""


def require_finite(x: Tensor, what: str) -> None:
    """Raise if a float tensor holds NaN or infinite values."""
    # Extremes, which are NaN where anything is: twenty times as fast on a CPU as asking every number.
    if x.is_floating_point() and x.numel() and not bool(torch.isfinite(torch.stack([x.amin(), x.amax()])).all()):
        raise InvalidInput(f"{what} hold NaN or infinite values. Clean the data first.")


def require_floats(x: Tensor, what: str) -> None:
    """Raise unless a tensor holds finite floats."""
    if not x.is_floating_point():
        remedy = "Convert them: y.float()." if what.endswith("targets") else "For images: x.float() / 255."
        raise InvalidInput(f"{what} are {x.dtype}; floats are needed. {remedy}")
    require_finite(x, what)


def whole_number(value: Any, what: str, smallest: int | None = None) -> int:
    """Return a whole number of any kind as an int, if it is at least ``smallest``."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise InvalidInput(f"{what} must be a whole number, got {value!r}.")
    if smallest is not None and number < smallest:
        raise InvalidInput(f"{what} must be at least {smallest}, got {number}.")
    return number


def require_count(value: int, what: str) -> None:
    """Raise unless ``value`` is a whole number of at least 1."""
    whole_number(value, what, smallest=1)


def inputs_of(x: Any, what: str) -> Tensor:
    """Return inputs (B, ...) as a tensor of finite floats, without gradient.

    Args:
        x: a tensor, an array or nested lists.
        what: how an error names them.
    """
    inputs = as_tensor(x, what).detach()
    require_floats(inputs, what)
    return inputs


def labels_of(y: Any, classes: int, count: int | None = None) -> Tensor:
    """Return labels as int64, which torch can index with.

    Args:
        y: integers of any kind, (N,): a tensor, an array or a list.
        classes: how many there are.
        count: how many labels there must be.
    """
    labels = as_tensor(y, "the labels").detach()
    if not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool):
        labels = labels.long()
    require_labels(labels, classes, count)
    return labels


def require_classes(classes: int) -> None:
    """Raise unless there are classes to tell apart."""
    if classes < 2:
        raise InvalidInput(
            "the network has one output, so there is one class and nothing to tell apart: it would be certified at any "
            "radius. A binary classifier needs two outputs. If yours has one logit z, for the class 1 against 0, its "
            "logits are (0, z): net = nn.Sequential(net, head), where head = nn.Linear(1, 2) has the weight "
            "[[0.0], [1.0]] and the bias 0. For regression fit to targets of floats (RobustGaussian)."
        )


def _advice_on_labels(labels: Tensor) -> str:
    """Say what to do about labels of another shape or kind."""
    if labels.dim() == 2 and labels.shape[1] == 1:
        return "Take the only column, y[:, 0], and convert it, y.long(), if it holds classes."
    if labels.dim() == 2:
        return "Of one-hot labels, or probabilities of classes, take the largest: y.argmax(1)."
    return (
        "Convert them, y.long(), if they are classes; for regression use fit(..., likelihood=RobustGaussian("
        "noise_std=...)) and certify_regression."
    )


def require_labels(labels: Tensor, classes: int, count: int | None = None) -> None:
    """Raise unless ``labels`` are integers of shape (N,) from 0 to ``classes`` - 1, of at least two classes."""
    kind = labels.dtype
    # First: whoever has targets of floats needs to hear of regression, not of classes.
    if kind.is_floating_point or kind.is_complex or kind == torch.bool or labels.dim() != 1:
        raise InvalidInput(
            f"labels must be integers of shape (N,), got {kind} of shape {tuple(labels.shape)}. "
            + _advice_on_labels(labels)
        )
    require_classes(classes)
    if count is not None and len(labels) != count:
        raise InvalidInput(f"there are {count} inputs but {len(labels)} labels.")
    if labels.numel() and not (int(labels.min()) >= 0 and int(labels.max()) < classes):
        raise InvalidInput(
            f"labels run from {int(labels.min())} to {int(labels.max())}, but the network has {classes} classes, "
            f"0 to {classes - 1}." + (" Classes are counted from 0: y - 1." if int(labels.min()) == 1 else "")
        )
