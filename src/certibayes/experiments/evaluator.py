"""How the runs of a grid are evaluated: accuracy, what is proved, attacks, uncertainty, diagnostics of chains."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from certibayes import data
from certibayes.errors import MissingPackage
from certibayes.evaluation import diagnose
from certibayes.experiments.evaluate import evaluate
from certibayes.experiments.run import training_data
from certibayes.experiments.spec import TrainSpec
from certibayes.posteriors import Posterior
from certibayes.prediction import Predictor

EVALUATION = "evaluation"

DIAGNOSED = 200
"""Test inputs on which chains are compared."""

Figures = dict[str, Any]


@dataclass(frozen=True)
class Evaluator:
    """How the runs of a grid are evaluated, on the test images of their data sets.

    Attributes:
        eps: radius of certificates and attacks.
        samples: weight samples of the predictor; all that are held, where there are fewer.
        method: of certification, by name.
        limit: take only the first so many test images.
        steps: iterations of the attack.
        restarts: of the attack.
        data_dir: where data sets lie.
        device: where to compute.
    """

    eps: float
    samples: int = 35
    method: str = "theorem1"
    limit: int | None = None
    steps: int = 20
    restarts: int = 2
    data_dir: str | Path | None = None
    device: str | None = None

    @property
    def key(self) -> str:
        """Under what a run's record keeps the figures."""
        return EVALUATION

    def predictor(self, posterior: Posterior) -> Predictor:
        """Draw the predictor that is evaluated."""
        held = self.samples if posterior.held is None else posterior.held
        known = training_data(posterior, self.data_dir)
        return posterior.predictor(min(self.samples, held), seed=1, device=self.device, data=known)

    def evaluate(self, posterior: Posterior, spec: TrainSpec) -> Figures:
        """Evaluate the posterior that a spec was trained to."""
        dataset = data.load(spec.dataset, self.data_dir)
        predictor = self.predictor(posterior)
        x, y = (tensor[: self.limit].to(predictor.device) for tensor in dataset.test)
        found = evaluate(
            predictor, x, y, eps=self.eps, domain=dataset.domain, method=self.method, steps=self.steps,
            restarts=self.restarts,
        )  # fmt: skip
        figures: Figures = {**found.summary(), **trained_figures(posterior), "eps": self.eps}
        if "chains" in posterior.metadata:
            try:
                figures["diagnostics"] = diagnose(posterior, x[:DIAGNOSED].cpu()).summary()
            except MissingPackage as missing:
                figures["diagnostics"] = {"missing": str(missing)}
        return figures


def trained_figures(posterior: Posterior) -> Figures:
    """Return what training itself tells about a posterior."""
    keys = ("temperature", "held_out", "sampler")
    return {key: posterior.metadata[key] for key in keys if key in posterior.metadata}
