"""What moves numbers and changes none."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from certibayes.networks import operations as ops
from certibayes.networks.lowering.registry import Lowered, lower_function, lower_module


@lower_function("contiguous", "clone", "detach")
def _(x: Any) -> Lowered:
    return Lowered(None, (x,))


@lower_function(
    torch.flatten, torch.reshape, torch.squeeze, torch.unsqueeze,
    "flatten", "view", "reshape", "squeeze", "unsqueeze", "unflatten",
)  # fmt: skip
def _(x: Any, *shape: Any, **named: Any) -> Lowered:
    return Lowered(None, (x,), reshapes=True)


@lower_module(nn.Flatten, nn.Unflatten)
def _(module: nn.Module) -> tuple[ops.Operation, dict[str, str]]:
    return ops.Reshape(()), {}  # the tracer reads the shape off the example
