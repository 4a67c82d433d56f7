"""A network as a small graph of operations, apart from any weights.

``Graph`` is what bounds, likelihoods and predictors work on: a tuple of nodes in the order in which they are
computed. It is immutable and can be written as JSON, so a posterior file needs no pickled class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from torch import Tensor

from certibayes.errors import InvalidInput
from certibayes.networks.operations import Operation, Reshape, Weights
from certibayes.support.stacks import Params

Value = TypeVar("Value")

SHOWN = 12
"""Operations that the repr of a graph names at most."""

INPUT = "input"
"""The name under which nodes refer to the network's input."""


@dataclass(frozen=True)
class Node:
    """One operation, where its inputs come from and what its weights are called.

    Attributes:
        name: unique within the graph.
        operation: what is computed.
        inputs: names of earlier nodes, or ``INPUT``.
        roles: role of each weight -> its name among parameters and buffers.
        shape: shape of the output for one example.
    """

    name: str
    operation: Operation
    inputs: tuple[str, ...]
    roles: Mapping[str, str] = field(default_factory=dict)
    shape: tuple[int, ...] = ()

    def weights(self, params: Params) -> Weights:
        """Pick this node's tensors out of all parameters, by role."""
        return {role: params[name] for role, name in self.roles.items()}


@dataclass(frozen=True)
class Graph:
    """Nodes in order of computation; the last one is the output.

    Attributes:
        nodes: the operations in order.
        input_shape: shape of one example.
        parameters: names of the trainable parameters, in the module's order.
        buffers: names of the other tensors that the graph needs, which are not inferred.
        fitted: those buffers that were parameters and were trained, but not inferred: constants of a posterior that
            belong to no frozen layer.
        head: ``"softmax"`` or ``"log_softmax"`` where the module ends in one that is left off here; or "".
    """

    nodes: tuple[Node, ...]
    input_shape: tuple[int, ...]
    parameters: tuple[str, ...]
    buffers: tuple[str, ...] = ()
    fitted: tuple[str, ...] = ()
    head: str = ""

    def __repr__(self) -> str:
        kinds = [type(node.operation).__name__ for node in self.nodes]
        if len(kinds) > SHOWN:
            kinds = [*kinds[: SHOWN - 2], f"{len(kinds) - SHOWN + 1} more", kinds[-1]]
        shapes = f"{self.input_shape} -> {self.output_shape}" if self.nodes else f"{self.input_shape}, empty"
        return f"Graph({shapes}: {', '.join(kinds)})" if kinds else f"Graph({shapes})"

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the output for one example."""
        return self.nodes[-1].shape

    @property
    def classes(self) -> int:
        """Number of outputs."""
        return math.prod(self.output_shape)

    @cached_property
    def body(self) -> Graph:
        """The graph without its last node; empty if there is no other."""
        return replace(self, nodes=self.nodes[:-1])

    @cached_property
    def _last_use(self) -> dict[str, str]:
        """For each value, the node after which it may be forgotten."""
        return {source: node.name for node in self.nodes for source in node.inputs}

    def fold(
        self,
        start: Value,
        rule: Callable[[Node, tuple[Value, ...]], Value],
        observe: Callable[[Node, tuple[Value, ...], Value], Value] | None = None,
    ) -> Value:
        """Carry a value through the graph: tensors, boxes or anything else for which there is a rule.

        Args:
            start: the value at the input.
            rule: value of a node from the values of its inputs.
            observe: sees (node, inputs, output) and returns the output to go on with. It lets a caller record
                what a layer saw, or add a probe to its output, without the rules knowing.
        """
        values = {INPUT: start}
        for node in self.nodes:
            inputs = tuple(values[name] for name in node.inputs)
            output = rule(node, inputs)
            values[node.name] = output if observe is None else observe(node, inputs, output)
            for name in node.inputs:
                if self._last_use[name] == node.name:
                    values.pop(name, None)
        return values[self.nodes[-1].name]

    def evaluate(
        self,
        params: Params,
        x: Tensor,
        observe: Callable[[Node, tuple[Tensor, ...], Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Compute the network's output (B, ...) for a batch of inputs (B, *input_shape)."""
        return self.fold(x, lambda node, inputs: node.operation.evaluate(node.weights(params), *inputs), observe)

    def require_input(self, x: Tensor, name: str = "x") -> None:
        """Raise unless ``x`` is a batch of inputs of this network."""
        shape = tuple(x.shape[1:])
        if x.dim() >= 1 and shape == self.input_shape:
            return
        readers = [node for node in self.nodes if INPUT in node.inputs]
        flattened = all(isinstance(node.operation, Reshape) for node in readers)
        if x.dim() >= 1 and flattened and math.prod(shape) == math.prod(self.input_shape):
            return
        raise InvalidInput(
            f"{name} has shape {tuple(x.shape)}, but this network takes a batch of {self.input_shape}. "
            + self._advice_on_shape(tuple(x.shape))
        )

    def _advice_on_shape(self, shape: tuple[int, ...]) -> str:
        if shape == self.input_shape:
            return "Add the batch dimension: x[None]."
        if len(shape) == 4 and (shape[3], *shape[1:3]) == self.input_shape:
            return "The channels come first: x.permute(0, 3, 1, 2)."
        if len(shape) == 2 and len(self.input_shape) == 1:
            return "Leave out the columns that are no inputs, such as the target, or add those that are missing."
        return "Reshape the inputs."

    def require_all_of(self, purpose: str) -> None:
        """Raise where a softmax was left off and the outputs themselves are asked for.

        Args:
            purpose: what they are needed for, in a few words.
        """
        if self.head:
            raise InvalidInput(
                f"the network ends in {self.head}, which has no rules and is left off for classification; {purpose} "
                "would speak of other outputs. Give a network without it."
            )

    def to_json(self) -> dict[str, Any]:
        """Return a description of the graph made of plain lists, numbers and strings."""
        return {
            "input_shape": list(self.input_shape),
            "parameters": list(self.parameters),
            "buffers": list(self.buffers),
            **({"fitted": list(self.fitted)} if self.fitted else {}),
            **({"head": self.head} if self.head else {}),
            "nodes": [
                {
                    "name": node.name,
                    "inputs": list(node.inputs),
                    "roles": dict(node.roles),
                    "shape": list(node.shape),
                    "operation": node.operation.to_json(),
                }
                for node in self.nodes
            ],
        }

    @staticmethod
    def from_json(record: dict[str, Any]) -> Graph:
        """Rebuild a graph from ``to_json``'s answer."""
        return Graph(
            nodes=tuple(
                Node(
                    name=entry["name"],
                    operation=Operation.from_json(entry["operation"]),
                    inputs=tuple(entry["inputs"]),
                    roles=entry["roles"],
                    shape=tuple(entry["shape"]),
                )
                for entry in record["nodes"]
            ),
            input_shape=tuple(record["input_shape"]),
            parameters=tuple(record["parameters"]),
            buffers=tuple(record["buffers"]),
            fitted=tuple(record.get("fitted", ())),
            head=record.get("head", ""),
        )
