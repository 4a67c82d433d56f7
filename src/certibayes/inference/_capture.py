"""A step of training as a CUDA graph.

One step of a small network is a few hundred kernels of a microsecond each, and Python takes ten times as long to launch
them one by one. A graph launches all of them at once. ``update`` is pure, reads nothing on the host and does not branch
on data, so that what was recorded once can be replayed with other numbers in the same places: the state, the batch,
its noise and the network's buffers are copied into tensors of their own before each replay, and random numbers come
from a generator that is registered with the graph, so that they are the ones an uncaptured run draws.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from certibayes.inference._flat import FlatTarget
from certibayes.inference.algorithm import Algorithm, Info
from certibayes.inference.target import Target
from certibayes.likelihoods import Batch, Noise

WARM_UP = 3
"""Steps that are made and thrown away before the recording, so that libraries have set themselves up."""


class CapturedUpdate:
    """``algorithm.update`` on a GPU, recorded at the first call and replayed from then on.

    Where a step cannot be recorded, every call makes it as it stands, and that is said once. So is a batch of another
    shape than the first, such as the last one of a loader.

    Args:
        algorithm: whose steps are made.
        generator: of the algorithm, on the GPU.
    """

    def __init__(self, algorithm: Algorithm[Any], generator: torch.Generator):
        self.algorithm, self.generator = algorithm, generator
        self.graph: torch.cuda.CUDAGraph | None = None
        self.possible = True
        self.places: list[Tensor] = []
        self.shapes: list[torch.Size] = []
        self.result: tuple[Any, Info] = ((), {})
        self.recorded: tuple[Any, ...] = ()

    def __call__(self, target: Target, state: Any, batch: Batch, noise: Noise) -> tuple[Any, Info]:
        """Make one step, as ``algorithm.update`` does."""
        drawn = tuple(part for part in noise if part is not None)
        given, structure = pytree.tree_flatten((state, batch, drawn, target.buffers))
        if self.graph is None and self.possible:
            self._capture(target, given, structure)
        if self.graph is None or [tensor.shape for tensor in given] != self.shapes:
            return self.algorithm.update(target, state, batch, noise, self.generator)
        moved = [(place, value) for place, value in zip(self.places, given, strict=True) if place is not value]
        torch._foreach_copy_([place for place, _ in moved], [value for _, value in moved])
        self.graph.replay()
        state, info = self.result
        # Losses are kept until they are read, and the next replay overwrites this one.
        return state, {**info, "loss": info["loss"].clone()}

    def _capture(self, target: Target, given: list[Tensor], structure: pytree.TreeSpec) -> None:
        state, batch, drawn, buffers = pytree.tree_unflatten([value.clone() for value in given], structure)
        noise, fixed, inner = Noise(*drawn), target.with_buffers(buffers), state
        if self.algorithm.elementwise:
            flat = FlatTarget.of(fixed, self.algorithm.mean_params(state))
            inner = flat.layout.joined(state)
            # The same memory under the names that everyone else knows.
            fixed, state = flat, flat.layout.named(inner)
        try:
            self._warm_up(fixed, inner, batch, noise)
            graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(self.generator)
            with torch.cuda.graph(graph):
                after, info = self.algorithm.update(fixed, inner, batch, noise, self.generator)
                pairs = zip(pytree.tree_leaves(inner), pytree.tree_leaves(after), strict=True)
                changed = [(old, new) for old, new in pairs if old is not new]
                torch._foreach_copy_([old for old, _ in changed], [new for _, new in changed])
        except RuntimeError as error:
            self.possible = False
            name = type(self.algorithm).__name__
            warnings.warn(
                f"a step of {name} cannot be captured into a CUDA graph, so each is launched from Python, which takes "
                f"longer ({str(error).splitlines()[0]}).",
                stacklevel=2,
            )
            return
        # The graph reads this memory at every replay, and does not keep it from being given to others.
        self.recorded = fixed, inner
        self.graph, self.result = graph, (state, info)
        self.places = pytree.tree_leaves((state, batch, drawn, buffers))
        self.shapes = [place.shape for place in self.places]

    def _warm_up(self, target: Target, state: Any, batch: Batch, noise: Noise) -> None:
        """Make steps on a stream of their own, with random numbers of their own, and throw them away."""
        stream, generator = torch.cuda.Stream(), torch.Generator(batch.inputs.device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self.algorithm.update(target, state, batch, noise, generator)
        torch.cuda.current_stream().wait_stream(stream)
