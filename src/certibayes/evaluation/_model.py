"""Which model a Gaussian posterior belongs to: what is random, its prior, and what is constant."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from certibayes.errors import InvalidInput
from certibayes.evaluation._divergence import Gaussian
from certibayes.inference import GaussianPrior
from certibayes.networks.batch_norm import CONSTANT, follows_data
from certibayes.posteriors import LastLayerGaussian, Posterior


def random_parameters(posterior: Posterior) -> tuple[str, ...]:
    """Return the names of the parameters that vary."""
    return tuple(posterior.names) if isinstance(posterior, LastLayerGaussian) else tuple(posterior.graph.parameters)


def learned_variances(posterior: Posterior) -> int:
    """Return how many variances of the prior were learned."""
    return int(posterior.metadata["prior"]["variances"]) if posterior.prior_variances else 0


def prior_variances(posterior: Gaussian, prior: GaussianPrior | None) -> dict[str, Tensor]:
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


def one_model(parts: Sequence[Gaussian], prior: GaussianPrior | None) -> bool:
    """Tell whether all components have one prior, and the same constants."""
    constants = [{**_constants(part), **prior_variances(part, prior)} for part in parts]
    return all(
        one.keys() == constants[0].keys()
        and all(torch.equal(tensor.cpu(), constants[0][name].cpu()) for name, tensor in one.items())
        for one in constants
    )


def _constants(part: Gaussian) -> dict[str, Tensor]:
    """Return what a component fixes; not batch norm statistics where those follow the weights that are drawn."""
    varies, graph = set(random_parameters(part)), part.graph
    if part.statistics_vary:
        varies |= {node.roles[role] for node in graph.nodes if follows_data(graph, node) for role in CONSTANT}
    fixed = {**part.mean, **part.buffers}
    return {f"fixed:{name}": tensor for name, tensor in fixed.items() if name not in varies}
