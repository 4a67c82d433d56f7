"""``from_onnx``: a network that is stored as ONNX, as an ordinary ``nn.Module``.

The graph is walked once with one example. Nodes that depend on the input become torch modules, by the entries of
``_onnx_operators``; all others are constants, which onnx's own reference evaluator computes, shape arithmetic included.
The module is then compared with the reference evaluation of the whole file on random inputs.
"""

from __future__ import annotations

import gzip
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from certibayes.errors import CorruptFile, InvalidInput, UnsupportedLayer
from certibayes.networks import _onnx_activations, _onnx_norms, _onnx_shapes  # noqa: F401 - register their operators
from certibayes.networks._onnx_call import Activation, Call
from certibayes.networks._onnx_operators import OPERATORS, Reshape
from certibayes.support.arithmetic import direct_sums
from certibayes.support.optional import require_package

EXTRA = "onnx"

SHAPES = ("Shape", "Size")
"""Operators that read no more of an activation than its shape, which is known."""

TRIALS = 4
"""Random inputs on which the module is compared with the file, besides zero."""

TOLERANCE = 1e-4
"""How far they may differ, as a fraction of the largest output; float32 sums in another order differ by far less."""


class Step(NamedTuple):
    """What a layer reads and what it makes, by ONNX's names."""

    inputs: tuple[str, ...]
    output: str


