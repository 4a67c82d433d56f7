"""Run torch.fx over a module, with errors a person can act on: they name the line of the module that they are about."""

from __future__ import annotations

import inspect
import operator
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from certibayes.errors import UnsupportedLayer
from certibayes.networks import lowering
from certibayes.networks._hints import hints_for
from certibayes.networks._sizes import Sizes, is_shape_arithmetic
from certibayes.networks.plain import require_plain

_FOREIGN = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
"""Folders whose lines say nothing about the module that is traced."""

_BATCHES = (1, 2, 3)
"""Sizes of batches that are run, for what a branch or a loop asks about sizes."""

_DEVICES = ("cpu", "cuda")
"""Where autocast may be switched on."""


_RANDOM = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU)
"""Layers that answer at random in training."""


class _Known:
    """What Python asks of a stand-in: a length, a whole number. Sizes that are the same for every batch answer it."""

    tracer: _Tracer
    node: fx.Node

    def __len__(self) -> int:
        return self.tracer.length(self.node, "len(...)")

    def __index__(self) -> int:
        # torch asks this of sizes as well, and takes a refusal for an answer.
        return operator.index(self.tracer.known(self.node, "a whole number", final=False))

    def __int__(self) -> int:
        return int(self.tracer.known(self.node, "int(...)"))

    def __round__(self, ndigits: int | None = None) -> Any:
        return round(self.tracer.known(self.node, "round(...)"), ndigits)

    def __float__(self) -> float:
        return float(self.tracer.known(self.node, "float(...)"))


class _StandIn(_Known, fx.Proxy):  # type: ignore[misc] # the tracer of a Proxy may be of any kind
    """A stand-in for a tensor or a size."""

    def __getattr__(self, k: str) -> _Attribute:
        return _Attribute(self, k)


class _Attribute(_Known, fx.proxy.Attribute):  # type: ignore[misc]
    """A stand-in for an attribute of one."""


class _Tracer(fx.Tracer):
    """Keep every module that has an entry of its own whole, and leave all arguments but the input at their defaults.

    Attributes:
        example: an input, (1, ...), that tells sizes; None where none is known.
        running: whether what has been traced is run, so that layers and weights are themselves and not stand-ins.
        refused: the first error about sizes, which a module may catch that must not be traced without it.
    """

    record_stack_traces = True

    def __init__(self, example: Tensor | None):
        super().__init__()
        self.example = example
        self.running = False
        self.refused: UnsupportedLayer | None = None
        self.runs: dict[int, fx.Interpreter] = {}
        self.sizes: Sizes | None = None
        self.autocast = [torch.is_autocast_enabled(device) for device in _DEVICES]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in lowering.modules or super().is_leaf_module(m, module_qualified_name)

    def path_of_module(self, mod: nn.Module) -> str:
        """Name a layer; one without weights may be made in forward, as in ``nn.ReLU()(x)``."""
        if mod not in set(self.root.modules()) and not (*mod.parameters(), *mod.buffers()):
            require_plain(mod, lowering.modules)
            if mod.training and isinstance(mod, _RANDOM):
                raise UnsupportedLayer(
                    f"a {type(mod).__name__} is made in forward or held in a list, where eval() does not reach it, so "
                    f"that the network is random. Make it in __init__, as an attribute of the module{_place_now()}."
                )
            name = f"made_in_forward_{len(dict(self.root.named_children()))}"
            self.root.add_module(name, mod)
            made = {part: path for path, part in mod.named_modules(prefix=name)}
            self.submodule_paths = {**(self.submodule_paths or {}), **made}
        return super().path_of_module(mod)

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> Any:
        return super().create_args_for_root(_of_one_input(root_fn), is_module, concrete_args)

    def create_node(self, *arguments: Any, **named: Any) -> fx.Node:
        if [torch.is_autocast_enabled(device) for device in _DEVICES] != self.autocast:
            raise UnsupportedLayer(
                "the network switches autocast on or off in its forward, which changes the precision of single layers; "
                "bounds need one precision. Take torch.autocast out of forward, and put it around the calls of the "
                f"network in training{_place_now()}."
            )
        return super().create_node(*arguments, **named)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _StandIn(node, self)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return forward(*args, **kwargs) if self.running else super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        return attr_val if self.running else super().getattr(attr, attr_val, parameter_proxy_cache)

    def to_bool(self, obj: fx.Proxy) -> bool:
        """Answer ``if x.dim() > 2`` and ``assert x.shape[1] == 3``, where the answer is the same for every batch."""
        if self.example is not None and is_shape_arithmetic(obj.node):
            return bool(self.known(obj.node, "a branch"))
        self._refusal("forward must not branch on values, which depend on the input")
        return super().to_bool(obj)

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        """Go through the sizes of ``x.shape[1:]`` and the parts of ``x.chunk(2, 1)``."""
        parts: Any = obj
        return iter([parts[place] for place in range(self.length(obj.node, "a loop"))])

    def known(self, node: fx.Node, what: str, final: bool = True) -> Any:
        """Return the value of what computes sizes alone, if it is the same for every batch.

        Args:
            node: whose value is asked for.
            what: asks for it, in words.
            final: whether a module that catches the error is refused all the same.
        """
        if self.example is None:
            raise TypeError(f"{what} needs a size, and none is known without an example of the input")
        if not is_shape_arithmetic(node):
            self._refusal(f"{what} is asked of values, which depend on the input", final)
            raise TypeError(f"{what} is asked of values, which depend on the input")
        value, *others = (self._value(node, size) for size in _BATCHES)
        if all(value == other for other in others) and not self._sizes().depend_on_batch(node):
            return value
        raise self._refusal(
            f"{what} depends on the size of the batch, so that an input's output would depend on the inputs beside it. "
            "Ask for the sizes of one example, such as x.shape[1] and x.shape[1:], and write x.flatten(1) or "
            "x.view(x.size(0), -1) where the batch must be named",
            final,
        )

    def length(self, node: fx.Node, what: str) -> int:
        """Return the number of sizes, or of the parts of a tensor; the arguments are those of ``known``."""
        if self.example is None:
            raise TypeError(f"{what} needs a size, and none is known without an example of the input")
        values = [self._value(node, size) for size in _BATCHES]
        if all(isinstance(value, (tuple, list)) and len(value) == len(values[0]) for value in values):
            return len(values[0])
        raise self._refusal(
            f"{what} goes over the inputs of the batch, whose number changes. Write layers for all of them at once, "
            "x.size(0) for len(x), and x.flatten(1) for x.view(len(x), -1)"
        )

    def _sizes(self) -> Sizes:
        if self.sizes is None:
            self.sizes = Sizes(self.runs[2].env, self.runs[3].env)
        return self.sizes

    def _refusal(self, message: str, final: bool = True) -> UnsupportedLayer:
        error = UnsupportedLayer(f"{message}{_place_now()}.")
        if final:
            self.refused = self.refused or error
        return error

    def _value(self, wanted: fx.Node, batch: int) -> Any:
        """Run what has been traced so far, as far as it has not been run before."""
        assert self.example is not None
        if batch not in self.runs:
            self.runs[batch] = fx.Interpreter(self.root, garbage_collect_values=False, graph=self.graph)
            inputs = self.example.expand(batch, *self.example.shape[1:]).clone()
            self.runs[batch].args_iter = iter([inputs])
        run, self.running = self.runs[batch], True
        try:
            for node in self.graph.nodes:
                if wanted in run.env:
                    break
                if node not in run.env:
                    run.env[node] = run.run_node(node)
        finally:
            self.running = False
        return run.env[wanted]

    def _filter_traceback_frames(self, user_stack_summary: traceback.StackSummary) -> traceback.StackSummary:
        return traceback.StackSummary.from_list(_own_lines(user_stack_summary)[-1:])


