"""From the calls of a traced module to the nodes of a graph, each by its entry in ``networks.lowering``."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn

from certibayes.errors import UnsupportedLayer
from certibayes.networks import lowering
from certibayes.networks import operations as ops
from certibayes.networks._recording import BROADCAST, made_of_weights, place_of, recorded_values
from certibayes.networks._sizes import is_shape_arithmetic
from certibayes.networks.graph import INPUT, Graph, Node


def output_of(traced: fx.GraphModule) -> Any:
    """Return what the module returns: a node, or anything else that holds some."""
    (output,) = (node for node in traced.graph.nodes if node.op == "output")
    return output.args[0]


def assemble(traced: fx.GraphModule, original: nn.Module, example: Tensor) -> tuple[Graph, dict[str, Tensor]]:
    """Return the graph of a traced module all of whose calls have entries, and the buffers that it needs.

    Args:
        traced: the module as torch.fx sees it.
        original: the module.
        example: an input, (1, ...).
    """
    if sum(call.op == "placeholder" for call in traced.graph.nodes if call.users or call.prev.op == "root") > 1:
        raise UnsupportedLayer("the network takes several inputs; bounds are known for one.")
    assembly = _Assembly(traced, original, example)
    for call in traced.graph.nodes:
        with _placed(call):
            assembly.add(call)
    output = output_of(traced)
    require_one_tensor(output)
    final = assembly.names.get(output)
    if final is None or final == INPUT:
        raise UnsupportedLayer(
            "a network must return one tensor of shape (batch, outputs) computed from its input by at least one layer."
        )
    shape = assembly.shapes[output]
    if len(shape) != 1:
        advice = (
            "Leave off the squeeze or the index at its end, so that one output is the shape (batch, 1)."
            if not shape
            else "An image or a sequence at the end is flattened by x.flatten(1), or pooled by x.mean((2, 3))."
        )
        raise UnsupportedLayer(
            f"a network must return one tensor of shape (batch, outputs), and this one returns "
            f"({', '.join(['batch', *map(str, shape)])}{'' if shape else ','}). {advice}"
        )
    parameters = tuple(name for name, _ in original.named_parameters())
    nodes = _upto(assembly.nodes, final)
    used = {name for node in nodes for name in node.roles.values()}
    buffers = {name: t for name, t in assembly.tensors.items() if name not in parameters and name in used}
    return Graph(tuple(nodes), tuple(example.shape[1:]), parameters, tuple(buffers)), buffers


@contextmanager
def _placed(call: fx.Node) -> Iterator[None]:
    """Say in errors which line of its author's file a call stands in."""
    try:
        yield
    except UnsupportedLayer as error:
        if not (place := place_of(call)):
            raise
        raise UnsupportedLayer(f"{error} ({place})") from error


def require_one_tensor(output: Any) -> None:
    """Raise where a network returns anything but one tensor.

    Args:
        output: what the traced module returns.
    """
    if isinstance(output, fx.Node):
        return
    if output is None:
        raise UnsupportedLayer("forward returns nothing. Let it return its last tensor: return self.head(x).")
    kind = "dictionary" if isinstance(output, dict) else type(output).__name__.replace("immutable_", "")
    pick = f"[{next(iter(output))!r}]" if isinstance(output, dict) and output else "[0]"
    raise UnsupportedLayer(
        f"a network must return one tensor of shape (batch, outputs), and this one returns a {kind}. Wrap it in a "
        f"module whose forward picks the logits, such as `return self.net(x){pick}`."
    )


