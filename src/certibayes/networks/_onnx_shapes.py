"""ONNX's operators that move numbers and change none, as torch modules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from certibayes.networks._onnx_call import Call
from certibayes.networks._onnx_operators import Reshape, onnx_operator

PADDING_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate"}
"""ONNX's words and torch's."""


class Permute(nn.Module):
    """Reorder the dimensions."""

    def __init__(self, order: Sequence[int]):
        super().__init__()
        self.order = tuple(order)

    def extra_repr(self) -> str:
        """Show the order in the repr of the network."""
        return f"order={self.order}"

    def forward(self, x: Tensor) -> Tensor:
        """Reorder a batch."""
        return x.permute(self.order)


class Slice(nn.Module):
    """Pick numbers of every example."""

    def __init__(self, index: tuple[slice, ...]):
        super().__init__()
        self.index = index

    def forward(self, x: Tensor) -> Tensor:
        """Index a batch."""
        return x[self.index]


class Repeat(nn.Module):
    """Every number several times in a row, along every dimension."""

    def __init__(self, factors: tuple[int, ...]):
        super().__init__()
        self.factors = factors

    def extra_repr(self) -> str:
        """Show the factors in the repr of the network."""
        return f"factors={self.factors}"

    def forward(self, x: Tensor) -> Tensor:
        """Repeat the numbers of a batch."""
        for dim, factor in enumerate(self.factors):
            if factor > 1:
                x = x.repeat_interleave(factor, dim=dim)
        return x


class Concatenate(nn.Module):
    """Put activations side by side."""

    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def extra_repr(self) -> str:
        """Show the dimension in the repr of the network."""
        return f"dim={self.dim}"

    def forward(self, *parts: Tensor) -> Tensor:
        """Concatenate batches."""
        return torch.cat(parts, self.dim)


class Pad(nn.Module):
    """Pad every example."""

    def __init__(self, widths: Sequence[int], mode: str, value: float):
        super().__init__()
        self.widths, self.mode, self.value = tuple(widths), mode, value

    def extra_repr(self) -> str:
        """Show the settings in the repr of the network."""
        return f"widths={self.widths}, mode={self.mode!r}, value={self.value}"

    def forward(self, x: Tensor) -> Tensor:
        """Pad a batch."""
        if self.mode == "constant":
            return functional.pad(x, self.widths, value=self.value)
        return functional.pad(x, self.widths, self.mode)


@onnx_operator("Identity", "Dropout")
def _(call: Call) -> nn.Module:
    training = call.constant(2)
    if call.outputs > 1 or (training is not None and bool(training)):
        raise call.unsupported("it is switched on; export the network in eval mode")
    return nn.Identity()


@onnx_operator("Pad")
def _(call: Call) -> nn.Module:
    given, value = call.constant(1), call.constant(2)
    # Older files have widths and value as attributes.
    widths: list[int] = list(call.attributes.get("pads", ()) if given is None else given.tolist())
    number = float(call.attributes.get("value", 0.0) if value is None else value)
    mode = call.attributes.get("mode", b"constant").decode()
    if not any(widths):
        return nn.Identity()
    if mode not in PADDING_MODES or call.constant(3) is not None:
        raise call.unsupported(f"it pads by {mode!r}; constants, reflect and edge have rules")
    if min(widths) < 0:
        raise call.unsupported("it crops by negative widths, for which onnx's reference has no evaluation; use Slice")
    half = len(widths) // 2
    before, after = widths[:half], widths[half:]
    if before[0] or after[0]:
        raise call.unsupported("it pads the batch")
    pairs = [width for pair in zip(before[:0:-1], after[:0:-1], strict=True) for width in pair]
    while PADDING_MODES[mode] != "constant" and len(pairs) > 2 * (half - 2):
        if any(pairs[-2:]):
            raise call.unsupported(f"it pads channels by {mode!r}")
        pairs = pairs[:-2]
    return Pad(pairs, PADDING_MODES[mode], number)


@onnx_operator("Flatten")
def _(call: Call) -> nn.Module:
    axis, shape = int(call.attributes.get("axis", 1)), call.x.shape
    axis = axis + len(shape) if axis < 0 else axis
    return _reshape(call, (math.prod(shape[:axis]), math.prod(shape[axis:])))


@onnx_operator("Reshape")
def _(call: Call) -> nn.Module:
    before, wanted = call.x.shape, [int(size) for size in call.weight(1).tolist()]
    if not call.attributes.get("allowzero", 0):
        wanted = [before[at] if size == 0 else size for at, size in enumerate(wanted)]
    known = math.prod(size for size in wanted if size != -1)
    return _reshape(call, tuple(math.prod(before) // known if size == -1 else size for size in wanted))


@onnx_operator("Squeeze", "Unsqueeze")
def _(call: Call) -> nn.Module:
    given, shape = call.constant(1), call.x.shape
    # Older files have the axes as an attribute.
    axes: Any = call.attributes.get("axes") if given is None else given.tolist()
    if call.kind == "Squeeze":
        gone = [at for at, size in enumerate(shape) if size == 1] if axes is None else [a % len(shape) for a in axes]
        return _reshape(call, tuple(size for at, size in enumerate(shape) if at not in gone))
    places = {axis % (len(shape) + len(axes)) for axis in axes}
    sizes = iter(shape)
    return _reshape(call, tuple(1 if at in places else next(sizes) for at in range(len(shape) + len(places))))


@onnx_operator("Transpose")
def _(call: Call) -> nn.Module:
    shape = call.x.shape
    order = tuple(call.attributes.get("perm", range(len(shape))[::-1]))
    moved = [at for at in order if shape[at] != 1]
    if moved == sorted(moved):
        return _reshape(call, tuple(shape[at] for at in order))
    if order[0] != 0:
        raise call.unsupported(f"it moves the batch: {order}")
    return Permute(order)


@onnx_operator("Slice")
def _(call: Call) -> nn.Module:
    shape = call.x.shape
    # Older files have the numbers as attributes.
    given = [call.constant(index) for index in range(1, 5)]
    starts, stops, axes, steps = (
        list(call.attributes.get(name, ())) if value is None else [int(number) for number in value.tolist()]
        for name, value in zip(("starts", "ends", "axes", "steps"), given, strict=True)
    )
    axes, steps = axes or list(range(len(starts))), steps or [1] * len(starts)
    if min(steps, default=1) < 1:
        raise call.unsupported("it steps backward")
    index = [slice(None)] * len(shape)
    for start, stop, axis, step in zip(starts, stops, axes, steps, strict=True):
        index[axis] = slice(*slice(start, stop, step).indices(shape[axis]))
    if index[0] not in (slice(None), slice(0, 1, 1)):
        raise call.unsupported("it slices the batch")
    return Slice((slice(None), *index[1:]))


@onnx_operator("Concat")
def _(call: Call) -> nn.Module:
    if len(call.activations) != len(call.inputs):
        raise call.unsupported("one of its inputs is a constant; all must depend on the network's input")
    axis = int(call.attributes["axis"]) % len(call.x.shape)
    if axis == 0:
        raise call.unsupported("it concatenates along the batch")
    return Concatenate(axis)


@onnx_operator("Resize")
def _(call: Call) -> nn.Module:
    shape, mode = call.x.shape, call.attributes.get("mode", b"nearest").decode()
    sizes = call.constant(3)
    scales = call.constant(2)
    if sizes is None and scales is None:
        raise call.unsupported("its scales are missing")
    if sizes is not None:
        factors = [float(new) / old for new, old in zip(sizes.tolist(), shape, strict=True)]
    else:
        assert scales is not None
        factors = [float(scale) for scale in scales.tolist()]
    whole = all(factor == int(factor) >= 1 for factor in factors) and factors[0] == 1.0
    if mode != "nearest" or not whole:
        raise call.unsupported(f"it resizes by {mode!r} and factors {factors}; nearest by whole factors has a rule")
    if factors[1] == 1.0 and len(factors) > 2:
        return nn.Upsample(scale_factor=tuple(factors[2:]), mode="nearest")
    return Repeat(tuple(int(factor) for factor in factors))


def _reshape(call: Call, shape: tuple[int, ...]) -> nn.Module:
    """Reshape one example, (1, ...) as a whole; the batch must stay in front."""
    if not shape or shape[0] != 1:
        raise call.unsupported(f"of shape {call.x.shape} it makes {shape}, which does not begin with the batch of 1")
    return Reshape(shape[1:])
