"""Steps of training as CUDA graphs.

One step of a small network is a hundred kernels of a microsecond each, and Python takes ten times as long to launch
them one by one. A graph launches all of them at once, and those of several steps. ``update`` is pure, reads nothing on
the host and does not branch on data, so a recording of it can be replayed with other numbers in the same places: the
state, the batches, their noise and rates, and the network's buffers are copied into tensors of their own before each
replay. Random numbers come from a generator that is registered with the graph, so that each replay draws new ones, the
same again for the same seed. Where all weights come as one vector, they are drawn in another order than tensor by
tensor.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from certibayes.inference._flat import FLAT, FlatTarget, is_elementwise
from certibayes.inference._streams import fresh, generators_of
from certibayes.inference.algorithm import Algorithm, Info
from certibayes.inference.target import Target
from certibayes.likelihoods import Batch, Noise

WARM_UP = 3
"""Steps that are made and thrown away before the recording, so that libraries have set themselves up."""

TOGETHER = 10
"""Steps in the longer of two recordings; what is left over at the end of an epoch takes the other, of one step."""


class Step(NamedTuple):
    """What one step is made with.

    Attributes:
        batch: its data.
        noise: of the likelihood.
        rate: of learning.
    """

    batch: Batch
    noise: Noise
    rate: Tensor

    @property
    def tensors(self) -> list[Tensor]:
        """All of it, in one order."""
        return [*self.batch, *(part for part in self.noise if part is not None), self.rate]

    def cloned(self, order: torch.memory_format) -> Step:
        """Return the same numbers in memory of their own, the inputs in this order."""
        noise = Noise(*(part.clone() for part in self.noise if part is not None))
        return Step(
            Batch(self.batch.inputs.clone(memory_format=order), self.batch.targets.clone()), noise, self.rate.clone()
        )


class Places(NamedTuple):
    """The tensors that all recordings read and write.

    Attributes:
        target: with buffers that are copied there.
        state: of the algorithm, as the algorithm has it; each replay leaves the next one in the same place.
        named: the same memory under the names that everyone else knows.
        known_buffers: those that were copied last.
        known_precision: likewise, of a prior that is learned.
    """

    target: Target
    state: Any
    named: Any
    known_buffers: dict[str, Tensor]
    known_precision: dict[str, Tensor]

    def priors(self, target: Target) -> list[tuple[Tensor, Tensor]]:
        """Return where a recording reads of the prior, and what is to stand there."""
        if isinstance(self.target, FlatTarget) and not isinstance(target, FlatTarget):
            target = FlatTarget.of(target, self.target.layout.split(self.target.precision[FLAT]))
        pairs = [(self.target.precision, target.precision), (self.target.prior, target.prior)]
        return [(place[name], value[name]) for place, value in pairs for name in place]


class Recording(NamedTuple):
    """Some steps as a graph.

    Attributes:
        graph: of all kernels.
        steps: what it reads; it does not keep this memory from being given to others.
        info: what the last step says.
        losses: of all steps, (K, ...).
    """

    graph: torch.cuda.CUDAGraph
    steps: tuple[Step, ...]
    info: Info
    losses: Tensor


class CapturedUpdate:
    """``algorithm.update`` on a GPU, recorded at the first call and replayed from then on.

    Where a step cannot be recorded, a warning says so once, and every call makes the steps as they stand. So does a
    call with a batch of another shape than the first, such as the last one of a loader.

    Args:
        algorithm: whose steps are made.
        generator: of the algorithm, on the GPU; or those of several models.
        order: of inputs in memory. Convolutions in TF32 are made for images with their channels last.
    """

    def __init__(
        self, algorithm: Algorithm[Any], generator: Any, order: torch.memory_format = torch.preserve_format
    ) -> None:
        self.algorithm, self.generator, self.order = algorithm, generator, order
        self.possible = True
        self.places: Places | None = None
        self.recordings: dict[int, Recording] = {}
        self.shapes: list[torch.Size] = []

    def __call__(self, target: Target, state: Any, steps: Sequence[Step]) -> tuple[Any, Info, Tensor]:
        """Make steps one after another; return the last state, what the last step says, and all losses (K, ...)."""
        if self.places is None:
            self.places = self._places(target, state)
            self.shapes = [tensor.shape for tensor in steps[0].tensors]
        count = len(steps) if len(steps) == TOGETHER else 1
        losses = []
        for start in range(0, len(steps), count):
            state, info, some = self._make(target, state, steps[start : start + count])
            losses.append(some)
        return state, info, torch.cat(losses)

    def _make(self, target: Target, state: Any, steps: Sequence[Step]) -> tuple[Any, Info, Tensor]:
        assert self.places is not None
        alike = all([tensor.shape for tensor in step.tensors] == self.shapes for step in steps)
        if alike and self.possible and len(steps) not in self.recordings:
            self._record(target, state, steps)
        if not (alike and self.possible):
            return made(self.algorithm, target, state, steps, self.generator)
        recording = self.recordings[len(steps)]
        self._bring(target, state, zip(recording.steps, steps, strict=True))
        recording.graph.replay()
        # Losses are kept until they are read, and the next replay overwrites these.
        return self.places.named, recording.info, recording.losses.clone()

    def _bring(self, target: Target, state: Any, steps: Iterable[tuple[Step, Step]]) -> None:
        """Copy what the next replay reads to where it reads it."""
        assert self.places is not None
        moved = [pair for place, step in steps for pair in zip(place.tensors, step.tensors, strict=True)]
        # Most steps go on from where the last one ended; a look at every leaf would take longer than the step itself.
        for place, value in zip(self.places.named, state, strict=True):
            if place is not value:
                moved += zip(pytree.tree_leaves(place), pytree.tree_leaves(value), strict=True)
        if target.buffers is not self.places.known_buffers:
            moved += [(place, target.buffers[name]) for name, place in self.places.target.buffers.items()]
            self.places = self.places._replace(known_buffers=target.buffers)
        if target.precision is not self.places.known_precision:
            moved += self.places.priors(target)
            self.places = self.places._replace(known_precision=target.precision)
        # By precision: a list of several kinds would be copied tensor by tensor.
        for dtype in {place.dtype for place, _ in moved}:
            alike = [(place, value) for place, value in moved if place.dtype == dtype]
            torch._foreach_copy_([place for place, _ in alike], [value for _, value in alike])

    def _places(self, target: Target, state: Any) -> Places:
        fixed = target.with_buffers({name: tensor.clone() for name, tensor in target.buffers.items()})
        state = pytree.tree_map(torch.clone, state)
        known = (target.buffers, target.precision)
        if not is_elementwise(self.algorithm) or isinstance(fixed, FlatTarget):
            # A learned prior is copied here; the tensors that it started from may be those of other runs too.
            fixed = fixed.with_precision({name: own.clone() for name, own in fixed.precision.items()})
            return Places(fixed, state, state, *known)
        flat = FlatTarget.of(fixed, self.algorithm.mean_params(state))
        inner = flat.layout.joined(state)
        return Places(flat, inner, flat.layout.named(inner), *known)

    def _record(self, target: Target, state: Any, steps: Sequence[Step]) -> None:
        assert self.places is not None
        places = tuple(step.cloned(self.order) for step in steps)
        self._bring(target, state, ())
        fixed, inner = self.places.target, self.places.state
        try:
            if not self.recordings:
                self._warm_up(fixed, inner, places[:1])
            graph = torch.cuda.CUDAGraph()
            for generator in generators_of(self.generator):
                graph.register_generator_state(generator)
            with torch.cuda.graph(graph):
                after, info, losses = made(self.algorithm, fixed, inner, places, self.generator)
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
        self.recordings[len(steps)] = Recording(graph, places, info, losses)

    def _warm_up(self, target: Target, state: Any, steps: Sequence[Step]) -> None:
        """Make steps on a stream of their own, with random numbers of their own, and throw them away."""
        stream, generator = torch.cuda.Stream(), fresh(self.generator)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                made(self.algorithm, target, state, steps, generator)
        torch.cuda.current_stream().wait_stream(stream)


def made(
    algorithm: Algorithm[Any], target: Target, state: Any, steps: Sequence[Step], generator: Any
) -> tuple[Any, Info, Tensor]:
    """Make steps as they stand."""
    losses = []
    for step in steps:
        state, info = algorithm.update(target, state._replace(lr=step.rate), step.batch, step.noise, generator)
        losses.append(info["loss"])
    return state, info, torch.stack(losses)
