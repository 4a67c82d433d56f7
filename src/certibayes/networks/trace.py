"""Trace an ``nn.Module`` into a ``Graph`` of supported operations.

The module is searched for what a trace would not show, copied, put into eval mode, traced by torch.fx, run on an
example to learn the shapes, and lowered call by call. The resulting graph is compared with the module. The original is
not touched.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import warnings
from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor, fx, nn

from certibayes.errors import InvalidInput, UnsupportedLayer
from certibayes.networks import lowering, operations
from certibayes.networks._agreement import require_agreement
from certibayes.networks._assembly import assemble
from certibayes.networks.graph import Graph
from certibayes.networks.head import remove_head
from certibayes.networks.plain import require_plain
from certibayes.networks.tracer import symbolic_trace
from certibayes.networks.unknown import require_known_calls
from certibayes.support.tensors import as_tensor


class Network(NamedTuple):
    """A traced module: its graph and the tensors it came with.

    Attributes:
        graph: what is computed.
        params: the module's parameters by name.
        buffers: the other tensors the graph needs, such as batch norm statistics.
        frozen: names of the parameters that were not to be trained (``requires_grad=False``).
    """

    graph: Graph
    params: dict[str, Tensor]
    buffers: dict[str, Tensor]
    frozen: tuple[str, ...] = ()

    def __repr__(self) -> str:
        weights = sum(p.numel() for p in self.params.values())
        frozen = f", {len(self.frozen)} of them frozen" if self.frozen else ""
        return f"Network({self.graph}, {weights} weights in {len(self.params)} parameters{frozen})"

    def with_constants(self) -> Network:
        """Return the network with its frozen parameters among the buffers, which inference leaves alone."""
        used = {name for node in self.graph.nodes for name in node.roles.values()}
        frozen = tuple(name for name in self.frozen if name in used)
        params = {name: p for name, p in self.params.items() if name not in self.frozen}
        buffers = {**self.buffers, **{name: self.params[name] for name in frozen if name in self.params}}
        parameters = tuple(name for name in self.graph.parameters if name not in self.frozen)
        graph = dataclasses.replace(self.graph, parameters=parameters, buffers=tuple(buffers))
        return Network(graph, params, buffers, frozen)

    def with_random(self, names: Collection[str]) -> Network:
        """Return the network with the parameters of these names as those of the graph, and the others as fitted.

        Args:
            names: some of the graph's parameters.
        """
        fitted = tuple(name for name in self.graph.parameters if name not in names)
        parameters = tuple(name for name in self.graph.parameters if name in names)
        buffers = (*self.graph.buffers, *fitted)
        return self._replace(
            graph=dataclasses.replace(self.graph, parameters=parameters, buffers=buffers, fitted=fitted)
        )

    def with_all(self) -> Network:
        """Return the network with what was fitted among its parameters again, with the values that it has."""
        graph, fitted = self.graph, self.graph.fitted
        used = dict.fromkeys(name for node in graph.nodes for name in node.roles.values())
        parameters = tuple(name for name in used if name in graph.parameters or name in fitted)
        buffers = {name: tensor for name, tensor in self.buffers.items() if name not in fitted}
        graph = dataclasses.replace(graph, parameters=parameters, buffers=tuple(buffers), fitted=())
        params = {**self.params, **{name: self.buffers[name] for name in fitted}}
        return self._replace(graph=graph, params=params, buffers=buffers)


def infer_input_shape(module: nn.Module) -> tuple[int, ...] | None:
    """Return the shape of one example where the module tells it, else None.

    Architectures made by ``certibayes.networks`` carry ``input_shape``; otherwise a network whose first layer
    with weights is linear takes vectors of its ``in_features``.
    """
    declared = getattr(module, "input_shape", None)
    if declared is not None:
        return tuple(declared)
    weighted = (m for m in module.modules() if next(m.parameters(recurse=False), None) is not None)
    first = next(weighted, None)
    return (first.in_features,) if isinstance(first, nn.Linear) else None


def trace(module: nn.Module, example: Tensor | None = None) -> Network:
    """Trace ``module``.

    Args:
        module: any module torch.fx can trace, made of supported layers. Arguments of its ``forward`` after the first
            keep their defaults.
        example: a batch of inputs (B, ...) to learn shapes from and to check the graph on; optional where
            ``infer_input_shape`` can tell the shape.

    Raises:
        InvalidInput: the weights or the example cannot be used.
        UnsupportedLayer: a layer has no entry, or does more than its type says; the message names it and says what to
            do.
    """
    # Outside inference mode, in which tensors have no version counter to tell changes in place by.
    with torch.inference_mode(False), torch.no_grad():
        original = eval_copy(module)
        example = example_for(original, example)
        traced = symbolic_trace(original, example)
        head = remove_head(traced)
        require_known_calls(traced)
        graph, buffers = assemble(traced, original, example)
        graph = dataclasses.replace(graph, head=head)
        params = {name: p.detach().to(example, copy=True) for name, p in original.named_parameters()}
        tensors = {**params, **buffers}
        _require_usable(graph, tensors)
        require_agreement(graph, tensors, original, traced, example)
    if head:
        warnings.warn(
            f"the {head} at the end of {type(module).__name__} is left off: its logits are what is trained and "
            "certified, and the likelihood and the predictor apply the softmax. Take it off the network to say so "
            "yourself; of an nn.Sequential that is net[:-1].",
            stacklevel=2,
        )
    return Network(graph, params, buffers, tuple(n for n, p in module.named_parameters() if not p.requires_grad))


def eval_copy(module: nn.Module) -> nn.Module:
    """Return a copy in eval mode, of a module that hides nothing from a trace."""
    require_plain(module, lowering.modules)
    try:
        copied = copy.deepcopy(module).eval().requires_grad_(False)
    except (RuntimeError, TypeError) as error:
        raise UnsupportedLayer(
            f"{type(module).__name__} cannot be copied: {error}. Tensors that it holds as plain attributes must be "
            "detached; of a scripted module, pass the module that it was made from."
        ) from error
    for part in copied.modules():
        if isinstance(part, nn.RMSNorm) and part.eps is None and part.weight is not None:
            # Else it would be that of the precision in which the copy is compared with the graph.
            part.eps = torch.finfo(part.weight.dtype).eps
    return copied


def module_operations(traced: fx.GraphModule) -> list[operations.Operation]:
    """Lower every module of ``traced`` on its own; a setting that is not supported raises."""
    leaves = [traced.get_submodule(str(call.target)) for call in traced.graph.nodes if call.op == "call_module"]
    lowered = [lowering.modules[type(leaf)](leaf)[0] for leaf in leaves]
    lowered = [operation for m in lowered for operation in (m.all if isinstance(m, lowering.Chain) else (m,))]
    return [operation for operation in lowered if isinstance(operation, operations.Operation)]


def example_for(module: nn.Module, example: Tensor | None) -> Tensor:
    """Return one input (1, ...) in a module's precision: the first of an example, or one of the shape that it tells."""
    if example is None:
        shape = infer_input_shape(module)
        if shape is None:
            raise InvalidInput(
                f"the input shape of {type(module).__name__} cannot be inferred from its layers. Pass an example batch "
                "(or input_shape=...), or set module.input_shape = (channels, height, width)."
            )
        example = torch.full((1, *shape), 0.5)
    example = as_tensor(example, "the example")
    if example.dim() < 1 or len(example) < 1:
        raise InvalidInput(f"the example must be a batch of at least one input, got shape {tuple(example.shape)}.")
    if example.dim() < 2:
        raise InvalidInput(
            f"the example has shape {tuple(example.shape)}, which is one number for each input of a batch. Inputs have "
            "a shape: example[None] makes a batch of one vector, example[:, None] a batch of vectors of one number."
        )
    floats = (t for t in itertools.chain(module.parameters(), module.buffers()) if t.is_floating_point())
    like = next(floats, None)
    if like is not None:
        example = example.to(like)
    elif not example.is_floating_point():
        example = example.to(torch.get_default_dtype())
    return example[:1].detach().clone()


def _require_usable(graph: Graph, tensors: dict[str, Tensor]) -> None:
    """Raise where the weights alone make the network answer NaN."""
    for node in graph.nodes:
        for role, name in node.roles.items():
            tensor = tensors[name]
            if not bool(torch.isfinite(tensor).all()):
                raise InvalidInput(
                    f"the weights {name!r} hold NaN or infinite values, so the network cannot be used. Perhaps its "
                    "training has diverged; start from fresh weights."
                )
            if role == "divisor" and not bool((tensor != 0).all()):
                raise InvalidInput(f"the network divides by {name!r}, which holds a zero.")
        if isinstance(node.operation, operations.BatchNorm):
            name = node.roles["running_var"]
            if not bool((tensors[name] + node.operation.eps > 0).all()):
                raise InvalidInput(
                    f"the variances {name!r} of a batch norm must be positive, but go down to "
                    f"{float(tensors[name].min()):.4g}. Correct the statistics, or reset_running_stats() and train."
                )
