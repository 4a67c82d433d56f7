"""A step of training as a CUDA graph.

One step of a small network is a hundred kernels or two of a microsecond each, and Python takes ten times as long to
launch them one by one. A graph launches all of them at once. ``update`` is pure, reads nothing on the host and does not
branch on data, so a recording of it can be replayed with other numbers in the same places: the state, the batch, its
noise and the network's buffers are copied into tensors of their own before each replay. Random numbers come from a
generator that is registered with the graph, so that each replay draws new ones, the same again for the same seed. Where
all weights come as one vector, they are drawn in another order than tensor by tensor.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from certibayes.inference._flat import FlatTarget, is_elementwise
from certibayes.inference._streams import fresh, generators_of
from certibayes.inference.algorithm import Algorithm, Info
from certibayes.inference.target import Target
from certibayes.likelihoods import Batch, Noise

WARM_UP = 3
"""Steps that are made and thrown away before the recording, so that libraries have set themselves up."""


class Places(NamedTuple):
    """The tensors that a graph reads and writes.

    Attributes:
        state: of the algorithm; each replay leaves the next one in the same place.
        passing: inputs, targets and noise, which are others at every step.
        buffers: of the network, by name.
        known_buffers: those that were copied there last.
    """

    state: Any
    passing: tuple[Tensor, ...]
    buffers: dict[str, Tensor]
    known_buffers: dict[str, Tensor]


class CapturedUpdate:
    """``algorithm.update`` on a GPU, recorded at the first call and replayed from then on.

    Where a step cannot be recorded, a warning says so once, and every call makes the step as it stands. So does a call
    with a batch of another shape than the first, such as the last one of a loader.

    Args:
        algorithm: whose steps are made.
        generator: of the algorithm, on the GPU; or those of several models.
    """

    def __init__(self, algorithm: Algorithm[Any], generator: Any):
        self.algorithm, self.generator = algorithm, generator
        self.graph: torch.cuda.CUDAGraph | None = None
        self.possible = True
        self.places = Places((), (), {}, {})
        self.shapes: list[torch.Size] = []
        self.info: Info = {}
        self.recorded: tuple[Any, ...] = ()

    def __call__(self, target: Target, state: Any, batch: Batch, noise: Noise) -> tuple[Any, Info]:
        """Make one step, as ``algorithm.update`` does."""
        if self.graph is None and self.possible:
            self._capture(target, state, batch, noise)
        drawn = tuple(part for part in noise if part is not None)
        shapes = [tensor.shape for tensor in (*batch, *drawn)]
        if self.graph is None or shapes != self.shapes:
            return self.algorithm.update(target, state, batch, noise, self.generator)
        moved = list(zip(self.places.passing, (*batch, *drawn), strict=True))
        # Most steps go on from where the last one ended, but for the rate; a look at every leaf would take longer than
        # the step itself.
        for place, value in zip(self.places.state, state, strict=True):
            if place is not value:
                moved += zip(pytree.tree_leaves(place), pytree.tree_leaves(value), strict=True)
        if target.buffers is not self.places.known_buffers:
            moved += [(place, target.buffers[name]) for name, place in self.places.buffers.items()]
            self.places = self.places._replace(known_buffers=target.buffers)
        torch._foreach_copy_([place for place, _ in moved], [value for _, value in moved])
        self.graph.replay()
        # Losses are kept until they are read, and the next replay overwrites this one.
        return self.places.state, {**self.info, "loss": self.info["loss"].clone()}

    def _capture(self, target: Target, state: Any, batch: Batch, noise: Noise) -> None:
        buffers = {name: tensor.clone() for name, tensor in target.buffers.items()}
        state, batch = pytree.tree_map(torch.clone, (state, batch))
        noise = Noise(*(part.clone() for part in noise if part is not None))
        fixed, inner = target.with_buffers(buffers), state
        if is_elementwise(self.algorithm) and not isinstance(fixed, FlatTarget):
            flat = FlatTarget.of(fixed, self.algorithm.mean_params(state))
            inner = flat.layout.joined(state)
            # The same memory under the names that everyone else knows.
            fixed, state = flat, flat.layout.named(inner)
        try:
            self._warm_up(fixed, inner, batch, noise)
            graph = torch.cuda.CUDAGraph()
            for generator in generators_of(self.generator):
                graph.register_generator_state(generator)
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
        passing = (*batch, *(part for part in noise if part is not None))
        # The graph reads this memory at every replay, and does not keep it from being given to others.
        self.graph, self.info, self.recorded = graph, info, (fixed, inner)
        self.places = Places(state, passing, buffers, target.buffers)
        self.shapes = [tensor.shape for tensor in passing]

    def _warm_up(self, target: Target, state: Any, batch: Batch, noise: Noise) -> None:
        """Make steps on a stream of their own, with random numbers of their own, and throw them away."""
        stream, generator = torch.cuda.Stream(), fresh(self.generator)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self.algorithm.update(target, state, batch, noise, generator)
        torch.cuda.current_stream().wait_stream(stream)