def _place_now() -> str:
    """Say where its author's line stands that is being traced, in brackets, or ""."""
    place = _place(_own_lines(traceback.extract_stack()))
    return f" ({place})" if place else ""


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
    if not arguments or arguments[0].kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD):
        raise UnsupportedLayer(
            "the forward of the network takes no input by its place, as in net(x). Give it one, forward(self, x), or "
            "wrap the network in a module whose forward passes it on by name."
        )
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
    tracer = _Tracer(example)
    held = {part: dict(vars(part)) for part in module.modules()}
    try:
        traced = fx.GraphModule(module, tracer.trace(module), type(module).__name__)
    except UnsupportedLayer:
        raise
    except Exception as error:  # torch.fx raises many kinds, all meaning the same to the user
        place = _place(_own_lines(traceback.extract_tb(error.__traceback__)))
        where, hints = f" ({place})" if place else "", hints_for(f"{error} {place}")
        raise UnsupportedLayer(
            f"{type(module).__name__} cannot be traced: {error}{where}.{hints} Its forward runs once, on a stand-in "
            "for all inputs that has no values: it must not branch or loop on them, print them, make numpy arrays "
            "of them, or pass them to functions that are not torch's. What is fixed is best computed in __init__ "
            "(register_buffer); for what is left, move that part into a module of its own and register it with "
            "certibayes.networks.lower_module."
        ) from error
    if tracer.refused is not None:
        raise tracer.refused
    # What forward has put away, such as self.features, is a stand-in now.
    for part, before in held.items():
        for name in [name for name, value in vars(part).items() if isinstance(value, fx.Proxy)]:
            vars(part).pop(name)
            vars(part).update({name: before[name]} if name in before else {})
    # The indices of ``values, indices = x.max(1)`` have no rules, and need none where nobody reads them.
    for node in reversed(traced.graph.nodes):
        if not node.users and node.op == "call_function" and node.target in (operator.getitem, getattr):
            traced.graph.erase_node(node)
    traced.recompile()
    return traced
