"""Batch norm in inference: which statistics a step uses, and those of the samples that are kept.

A step has the statistics of its own clean batch, with gradient (mode ``batch``), or constants that are refreshed from
clean training data between epochs (mode ``constant``). The loss of a step in mode ``batch`` is not a sum over examples,
since each depends on the others of its batch; methods that need the likelihood of each example by itself, or one fixed
function of the weights, have mode ``constant``. In both modes predictors have constants.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor

from certibayes.errors import InvalidInput
from certibayes.inference._batches import BatchSource
from certibayes.inference.algorithm import Algorithm, Sweep
from certibayes.inference.target import BATCH_NORM, Target
from certibayes.networks import Graph, Params
from certibayes.networks.batch_norm import EXAMPLES, evenly_spaced, follows_data, has_statistics, statistics_of
from certibayes.support.stacks import count, pick, stack

BETWEEN_EPOCHS = 2048
"""About how many training examples the statistics are taken from while training goes on."""

AT_END = 50_000
"""And for the network itself at the end, at most."""


def batch_norm_mode(mode: Any, graph: Graph, algorithm: Algorithm[Any], source: BatchSource) -> str | None:
    """Return the mode of batch norm that was asked for, or the default; None where nothing follows the data.

    Raises:
        InvalidInput: there is no such mode, or network, algorithm or batches cannot have it.
    """
    if mode is not None and mode not in BATCH_NORM:
        raise InvalidInput(f'batch_norm is "batch" or "constant", got {mode!r}.')
    if not has_statistics(graph):
        if mode is not None:
            raise InvalidInput(
                "batch_norm was given, but the network has no batch norm whose statistics follow the data (a frozen "
                "one keeps its own). Leave it out."
            )
        return None
    name = type(algorithm).__name__
    if mode == "batch" and algorithm.per_example:
        raise InvalidInput(
            f"{name} needs the likelihood of each example by itself, and with statistics of the batch there is none: "
            'every output depends on the whole batch. Take batch_norm="constant", or an algorithm that needs the '
            "gradient of a batch alone, such as SWAG, IVON or NoisyAdam."
        )
    chosen = mode or ("constant" if algorithm.per_example else "batch")
    if chosen == "batch":
        _require_single_use(graph)
        require_several(source.smallest)
    return chosen


def require_several(size: int | None) -> None:
    """Raise if a batch is too small to have statistics; None where its size is not known yet."""
    if size is not None and size < 2:
        raise InvalidInput(
            "a batch of one example has no variance, so batch norm cannot take its statistics. Take a larger "
            'batch_size, let the loader drop_last, or pass batch_norm="constant".'
        )


def _require_single_use(graph: Graph) -> None:
    uses = Counter(node.roles["running_mean"] for node in graph.nodes if follows_data(graph, node))
    shared = [name.removesuffix(".running_mean") for name, number in uses.items() if number > 1]
    if shared:
        raise InvalidInput(
            f"the batch norm {', '.join(shared)} is used more than once. In training each use would have statistics of "
            "its own, and a predictor has room for one of them. Give each use a layer of its own, or pass "
            'batch_norm="constant".'
        )


def refreshed(target: Target, params: Params, x: Tensor) -> dict[str, Tensor]:
    """Return the buffers, with the statistics that belong to ``params`` for inputs ``x``; frozen layers keep theirs."""
    return {**target.buffers, **statistics_of(target.graph, target.weights(params), x)}


def with_statistics(target: Target, stacked: Params, sweep: Sweep) -> dict[str, Tensor]:
    """Give every stacked sample the statistics that belong to its own weights, where the network has any."""
    if not has_statistics(target.graph):
        return dict(stacked)
    # No more than about twice as many as are needed are held in memory.
    stride = max(1, target.data_size // EXAMPLES)
    x = evenly_spaced(torch.cat([batch.inputs[::stride] for batch, _ in sweep]), EXAMPLES)
    samples = [pick(stacked, i) for i in range(count(stacked))]
    return stack([{**sample, **refreshed(target, sample, x)} for sample in samples])
