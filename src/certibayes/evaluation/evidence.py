"""The evidence: a lower bound on log p(D), by which posteriors of one model are compared.

For a Gaussian q over the weights and the prior p(w) that it was inferred with, per example,

    ELBO / N = 1/N E_q[ Σ_i log p(y_i | x_i, w) ] - 1/N KL(q || p)  <=  1/N log p(D).

The first term is a Monte Carlo mean over samples of q and has an error; the second is in closed form. The bound
compares posteriors of *one* likelihood and *one* set of random parameters: a robust likelihood rises with lambda and
falls with the radius whatever is inferred, and parameters that are fixed have no KL divergence. Variances of a learned
prior are chosen to raise the bound, so their number belongs to it. A robust likelihood sums to less than 1 over labels;
with it the bound is that of a generalized posterior.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from certibayes.data import DataSet
from certibayes.errors import InvalidInput
from certibayes.inference import GaussianPrior
from certibayes.likelihoods import Batch, Categorical, Likelihood, Noise, RobustGaussian, likelihood_from
from certibayes.posteriors import DiagonalGaussian, LastLayerGaussian, LowRankGaussian, Posterior
from certibayes.support.checks import require_finite, whole_number
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
        kl: KL(q || prior) / N.
        standard_error: of ``log_likelihood``, and so of ``elbo``, over samples.
        examples: N.
        samples: of the posterior.
        learned_variances: of the prior; 0 where it was given.
        likelihood: description of the likelihood.
        random: names of the parameters that vary; all others are fixed.
        weights: number of weights in these.
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
        return (
            f"Evidence(ELBO {self.elbo:.4f} ± {self.standard_error:.4f} per example: log-likelihood "
            f"{self.log_likelihood:.4f}, KL {self.kl:.4f}; {self.likelihood['name']}, {self.weights:,} random weights, "
            f"{self.learned_variances:,} learned variances)"
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
) -> Evidence:
    """Bound the evidence of the model that a Gaussian posterior belongs to, at full radius.

    Args:
        posterior: a ``DiagonalGaussian``, ``LowRankGaussian`` or ``LastLayerGaussian``.
        data: the training data that it was inferred from, all of them: (inputs, targets), or what
            ``certibayes.data.load`` returned.
        likelihood: the posterior's own by default, ``"standard"`` for the one without an adversary, or any other.
        prior: the posterior's own by default, with the variances that were learned.
        samples: of the posterior; the error is found from how they differ.
        seed: of the samples.

    Raises:
        InvalidInput: the posterior is no Gaussian, does not say its prior or likelihood, or the data are others.
    """
    samples = whole_number(samples, "samples", smallest=2)
    if not isinstance(posterior, (DiagonalGaussian, LastLayerGaussian)):
        raise InvalidInput(
            f"the ELBO is that of a Gaussian over weights, and a {type(posterior).__name__} has no density to compare "
            "with the prior's. Take the posterior of VOGN, NoisyAdam, BBB, IVON, SWAG or Laplace."
        )
    chosen = _likelihood(posterior, likelihood)
    batch = _data(posterior, data)
    chosen.validate(posterior.graph, batch)
    names = _random(posterior)
    kl = _kl(posterior, names, _variances(posterior, prior))
    values = _log_likelihoods(posterior, chosen, batch, samples, seed)
    return Evidence(
        float(values.mean()),
        kl / len(batch.inputs),
        float(values.std() / math.sqrt(samples)),
        len(batch.inputs),
        samples,
        0 if prior is not None else _learned(posterior),
        chosen.describe(),
        names,
        sum(posterior.mean[name].numel() for name in names),
    )


def _log_likelihoods(posterior: Posterior, likelihood: Likelihood, batch: Batch, samples: int, seed: int) -> Tensor:
    """Return the mean log-likelihood of an example under each sample, (S,)."""
    if posterior.statistics_vary:
        drawn = dict(posterior.predictor(samples, seed, data=batch.inputs).samples)
    else:
        drawn = posterior.sample(samples, torch.Generator().manual_seed(derived_seed(seed, "evidence")))
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
        raise InvalidInput("the posterior does not say which likelihood it was inferred with. Pass likelihood=...")
    own = likelihood_from(posterior.metadata["likelihood"])
    return RobustGaussian(own.noise_std) if likelihood == "standard" and isinstance(own, RobustGaussian) else own


def _data(posterior: DiagonalGaussian | LastLayerGaussian, data: Any) -> Batch:
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
    return Batch(inputs.to(like), targets.to(like.device, kind))


def _learned(posterior: Posterior) -> int:
    return int(posterior.metadata["prior"]["variances"]) if posterior.prior_variances else 0


def _random(posterior: Posterior) -> tuple[str, ...]:
    return tuple(posterior.names) if isinstance(posterior, LastLayerGaussian) else tuple(posterior.graph.parameters)


def _variances(posterior: DiagonalGaussian | LastLayerGaussian, prior: GaussianPrior | None) -> dict[str, Tensor]:
    """Return the prior's variances by parameter, which broadcast to its shape."""
    if prior is None and posterior.prior_variances:
        return posterior.prior_variances
    prior = _given(posterior) if prior is None else prior
    if prior.l1:
        raise InvalidInput("the prior has an l1 term, so that it is no Gaussian and the KL divergence not known.")
    precisions = prior.precisions(posterior.graph, {**posterior.buffers, **posterior.mean})
    return {name: precision.reciprocal() for name, precision in precisions.items()}


def _given(posterior: Posterior) -> GaussianPrior:
    settings = {name: value for name, value in (posterior.metadata.get("prior") or {}).items() if name != "name"}
    if (posterior.metadata.get("prior") or {}).get("name") != "GaussianPrior":
        raise InvalidInput(
            "the posterior does not say which prior it was inferred with. Pass prior=GaussianPrior(...)."
        )
    return GaussianPrior(**settings)


def _kl(posterior: DiagonalGaussian | LastLayerGaussian, names: tuple[str, ...], variances: dict[str, Tensor]) -> float:
    """Return KL(q || N(0, v)) = 1/2 ( Σ_i (Σ_ii + m_i²) / v_i - P + Σ_i log v_i - log det Σ ), in float64."""
    mean = torch.cat([posterior.mean[name].double().flatten() for name in names])
    prior = torch.cat([variances[name].double().expand(posterior.mean[name].shape).flatten() for name in names])
    diagonal, log_det = _covariance(posterior, names)
    return float(0.5 * (((diagonal + mean.square()) / prior - 1 + prior.log()).sum() - log_det))


def _covariance(posterior: DiagonalGaussian | LastLayerGaussian, names: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """Return the diagonal of the covariance, (P,), and the logarithm of its determinant."""
    if isinstance(posterior, LastLayerGaussian):
        factor = posterior.factor.double()
        return factor.square().sum(1), 2 * torch.linalg.slogdet(factor).logabsdet
    own = torch.cat([posterior.std[name].double().flatten() for name in names]).square()
    log_det = own.log().sum()
    if not isinstance(posterior, LowRankGaussian) or not bool((own > 0).all()):
        # Without a width of its own some weight is a point, to any density infinitely far.
        return own, log_det
    # det(D + Fᵀ F) = det(D) det(1 + F D⁻¹ Fᵀ), with F of shape (rank, P).
    factors = torch.cat([posterior.factors[name].double().flatten(1) for name in names], 1)
    inner = torch.eye(len(factors), dtype=own.dtype, device=own.device) + (factors / own) @ factors.T
    return own + factors.square().sum(0), log_det + torch.linalg.slogdet(inner).logabsdet
