"""The evidence: a lower bound on log p(D), by which posteriors of one model are compared.

For a Gaussian q over the weights and the prior p(w) that it was inferred with, per example,

    ELBO / N = 1/N E_q[ Σ_i log p(y_i | x_i, w) ] - 1/N KL(q || p)  <=  1/N log p(D).

The first term is a Monte Carlo mean over samples of q and has an error; the second is in closed form. The bound
compares posteriors of *one* likelihood and *one* set of random parameters: a robust likelihood rises with lambda and
falls with the radius whatever is inferred, and parameters that are fixed have no KL divergence. Variances of a learned
prior are chosen to raise the bound, so their number belongs to it. A robust likelihood sums to less than 1 over labels;
with it the bound is that of a generalized posterior.

For a mixture q = Σ_k π_k q_k the expected log-likelihood is the mean of the components', and the divergence is bounded
from above, so that the ELBO is bounded from below. Which prior it is about depends on the components:

- Where all have the same prior and the same fixed parameters, or ``prior`` is given and fixed parameters agree, there
  is one model, and by a lower bound on the entropy of mixtures (Kolchinsky and Tracey, "Estimating Mixture Entropy with
  Pairwise Distances", 2017), with the Bhattacharyya distance B,

      KL(q || p) <= Σ_k π_k KL(q_k || p) - G,      G = -Σ_k π_k log Σ_j π_j exp(-B(q_k, q_j)),      0 <= G <= H(π).

- Where priors were learned for each, or fixed parameters differ, each component belongs to a model of its own, with
  evidence p_k(D). The bound is about the average of these models, by concavity of the logarithm:

      log Σ_k π_k p_k(D)  >=  Σ_k π_k log p_k(D)  >=  Σ_k π_k ELBO_k.

Either way a mixture has the mean of its components' bounds, and at most H(π) / N more: log(5) / 60,000 for five
components on MNIST. The ELBO hardly sees what a mixture is good for; held-out likelihood does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from certibayes.data import DataSet
from certibayes.errors import InvalidInput
from certibayes.evaluation._divergence import Gaussian, information_about_component, kl_divergence
from certibayes.evaluation._model import learned_variances, one_model, prior_variances, random_parameters
from certibayes.inference import GaussianPrior
from certibayes.likelihoods import Batch, Categorical, Likelihood, Noise, RobustGaussian, likelihood_from
from certibayes.posteriors import DiagonalGaussian, GaussianMixture, LastLayerGaussian, Posterior
from certibayes.support.checks import require_finite, whole_number
from certibayes.support.devices import find_device
from certibayes.support.seeds import derived_seed
from certibayes.support.stacks import count, map_samples
from certibayes.support.tensors import as_tensor

AT_ONCE = 1000
"""Examples whose likelihoods are computed at once."""


@dataclass(frozen=True)
class Evidence:
    """A lower bound on the evidence, per example.

    Attributes:
        log_likelihood: expected log-likelihood of an example under the posterior.
        kl: KL(q || prior) / N; for a mixture an upper bound of it.
        standard_error: of ``log_likelihood``, and so of ``elbo``, over samples.
        examples: N.
        samples: of the posterior.
        learned_variances: of the prior; 0 where it was given.
        likelihood: description of the likelihood.
        random: names of the parameters that vary; all others are fixed.
        weights: number of weights in these.
        models: 1; for a mixture whose components have priors or fixed parameters of their own, the number of these:
            the bound is then about the average of so many models.
    """

    log_likelihood: float
    kl: float
    standard_error: float
    examples: int
    samples: int
    learned_variances: int
    likelihood: dict[str, Any]
    random: tuple[str, ...]
    weights: int
    models: int = 1

    @property
    def elbo(self) -> float:
        """The bound, per example."""
        return self.log_likelihood - self.kl

    def comparable(self, other: Evidence) -> bool:
        """Tell whether two bounds are about one likelihood, one set of random parameters and as many examples."""
        return (self.likelihood, self.random, self.examples) == (other.likelihood, other.random, other.examples)

    def summary(self) -> dict[str, Any]:
        """Return all of it, as JSON."""
        return {"elbo": self.elbo, **asdict(self), "random": list(self.random)}

    def __repr__(self) -> str:
        several = "" if self.models == 1 else f", average of {self.models} models"
        return (
            f"Evidence(ELBO {self.elbo:.4f} ± {self.standard_error:.4f} per example: log-likelihood "
            f"{self.log_likelihood:.4f}, KL {self.kl:.4f}; {self.likelihood['name']}, {self.weights:,} random weights, "
            f"{self.learned_variances:,} learned variances{several})"
        )


@torch.no_grad()
def elbo(
    posterior: Posterior,
    data: Any,
    *,
    likelihood: Likelihood | str | None = None,
    prior: GaussianPrior | None = None,
    samples: int = 32,
    seed: int = 0,
    device: str | torch.device | None = None,
) -> Evidence:
    """Bound the evidence of the model that a Gaussian posterior belongs to, at full radius.

    Args:
        posterior: a ``DiagonalGaussian``, ``LowRankGaussian``, ``LastLayerGaussian``, or a ``GaussianMixture`` of them.
        data: the training data that it was inferred from, all of them: (inputs, targets), or what
            ``certibayes.data.load`` returned.
        likelihood: the posterior's own by default, ``"standard"`` for the one without an adversary, or any other.
        prior: the posterior's own by default, with the variances that were learned.
        samples: of the posterior; the error is found from how they differ. A mixture has at least two of each.
        seed: of the samples.
        device: where likelihoods are computed, by default where the posterior is.

    Raises:
        InvalidInput: the posterior is no Gaussian, does not say its prior or likelihood, or the data are others.
    """
    samples = whole_number(samples, "samples", smallest=2)
    if isinstance(posterior, GaussianMixture):
        return _elbo_of_mixture(
            posterior, data, _likelihood(posterior, likelihood), samples, prior=prior, seed=seed, device=device
        )
    if not isinstance(posterior, (DiagonalGaussian, LastLayerGaussian)):
        raise InvalidInput(
            f"the ELBO is that of a Gaussian over weights, and a {type(posterior).__name__} has no density to compare "
            "with the prior's. Take the posterior of VOGN, NoisyAdam, BBB, IVON, SWAG or Laplace."
        )
    chosen = _likelihood(posterior, likelihood)
    batch = _data(posterior, data, device)
    chosen.validate(posterior.graph, batch)
    names = random_parameters(posterior)
    kl = kl_divergence(posterior, names, prior_variances(posterior, prior))
    values = _log_likelihoods(posterior, chosen, batch, samples, seed)
    return Evidence(
        float(values.mean()),
        kl / len(batch.inputs),
        float(values.std() / math.sqrt(samples)),
        len(batch.inputs),
        samples,
        0 if prior is not None else learned_variances(posterior),
        chosen.describe(),
        names,
        sum(posterior.mean[name].numel() for name in names),
    )


def _elbo_of_mixture(
    mixture: GaussianMixture,
    data: Any,
    likelihood: Likelihood,
    samples: int,
    *,
    prior: GaussianPrior | None,
    seed: int,
    device: str | torch.device | None,
) -> Evidence:
    """Bound the evidence by the bounds of the components, each from samples of its own."""
    parts, weights, turns = mixture.components, mixture.weights.tolist(), mixture.turns(samples)
    names = random_parameters(parts[0])
    if any(random_parameters(part) != names for part in parts):
        raise InvalidInput(
            "the components of the mixture differ in which parameters are random, so that no prior has a density for "
            "all of them. Mix posteriors of one kind."
        )
    found = [
        elbo(
            part,
            data,
            likelihood=likelihood,
            prior=prior,
            samples=max(2, turns.count(k)),
            seed=derived_seed(seed, k),
            device=device,
        )
        for k, part in enumerate(parts)
    ]

    def mean(values: Iterable[float]) -> float:
        return sum(weight * value for weight, value in zip(weights, values, strict=True))

    together = one_model(parts, prior)
    kl = mean(part.kl for part in found)
    if together and math.isfinite(kl):
        kl -= information_about_component(parts, mixture.weights, names) / found[0].examples
    learned = [part.learned_variances for part in found]
    return replace(
        found[0],
        log_likelihood=mean(part.log_likelihood for part in found),
        kl=kl,
        standard_error=math.hypot(*(weight * part.standard_error for weight, part in zip(weights, found, strict=True))),
        samples=sum(part.samples for part in found),
        learned_variances=learned[0] if together else sum(learned),
        models=1 if together else len(parts),
    )


def _log_likelihoods(posterior: Posterior, likelihood: Likelihood, batch: Batch, samples: int, seed: int) -> Tensor:
    """Return the mean log-likelihood of an example under each sample, (S,)."""
    if posterior.statistics_vary:
        drawn = dict(posterior.predictor(samples, seed, data=batch.inputs).samples)
    else:
        drawn = posterior.sample(samples, torch.Generator().manual_seed(derived_seed(seed, "evidence")))
    drawn = {name: tensor.to(batch.inputs.device) for name, tensor in drawn.items()}
    generator = torch.Generator().manual_seed(derived_seed(seed, "evidence noise"))
    total = torch.zeros(count(drawn), dtype=torch.float64)
    for part in zip(batch.inputs.split(AT_ONCE), batch.targets.split(AT_ONCE), strict=True):
        some = Batch(*part)
        noise = likelihood.draw(1.0, some, generator)

        def evaluate(params: dict[str, Tensor], some: Batch = some, noise: Noise = noise) -> Tensor:
            return likelihood.log_likelihood(posterior.graph, params, some, noise)

        values = map_samples(evaluate, drawn)
        total += values.double().sum(1).cpu()
    return total / len(batch.inputs)


def _likelihood(posterior: Posterior, likelihood: Likelihood | str | None) -> Likelihood:
    if isinstance(likelihood, Likelihood):
        return likelihood
    if likelihood not in (None, "standard"):
        raise InvalidInput(
            f'likelihood is an object such as cb.RobustCategorical(eps=0.1), "standard", or None for the one that the '
            f"posterior was inferred with; got {likelihood!r}."
        )
    if likelihood == "standard" and posterior.task != "regression":
        return Categorical()
    if "likelihood" not in posterior.metadata:
        if isinstance(posterior, GaussianMixture):
            raise InvalidInput(
                "the components of the mixture were inferred with different likelihoods, or do not say with which. Say "
                "which one the bound is about: likelihood=..."
            )
        raise InvalidInput("the posterior does not say which likelihood it was inferred with. Pass likelihood=...")
    own = likelihood_from(posterior.metadata["likelihood"])
    return RobustGaussian(own.noise_std) if likelihood == "standard" and isinstance(own, RobustGaussian) else own


def _data(posterior: Gaussian, data: Any, device: str | torch.device | None) -> Batch:
    pair = data.train if isinstance(data, DataSet) else data
    if not (isinstance(pair, (tuple, list)) and len(pair) == 2):
        raise InvalidInput(f"data is a pair (inputs, targets) or a data set, not {type(data).__name__}.")
    like = next(iter(posterior.mean.values()))
    inputs, targets = (as_tensor(part, f"the {what}") for part, what in zip(pair, ("inputs", "targets"), strict=True))
    require_finite(inputs, "the inputs")
    posterior.graph.require_input(inputs, "the inputs")
    if len(inputs) != len(targets):
        raise InvalidInput(f"there are {len(inputs)} inputs but {len(targets)} targets.")
    known = (posterior.metadata.get("data") or {}).get("size", len(inputs))
    if known != len(inputs):
        raise InvalidInput(
            f"the posterior was inferred from {known} examples, and these are {len(inputs)}: the KL divergence is per "
            "training example, so the bound is about all of them. Where a fraction was held out, the rest is "
            "cb.inference.held_out(train, fraction, seed)[0]."
        )
    kind = like.dtype if targets.is_floating_point() else torch.int64
    place = like.device if device is None else find_device(device)
    return Batch(inputs.to(place, like.dtype), targets.to(place, kind))
