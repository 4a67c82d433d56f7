"""Training data in batches, in an order that depends on seed and epoch alone, so that a run can be resumed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from certibayes.data import DataSet
from certibayes.data.points import examples_of, frame_values, is_frame, is_source
from certibayes.errors import InvalidInput
from certibayes.likelihoods import Batch
from certibayes.networks.batch_norm import evenly_spaced
from certibayes.support.checks import require_count
from certibayes.support.seeds import derived_seed
from certibayes.support.tensors import as_tensor, tensor_bytes


class Placement(NamedTuple):
    """Where the network computes, and in which precision."""

    device: torch.device
    dtype: torch.dtype

    def place(self, inputs: Tensor, targets: Tensor, what: str = "training") -> Batch:
        """Bring a batch there: inputs and regression targets as the network's floats, labels as int64."""
        inputs, targets = pair_of(inputs, targets, what)
        if len(inputs) != len(targets):
            raise lengths_differ(inputs, targets, what)
        if not inputs.is_floating_point():
            raise InvalidInput(
                f"the {what} inputs are {inputs.dtype}; floats are needed. For images of bytes: x / 255."
            )
        kind = self.dtype if targets.is_floating_point() else torch.int64
        return Batch(inputs.to(self.device, self.dtype), targets.to(self.device, kind))


class BatchSource:
    """Where batches come from.

    Attributes:
        size: number of training examples.
        steps: batches per epoch.
        data: all examples, where they are held in memory; else None.
        smallest: examples in the smallest batch of an epoch, where that is known.
    """

    size: int
    steps: int
    data: Batch | None = None
    smallest: int | None = None

    def epoch(self, seed: int, skip: int = 0) -> Iterator[Batch]:
        """Yield one epoch's batches in an order given by ``seed``, leaving out the first ``skip``."""
        raise NotImplementedError

    def prepare(self, seed: int) -> None:
        """Do what can be done for the epoch of this seed before it begins."""

    def everything(self) -> Iterator[Batch]:
        """Yield every example once, in batches, always in the same order."""
        return self.epoch(0)

    def example(self) -> Batch:
        """Return examples for shapes and checks: all of them where they are in memory, else a batch."""
        raise NotImplementedError

    def inputs(self, count: int) -> Tensor:
        """Return about ``count`` inputs, always the same, or all if there are fewer.

        From all over the data where they are in memory, and in the order of the loader where they are not.
        """
        raise NotImplementedError

    def fingerprint(self) -> dict[str, Any]:
        """Return what tells this data from other data, for checkpoints."""
        return {"size": self.size, "steps": self.steps}


def digest_of(batch: Batch) -> str:
    """SHA-256 of a batch's bytes."""
    sha = hashlib.sha256()
    for tensor in batch:
        sha.update(tensor_bytes(tensor))
    return sha.hexdigest()


AT_ONCE = 10
"""Batches that a GPU looks up at once: each look-up takes longer to ask for than to make."""


class TensorSource(BatchSource):
    """Tensors in memory, shuffled every epoch. The last, incomplete batch of an epoch is left out."""

    def __init__(self, data: Batch, batch_size: int):
        require_count(len(data.inputs), "the number of training examples")
        require_count(batch_size, "batch_size")
        self.data: Batch = data
        self.size = len(data.inputs)
        self.batch_size = self.smallest = min(batch_size, self.size)
        self.prepared: tuple[int | None, Tensor] = (None, torch.empty(0))
        self.steps = self.size // self.batch_size

    def epoch(self, seed: int, skip: int = 0) -> Iterator[Batch]:
        """See the base class."""
        self.prepare(seed)
        _, order = self.prepared
        at_once = AT_ONCE if order.is_cuda else 1
        for first in range(skip, self.steps, at_once):
            last = min(first + at_once, self.steps)
            chosen = order[first * self.batch_size : last * self.batch_size]
            batches = (tensor[chosen].split(self.batch_size) for tensor in self.data)
            yield from map(Batch, *batches)

    def prepare(self, seed: int) -> None:
        """See the base class: find the order of the examples."""
        if self.prepared[0] != seed:
            self.prepared = (seed, self.order(seed).to(self.data.inputs.device, non_blocking=True))

    def order(self, seed: int) -> Tensor:
        """Return the order of the examples in an epoch, (N,)."""
        return torch.randperm(self.size, generator=torch.Generator().manual_seed(seed))

    def everything(self) -> Iterator[Batch]:
        """See the base class; the last batch may be smaller."""
        for inputs, targets in zip(*(tensor.split(self.batch_size) for tensor in self.data), strict=True):
            yield Batch(inputs, targets)

    def example(self) -> Batch:
        """See the base class."""
        return self.data

    def inputs(self, count: int) -> Tensor:
        """See the base class."""
        return evenly_spaced(self.data.inputs, count)

    def fingerprint(self) -> dict[str, Any]:
        """See the base class."""
        return {**super().fingerprint(), "sha256": self._digest}

    @cached_property
    def _digest(self) -> str:
        return digest_of(self.data)


