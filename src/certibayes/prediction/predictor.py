"""Predictors: fixed weight samples, averaged. The same samples predict, are attacked and are certified."""

from __future__ import annotations

import hashlib
import json

import torch
from torch import Tensor, nn

from certibayes.errors import InvalidInput
from certibayes.networks import Graph, Params, direct_sums
from certibayes.prediction.words import domain_in_words, in_lines, network_in_words
from certibayes.regions import Domain, as_domain
from certibayes.support.checks import LARGEST
from certibayes.support.stacks import count, map_samples
from certibayes.support.tensors import as_tensor, tensor_bytes


class Predictor(nn.Module):
    """The posterior predictive of N fixed weight samples (Eqn 1 of the paper).

    ``forward`` returns log( 1/N sum_i softmax(f^{w_i}(x)) ), so it serves any tool that expects logits: their softmax
    is the predictive distribution up to rounding; ``probabilities`` gives that distribution itself. Logits are computed
    in the samples' precision by direct sums; the softmax and the mean run in float64, so that their rounding is
    negligible, and the result is rounded once.

    Args:
        graph: the network.
        samples: parameters and buffers by name, each with a leading dimension N.
        domain: smallest and largest value of an input, which certificates and attacks assume unless they are
            given another; None where no limit is known.

    Attributes:
        domain: as above, the same for all points.
        features: names of the columns that are inputs, in order, where the network was trained on a table; tables whose
            columns are others, or in another order, are refused.
    """

    task = "classification"
    features: tuple[str, ...] = ()

    def __init__(self, graph: Graph, samples: Params, domain: Domain = None):
        super().__init__()
        self.graph = graph
        self.domain: Domain = domain_of_all(domain)
        self.names = tuple(samples)
        self._digest: tuple[tuple[Tensor, ...], tuple[int, ...], str] | None = None
        for index, name in enumerate(self.names):
            tensor = samples[name].detach().clone()
            # Extremes, not absolute values: samples may take half of the memory. NaN is not within any bounds.
            if not (float(tensor.min()) >= -LARGEST and float(tensor.max()) <= LARGEST):
                raise InvalidInput(
                    f"the samples of {name!r} hold NaN, infinite or absurdly large values (beyond 2^30). "
                    "If they come from training, it has probably diverged: lower the learning rate."
                )
            # Parameter names hold dots, which buffers may not, so buffers are numbered.
            self.register_buffer(f"samples_{index}", tensor)
        # Nothing here behaves differently in training; tools that ask, such as Foolbox, should not have to warn.
        self.eval()

    def __repr__(self) -> str:
        """Say what is averaged, and which inputs it is for."""
        plural = "" if self.size == 1 else "s"
        return in_lines(
            f"{type(self).__name__} of {self.size} weight sample{plural}",
            {
                "network": network_in_words(self.graph),
                "domain": domain_in_words(self.domain),
                "digest": f"{self.digest[:12]}...",
            },
        )

    @property
    def samples(self) -> dict[str, Tensor]:
        """Stacked parameters and buffers by name, each (N, ...)."""
        return {name: getattr(self, f"samples_{index}") for index, name in enumerate(self.names)}

    @property
    def size(self) -> int:
        """Number N of weight samples."""
        return count(self.samples)

    @property
    def dtype(self) -> torch.dtype:
        """Precision in which the networks run."""
        return self.samples[self.names[0]].dtype

    @property
    def device(self) -> torch.device:
        """Where the samples are."""
        return self.samples[self.names[0]].device

    @property
    def classes(self) -> int:
        """Number of outputs."""
        return self.graph.classes

    @property
    def digest(self) -> str:
        """SHA-256 of graph and samples: what a certificate refers to.

        Computed again when a sample was replaced or changed in place; changes made through ``tensor.data`` leave no
        trace in torch and are not seen.
        """
        tensors = tuple(tensor for _, tensor in sorted(self.samples.items()))
        if any(tensor.is_inference() for tensor in tensors):
            return self._hash()
        versions = tuple(tensor._version for tensor in tensors)
        known = self._digest
        # The tensors themselves are kept, so that none can be freed and another take its place unnoticed.
        if known is None or known[1] != versions or any(a is not b for a, b in zip(known[0], tensors, strict=True)):
            known = self._digest = (tensors, versions, self._hash())
        return known[2]

    def _hash(self) -> str:
        sha = hashlib.sha256(json.dumps(self.graph.to_json(), sort_keys=True).encode())
        for name, tensor in sorted(self.samples.items()):
            sha.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
            sha.update(tensor_bytes(tensor))
        return sha.hexdigest()

    def sample_outputs(self, x: Tensor) -> Tensor:
        """Return the outputs of every network, (N, B, outputs)."""
        x = self._inputs(x)
        self.graph.require_input(x)
        with direct_sums():
            x = x.to(self.dtype)
            return map_samples(lambda params: self.graph.evaluate(params, x), self.samples)

    def sample_log_probabilities(self, x: Tensor) -> Tensor:
        """Return log softmax of every network in float64, (N, B, C)."""
        return torch.log_softmax(self.sample_outputs(x).double(), -1)

    def forward(self, x: Tensor) -> Tensor:
        """Return log mean softmax, (B, C)."""
        mean = (
            torch.logsumexp(self.sample_log_probabilities(x), 0)
            - torch.tensor(self.size, dtype=torch.float64, device=self.device).log()
        )
        return mean.to(self.dtype)

    def probabilities(self, x: Tensor) -> Tensor:
        """Return the predictive distribution, (B, C)."""
        return self.sample_log_probabilities(x).exp().mean(0).to(self.dtype)

    def predict(self, x: Tensor, batch_size: int = 1000) -> Tensor:
        """Return the predicted class of each input, (B,), without gradients and in batches."""
        with torch.no_grad():
            return torch.cat([self(part).argmax(-1) for part in self._inputs(x).split(batch_size)])

    def _inputs(self, x: Tensor) -> Tensor:
        """Return tensors as they are, and arrays and lists as tensors where the samples are."""
        return x if isinstance(x, Tensor) else as_tensor(x, "x").to(self.device)


def domain_of_all(domain: Domain) -> Domain:
    """Return a domain in its plain form, if it is the same for all points."""
    domain = as_domain(domain)
    if domain is not None and any(isinstance(end, Tensor) and len(end) != 1 for end in domain):
        raise InvalidInput(
            "a predictor's domain is the same for all points: a pair of numbers, or of tensors of shape (1, *shape). "
            "Where points differ, pass the domain with them, to certify or attack."
        )
    return domain


class RegressionPredictor(Predictor):
    """The predictive mean of N fixed weight samples: ``forward`` returns 1/N sum_i f^{w_i}(x), (B, outputs)."""

    task = "regression"

    def __init__(self, graph: Graph, samples: Params, domain: Domain = None):
        graph.require_all_of("a regression")
        super().__init__(graph, samples, domain)

    def forward(self, x: Tensor) -> Tensor:
        """Return the predictive mean, (B, outputs)."""
        return self.sample_outputs(x).double().mean(0).to(self.dtype)

    def probabilities(self, x: Tensor) -> Tensor:
        """Regression has none."""
        raise InvalidInput("a regression predictor has no class probabilities; call it for the mean.")
