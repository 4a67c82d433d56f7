"""Run torch.fx over a module, with errors a person can act on: they name the line of the module that they are about."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from certibayes.errors import UnsupportedLayer
from certibayes.networks import lowering
from certibayes.networks._assembly import is_shape_arithmetic

_FOREIGN = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
"""Folders whose lines say nothing about the module that is traced."""

_BATCHES = (1, 2, 3)
"""Sizes of batches for all of which a branch on sizes must be the same."""


class _Tracer(fx.Tracer):
    """Keep every module that has an entry of its own whole, and leave all arguments but the input at their defaults.

    Attributes:
        example: an input, (1, ...), that tells sizes; None where none is known.
        running: whether what has been traced is run, so that layers and weights are themselves and not stand-ins.
    """

    record_stack_traces = True

    def __init__(self, example: Tensor | None):
        super().__init__()
        self.example = example
        self.running = False

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in lowering.modules or super().is_leaf_module(m, module_qualified_name)

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> Any:
        return super().create_args_for_root(_of_one_input(root_fn), is_module, concrete_args)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return forward(*args, **kwargs) if self.running else super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        return attr_val if self.running else super().getattr(attr, attr_val, parameter_proxy_cache)

    def to_bool(self, obj: fx.Proxy) -> bool:
        """Answer ``if x.dim() > 2`` and ``assert x.shape[1] == 3``, where the answer is the same for every batch."""
        if self.example is not None and is_shape_arithmetic(obj.node):
            answers = {bool(self._value(obj.node, size)) for size in _BATCHES}
            if len(answers) == 1:
                return answers.pop()
        return super().to_bool(obj)

    def _value(self, wanted: fx.Node, batch: int) -> Any:
        """Run what has been traced so far."""
        assert self.example is not None
        run = fx.Interpreter(self.root, garbage_collect_values=False, graph=self.graph)
        run.args_iter = iter([self.example.expand(batch, *self.example.shape[1:]).clone()])
        self.running = True
        try:
            for node in self.graph.nodes:
                run.env[node] = run.run_node(node)
                if node is wanted:
                    break
        finally:
            self.running = False
        return run.env[wanted]

    def _filter_traceback_frames(self, user_stack_summary: traceback.StackSummary) -> traceback.StackSummary:
        return traceback.StackSummary.from_list(_own_lines(user_stack_summary)[-1:])


def _own_lines(frames: Iterable[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Return those below the first ``forward`` that stand in a file of the module's author."""
    found = [frame for frame in frames if frame.line and not frame.filename.startswith(_FOREIGN)]
    first = next((place for place, frame in enumerate(found) if frame.name == "forward"), len(found))
    return found[first:]


def _place(frames: list[traceback.FrameSummary]) -> str:
    """Say where the last of some lines of source stands, or ""."""
    if not frames:
        return ""
    return f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}: {str(frames[-1].line).strip()}"


def _of_one_input(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``forward`` as a function of its first argument, where the others can do without a value."""
    _, *arguments = inspect.signature(forward).parameters.values()
    starred = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [a.name for a in arguments[1:] if a.default is a.empty and a.kind not in starred]
    if needed:
        raise UnsupportedLayer(
            f"the network needs {', '.join(needed)} besides its input, and only networks of one input can be bounded. "
            "Give what is fixed a default, or wrap the network in a module whose forward fills it in."
        )
    if len(arguments) == 1 and arguments[0].kind not in starred:
        return forward

    def of_one_input(self: nn.Module, x: Any) -> Any:
        return forward(self, x)

    return of_one_input


def symbolic_trace(module: nn.Module, example: Tensor | None = None) -> fx.GraphModule:
    """Run torch.fx over an eval-mode module.

    Args:
        module: a module.
        example: an input, (1, ...), by which branches on sizes are decided; without one they are refused.
    """
    try:
        return fx.GraphModule(module, _Tracer(example).trace(module), type(module).__name__)
    except UnsupportedLayer:
        raise
    except Exception as error:  # torch.fx raises many kinds, all meaning the same to the user
        place = _place(_own_lines(traceback.extract_tb(error.__traceback__)))
        raise UnsupportedLayer(
            f"{type(module).__name__} cannot be traced: {error}{f' ({place})' if place else ''}. Its forward runs "
            "once, on a stand-in for all inputs that has no values: it must not branch or loop on them, print them, "
            "make numpy arrays of them, or pass them to functions that are not torch's. What is fixed is best computed "
            "in __init__ (register_buffer); for what is left, move that part into a module of its own and register it "
            "with certibayes.networks.lower_module."
        ) from error