def epochs_together(sources: Sequence[BatchSource], seeds: Sequence[int], skip: int = 0) -> Iterator[Batch]:
    """Yield the batches of M epochs side by side: (B, M, ...), each column as its own source and seed give it.

    Args:
        sources: with equally large batches.
        seeds: one for each.
        skip: batches to leave out.
    """
    first = sources[0]
    if type(first) is TensorSource and all(source is first for source in sources):
        # The same data: one look-up for all.
        orders = torch.stack([first.order(seed) for seed in seeds]).to(first.data.inputs.device)
        for step in range(skip, first.steps):
            chosen = orders[:, step * first.batch_size : (step + 1) * first.batch_size]
            yield Batch(*(tensor[chosen].transpose(0, 1) for tensor in first.data))
        return
    epochs = [source.epoch(seed, skip) for source, seed in zip(sources, seeds, strict=True)]
    for batches in zip(*epochs, strict=True):
        # One model's batch after another in memory, as products of all models want it.
        yield Batch(*(torch.stack(parts).transpose(0, 1) for parts in zip(*batches, strict=True)))


class WholeSource(TensorSource):
    """All examples as one batch, in their own order, for methods that need one fixed function of the weights."""

    def __init__(self, data: Batch):
        super().__init__(data, len(data.inputs))

    def epoch(self, seed: int, skip: int = 0) -> Iterator[Batch]:
        """See the base class."""
        if skip == 0:
            yield self.data


class LoaderSource(BatchSource):
    """A DataLoader, with its own sampler, workers and augmentation.

    What it draws from torch's global generator and from torch generators of its own is set from (seed, epoch) while a
    batch is fetched, and the global one is given back as it was. So an epoch can be repeated, and resumed by skipping;
    augmentation that draws from numpy or from Python's random module is not reproduced.
    """

    def __init__(self, loader: DataLoader[Any], placement: Placement):
        self.loader, self.placement = loader, placement
        try:
            # A sampler may leave examples out; the posterior depends on how many there really are.
            sampler: Any = getattr(loader.batch_sampler, "sampler", loader.dataset)
            self.size, self.steps = len(sampler), len(loader)
        except TypeError as error:
            raise InvalidInput(
                "the data set has no length; the posterior depends on the number of examples. Give it a __len__."
            ) from error
        if self.steps == 0:
            raise InvalidInput("the DataLoader yields no batches; perhaps drop_last with too large a batch size.")
        if loader.batch_size is not None:
            left = self.size % loader.batch_size
            self.smallest = loader.batch_size if loader.drop_last or left == 0 else left

    def epoch(self, seed: int, skip: int = 0) -> Iterator[Batch]:
        """See the base class."""
        return self._batches(self.loader, seed, skip)

    def everything(self) -> Iterator[Batch]:
        """See the base class; with the last batch, which training may drop."""
        loader = self.loader
        if loader.drop_last:
            loader = DataLoader(
                loader.dataset,
                loader.batch_size,
                sampler=loader.sampler,
                num_workers=loader.num_workers,
                collate_fn=loader.collate_fn,
                worker_init_fn=loader.worker_init_fn,
                generator=loader.generator,
            )
        return self._batches(loader, 0, 0)

    def _batches(self, loader: DataLoader[Any], seed: int, skip: int) -> Iterator[Batch]:
        for owner in (loader, loader.sampler, getattr(loader.batch_sampler, "sampler", None)):
            generator = getattr(owner, "generator", None)
            if generator is not None:
                generator.manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            iterator, state = iter(loader), torch.get_rng_state()
        for step in range(len(loader)):
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(state)
                batch = next(iterator)
                state = torch.get_rng_state()
            if step >= skip:
                yield self.placement.place(*examples_of(batch, "training data"))

    def example(self) -> Batch:
        """See the base class."""
        return next(self.epoch(0))

    def fingerprint(self) -> dict[str, Any]:
        """See the base class: of the first batch."""
        return {**super().fingerprint(), "sha256": digest_of(self.example())}

    def inputs(self, count: int) -> Tensor:
        """See the base class."""
        parts: list[Tensor] = []
        for batch in self.epoch(0):
            parts.append(batch.inputs)
            if sum(map(len, parts)) >= count:
                break
        return torch.cat(parts)


