"""Drawing networks from a posterior, and certifying one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from certibayes.certificates import Certificate, Provenance
from certibayes.certification import Method, as_method, certify
from certibayes.errors import InvalidInput
from certibayes.posteriors import Point, Posterior
from certibayes.prediction import Predictor
from certibayes.regions import InputRegion
from certibayes.statistical.concentration import INEQUALITIES, require_confidence
from certibayes.statistical.trial import Trial
from certibayes.support.checks import inputs_of, labels_of, require_classes, require_count
from certibayes.support.devices import find_device
from certibayes.support.files import tensor_digest
from certibayes.support.progress import Report, reporting
from certibayes.support.seeds import derived_seed


class Draws:
    """Networks drawn from a posterior, each certified by itself.

    Args:
        posterior: what is drawn from.
        x: points (B, ...).
        y: labels (B,).
        batch_size: points bounded at once; see ``certify``.
        device: where networks are bounded, by default where the posterior is.
        progress: see ``reporting``; of (draws done, all draws).
    """

    def __init__(
        self,
        posterior: Posterior,
        x: Tensor,
        y: Tensor,
        batch_size: int | None = None,
        device: str | torch.device | None = None,
        progress: bool | Report = False,
    ):
        _require_independent(posterior)
        if posterior.task != "classification":
            raise InvalidInput("class certificates need a classifier; this posterior does regression.")
        require_classes(posterior.graph.classes)
        self.posterior, self.batch_size, self.progress = posterior, batch_size, progress
        self.x = inputs_of(x, "the points")
        self.y = labels_of(y, posterior.graph.classes, len(self.x))
        self.device = None if device is None else find_device(device)

    def trial(self, samples: int, seed: int, method: Method, **stated: Any) -> Trial:
        """Check and write down what is about to be tried, before anything is drawn.

        Args:
            samples: number of draws.
            seed: of the draws.
            method: how each network is certified.
            **stated: confidence, inequality, whether it is joint, ball and rounding; see ``Trial``.
        """
        require_count(samples, "samples")
        require_confidence(stated["confidence"])
        if stated["inequality"] not in INEQUALITIES:
            raise InvalidInput(f"inequality must be one of {', '.join(INEQUALITIES)}, got {stated['inequality']!r}.")
        buffers = {f"buffer:{name}": buffer for name, buffer in self.posterior.buffers.items()}
        # As networks will be drawn, not as the posterior is stored; this one is not certified.
        sample = self.posterior.sample(1, torch.Generator())
        drawn = next(iter(sample.values()))
        if method.intermediates == "auto":
            # Once for all networks, which are alike.
            region = InputRegion.around(self.x.to(drawn), stated["eps"], stated["norm"], stated["domain"])
            method = method.decided(Predictor(self.posterior.graph, sample), region)
        provenance = Provenance(
            digest=tensor_digest({**self.posterior.tensors(), **buffers}),
            inputs_digest=tensor_digest({"inputs": self.x}),
            samples=samples,
            device=(self.device or drawn.device).type,
            dtype=str(drawn.dtype).removeprefix("torch."),
            settings={"bounds": method.bounds, "method": method.name, "intermediates": method.intermediates},
            seed=seed,
        )
        return Trial(type(self.posterior).__name__, points=len(self.x), provenance=provenance, **stated)

    def certificates(self, trial: Trial) -> Iterator[Certificate]:
        """Yield the certificate of one network after the other, each drawn afresh from one stream of random numbers."""
        generator = torch.Generator().manual_seed(derived_seed(trial.seed or 0, "statistical certificate"))
        ball = {"eps": trial.eps, "norm": trial.norm, "domain": trial.domain, "rounding": trial.rounding}
        settings = trial.provenance.settings
        method = as_method(settings["method"], bounds=settings["bounds"], intermediates=settings["intermediates"])
        with reporting(self.progress, "drawing") as report:
            for done in range(trial.samples):
                network = Predictor(self.posterior.graph, self.posterior.sample(1, generator))
                if self.device is not None:
                    network = network.to(self.device)
                yield certify(network, self.x, self.y, batch_size=self.batch_size, method=method, **ball)  # type: ignore[arg-type]
                report(done + 1, trial.samples)


def _require_independent(posterior: Posterior) -> None:
    if not isinstance(posterior, Posterior):
        raise InvalidInput(
            f"statistical certificates draw weights from a posterior; got {type(posterior).__name__}. Fixed weight "
            "samples are certified without any chance: certify(predictor, ...)."
        )
    if posterior.statistics_vary:
        raise InvalidInput(
            "the network has batch norm, whose statistics depend on the weights that are drawn and are kept for the "
            "samples of a predictor alone, not for weights drawn afresh. Certify those samples, "
            "certify(posterior.predictor(), ...), or infer a posterior of a network without batch norm."
        )
    if posterior.independent:
        return
    if isinstance(posterior, Point):
        raise InvalidInput("a Point is a single network with nothing random about it: certify(posterior.predictor()).")
    raise InvalidInput(
        f"a {type(posterior).__name__} posterior is a fixed set of samples, such as a Markov chain or an ensemble. "
        "Its samples are correlated, and picking among them again does not make independent draws, so no confidence "
        "bound would hold. Certify the very samples, certify(posterior.predictor(), ...), or use a posterior that "
        "can be drawn from, such as a DiagonalGaussian."
    )