class _Assembly:
    """A graph in the making.

    Attributes:
        values: what every call gave for a batch of two; sizes that depend on the batch are left out.
        shapes: of one example, by call.
        names: of the node, or the input, that holds a call's result.
        parts: for a call that makes several tensors of one, what it read, and the operations that make each.
        nodes: so far.
        tensors: weights by name.
        constant: weights, and what is computed from them alone.
    """

    def __init__(self, traced: fx.GraphModule, original: nn.Module, example: Tensor):
        self.traced, self.original, self.example = traced, original, example
        self.values = recorded_values(traced, example)
        self.shapes = {call: tuple(v.shape[1:]) for call, v in self.values.items() if isinstance(v, Tensor)}
        # Tied weights have several names but one parameter: map each to the name named_parameters() keeps.
        self.canonical = {id(p): name for name, p in original.named_parameters()}
        self.names: dict[fx.Node, str] = {}
        self.parts: dict[fx.Node, tuple[fx.Node, list[lowering.Meaning]]] = {}
        self.nodes: list[Node] = []
        self.tensors: dict[str, Tensor] = {}
        self.constant = made_of_weights(traced)
        parameters, learned = dict(original.named_parameters(remove_duplicate=False)), set[fx.Node]()
        for call, value in self.values.items():
            is_parameter = call.op == "get_attr" and str(call.target) in parameters
            if is_parameter or not learned.isdisjoint(call.all_input_nodes):
                learned.add(call)
            call.meta["shape"] = tuple(value.shape) if isinstance(value, Tensor) else None
            call.meta["constant"] = call in self.constant
            if call in self.constant and isinstance(value, Tensor) and not value.is_floating_point():
                # Indices; those that are made of parameters would change with them.
                call.meta["value"] = None if call in learned else value

    def add(self, call: fx.Node) -> None:
        """Add the nodes of one call, if it is a layer."""
        if call.op == "placeholder":
            if not self.names:
                self.names[call] = INPUT
            return
        if call in self.constant:
            return  # it is no layer; where it is used for more than a plain weight, that is refused
        if call.op not in ("call_module", "call_function", "call_method") or is_shape_arithmetic(call):
            return
        meaning: Any
        if call.op == "call_module":
            leaf = self.traced.get_submodule(str(call.target))
            meaning, attributes = lowering.modules[type(leaf)](leaf)
            inputs: tuple[Any, ...] = (call.args[0] if call.args else next(iter(call.kwargs.values())),)
            roles = {role: self._attribute_name(f"{call.target}.{name}") for role, name in attributes.items()}
        elif call.all_input_nodes and call.all_input_nodes[0] in self.parts:
            meaning, inputs, roles = *self._part(call), {}
        else:
            lowered = _lower_call(lowering.functions[call.target], call, self.values)
            meaning, inputs = lowered.operation, lowered.inputs
            meaning = ops.Reshape(()) if lowered.reshapes else meaning
            roles = {r: self._weight_name(w, call.name) for r, w in lowered.weights.items() if w is not None}
        self._require_activations(call, inputs)
        if isinstance(meaning, lowering.Parts):
            self.parts[call] = inputs[0], list(meaning.operations(self.shapes[inputs[0]]))
            return
        self._append(call, meaning, inputs, roles)

    def _append(
        self, call: fx.Node, meaning: lowering.Meaning, inputs: tuple[fx.Node, ...], roles: dict[str, str]
    ) -> None:
        while isinstance(meaning, lowering.ByShape):
            meaning = meaning.meaning(self.shapes[inputs[0]])
        # One number of each example is a vector of one here: bounds know no activations without a dimension.
        sources, shapes = tuple(self.names[i] for i in inputs), [self.shapes[i] or (1,) for i in inputs]
        made = self.shapes[call] or (1,)
        if meaning is None:
            self.names[call] = sources[0]
            return
        if isinstance(meaning, lowering.Beside):
            pieces = [f"{call.name}.{index}" for index in range(len(meaning.operations))]
            for name, operation in zip(pieces, meaning.operations, strict=True):
                piece = operation.evaluate({}, self.example.new_zeros(1, *shapes[0]))
                self.nodes.append(Node(name, operation, sources, {}, tuple(piece.shape[1:])))
            self.names[call] = call.name
            self.nodes.append(Node(call.name, ops.Concatenate(meaning.dim), tuple(pieces), {}, made))
            return
        if isinstance(meaning, lowering.AfterEach):
            first, pieces = meaning.first, [f"{call.name}.of{index}" for index in range(len(sources))]
            for name, source, shape in zip(pieces, sources, shapes, strict=True):
                piece = first.evaluate({}, self.example.new_zeros(1, *shape))
                self.nodes.append(Node(name, first, (source,), {}, tuple(piece.shape[1:])))
            sources, shapes = tuple(pieces), [self.nodes[-1].shape] * len(pieces)
            meaning = meaning.meaning
        chain = meaning if isinstance(meaning, lowering.Chain) else lowering.Chain(meaning)
        *others, last = chain.all
        for index, operation in enumerate(others):
            name, own = f"{call.name}.{index}", roles if operation is chain.main else {}
            weights = {role: self.tensors[weight] for role, weight in own.items()}
            output = operation.evaluate(weights, *(self.example.new_zeros(1, *shape) for shape in shapes))
            self.nodes.append(Node(name, operation, sources, own, tuple(output.shape[1:])))
            sources, shapes = (name,), [tuple(output.shape[1:])]
        self.names[call] = call.name
        own = roles if last is chain.main else {}
        last = ops.Reshape(made) if isinstance(last, ops.Reshape) else last
        self.nodes.append(Node(call.name, last, sources, own, made))

    def _part(self, call: fx.Node) -> tuple[lowering.Meaning, tuple[fx.Node]]:
        """Return the operation that makes one of several tensors."""
        made = call.all_input_nodes[0]
        source, operations = self.parts[made]
        index = {"values": 0, "indices": 1}.get(str(call.args[1]), call.args[1]) if len(call.args) == 2 else None
        if not isinstance(index, int) or not (call.target is getattr or call.target is operator.getitem):
            raise UnsupportedLayer(
                f"{call.name} takes the parts of {made.name} all at once. Give each a name: a, b = x.chunk(2, 1)."
            )
        if index >= len(operations):
            raise UnsupportedLayer(f"{call.name} takes the indices of {made.name}, which have no rules.")
        return operations[index], (source,)

    def _require_activations(self, call: fx.Node, inputs: tuple[Any, ...]) -> None:
        missing = [i for i in inputs if not (isinstance(i, fx.Node) and i in self.names)]
        if not missing:
            return
        if any(isinstance(i, fx.Node) and i in self.constant for i in missing):
            raise UnsupportedLayer(f"{call.name} acts on {missing}, which is computed from weights alone. {BROADCAST}")
        of_batch = any(isinstance(i, fx.Node) and is_shape_arithmetic(i) for i in missing)
        kind = "depends on the size of the batch" if of_batch else "is not an activation of the network"
        raise UnsupportedLayer(f"{call.name} acts on {missing}, which {kind}.")

    def _weight_name(self, value: Any, where: str) -> str:
        if not (isinstance(value, fx.Node) and value.op == "get_attr"):
            made = value.meta.get("shape") if isinstance(value, fx.Node) else None
            shape = f" One that only changes its shape can have it, {made}, from __init__ on." if made else ""
            raise UnsupportedLayer(
                f"the weights of {where} are computed from other tensors; only plain parameters and buffers can be "
                "used as weights. After training, compute them once and store what comes out as a parameter: "
                f"self.scale = nn.Parameter(self.log_scale.exp()).{shape}"
            )
        return self._attribute_name(str(value.target))

    def _attribute_name(self, path: str) -> str:
        tensor = _attribute(self.original, self.traced, path)
        name = self.canonical.get(id(tensor), path)
        # As torch reads it: masks, whole numbers and single numbers become floats like those they meet.
        self.tensors[name] = tensor.detach().to(self.example, copy=True)
        return name


