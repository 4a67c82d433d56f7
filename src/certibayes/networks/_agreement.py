"""The traced graph is compared with the module it came from, layer by layer, on inputs in general position."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn

from certibayes.errors import InvalidInput, UnsupportedLayer
from certibayes.networks.graph import Graph, Params
from certibayes.networks.head import HEADS
from certibayes.support.arithmetic import direct_sums


class _Trail(fx.Interpreter):
    """Run a traced module and keep a copy of what every call gave, before anything changes it in place."""

    def __init__(self, module: fx.GraphModule):
        super().__init__(module)
        self.values: dict[str, Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor):
            self.values[n.name] = value.clone()
        return value


def require_agreement(
    graph: Graph, tensors: Params, original: nn.Module, traced: fx.GraphModule, example: Tensor
) -> None:
    """Raise unless graph and module compute the same, and every example apart from those beside it.

    In float64, where a mistake cannot be taken for rounding; in the network's own precision where it cannot run in any
    other.

    Args:
        graph: the graph.
        tensors: its parameters and buffers.
        original: the module; its precision is changed.
        traced: the module as torch.fx sees it; its precision is changed.
        example: an input, (1, ...).
    """
    failure: Exception | None = None
    for dtype, tolerance in ((torch.float64, 1e-6), (example.dtype, 1e-4)):
        try:
            # First to its own precision, to which torch rounds single numbers of a higher one.
            original, traced = original.to(example.dtype).to(dtype), traced.to(example.dtype).to(dtype)
            cast = {name: tensor.to(dtype) for name, tensor in tensors.items()}
            rows = _rows(example.to(dtype))
            # Without TF32, whose rounding differs from one batch size to another by more than a mistake would.
            with direct_sums():
                expected = original(rows.clone())
                _compare(graph, cast, original, traced, rows, expected, tolerance)
            return
        except UnsupportedLayer:
            raise
        except (RuntimeError, TypeError) as error:
            failure = error
    raise InvalidInput(f"the network cannot be run on inputs of shape {tuple(example.shape[1:])}: {failure}")


def _rows(example: Tensor) -> Tensor:
    """Return inputs at which a wrong graph is not right by chance: the example, and random ones, small and large."""
    generator = torch.Generator().manual_seed(0)
    shape = (2, *example.shape[1:])
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
    normal = torch.randn(shape, generator=generator, dtype=torch.float64)
    drawn = torch.cat([uniform, normal, 10 * normal.flip(0)]).to(example)
    return torch.cat([example, 0.5 * example.flip(-1), drawn])


def _compare(
    graph: Graph,
    tensors: Params,
    original: nn.Module,
    traced: fx.GraphModule,
    rows: Tensor,
    expected: Tensor,
    tolerance: float,
) -> None:
    name = type(original).__name__
    trail = _Trail(traced)
    trail.run(rows.clone())
    found: dict[str, Tensor] = {}
    graph.evaluate(tensors, rows, lambda node, _, output: found.setdefault(node.name, output))
    for node in graph.nodes:
        # Of operations that stand for one call together, the last has its name. One number of each input is a vector
        # of one in the graph.
        value = trail.values.get(node.name)
        if value is not None and not _close(found[node.name], value if value.dim() > 1 else value[:, None], tolerance):
            raise UnsupportedLayer(
                f"the traced graph of {name} does not compute what the module computes: {node.name} is taken for "
                f"{type(node.operation).__name__}, which gives other values. Correct the registered entry."
            )
    if not _close(HEADS[graph.head](found[graph.nodes[-1].name]), expected, tolerance):
        raise UnsupportedLayer(
            f"the traced graph of {name} does not compute what the module computes. Its forward depends on something "
            "other than its input: random numbers, the number of calls, the values of tensors, or "
            "isinstance(x, torch.Tensor)."
        )
    for row, in_batch in zip(rows, expected, strict=True):
        try:
            alone = original(row[None].clone())
        except Exception as error:
            raise UnsupportedLayer(
                f"{name} runs on several inputs but not on one: {error}. Perhaps squeeze() drops the dimension of the "
                "batch; write flatten(1), or squeeze the dimensions you mean."
            ) from error
        # Where squeeze() drops the dimension of a batch of one, the numbers are still those of the one input.
        if not isinstance(alone, Tensor) or not _close(alone.flatten(), in_batch.flatten(), tolerance):
            raise UnsupportedLayer(
                f"{name} mixes the examples of a batch: an input's output depends on the inputs beside it, so nothing "
                "can be proved about one input."
            )


def _close(one: Tensor, other: Tensor, tolerance: float) -> bool:
    """Tell whether two tensors differ by no more than a fraction of their largest value, and overflow alike."""
    if one.shape != other.shape:
        return False
    finite = other[other.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return torch.allclose(one, other, rtol=0.0, atol=tolerance * largest, equal_nan=True)