class OnnxNetwork(nn.Module):
    """A network read from an ONNX file: its layers in order, and how they are wired.

    Attributes:
        input_shape: shape of one example.
        layers: torch's own modules as far as possible.
        steps: what each of them reads and makes.
    """

    def __init__(self, input_shape: tuple[int, ...], layers: list[nn.Module], steps: list[Step]):
        super().__init__()
        self.input_shape = input_shape
        self.layers = nn.ModuleList(layers)
        self.steps = tuple(steps)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs (B, C) of inputs (B, *input_shape)."""
        first, *_ = self.steps
        values = {first.inputs[0]: x}
        for layer, step in zip(self.layers, self.steps, strict=True):
            values[step.output] = layer(*(values[name] for name in step.inputs))
        return values[self.steps[-1].output]


def from_onnx(path: str | Path) -> OnnxNetwork:
    """Read a network from an ONNX file.

    The result is an ordinary module in eval mode that knows its ``input_shape``: it can be certified,
    ``Point(net).predictor()``, attacked, or be where inference starts. Weights are parameters; other constants are
    buffers.

    Args:
        path: of an ``.onnx`` file, which may be compressed (``.onnx.gz``). It has one input and one output, whose first
            dimension is the batch; an output of another shape than (batch, outputs) is flattened.

    Raises:
        MissingPackage: onnx is not installed.
        CorruptFile: the file is not an ONNX network.
        UnsupportedLayer: an operator has no rules; the message names it and lists those that have.
        InvalidInput: the network has several inputs or outputs, or its shape or precision cannot be used.
    """
    model = read_model(path)
    net = _Reading(model, Path(path).name).network()
    _require_agreement(net, reference_of(model), Path(path).name)
    return net


def onnx_reference(path: str | Path) -> Callable[[Tensor], Tensor]:
    """Return the function that an ONNX file stands for, (B, *input_shape) -> (B, C), as onnx's reference computes it.

    It is slow: onnx computes in numpy, one input after the other.

    Args:
        path: see ``from_onnx``.
    """
    return reference_of(read_model(path))


def read_model(path: str | Path) -> Any:
    """Read an ONNX file into an ``onnx.ModelProto``, and check that it is well-formed."""
    onnx = require_package("onnx", EXTRA)
    # Before anything is read: a file with weights beside it needs its directory.
    path = Path(path)
    if not path.is_file():
        raise InvalidInput(f"there is no file {path}.")
    try:
        if path.suffix == ".gz":
            model = onnx.load_model_from_string(gzip.decompress(path.read_bytes()))
        else:
            model = onnx.load(path)
        onnx.checker.check_model(model)
    except Exception as error:  # protobuf, gzip and onnx raise many kinds, all meaning the same
        raise CorruptFile(f"{path} is not a usable ONNX network: {error}") from error
    return model


def reference_of(model: Any) -> Callable[[Tensor], Tensor]:
    """Return the function that a model stands for; see ``onnx_reference``."""
    evaluator = require_package("onnx.reference", EXTRA).ReferenceEvaluator(model)
    source = _input_of(model, "the network")

    def evaluate(x: Tensor) -> Tensor:
        # Where an activation saturates numpy warns of an overflow that changes nothing.
        with np.errstate(all="ignore"):
            rows = [evaluator.run(None, {source.name: row[None].cpu().numpy()})[0].reshape(-1) for row in x]
        return torch.from_numpy(np.stack(rows)).to(x.device)

    return evaluate


def _input_of(model: Any, name: str) -> Any:
    """Return the one input that is no initializer."""
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    if len(inputs) != 1 or len(model.graph.output) != 1:
        raise InvalidInput(
            f"{name} has {len(inputs)} inputs and {len(model.graph.output)} outputs; bounds are known for one of each."
        )
    return inputs[0]


class _Reading:
    """One walk over an ONNX graph.

    Attributes:
        constants: tensors by name, as numpy has them.
        activations: what depends on the input, by name; several names may mean the same.
        layers: modules made so far.
        steps: how they are wired.
    """

    def __init__(self, model: Any, name: str):
        self.onnx, self.model, self.name = require_package("onnx", EXTRA), model, name
        self.opsets = {entry.domain: entry.version for entry in model.opset_import}
        self.constants: dict[str, np.ndarray] = {
            tensor.name: self.onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer
        }
        self.source = _input_of(model, name)
        self.shape, self.dtype = self._shape_and_dtype()
        self.activations = {self.source.name: Activation(self.source.name, (1, *self.shape))}
        self.examples = {self.source.name: torch.zeros(1, *self.shape, dtype=self.dtype)}
        self.uses = Counter(name for node in model.graph.node for name in node.input)
        self.uses.update(value.name for value in model.graph.output)
        self.layers: list[nn.Module] = []
        self.steps: list[Step] = []

    def network(self) -> OnnxNetwork:
        """Walk over all nodes and return the network."""
        self._require_known()
        with torch.no_grad():
            for node in self.model.graph.node:
                if any(name in self.activations for name in node.input) and node.op_type not in SHAPES:
                    self._read(node)
                else:
                    self._fold(node)
            final = self.activations.get(self.model.graph.output[0].name)
            if final is None or not self.steps:
                raise InvalidInput(f"the output of {self.name} does not depend on its input.")
            if len(final.shape) != 2:
                # Outputs are numbered in order, whatever their shape.
                self._append(Reshape((math.prod(final.shape),)), (final,), f"{final.name}:flat")
            elif self.steps[-1].output != final.name:
                self._append(nn.Identity(), (final,), f"{final.name}:last")
        return OnnxNetwork(self.shape, self.layers, self.steps)

    def _shape_and_dtype(self) -> tuple[tuple[int, ...], torch.dtype]:
        """Return the shape of one example and the precision, from what the file says of its input."""
        kind = self.source.type.tensor_type
        numbers = self.onnx.TensorProto
        dtypes = {numbers.FLOAT: torch.float32, numbers.DOUBLE: torch.float64}
        if kind.elem_type not in dtypes:
            raise InvalidInput(
                f"the input of {self.name} is {numbers.DataType.Name(kind.elem_type)}; certificates need float32 or "
                "float64. Convert the network."
            )
        # A dimension without a number is free.
        sizes = [int(dim.dim_value) for dim in kind.shape.dim]
        if len(sizes) < 2 or sizes[0] > 1 or any(size < 1 for size in sizes[1:]):
            shown = ", ".join(str(size) if size else "?" for size in sizes)
            raise InvalidInput(
                f"the input of {self.name} has shape ({shown}). Its first dimension must be the batch, 1 or free, and "
                "the others must be fixed numbers."
            )
        return tuple(sizes[1:]), dtypes[kind.elem_type]

    def _require_known(self) -> None:
        """Raise unless all operators on activations have an entry; the error names all that have none."""
        live, unknown = {self.source.name}, dict[str, str]()
        for node in self.model.graph.node:
            if node.op_type in SHAPES or not live & set(node.input):
                continue
            live |= set(node.output)
            if node.op_type not in OPERATORS or node.domain not in ("", "ai.onnx"):
                unknown.setdefault(node.op_type, node.name or node.output[0])
        if not unknown:
            return
        found = ", ".join(f"{kind} (node {name!r})" for kind, name in unknown.items())
        hint = ""
        if any(kind in unknown for kind in ("Softmax", "LogSoftmax")):
            hint = " A network returns logits: export it without its softmax, which changes no order of classes."
        raise UnsupportedLayer(
            f"{self.name} holds ONNX operators without rules: {found}. Supported: {', '.join(sorted(OPERATORS))}, and "
            f"any operator on constants alone.{hint}"
        )

    def _fold(self, node: Any) -> None:
        """Compute a node that has no activation to depend on, but for their shapes."""
        evaluator = require_package("onnx.reference", EXTRA).ReferenceEvaluator(node, opsets=self.opsets)
        inputs = {name: self._value(name) for name in node.input if name}
        for name, value in zip(node.output, evaluator.run(None, inputs), strict=False):
            self.constants[name] = np.asarray(value)

    def _value(self, name: str) -> np.ndarray:
        """Return a constant, or something of the shape of an activation."""
        if name in self.activations:
            return np.zeros(self.activations[name].shape, dtype=np.float32)
        return self.constants[name]

    def _read(self, node: Any) -> None:
        """Make the layer of a node that depends on the input."""
        attributes = {entry.name: self.onnx.helper.get_attribute_value(entry) for entry in node.attribute}
        call = Call(
            kind=node.op_type,
            name=node.name or node.output[0],
            attributes=attributes,
            inputs=tuple(self._argument(name) for name in node.input),
            outputs=sum(bool(self.uses[name]) for name in node.output),
        )
        output = node.output[0]
        if self._becomes_bias(call, output):
            return
        layer = OPERATORS[node.op_type](call)
        if isinstance(layer, nn.Identity):
            self.activations[output] = call.x
        else:
            self._append(layer, call.activations, output)

    def _argument(self, name: str) -> Activation | Tensor | None:
        if not name:
            return None
        return self.activations[name] if name in self.activations else torch.from_numpy(np.array(self.constants[name]))

    def _becomes_bias(self, call: Call, output: str) -> bool:
        """Put a constant that is added to what MatMul makes into the linear layer, where it is its bias."""
        if call.kind != "Add" or len(call.activations) != 1 or not self.layers:
            return False
        (activation,), last = call.activations, self.layers[-1]
        (constant,) = (value for value in call.inputs if isinstance(value, Tensor))
        made_last = self.steps[-1].output == activation.name and self.uses[activation.name] == 1
        fits = isinstance(last, nn.Linear) and last.bias is None and constant.shape[-1:] == activation.shape[-1:]
        if not (made_last and fits and constant.numel() == activation.shape[-1]):
            return False
        last.register_parameter("bias", nn.Parameter(constant.reshape(-1).clone()))
        self.examples[activation.name] = last(self.examples[self.steps[-1].inputs[0]])
        self.activations[output] = activation
        return True

    def _append(self, layer: nn.Module, inputs: tuple[Activation, ...], output: str) -> None:
        """Run a layer on the example, to learn the shape of what it makes."""
        try:
            made = layer.eval()(*(self.examples[activation.name] for activation in inputs))
        except RuntimeError as error:
            raise InvalidInput(f"{self.name} cannot be run: {output!r} fails on its inputs ({error}).") from error
        self.examples[output] = made
        self.activations[output] = Activation(output, tuple(made.shape))
        self.layers.append(layer)
        self.steps.append(Step(tuple(activation.name for activation in inputs), output))


def _require_agreement(net: OnnxNetwork, reference: Callable[[Tensor], Tensor], name: str) -> None:
    """Raise unless the module computes what the file says, on inputs in general position."""
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(TRIALS, *net.input_shape, generator=generator)
    scale = torch.tensor([0.0, 0.1, 1.0, 10.0]).view(-1, *[1] * len(net.input_shape))
    x = (normal * scale).to(next(iter(net.state_dict().values()), normal).dtype)
    with torch.no_grad(), direct_sums():
        made, expected = net(x), reference(x)
    if made.shape != expected.shape:
        raise UnsupportedLayer(
            f"{name} has outputs of shape {tuple(expected.shape[1:])}, but was read as a network with {made.shape[1:]}."
        )
    for row, wanted in zip(made, expected, strict=True):
        largest = float(wanted[wanted.isfinite()].abs().max()) if bool(wanted.isfinite().any()) else 0.0
        if not torch.allclose(row, wanted, rtol=0.0, atol=TOLERANCE * largest, equal_nan=True):
            raise UnsupportedLayer(
                f"{name} was read, but does not compute what onnx's reference evaluation computes: outputs differ by "
                f"{float((row - wanted).abs().max()):.3g}, of at most {largest:.3g}. An operator is used in a way that "
                "has no rule; please report it with the network."
            )
