"""How the network that training has come to does on held-out data, after each epoch."""

from __future__ import annotations

import torch

from certibayes.inference.target import Target
from certibayes.likelihoods import Batch
from certibayes.networks import Params
from certibayes.support.seeds import derived_seed

AT_ONCE = 1000
"""Examples in one pass."""


@torch.no_grad()
def validation_figures(target: Target, params: Params, held: Batch, seed: int) -> dict[str, float]:
    """Evaluate one network at full radii: its loss and, for classes, accuracy and what the worst case leaves of it.

    Args:
        target: what is inferred.
        params: of the network.
        held: held-out data.
        seed: of the run.
    """
    likelihood, weights = target.likelihood, target.weights(params)
    likelihoods, hits, withstood = [], [], []
    generator = torch.Generator().manual_seed(derived_seed(seed, "validation noise"))
    for inputs, targets in zip(held.inputs.split(AT_ONCE), held.targets.split(AT_ONCE), strict=True):
        batch = Batch(inputs, targets)
        noise = likelihood.draw(1.0, batch, generator)
        likelihoods.append(target.log_likelihood(params, batch, noise))
        if not targets.is_floating_point():
            hits.append(target.graph.evaluate(weights, inputs).argmax(-1) == targets)
            # Passes of their own: a likelihood may have another log_likelihood than that of its head.
            right = likelihood.withstands(likelihood.passes(target.graph, weights, batch, noise), targets)
            withstood += [] if right is None else [right]
    record = {"validation_loss": -float(torch.cat(likelihoods).mean())}
    if hits:
        record["validation_accuracy"] = float(torch.cat(hits).float().mean())
    if withstood:
        record["validation_robust_accuracy"] = float(torch.cat(withstood).float().mean())
    return record
