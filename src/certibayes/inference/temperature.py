"""Choosing the temperature on held-out training data.

Each candidate T is evaluated by the predictive distribution it leads to, under the run's own likelihood at full radius,

    loss(T) = - mean over held-out (x, y) of  log 1/S Σ_s p(y | x, w_s),        w_s ~ q_T,

which for the standard likelihood is the negative log-likelihood of the predictor, and for the robust one a bound on
that of its worst case. Where T only scales a covariance at the end, one training serves all candidates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from certibayes.errors import Diverged, InvalidInput
from certibayes.inference.algorithm import Algorithm
from certibayes.inference.loop import Loop
from certibayes.inference.target import Target
from certibayes.likelihoods import Batch, Noise
from certibayes.posteriors import Posterior
from certibayes.support.seeds import derived_seed
from certibayes.support.stacks import count, map_samples

CANDIDATES = (1.0, 0.1, 0.01, 0.001)
"""What ``temperature="validate"`` tries."""

HELD_OUT = 0.1
"""Fraction of the training data on which a temperature is chosen, unless another is given."""

SAMPLES = 35
"""Weight samples of the predictor that is evaluated; all that are held, where a posterior is a set of samples."""


def default_temperature(algorithm: Algorithm[Any], bounded: bool) -> float:
    """Return the temperature to take where none is given; ``bounded`` if the likelihood depends on bounds."""
    return algorithm.robust_temperature if bounded else 1.0


def candidates_of(temperature: float | str | Sequence[float]) -> tuple[float, ...]:
    """Return the temperatures to try, one if it is given."""
    if isinstance(temperature, str):
        if temperature != "validate":
            raise InvalidInput(f'temperature is a positive number or "validate", got {temperature!r}.')
        return CANDIDATES
    try:
        candidates = tuple(map(float, temperature if isinstance(temperature, Iterable) else (temperature,)))
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"temperature must be a number or a sequence of numbers, got {temperature}.") from error
    if not candidates or not all(math.isfinite(t) and t > 0 for t in candidates):
        raise InvalidInput(f"temperature must be positive, got {temperature}.")
    if len(set(candidates)) < len(candidates):
        raise InvalidInput(f"a temperature is there twice: {temperature}.")
    return candidates


class Search:
    """Finds the candidate that explains held-out data best, among posteriors as they come.

    Args:
        temperature_in: see ``Algorithm.temperature_in``. In every ``"update"``: then there is a training for each
            candidate, and otherwise one for all.
        candidates: temperatures.
        held: held-out data.
    """

    def __init__(self, temperature_in: str, candidates: Sequence[float], held: Batch):
        self.candidates = tuple(candidates[:1] if temperature_in == "nowhere" else candidates)
        self.shared, self.held = temperature_in != "update", held
        self.best: Posterior | None = None
        self.lowest = math.inf
        self.curve: dict[float, dict[str, float]] = {}

    def add(self, number: int, outcome: Loop | Exception) -> None:
        """Take the training of this number, or the error that it ended with."""
        if self.shared and isinstance(outcome, Exception):
            raise outcome
        for temperature in self.candidates if self.shared else self.candidates[number : number + 1]:
            self._try(temperature, outcome)

    def _try(self, temperature: float, outcome: Loop | Exception) -> None:
        try:
            if isinstance(outcome, Exception):
                raise outcome
            posterior = outcome.posterior(temperature)
        except Diverged:
            # A candidate that cannot be trained is a point of the curve like any other: the worst.
            self.curve[temperature] = {"temperature": temperature, "diverged": 1.0}
            return
        figures = predictive_figures(outcome.target, posterior, self.held, outcome.seed)
        self.curve[temperature] = {"temperature": temperature, **figures}
        # Bounds may overflow where the weights are finite; no number compares as less than NaN.
        loss = figures["validation_loss"] if not math.isnan(figures["validation_loss"]) else math.inf
        if self.best is None or loss < self.lowest:
            self.best, self.lowest = posterior, loss
            posterior.metadata["held_out"] = figures

    def posterior(self) -> Posterior:
        """Return the posterior at the best candidate."""
        if self.best is None:
            raise Diverged(
                f"training left the finite numbers at every temperature tried ({self.candidates}). Lower the rate."
            )
        self.best.metadata["temperature_curve"] = [self.curve[temperature] for temperature in self.candidates]
        return self.best


@torch.no_grad()
def predictive_figures(target: Target, posterior: Posterior, held: Batch, seed: int) -> dict[str, float]:
    """Evaluate a posterior's predictor on held-out data, at full radii: loss, and for classes also accuracy."""
    number = SAMPLES if posterior.held is None else posterior.held
    drawn = posterior.sample(number, torch.Generator().manual_seed(derived_seed(seed, "temperature")))
    generator = torch.Generator().manual_seed(derived_seed(seed, "validation noise"))
    losses, hits = [], []
    for inputs, targets in zip(held.inputs.split(500), held.targets.split(500), strict=True):
        batch = Batch(inputs, targets)
        noise = target.likelihood.draw(1.0, batch, generator)

        def evaluate(params: dict[str, Tensor], batch: Batch = batch, noise: Noise = noise) -> tuple[Tensor, Tensor]:
            values = target.likelihood.log_likelihood(target.graph, params, batch, noise)
            return values, target.graph.evaluate(params, batch.inputs)

        values, outputs = map_samples(evaluate, drawn)
        losses.append(math.log(count(drawn)) - torch.logsumexp(values.double(), 0))
        if not targets.is_floating_point():
            hits.append(outputs.double().softmax(-1).mean(0).argmax(-1) == targets)
    figures = {"validation_loss": float(torch.cat(losses).mean())}
    if hits:
        figures["validation_accuracy"] = float(torch.cat(hits).double().mean())
    return figures
