"""Run a traced module on an example, to learn the shape of every value and to see what it does to batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from certibayes.errors import InvalidInput, UnsupportedLayer
from certibayes.networks._hints import hints_for
from certibayes.networks._sizes import Sizes, is_shape_arithmetic

BROADCAST = (
    "Only plain parameters and buffers, of the shape that they have in __init__, can be added to activations or "
    "multiplied with them; they broadcast over the batch by themselves, x + self.token. Beside x they are put by "
    "F.pad(x, (0, 0, 1, 0)) + self.token, with a self.token that is 0 where x stands."
)
"""What to do without tensors that are made of parameters."""


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
                    f"{_in_brackets(n)}"
                )
        try:
            value = self.values[n] = super().run_node(n)
        except Exception as error:  # whatever forward does
            where = place_of(n) or n.name
            raise InvalidInput(
                f"the network cannot be run on inputs of shape {self.shape}: {error} ({where}).{hints_for(str(error))} "
                "If it can without certibayes, its forward takes another path for the stand-in that is traced, such as "
                "by isinstance(x, torch.Tensor); leave that question out."
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


def _in_brackets(call: fx.Node) -> str:
    return f" ({place})" if (place := place_of(call)) else ""


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
        if node.op != "placeholder" and all(n in weights or is_shape_arithmetic(n) for n in node.all_input_nodes):
            raise UnsupportedLayer(
                f"{node.name} is made in forward of parameters and sizes. {BROADCAST}{_in_brackets(node)}"
            )
        if (
            value.dim() < 1
            or (value.shape[0], three[node].shape[0]) != (2, 3)
            or value.shape[1:] != three[node].shape[1:]
        ):
            raise UnsupportedLayer(
                f"{node.name} does not keep the batch as its first dimension alone: for 2 inputs its shape is "
                f"{tuple(value.shape)}, for 3 it is {tuple(three[node].shape)}. Write x.flatten(1) for x.view(-1, n), "
                "and torch.stack(..., dim=1).mean(1) for a mean over parts; an ensemble is Samples.from_modules([...])."
                f"{_in_brackets(node)}"
            )
        if not value.is_floating_point():
            raise UnsupportedLayer(
                f"{node.name} is made of whole numbers or truth values ({value.dtype}), which have no rules. Of "
                f"values, indices = x.max(1) the values alone can be used.{_in_brackets(node)}"
            )
        if value.dtype != example.dtype:
            raise UnsupportedLayer(
                f"{node.name} is {value.dtype} where the network's first weights are {example.dtype}; bounds need one "
                "precision. Use net.float() or net.double(), and make constants of that type too."
                f"{_in_brackets(node)}"
            )
    numbers, sizes = (int, float, torch.Size), Sizes(two, three)
    return {
        node: value
        for node, value in two.items()
        if not isinstance(value, numbers)
        or (value == three[node] and not (is_shape_arithmetic(node) and sizes.depend_on_batch(node)))
    }