Pair = Batch | tuple[Any, Any] | list[Any]
"""Inputs and targets, as tensors, arrays or lists."""

Data = Pair | DataSet | Dataset[Any] | DataLoader[Any]
"""What can be trained on."""


def pair_of(inputs: Any, targets: Any, what: str = "training") -> Batch:
    """Return inputs and targets as tensors, from tensors, numpy arrays or lists."""
    if is_frame(inputs):
        inputs = frame_values(inputs)
    pair = Batch(as_tensor(inputs, f"the {what} inputs"), as_tensor(targets, f"the {what} targets"))
    if any(tensor.dim() < 1 for tensor in pair):
        raise InvalidInput(f"the {what} inputs and targets must be batches: tensors of shape (N, ...).")
    return pair


def lengths_differ(inputs: Tensor, targets: Tensor, what: str) -> InvalidInput:
    """Make the error for inputs and targets that are not equally many."""
    return InvalidInput(
        f"there are {len(inputs)} {what} inputs but {len(targets)} targets. Each input needs a target of its own; "
        "perhaps one of the two comes from another split, or was filtered without the other."
    )


def validation_pair(validation: Pair) -> Batch:
    """Return validation data as tensors."""
    if len(validation) != 2:
        raise InvalidInput(f"validation is a fraction or a pair (inputs, targets), got {len(validation)} parts.")
    inputs, targets = validation
    return pair_of(inputs, targets, "validation")


def _in_memory(train: Data) -> Data:
    """Return data in memory as a pair of tensors, and all other data as they are."""
    parts = train.tensors if isinstance(train, TensorDataset) else train
    return pair_of(*parts) if isinstance(parts, (tuple, list)) and len(parts) == 2 else train


def whole(source: BatchSource) -> BatchSource:
    """Bring all of a source's examples into memory, as one batch."""
    if source.data is not None:
        return WholeSource(source.data)
    batches = list(source.everything())
    return WholeSource(Batch(torch.cat([b.inputs for b in batches]), torch.cat([b.targets for b in batches])))


def source_of(train: Data, batch_size: int, placement: Placement) -> BatchSource:
    """Make a source from a pair (inputs, targets), a Dataset or a DataLoader."""
    if isinstance(train, DataLoader):
        return LoaderSource(train, placement)
    train = _in_memory(train)
    if isinstance(train, Batch):
        return TensorSource(placement.place(*train), batch_size)
    if is_source(train):
        examples: Any = train
        count = len(examples)
        require_count(count, "the number of training examples")
        require_count(batch_size, "batch_size")
        return LoaderSource(DataLoader(examples, batch_size, shuffle=True, drop_last=count >= batch_size), placement)
    named = f" {train!r}. A data set by name: certibayes.data.load({train!r})" if isinstance(train, str) else ""
    raise InvalidInput(
        "training data must be a pair of tensors or arrays (inputs, targets), a data set (of certibayes, torch or "
        f"Hugging Face) or a DataLoader, not {type(train).__name__}{named}."
    )


def split_off(train: Data, fraction: float, seed: int) -> tuple[Data, Batch]:
    """Hold out a random ``fraction`` of tensors in memory for validation."""
    train = _in_memory(train)
    if not (isinstance(fraction, (int, float)) and 0.0 < fraction < 1.0):
        raise InvalidInput(f"validation is a fraction between 0 and 1, or a pair (inputs, targets); got {fraction}.")
    if not isinstance(train, Batch):
        raise InvalidInput(
            "a fraction can be held out of tensors and TensorDatasets alone; for a Dataset or DataLoader pass a pair "
            "(inputs, targets) as validation."
        )
    inputs, targets = train
    if len(inputs) != len(targets):
        raise lengths_differ(inputs, targets, "training")
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
    count = max(1, round(fraction * len(inputs)))
    held, kept = order[:count], order[count:]
    return Batch(inputs[kept], targets[kept]), Batch(inputs[held], targets[held])


def held_out(train: Data, fraction: float, seed: int) -> tuple[Data, Batch]:
    """Return the data that ``fit(validation=fraction, seed=seed)`` trains on, and those that it holds out."""
    return split_off(train, fraction, derived_seed(seed, "validation"))
