"""Run a traced module on an example, to learn the shape of every value and to see what it does to batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from certibayes.errors import InvalidInput, UnsupportedLayer


class _Recorder(fx.Interpreter):
    """Run a traced module and keep the value of every node."""

    def __init__(self, module: fx.GraphModule, shape: tuple[int, ...]):
        super().__init__(module)
        self.extra_traceback = False  # which writes torch.fx's own words into our errors
        self.shape = shape
        self.values: dict[fx.Node, Any] = {}
        self.versions: dict[fx.Node, int] = {}

    def run_node(self, n: fx.Node) -> Any:
        for source in n.all_input_nodes:
            # Views share their version with what they were made from, so this sees through every kind of alias.
            value = self.values[source]
            if source in self.versions and value._version != self.versions[source]:
                raise UnsupportedLayer(
                    f"{n.name} reads {source.name} after it was changed in place. Use the out-of-place form "
                    "(inplace=False, x = x + y, x = F.relu(x)), or give the result its name: x = F.relu_(x)."
                )
        try:
            value = self.values[n] = super().run_node(n)
        except Exception as error:  # whatever forward does
            where = place_of(n) or n.name
            raise InvalidInput(
                f"the network cannot be run on inputs of shape {self.shape}: {error} ({where})"
            ) from error
        if isinstance(value, Tensor) and not value.is_inference():
            self.versions[n] = value._version
        return value


def place_of(call: fx.Node) -> str:
    """Say in which line of its author's file a call of a traced module stands, or ""."""
    lines = (call.stack_trace or "").strip().splitlines()
    if len(lines) < 2 or '"' not in lines[0]:
        return ""
    _, file, rest = lines[0].split('"', 2)
    return f"{Path(file).name}, {rest.strip(' ,').split(',')[0]}: {lines[1].strip()}"


def made_of_weights(traced: fx.GraphModule) -> set[fx.Node]:
    """Return the calls that read weights and nothing else, and the weights themselves."""
    found: set[fx.Node] = set()
    for node in traced.graph.nodes:
        if node.op == "get_attr" or (node.all_input_nodes and found.issuperset(node.all_input_nodes)):
            found.add(node)
    return found


def recorded_values(traced: fx.GraphModule, example: Tensor) -> dict[fx.Node, Any]:
    """Return the value of every node for a batch of two, but for sizes that depend on the batch.

    Two batch sizes are run: every activation must keep the batch in front, in the precision of the example.
    """
    recorders = []
    for count in (2, 3):
        recorder = _Recorder(traced, tuple(example.shape[1:]))
        recorder.run(example.expand(count, *example.shape[1:]).contiguous())
        recorders.append(recorder.values)
    two, three = recorders
    weights = made_of_weights(traced)
    for node, value in two.items():
        if not isinstance(value, Tensor) or node in weights:
            continue
        if (
            value.dim() < 1
            or (value.shape[0], three[node].shape[0]) != (2, 3)
            or value.shape[1:] != three[node].shape[1:]
        ):
            raise UnsupportedLayer(
                f"{node.name} does not keep the batch as its first dimension alone: for 2 inputs its shape is "
                f"{tuple(value.shape)}, for 3 it is {tuple(three[node].shape)}. Write x.flatten(1) for x.view(-1, n), "
                "and torch.stack(..., dim=1).mean(1) for a mean over parts; an ensemble is Samples.from_modules([...])."
            )
        if value.dtype != example.dtype:
            raise UnsupportedLayer(
                f"{node.name} is {value.dtype} where the network's first weights are {example.dtype}; bounds need one "
                "precision. Use net.float() or net.double(), and make constants of that type too."
            )
    sizes = (int, float, torch.Size)
    return {n: v for n, v in two.items() if not isinstance(v, sizes) or v == three[n]}
