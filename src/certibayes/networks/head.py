"""A softmax at the end of a network is recognized and left off: likelihoods and predictors take logits and apply it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from certibayes.networks._assembly import output_of

_FUNCTIONS: dict[Any, str] = {
    functional.softmax: "softmax",
    torch.softmax: "softmax",
    "softmax": "softmax",
    functional.log_softmax: "log_softmax",
    torch.log_softmax: "log_softmax",
    "log_softmax": "log_softmax",
}
_MODULES: dict[type[nn.Module], str] = {nn.Softmax: "softmax", nn.LogSoftmax: "log_softmax"}

HEADS: dict[str, Callable[[Tensor], Tensor]] = {
    "": lambda logits: logits,
    "softmax": lambda logits: torch.softmax(logits, 1),
    "log_softmax": lambda logits: torch.log_softmax(logits, 1),
}
"""What was left off, by name."""


def remove_head(traced: fx.GraphModule) -> str:
    """Take a softmax or its logarithm off the end of a traced module, which is changed, and return its name or ""."""
    last = output_of(traced)
    if not isinstance(last, fx.Node):
        return ""
    removed = [last]
    if last.target in (torch.log, "log") and isinstance(last.args[0], fx.Node):
        removed.append(last.args[0])
    kind, dim = _softmax(traced, removed[-1])
    # Over the classes, and read by nobody else.
    if not kind or dim not in (1, -1, None) or any(len(node.users) != 1 for node in removed):
        return ""
    if len(removed) == 2:
        if kind != "softmax":
            return ""
        kind = "log_softmax"
    source = removed[-1].args[0] if removed[-1].args else removed[-1].kwargs["input"]
    (output,) = (node for node in traced.graph.nodes if node.op == "output")
    output.args = (source,)
    for node in removed:
        traced.graph.erase_node(node)
    traced.recompile()
    return kind


def _softmax(traced: fx.GraphModule, node: fx.Node) -> tuple[str, Any]:
    """Return the kind of softmax, or "", and its dimension."""
    if node.op == "call_module":
        layer = traced.get_submodule(str(node.target))
        return _MODULES.get(type(layer), ""), getattr(layer, "dim", None)
    if node.op not in ("call_function", "call_method") or node.target not in _FUNCTIONS:
        return "", None
    arguments = [*node.args, None, None] if "input" not in node.kwargs else [None, *node.args, None]
    return _FUNCTIONS[node.target], node.kwargs.get("dim", arguments[1])
