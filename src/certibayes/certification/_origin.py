"""Where a proof about a predictor comes from."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from certibayes.certificates import Provenance
from certibayes.prediction import Predictor
from certibayes.support.files import tensor_digest


def provenance_of(predictor: Predictor, x: Tensor, **settings: str) -> Provenance:
    """Return the provenance of a proof about a predictor and points (B, ...), as they were given.

    The seed is not known here: a predictor is its samples, however they were drawn. Who drew them may add it.
    """
    return Provenance(
        digest=predictor.digest,
        inputs_digest=_when_asked(x) if x.is_cuda else tensor_digest({"inputs": x}),
        samples=predictor.size,
        device=predictor.device.type,
        dtype=str(predictor.dtype).removeprefix("torch."),
        settings=settings,
    )


def _when_asked(x: Tensor) -> Callable[[], str]:
    """Compute the digest of points on a GPU when it is asked for: it takes as long as bounding them.

    The copy is what was certified, whatever the caller does with his points meanwhile.
    """
    kept = x.clone()
    return lambda: tensor_digest({"inputs": kept})
