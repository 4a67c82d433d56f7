"""Training batches that are augmented, each in its own way in every epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from certibayes.data.augmentation import Augmentation, RandomCrop
from certibayes.errors import InvalidInput
from certibayes.inference._batches import BatchSource
from certibayes.likelihoods import Batch
from certibayes.regions import Domain, require_domain
from certibayes.support.seeds import derived_seed


class AugmentedSource(BatchSource):
    """A source whose training batches are augmented; everything else comes from it as it is.

    So statistics of batch norm, curvature at the end and checks are about the images themselves, and N is their
    number: augmentation makes an image vary, it does not make more of them.

    Args:
        source: of the images.
        augmentations: made one after the other.
    """

    def __init__(self, source: BatchSource, augmentations: Sequence[Augmentation]):
        self.source, self.augmentations = source, tuple(augmentations)
        self.size, self.steps, self.data = source.size, source.steps, source.data
        self.smallest = source.smallest

    def epoch(self, seed: int, skip: int = 0) -> Iterator[Batch]:
        """See the base class; numbers depend on ``seed``, which is that of the epoch, and on the step alone."""
        generator = torch.Generator()
        for step, batch in enumerate(self.source.epoch(seed, skip), skip):
            generator.manual_seed(derived_seed(seed, "augmentation", step))
            yield Batch(self._augmented(batch.inputs, generator), batch.targets)

    def _augmented(self, images: Tensor, generator: torch.Generator) -> Tensor:
        counts = [augmentation.numbers for augmentation in self.augmentations]
        # Drawn on the CPU, so that a run gives the same numbers on every device; from pinned memory they are copied
        # while the GPU goes on with the last step.
        uniform = torch.rand(len(images), sum(counts), generator=generator)
        if images.is_cuda:
            uniform = uniform.pin_memory().to(images.device, non_blocking=True)
        for augmentation, numbers in zip(self.augmentations, uniform.split(counts, -1), strict=True):
            images = augmentation(images, numbers)
        return images

    def prepare(self, seed: int) -> None:
        """See the base class."""
        self.source.prepare(seed)

    def everything(self) -> Iterator[Batch]:
        """See the base class."""
        return self.source.everything()

    def example(self) -> Batch:
        """See the base class."""
        return self.source.example()

    def inputs(self, count: int) -> Tensor:
        """See the base class."""
        return self.source.inputs(count)

    def fingerprint(self) -> dict[str, Any]:
        """See the base class."""
        return self.source.fingerprint()


def augmented(
    source: BatchSource, augmentations: Sequence[Augmentation], domain: Domain, full_batch: bool
) -> BatchSource:
    """Return a source with augmentation, or the source itself if there is none.

    Args:
        source: of the images.
        augmentations: made one after the other.
        domain: in which inputs lie, if it is known.
        full_batch: whether the algorithm takes all data at once, as one fixed function of the weights.

    Raises:
        InvalidInput: inputs are no images, padding leaves the domain, or the algorithm allows no augmentation.
    """
    if not augmentations:
        return source
    if full_batch:
        raise InvalidInput(
            "this algorithm takes all training data in every step, as one fixed function of the weights, so they "
            "cannot be augmented. Leave augment out, or take an algorithm that works on batches, such as SGHMC()."
        )
    example = source.example().inputs[:1]
    if example.dim() < 3:
        raise InvalidInput(
            f"augmentation is for images, (channels, height, width), but inputs have shape {tuple(example.shape[1:])}. "
            "Pass images, and let the network begin with nn.Flatten()."
        )
    for augmentation in augmentations:
        if isinstance(augmentation, RandomCrop):
            try:
                require_domain(torch.full_like(example, augmentation.fill), domain)
            except InvalidInput as error:
                raise InvalidInput(f"the padding of {augmentation} lies outside the domain {domain}.") from error
    return AugmentedSource(source, augmentations)
