"""Points from whatever yields them: tensors, arrays, tables of pandas, data sets and loaders of torch or Hugging Face.

A batch, or an example, is a pair (inputs, targets) or a dictionary with names that tell the two apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from certibayes.data.dataset import DataSet
from certibayes.errors import InvalidInput
from certibayes.support.names import shortened
from certibayes.support.tensors import as_tensor

INPUTS = ("inputs", "input", "x", "pixel_values", "image", "images", "img", "features", "data")
TARGETS = ("targets", "target", "y", "labels", "label", "class")
AT_ONCE = 500
"""Examples that are collected at once."""


class Points(NamedTuple):
    """Points and their targets.

    Attributes:
        x: inputs: a tensor, or whatever ``as_tensor`` takes.
        y: targets, likewise; None where nobody gave any.
        features: names of the columns of a table; empty where inputs have none.
    """

    x: Any
    y: Any
    features: tuple[str, ...] = ()


def points_of(x: Any, y: Any = None) -> Points:
    """Return points and targets as tensors or arrays, from what a user holds.

    Args:
        x: inputs (N, ...); or what yields inputs with their targets: a ``DataSet`` (its test split is taken), a split,
            a torch ``Dataset`` or ``DataLoader``, a data set of Hugging Face, a list of pairs or dictionaries, a pair
            (inputs, targets). A table of pandas is inputs with names.
        y: targets (N,), where ``x`` are inputs alone.

    Raises:
        InvalidInput: targets are given twice, or it is not clear what is what.
    """
    if is_frame(x):
        return Points(frame_values(x), y, tuple(map(str, x.columns)))
    pair = _pair(x)
    if pair is None:
        return Points(x, y)
    if y is not None:
        raise InvalidInput(
            f"the targets are in the {type(x).__name__} already; leave y out. For other targets pass inputs and "
            "targets as two tensors."
        )
    return pair


def points_for(owner: Any, x: Any, y: Any = None) -> Points:
    """Return points and targets for a predictor or posterior, whose columns they must have where both have names.

    Args:
        owner: a network that was trained on a table knows its ``features``, which are inputs in this order.
        x: see ``points_of``.
        y: likewise.

    Raises:
        InvalidInput: as ``points_of``; or columns are missing, unknown or in another order.
    """
    points = points_of(x, y)
    known = tuple(getattr(owner, "features", ()))
    if not known or not points.features or points.features == known:
        return points
    if sorted(points.features) == sorted(known):
        raise InvalidInput(
            "the columns are not in the order in which the network was trained on them. Bring them into it: "
            "table[list(predictor.features)]."
        )
    absent = [name for name in known if name not in points.features]
    strange = [name for name in points.features if name not in known]
    raise InvalidInput(
        "these are not the columns that the network was trained on"
        + (f"; missing are {shortened(absent)}" if absent else "")
        + (f"; unknown are {shortened(strange)}" if strange else "")
        + ". Its columns are predictor.features."
    )


def features_of(data: Any) -> tuple[str, ...]:
    """Return the names of the columns of training data; none where inputs have no names."""
    if isinstance(data, DataSet):
        return data.features
    inputs = data[0] if isinstance(data, (tuple, list)) and len(data) == 2 else data
    return tuple(map(str, inputs.columns)) if is_frame(inputs) else ()


def _pair(x: Any) -> Points | None:
    """Return inputs with their targets; None if these are inputs alone."""
    if isinstance(x, DataSet):
        return Points(*x.test, x.features)
    if isinstance(x, tuple) and (getattr(x, "_fields", None) == ("inputs", "targets") or _is_pair(x)):
        return Points(*x)
    if not is_source(x):
        return None
    try:
        batches = [examples_of(batch) for batch in loader_of(x)]
        if not batches:
            raise InvalidInput(f"the {type(x).__name__} yields nothing.")
        inputs, targets = zip(*batches, strict=True)
        return Points(torch.cat(inputs), torch.cat(targets))
    except RuntimeError as error:
        # What torch says where it stacks examples. Errors of a loader or data set of the user's own are theirs to see.
        if "equal size" not in str(error):
            raise
        raise InvalidInput(
            f"the examples of the {type(x).__name__} differ in shape ({error}). Each place of it holds one example, "
            "not a batch; of batches, pass all inputs and all targets: (torch.cat(inputs), torch.cat(targets))."
        ) from error


def _is_pair(x: tuple[Any, ...]) -> bool:
    """Tell whether these are arrays of inputs and of their targets, and not two points."""
    shapes = [tuple(getattr(part, "shape", ())) for part in x]
    return len(x) == 2 and len(shapes[0]) > len(shapes[1]) >= 1 and shapes[0][0] == shapes[1][0]


def is_frame(x: Any) -> bool:
    """Tell whether this is a table of pandas, or one that looks like it."""
    return hasattr(x, "columns") and hasattr(x, "to_numpy") and hasattr(x, "dtypes")


def frame_values(frame: Any) -> Any:
    """Return the numbers of a table of pandas, (N, d).

    Raises:
        InvalidInput: a column holds something else.
    """
    for name, kind in zip(frame.columns, frame.dtypes, strict=True):
        if not (isinstance(kind, np.dtype) and kind.kind in "fiub"):
            raise InvalidInput(
                f"the column {str(name)!r} holds {kind}, where numbers are needed. Write categories as numbers, one "
                "column of 0 and 1 for each (pandas.get_dummies), or leave the column out."
            )
    # One kind for all: with columns of several, pandas would return objects.
    values = frame.to_numpy(dtype=np.result_type(np.float32, *frame.dtypes))
    if not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0].tolist()
        raise InvalidInput(
            f"row {row} has no finite value for {str(frame.columns[column])!r}. A certificate speaks of all inputs "
            "of a network, so fill gaps, or leave the row or the column out."
        )
    return values


def is_source(x: Any) -> bool:
    """Tell whether something yields examples: a loader, or a data set that can be indexed and has a length."""
    if isinstance(x, (DataLoader, Dataset)):
        return True
    if isinstance(x, list) and x and (isinstance(x[0], Mapping) or _is_example(x[0])):
        return True
    plain = isinstance(x, (Tensor, np.ndarray, list, tuple, str, bytes, Mapping)) or hasattr(x, "__array__")
    return not plain and not is_frame(x) and hasattr(x, "__len__") and hasattr(x, "__getitem__")


def _is_example(x: Any) -> bool:
    """Tell whether this is a point with its target, and not a point of two numbers."""
    return isinstance(x, tuple) and len(x) == 2 and getattr(x[0], "ndim", 0) >= 1 and getattr(x[1], "ndim", 0) == 0


def loader_of(x: Any) -> Any:
    """Return what yields batches: a loader as it is, and a data set in order."""
    if isinstance(x, DataLoader):
        return x
    if isinstance(x, IterableDataset) or len(x):
        return DataLoader(x, AT_ONCE)
    return iter(())


def examples_of(batch: Any, what: str = "the points") -> tuple[Tensor, Tensor]:
    """Return inputs and targets of a batch: a pair, or a dictionary with names that tell the two apart.

    Raises:
        InvalidInput: it is neither, or its parts are no tensors.
    """
    if isinstance(batch, Mapping):
        inputs, targets = (batch[name] for name in _names(batch))
    elif isinstance(batch, (tuple, list)) and len(batch) == 2:
        inputs, targets = batch
    else:
        parts = f" of {len(batch)} parts" if isinstance(batch, (tuple, list)) else ""
        raise InvalidInput(
            f"a batch is a {type(batch).__name__}{parts}, where a pair (inputs, targets) is needed, or a dictionary. "
            "Wrap the data set so that it returns a pair."
        )
    for part in (inputs, targets):
        if isinstance(part, (list, tuple)) and any(isinstance(value, (Tensor, str)) for value in part):
            raise InvalidInput(
                "a batch holds lists where tensors are needed. For a data set of Hugging Face: "
                'dataset.with_format("torch"); otherwise return tensors of one shape.'
            )
    return as_tensor(inputs, f"{what}, inputs"), as_tensor(targets, f"{what}, targets")


def _names(batch: Mapping[str, Any]) -> Iterator[str]:
    """Return which entries of a dictionary are inputs and targets."""
    for known in (INPUTS, TARGETS):
        found = [name for name in batch if str(name).lower() in known]
        if len(found) != 1:
            what = "inputs" if known is INPUTS else "targets"
            raise InvalidInput(
                f"a batch has the entries {', '.join(map(str, batch))}, of which {len(found) or 'none'} can be the "
                f"{what} ({', '.join(known)}). Rename or remove entries, or return a pair (inputs, targets)."
            )
        yield found[0]
