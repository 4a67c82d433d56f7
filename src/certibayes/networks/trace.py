"""Trace an ``nn.Module`` into a ``Graph`` of supported operations.

The module is copied, put into eval mode, traced by torch.fx, run once on an example to learn the shapes, lowered
call by call, and the resulting graph is compared with the module on that example. The original is not touched.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from certibayes.errors import InvalidInput, UnsupportedLayer
from certibayes.networks import lowering, operations
from certibayes.networks.arithmetic import direct_sums
from certibayes.networks.graph import INPUT, Graph, Node


class Network(NamedTuple):
    """A traced module: its graph and the tensors it came with.

    Attributes:
        graph: what is computed.
        params: trainable tensors by name.
        buffers: the other tensors the graph needs, such as batch norm statistics.
    """

    graph: Graph
    params: dict[str, Tensor]
    buffers: dict[str, Tensor]


class _Tracer(fx.Tracer):
    """Keep every module that has an entry of its own whole."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in lowering.modules or super().is_leaf_module(m, module_qualified_name)


class _Recorder(fx.Interpreter):
    """Run a traced module and keep the value of every node."""

    def __init__(self, module: fx.GraphModule):
        super().__init__(module)
        self.values: dict[fx.Node, Any] = {}
        self.versions: dict[fx.Node, int] = {}

    def run_node(self, n: fx.Node) -> Any:
        for source in n.all_input_nodes:
            # Views share their version with what they were made from, so this sees through every kind of alias.
            value = self.values[source]
            if source in self.versions and value._version != self.versions[source]:
                raise UnsupportedLayer(
                    f"{n.name} reads {source.name} after it was changed in place. Use the out-of-place form "
                    "(inplace=False, x = x + y)."
                )
        value = self.values[n] = super().run_node(n)
        if isinstance(value, Tensor) and not value.is_inference():
            self.versions[n] = value._version
        return value


