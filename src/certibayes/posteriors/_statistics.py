"""Batch norm statistics of weight samples: each has those of the training data under its own weights."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from certibayes.data import DataSet
from certibayes.errors import InvalidInput
from certibayes.networks import Graph, Params
from certibayes.networks.batch_norm import EXAMPLES, evenly_spaced, statistics_of
from certibayes.support.checks import require_finite
from certibayes.support.stacks import count, pick, stack
from certibayes.support.tensors import as_tensor


def training_inputs(data: Any, graph: Graph) -> Tensor:
    """Return training inputs (N, ...) that a user handed over, at most ``EXAMPLES`` from all over the data.

    Args:
        data: a tensor, array or list; a pair (inputs, targets); or a data set, of which the training split is taken.
        graph: the network that they are for.
    """
    if isinstance(data, DataSet):
        data = data.train
    if isinstance(data, (tuple, list)) and len(data) == 2:
        data = data[0]
    inputs = as_tensor(data, "the training inputs")
    if inputs.dim() < 1 or len(inputs) < 2:
        raise InvalidInput("batch norm statistics need at least two training inputs, as a batch (N, ...).")
    graph.require_input(inputs, "the training inputs")
    if not inputs.is_floating_point():
        raise InvalidInput(f"the training inputs are {inputs.dtype}; floats are needed. For images of bytes: x / 255.")
    inputs = evenly_spaced(inputs, EXAMPLES)
    require_finite(inputs, "the training inputs")
    return inputs


def sample_statistics(graph: Graph, stacked: Params, inputs: Tensor) -> dict[str, Tensor]:
    """Return the statistics of every sample by name, (S, channels) each, where they follow the data.

    They are found on a GPU if samples or inputs are there, and returned to where the samples are.
    """
    own = next(iter(stacked.values()))
    device = own.device if own.is_cuda else inputs.device
    # In the network's own precision, as training saw them.
    inputs = inputs.to(device, own.dtype)
    found = []
    for i in range(count(stacked)):
        sample = {name: tensor.to(device) for name, tensor in pick(stacked, i).items()}
        found.append(statistics_of(graph, sample, inputs))
    return {name: tensor.to(own.device) for name, tensor in stack(found).items()}
