"""Dropout: found wherever it stands in a network, refused where it is switched on, and replaced by fixed masks.

A network with dropout is another network at every call. The network of one call is fixed once its masks are: it
multiplies activations with a constant m / (1 - p), m from a Bernoulli distribution with mean 1 - p, and multiplication
with constants has bounds (Gal and Ghahramani, "Dropout as a Bayesian Approximation", ICML 2016, for what the mean over
such networks means).
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from certibayes.errors import InvalidInput, UnsupportedLayer
from certibayes.networks._recording import recorded_values
from certibayes.networks.trace import Network, eval_copy, example_for, trace
from certibayes.networks.tracer import symbolic_trace

ELEMENTS: tuple[Any, ...] = (nn.Dropout, functional.dropout)
"""Layers and functions that drop single values."""

CHANNELS: tuple[Any, ...] = (
    nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, functional.dropout1d, functional.dropout2d, functional.dropout3d,
)  # fmt: skip
"""Those that drop all values of a channel together."""

OTHERS: tuple[Any, ...] = (
    nn.AlphaDropout, nn.FeatureAlphaDropout, functional.alpha_dropout, functional.feature_alpha_dropout,
)  # fmt: skip
"""Those that put another value in the place of what they drop, which no factor does."""

ONE_DIMENSIONAL = (nn.Dropout1d, functional.dropout1d)

REMEDY = (
    "so the network is another one at every call. For the network that predicts without dropout call net.eval() first; "
    "for the mean over dropout masks (MC dropout) there is certibayes.Samples.from_dropout(net, samples=35, seed=0)."
)


class Mask(NamedTuple):
    """A place in a network where values are dropped.

    Attributes:
        name: of the buffer by which activations are multiplied there.
        shape: of that buffer: the shape of one example's activations, or (channels, 1, ...).
        p: probability with which a value is dropped.
    """

    name: str
    shape: tuple[int, ...]
    p: float

    def draw(self, generator: torch.Generator) -> Tensor:
        """Return 0 where a value is dropped and 1 / (1 - p) where it is kept, in float64."""
        kept = torch.full(self.shape, 1.0 - self.p, dtype=torch.float64).bernoulli(generator=generator)
        return kept / (1.0 - self.p) if self.p < 1.0 else kept


def with_masks(module: nn.Module, example: Tensor | None = None) -> tuple[Network, tuple[Mask, ...]]:
    """Trace a module with a constant factor, a buffer, in place of each dropout.

    Args:
        module: with dropout as layers or as functions; whether it is switched on does not matter.
        example: see ``trace``.

    Returns:
        The network, in which all factors are 1, and the masks in the order in which they are met. A layer that is
        called twice has two.

    Raises:
        InvalidInput: there is no dropout.
        UnsupportedLayer: see ``trace``.
    """
    with torch.inference_mode(False), torch.no_grad():
        original = eval_copy(module)
        example = example_for(original, example)
        traced = symbolic_trace(original, example)
        values = recorded_values(traced, example)
        masks: list[Mask] = []
        for call in list(traced.graph.nodes):
            found = _dropout_of(traced, call)
            if found is None:
                continue
            if found.p > 0:
                name = _unused(f"dropout_{len(masks)}", traced)
                masks.append(Mask(name, _mask_shape(found.kind, values[call]), found.p))
                traced.register_buffer(name, torch.ones(masks[-1].shape).to(example))
            with traced.graph.inserting_before(call):
                call.replace_all_uses_with(_scaled(traced.graph, found, name) if found.p > 0 else found.source)
            traced.graph.erase_node(call)
        if not masks:
            raise InvalidInput(
                f"{type(module).__name__} has no dropout, so there is one network and no masks to draw. It is "
                "Point(net); several trained networks are Samples.from_modules([...])."
            )
        traced.recompile()
    network = trace(traced, example)
    frozen = {name for name, p in module.named_parameters() if not p.requires_grad}
    return network._replace(frozen=tuple(name for name in network.params if name in frozen)), tuple(masks)


def require_dropout_off(module: nn.Module) -> None:
    """Raise where a module drops values at random when it is called as it stands.

    Raises:
        InvalidInput: the message says what to do.
    """
    for path, part in module.named_modules():
        if isinstance(part, _DropoutNd) and part.training and part.p > 0:
            raise InvalidInput(f"dropout is switched on ({type(part).__name__} at {path!r}), {REMEDY}")
    if any(part.training for part in module.modules()):
        traced = symbolic_trace(eval_copy(module))
        for call in traced.graph.nodes:
            found = _dropout_of(traced, call) if call.op == "call_function" else None
            if found is not None and found.p > 0:
                raise InvalidInput(f"dropout is switched on ({call.target.__name__} in training mode), {REMEDY}")


@contextmanager
def dropout_refused() -> Iterator[None]:
    """Raise if anything that is run here drops values at random, also what cannot be traced.

    Raises:
        InvalidInput: the message says what to do.
    """
    with _Watch():
        yield


class _Watch(TorchFunctionMode):
    """Sees every call of torch, made by a layer or not."""

    DROPPING = frozenset(
        getattr(room, name)
        for room, names in {
            functional: ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"),
            torch: ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"),
        }.items()
        for name in names
    )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.DROPPING:
            # All take an input, a probability and whether they are to act, in this order.
            p, acts = (*args, *(kwargs or {}).values())[1:3]
            if acts and p > 0:
                raise InvalidInput(f"dropout is switched on ({func.__name__} was called), {REMEDY}")
        return func(*args, **(kwargs or {}))


class _Dropout(NamedTuple):
    """A call that drops values: its kind, what it acts on, its probability, and whether it does so in place."""

    kind: Any
    source: fx.Node
    p: float
    inplace: bool


def _dropout_of(traced: fx.GraphModule, call: fx.Node) -> _Dropout | None:
    """Return what a call drops, or None if it is no dropout."""
    kind: Any = type(traced.get_submodule(str(call.target))) if call.op == "call_module" else call.target
    if kind in OTHERS:
        raise UnsupportedLayer(
            f"{kind.__name__} does not multiply what it drops by 0, so its masks cannot be part of a network here. Use "
            "nn.Dropout for MC dropout; without dropout, net.eval(), the network can be certified as it is."
        )
    if call.op == "call_module":
        layer = traced.get_submodule(str(call.target))
        if type(layer) not in (*ELEMENTS, *CHANNELS) or not isinstance(layer, _DropoutNd):
            return None
        return _Dropout(type(layer), call.all_input_nodes[0], float(layer.p), layer.inplace)
    if call.op == "call_function" and call.target in (*ELEMENTS, *CHANNELS):
        function: Callable[..., Any] = call.target  # type: ignore[assignment]
        given = inspect.signature(function).bind(*call.args, **call.kwargs)
        given.apply_defaults()
        if not isinstance(given.arguments["p"], (int, float)):
            raise UnsupportedLayer(f"the probability of {call.name} is computed; only a plain number can be used.")
        source = given.arguments["input"]
        return _Dropout(function, source, float(given.arguments["p"]), bool(given.arguments["inplace"]))
    return None


def _mask_shape(kind: Any, value: Tensor) -> tuple[int, ...]:
    shape = tuple(value.shape[1:])
    if kind in ELEMENTS:
        return shape
    if kind in ONE_DIMENSIONAL and len(shape) < 2:
        raise UnsupportedLayer(
            "Dropout1d acts on vectors, and takes a batch of them for one input of many channels, so that it drops "
            "whole inputs. Use nn.Dropout there."
        )
    return (shape[0], *[1] * (len(shape) - 1))


def _scaled(graph: fx.Graph, found: _Dropout, mask: str) -> fx.Node:
    # In place as the layer is, so that the tracer sees who else reads what was changed.
    factor = graph.get_attr(mask)
    if found.inplace:
        return graph.call_method("mul_", (found.source, factor))
    return graph.call_function(operator.mul, (found.source, factor))


def _unused(name: str, module: nn.Module) -> str:
    while hasattr(module, name):
        name += "_"
    return name