def supported_layers() -> tuple[str, ...]:
    """Names of the module types and functions that can be traced."""
    names = {kind.__name__ for kind in lowering.modules}
    names |= {f if isinstance(f, str) else getattr(f, "__name__", str(f)) for f in lowering.functions}
    return tuple(sorted(names))


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
        module: any module torch.fx can trace, made of supported layers.
        example: a batch of inputs (B, ...) to learn shapes from and to check the graph against; optional where
            ``infer_input_shape`` can tell the shape.

    Raises:
        UnsupportedLayer: a layer has no entry; the message names it and says how to add one.
    """
    # Outside inference mode, in which tensors have no version counter to tell changes in place by.
    with torch.inference_mode(False), torch.no_grad():
        example = _example(module, example)
        original = copy.deepcopy(module).eval().requires_grad_(False)
        traced = symbolic_trace(original)
        graph, buffers = _lower(traced, original, example)
        params = {name: p.detach().clone() for name, p in original.named_parameters()}
        network = Network(graph, params, buffers)
        _check(network, original, example)
    return network


def symbolic_trace(module: nn.Module) -> fx.GraphModule:
    """Run torch.fx over an eval-mode module, with an error a person can act on."""
    try:
        return fx.GraphModule(module, _Tracer().trace(module))
    except UnsupportedLayer:
        raise
    except Exception as error:  # torch.fx raises many kinds, all meaning the same to the user
        raise UnsupportedLayer(
            f"{type(module).__name__} cannot be traced: {error}. Its forward must not branch or loop on the values "
            "of tensors; move such a part into a module of its own and register it with "
            "certibayes.networks.lower_module."
        ) from error


def unknown_calls(traced: fx.GraphModule) -> list[str]:
    """Names of the layers and functions in ``traced`` that have no entry."""
    unknown = []
    for node in traced.graph.nodes:
        if node.op == "call_module":
            leaf = traced.get_submodule(str(node.target))
            if type(leaf) not in lowering.modules:
                unknown.append(f"{type(leaf).__name__} (at {node.target!r})")
        elif (
            node.op in ("call_function", "call_method")
            and not _is_shape_arithmetic(node)
            and node.target not in lowering.functions
        ):
            unknown.append(getattr(node.target, "__name__", str(node.target)))
    return unknown


def module_operations(traced: fx.GraphModule) -> list[operations.Operation]:
    """Lower every module of ``traced`` on its own; a setting that is not supported raises."""
    leaves = [traced.get_submodule(str(call.target)) for call in traced.graph.nodes if call.op == "call_module"]
    lowered = [lowering.modules[type(leaf)](leaf)[0] for leaf in leaves]
    return [operation for operation in lowered if operation is not None]


def unsupported(names: list[str]) -> UnsupportedLayer:
    """Make the error that names unknown layers."""
    return UnsupportedLayer(
        f"no rules for: {', '.join(names)}. Supported: {', '.join(supported_layers())}. To add a layer, register it "
        "with certibayes.networks.lower_module (or lower_function) and give its bounds with "
        "certibayes.bounds.register; CONTRIBUTING.md has a skeleton to copy."
    )


def _example(module: nn.Module, example: Tensor | None) -> Tensor:
    if example is None:
        shape = infer_input_shape(module)
        if shape is None:
            raise InvalidInput(
                f"the input shape of {type(module).__name__} cannot be told from its layers. Pass an example batch "
                "(or input_shape=...), or set module.input_shape = (channels, height, width)."
            )
        # A pattern rather than zeros, so that the check against the module means something.
        example = torch.linspace(0.1, 0.9, int(torch.Size(shape).numel())).reshape(1, *shape)
    parameter = next(itertools.chain(module.parameters(), module.buffers()), None)
    if parameter is not None and parameter.is_floating_point():
        example = example.to(parameter)
    return example[:1].detach().clone()


def _is_shape_arithmetic(node: fx.Node) -> bool:
    """Tell whether a node only computes sizes (``x.size(0)``, ``x.shape[0]``), which need no rule."""
    return (
        node.target in (getattr, "size", "dim", "numel")
        or (
            getattr(node.target, "__name__", "") == "getitem"
            and isinstance(node.args[0], fx.Node)
            and _is_shape_arithmetic(node.args[0])
        )
        or (
            bool(node.args)
            and all(
                isinstance(a, (int, float)) or (isinstance(a, fx.Node) and _is_shape_arithmetic(a)) for a in node.args
            )
        )
    )


def _lower(traced: fx.GraphModule, original: nn.Module, example: Tensor) -> tuple[Graph, dict[str, Tensor]]:
    unknown = unknown_calls(traced)
    if unknown:
        raise unsupported(unknown)
    if sum(call.op == "placeholder" for call in traced.graph.nodes if call.users or call.prev.op == "root") > 1:
        raise UnsupportedLayer("the network takes several inputs; bounds are known for one.")
    values = _values(traced, example)
    shapes = {node: tuple(v.shape[1:]) for node, v in values.items() if isinstance(v, Tensor)}
    # Tied weights have several names but one parameter: map each to the name named_parameters() keeps.
    canonical = {id(p): name for name, p in original.named_parameters()}
    tensors: dict[str, Tensor] = {}

    def weight_name(value: Any, where: str) -> str:
        if not (isinstance(value, fx.Node) and value.op == "get_attr"):
            raise UnsupportedLayer(
                f"the weights of {where} are computed from other tensors; only plain parameters and buffers can be "
                "used as weights."
            )
        return attribute_name(str(value.target))

    def attribute_name(path: str) -> str:
        tensor = _attribute(original, traced, path)
        name = canonical.get(id(tensor), path)
        tensors[name] = tensor.detach().clone()
        return name

    meaning: dict[fx.Node, str] = {}
    nodes: list[Node] = []
    for call in traced.graph.nodes:
        if call.op == "placeholder":
            if not meaning:
                meaning[call] = INPUT
            continue
        if call.op not in ("call_module", "call_function", "call_method") or _is_shape_arithmetic(call):
            continue
        if call.op == "call_module":
            leaf = traced.get_submodule(str(call.target))
            operation, attributes = lowering.modules[type(leaf)](leaf)
            inputs: tuple[Any, ...] = (call.args[0] if call.args else next(iter(call.kwargs.values())),)
            roles = {role: attribute_name(f"{call.target}.{name}") for role, name in attributes.items()}
            reshapes = isinstance(operation, operations.Reshape)
        else:
            lowered = _lower_call(lowering.functions[call.target], call)
            operation, inputs, reshapes = lowered.operation, lowered.inputs, lowered.reshapes
            roles = {r: weight_name(w, call.name) for r, w in lowered.weights.items() if w is not None}
        if reshapes:
            operation = operations.Reshape(shapes[call])
        missing = [i for i in inputs if i not in meaning]
        if missing:
            raise UnsupportedLayer(f"{call.name} acts on {missing}, which is not an activation of the network.")
        sources = tuple(meaning[i] for i in inputs)
        if operation is None:
            meaning[call] = sources[0]
            continue
        meaning[call] = call.name
        nodes.append(Node(call.name, operation, sources, roles, shapes[call]))
    parameters = tuple(name for name, _ in original.named_parameters())
    buffers = {name: tensor for name, tensor in tensors.items() if name not in parameters}
    output = _output_of(traced)
    final = meaning.get(output) if isinstance(output, fx.Node) else None
    if final is None or final == INPUT or len(shapes[output]) != 1:
        raise UnsupportedLayer(
            "a network must return one tensor of shape (batch, outputs) computed from its input by at least one layer."
        )
    nodes = _upto(nodes, final)
    graph = Graph(tuple(nodes), tuple(example.shape[1:]), parameters, tuple(buffers))
    return graph, buffers


def _lower_call(entry: Callable[..., lowering.Lowered], call: fx.Node) -> lowering.Lowered:
    arguments = dict(call.kwargs)
    first = [arguments.pop("input")] if "input" in arguments else []
    try:
        return entry(*first, *call.args, **arguments)
    except TypeError as error:
        raise UnsupportedLayer(f"{call.name} is called in a way that is not supported: {error}") from error


def _upto(nodes: list[Node], final: str) -> list[Node]:
    """Drop what does not lead to the output, so that the output is the last node."""
    needed = {final}
    kept = []
    for node in reversed(nodes):
        if node.name in needed:
            kept.append(node)
            needed |= set(node.inputs)
    return kept[::-1]


def _values(traced: fx.GraphModule, example: Tensor) -> dict[fx.Node, Any]:
    """Run two batch sizes: every activation must keep the batch in front and treat examples alike."""
    recorders = []
    for size in (2, 3):
        recorder = _Recorder(traced)
        try:
            recorder.run(example.expand(size, *example.shape[1:]).contiguous())
        except UnsupportedLayer:
            raise
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            shape = tuple(example.shape[1:])
            raise InvalidInput(f"the network cannot be run on inputs of shape {shape}: {error}") from error
        recorders.append(recorder.values)
    two, three = recorders
    for node, value in two.items():
        if not isinstance(value, Tensor) or node.op == "get_attr":
            continue
        if (
            value.dim() < 1
            or (value.shape[0], three[node].shape[0]) != (2, 3)
            or value.shape[1:] != three[node].shape[1:]
        ):
            raise UnsupportedLayer(
                f"{node.name} does not keep the batch as its first dimension alone: for 2 inputs its shape is "
                f"{tuple(value.shape)}, for 3 it is {tuple(three[node].shape)}."
            )
    return two


def _attribute(original: nn.Module, traced: fx.GraphModule, path: str) -> Tensor:
    """Look a tensor up by its dotted path; constants made inside forward live on the traced module alone."""
    for root in (original, traced):
        value: Any = root
        for part in path.split("."):
            value = getattr(value, part, None)
        if isinstance(value, Tensor):
            return value
    raise UnsupportedLayer(f"the attribute {path!r} is not a tensor.")


def _output_of(traced: fx.GraphModule) -> Any:
    (output,) = (node for node in traced.graph.nodes if node.op == "output")
    return output.args[0]


def _check(network: Network, original: nn.Module, example: Tensor) -> None:
    """Compare graph and module on a few different inputs, and a batch with its examples one by one."""
    rows = torch.cat([example, example.flip(-1), 0.5 * example])
    # Without TF32, whose rounding differs from one batch size to another by more than a mistake would.
    with direct_sums():
        expected = original(rows.clone())
        alone = torch.cat([original(row[None].clone()) for row in rows])
        found = network.graph.evaluate({**network.params, **network.buffers}, rows)
    if not torch.allclose(expected, alone, rtol=1e-4, atol=1e-5):
        raise UnsupportedLayer(
            f"{type(original).__name__} mixes the examples of a batch: an input's output depends on the inputs beside "
            "it, so nothing can be proved about one input."
        )
    if not torch.allclose(expected, found, rtol=1e-4, atol=1e-5):
        raise UnsupportedLayer(
            f"the traced graph of {type(original).__name__} does not compute what the module computes "
            f"(difference {float((expected - found).abs().max()):.2e}). A registered entry is wrong, or forward "
            "depends on something other than its input."
        )