_OTHER_NAMES = {"axis": "dim", "keepdims": "keepdim"}
"""As numpy says it, which torch takes as well."""


def _lower_call(entry: Callable[..., lowering.Lowered], call: fx.Node, values: dict[fx.Node, Any]) -> lowering.Lowered:
    def number(node: fx.Node) -> Any:
        """Sizes that do not depend on the batch are as good as constants."""
        if node.meta.get("constant") and isinstance(values.get(node), (int, float)) and not is_shape_arithmetic(node):
            raise UnsupportedLayer(
                f"{call.name} takes a number from a parameter ({node.name}), which would stay what it is when the "
                "parameter changes. Make it a number, self.slope = 0.1, or use the parameter as a tensor."
            )
        return values[node] if isinstance(values.get(node), (int, float, torch.Size)) else node

    named = {_OTHER_NAMES.get(name, name): value for name, value in call.kwargs.items()}
    arguments = dict(fx.node.map_arg(named, number))
    first = [arguments.pop("input")] if "input" in arguments else []
    try:
        return entry(*first, *fx.node.map_arg(call.args, number), **arguments)
    except TypeError as error:
        raise UnsupportedLayer(
            f"{call.name} is called in a way that is not supported: {error}. Arguments must be those of torch's "
            "documentation, numbers in them constants, and sizes those of one example, not of the batch."
        ) from error


def _upto(nodes: list[Node], final: str) -> list[Node]:
    """Drop what does not lead to the output, so that the output is the last node."""
    needed = {final}
    kept = []
    for node in reversed(nodes):
        if node.name in needed:
            kept.append(node)
            needed |= set(node.inputs)
    return kept[::-1]


def _attribute(original: nn.Module, traced: fx.GraphModule, path: str) -> Tensor:
    """Look a tensor up by its dotted path; constants made inside forward live on the traced module alone."""
    for root in (original, traced):
        value: Any = root
        for part in path.split("."):
            value = getattr(value, part, None)
        if isinstance(value, Tensor):
            return value
    raise UnsupportedLayer(f"the attribute {path!r} is not a tensor.")
