"""Tell before training whether a network can be bounded."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from torch import Tensor, nn

from certibayes.bounds.registry import registered, rules_for
from certibayes.errors import InvalidInput, UnsupportedLayer
from certibayes.networks import infer_input_shape, trace
from certibayes.networks.head import remove_head
from certibayes.networks.trace import eval_copy, module_operations
from certibayes.networks.tracer import symbolic_trace
from certibayes.networks.unknown import require_known_calls


@dataclass(frozen=True)
class Support:
    """Whether a network is supported; true or false in an ``if``.

    Attributes:
        supported: the answer.
        reason: empty, or what stands in the way and what to do.
    """

    supported: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.supported

    def __str__(self) -> str:
        return "supported" if self.supported else f"not supported: {self.reason}"


def supports(net: nn.Module, example: Tensor | None = None) -> Support:
    """Say whether certibayes can bound ``net``, and if not, why.

    Args:
        net: the network.
        example: a batch of inputs. Without one the layers are checked one by one; with one (or where the input
            shape can be inferred from the network) the traced graph is compared with the module as well.
    """
    try:
        module = eval_copy(net)
        if example is None and infer_input_shape(module) is None:
            traced = symbolic_trace(module)
            remove_head(traced)
            require_known_calls(traced)
            for operation in module_operations(traced):
                rules_for(operation)
            return Support(True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what trace leaves off it says when it matters
            graph = trace(net, example).graph
        for node in graph.nodes:
            rules_for(node.operation)
    except (UnsupportedLayer, InvalidInput) as error:
        return Support(False, str(error))
    return Support(True)


def support_table() -> str:
    """Return the table of supported layers in Markdown, made from the registry."""
    rows = [f"| {kind.__name__} | {rules.description} |" for kind, rules in registered().items()]
    return "\n".join(["| operation | written as |", "| --- | --- |", *rows])
