"""Training data in batches, in an order that depends on seed and epoch alone, so that a run can be resumed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from certibayes.errors import InvalidInput
from certibayes.likelihoods import Batch


def derived_seed(seed: int, *purpose: object) -> int:
    """Return a seed for one purpose, so that no two streams of a run are the same."""
    text = ":".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "little")


class BatchSource:
    """Where batches come from.

    Attributes:
        size: number of training examples.
        steps: batches an epoch.
        data: all examples, where they are held in memory; else None.
    """

    size: int
    steps: int
    data: Batch | None = None

    def epoch(self, seed: int, skip: int = 0) -> Iterator[Batch]:
        """Yield one epoch's batches in an order given by ``seed``, leaving out the first ``skip``."""
        raise NotImplementedError

    def example(self) -> Batch:
        """Return a few examples, for shapes and checks."""
        raise NotImplementedError

    def fingerprint(self) -> dict[str, Any]:
        """Return what tells this data from other data, for checkpoints."""
        return {"size": self.size, "steps": self.steps}


class TensorSource(BatchSource):
    """Tensors in memory, shuffled every epoch. The last, incomplete batch of an epoch is left out."""

    def __init__(self, inputs: Tensor, targets: Tensor, batch_size: int, device: torch.device):
        if len(inputs) == 0 or len(inputs) != len(targets):
            raise InvalidInput(f"there are {len(inputs)} inputs and {len(targets)} targets; need as many, and some.")
        if batch_size < 1:
            raise InvalidInput(f"batch_size must be at least 1, got {batch_size}.")
        self.data: Batch = Batch(inputs.to(device), targets.to(device))
        self.size = len(inputs)
        self.batch_size = min(batch_size, self.size)
        self.steps = self.size // self.batch_size

    def epoch(self, seed: int, skip: int = 0) -> Iterator[Batch]:
        """See the base class."""
        order = torch.randperm(self.size, generator=torch.Generator().manual_seed(seed))
        order = order.to(self.data.inputs.device)
        for step in range(skip, self.steps):
            chosen = order[step * self.batch_size : (step + 1) * self.batch_size]
            yield Batch(self.data.inputs[chosen], self.data.targets[chosen])

    def example(self) -> Batch:
        """See the base class: everything there is."""
        return self.data

    def fingerprint(self) -> dict[str, Any]:
        """See the base class."""
        return {
            **super().fingerprint(),
            "inputs": float(self.data.inputs.double().sum()),
            "targets": float(self.data.targets.double().sum()),
        }


class LoaderSource(BatchSource):
    """A DataLoader, with its own sampler, workers and augmentation.

    Its randomness comes from torch's global generator, which is set from (seed, epoch) while a batch
    is fetched and given back as it was; so an epoch can be repeated, and resumed by skipping.
    """

    def __init__(self, loader: DataLoader[Any], device: torch.device):
        self.loader, self.device = loader, device
        try:
            self.size, self.steps = len(loader.dataset), len(loader)  # type: ignore[arg-type]
        except TypeError as error:
            raise InvalidInput(
                "the data set has no length; the posterior depends on the number of examples. Give it a __len__."
            ) from error
        if self.steps == 0:
            raise InvalidInput("the DataLoader yields no batches; perhaps drop_last with too large a batch size.")

    def epoch(self, seed: int, skip: int = 0) -> Iterator[Batch]:
        """See the base class."""
        if self.loader.generator is not None:
            self.loader.generator.manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            iterator, state = iter(self.loader), torch.get_rng_state()
        for step in range(self.steps):
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(state)
                inputs, targets = next(iterator)
                state = torch.get_rng_state()
            if step >= skip:
                yield Batch(inputs.to(self.device), targets.to(self.device))

    def example(self) -> Batch:
        """See the base class: the first batch."""
        return next(self.epoch(0))


Data = Batch | tuple[Tensor, Tensor] | Dataset[Any] | DataLoader[Any]


def source_of(train: Data, batch_size: int, device: torch.device, seed: int) -> BatchSource:
    """Make a source from tensors (inputs, targets), a Dataset or a DataLoader."""
    if isinstance(train, DataLoader):
        return LoaderSource(train, device)
    if isinstance(train, TensorDataset):
        train = Batch(*train.tensors)
    if isinstance(train, tuple) and len(train) == 2 and all(isinstance(t, Tensor) for t in train):
        return TensorSource(train[0], train[1], batch_size, device)
    if isinstance(train, Dataset):
        return LoaderSource(
            DataLoader(train, batch_size, shuffle=True, drop_last=len(train) >= batch_size),  # type: ignore[arg-type]
            device,
        )
    raise InvalidInput(
        "training data must be a pair of tensors (inputs, targets), a Dataset or a DataLoader, not "
        f"{type(train).__name__}."
    )


def split_off(train: Data, fraction: float, seed: int) -> tuple[Data, Batch]:
    """Hold out a random ``fraction`` of tensors in memory for validation."""
    if isinstance(train, TensorDataset):
        train = Batch(*train.tensors)
    if not (isinstance(train, tuple) and 0.0 < fraction < 1.0):
        raise InvalidInput(
            "validation is a fraction between 0 and 1 of training tensors, or a pair (inputs, targets) of its own."
        )
    inputs, targets = train
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
    held, kept = (
        order[: max(1, round(fraction * len(inputs)))],
        order[max(1, round(fraction * len(inputs))) :],
    )
    return Batch(inputs[kept], targets[kept]), Batch(inputs[held], targets[held])
