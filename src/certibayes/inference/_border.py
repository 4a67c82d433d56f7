"""What ``fit`` is given, checked before anything is computed."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from certibayes.bounds import rules_for
from certibayes.errors import InvalidInput, UnsupportedLayer
from certibayes.inference._batches import Placement
from certibayes.inference.algorithm import Algorithm
from certibayes.likelihoods import Batch, Likelihood
from certibayes.networks import Graph, Network
from certibayes.networks.plain import require_plain
from certibayes.support.arithmetic import PRECISIONS
from certibayes.support.checks import require_finite, whole_number
from certibayes.support.devices import find_device
from certibayes.support.progress import reporting

Kind = TypeVar("Kind")


def instance_of(value: Any, kind: type[Kind], what: str) -> Kind:
    """Return an instance as it is, and one with default settings for None; a class in its place is a common slip."""
    if value is None:
        return kind()
    if isinstance(value, kind):
        return value
    if isinstance(value, type) and issubclass(value, kind):
        raise InvalidInput(f"{what} is the class {value.__name__}; pass an instance: {value.__name__}().")
    raise InvalidInput(f"{what} must be a certibayes {kind.__name__} such as {kind.__name__}(), not {value!r}.")


def seed_of(value: Any) -> int:
    """Return a seed that torch takes."""
    seed = whole_number(value, "seed")
    if not -(2**63) <= seed < 2**64:
        raise InvalidInput(f"seed must lie between -2^63 and 2^64 - 1, got {seed}.")
    return seed


def callbacks_of(value: Any) -> tuple[Any, ...]:
    """Return functions as a tuple."""
    if isinstance(value, Iterable) and not callable(value):
        functions = tuple(value)
        if all(callable(function) for function in functions):
            return functions
    remedy = " Put it in a list." if callable(value) else ""
    raise InvalidInput(f"callbacks is a list of functions, each called after every epoch; got {value!r}.{remedy}")


def directory_of(checkpoint: Any, every: Any) -> Path | None:
    """Return the directory for checkpoints, if one is wanted."""
    if not isinstance(every, Real) or every != every:
        raise InvalidInput(f"checkpoint_every must be a number of seconds, got {every!r}.")
    if checkpoint is None:
        return None
    if not isinstance(checkpoint, (str, os.PathLike)):
        raise InvalidInput(f"checkpoint must be the path of a directory, got {checkpoint!r}.")
    return Path(checkpoint)


def require_progress(progress: Any) -> None:
    """Raise unless ``progress`` is True, False or a function."""
    if progress is not True:
        with reporting(progress, "training"):
            pass


def placement_of(net: Any, device: Any) -> Placement:
    """Return where to train, and in which precision."""
    if not isinstance(net, Network):
        require_plain(net, ())
    tensors: Iterable[Tensor] = net.params.values() if isinstance(net, Network) else net.parameters()
    first = next((t for t in tensors if t.is_floating_point()), torch.empty(0))
    return Placement(first.device if device is None else find_device(device), first.dtype)


def require_batch(batch: Batch, graph: Graph, likelihood: Likelihood, what: str) -> None:
    """Raise unless inputs and targets fit network and likelihood."""
    require_finite(batch.inputs, f"the {what} inputs")
    require_finite(batch.targets, f"the {what} targets")
    graph.require_input(batch.inputs, f"the {what} inputs")
    try:
        likelihood.validate(graph, batch)
    except InvalidInput as error:
        remedy = _remedy(batch.targets, graph.classes)
        if remedy:
            raise InvalidInput(
                f"the {what} targets have shape {tuple(batch.targets.shape)}, but labels are whole numbers of shape "
                f"(N,), the number of each example's class. {remedy}"
            ) from error
        raise


def _remedy(targets: Tensor, classes: int) -> str:
    """Return how to make labels of targets that hold them in another form, where that is clear."""
    if targets.dim() == 2 and targets.shape[1] == 1 and not targets.is_floating_point():
        return "Drop the last dimension: y.squeeze(-1)."
    if targets.dim() == 2 and targets.shape[1] == classes:
        ones = (targets == 1).sum(-1) == 1
        if bool((ones & ((targets == 0).sum(-1) == classes - 1)).all()):
            return "These look one-hot: pass y.argmax(-1)."
    return ""


def require_inferable(network: Network) -> None:
    """Raise unless every layer has bounds and there are parameters, each a weight of some layer."""
    graph = network.graph
    for node in graph.nodes:
        rules_for(node.operation)
    if not graph.parameters:
        raise InvalidInput(
            "all parameters of the network are frozen (requires_grad=False), so there is nothing to infer. Unfreeze "
            "some: net[-1].requires_grad_(True); for a fixed network take certibayes.Point(net)."
            if network.frozen
            else "the network has no parameters, so there is nothing to infer. If it holds its weights as buffers or "
            "plain tensors, make them nn.Parameter."
        )
    if not network.params:
        raise InvalidInput("the network comes without weights to start from. Pass the module, or what trace returned.")
    used = {name for node in graph.nodes for name in node.roles.values()}
    unused = [name for name in graph.parameters if name not in used]
    if unused:
        raise UnsupportedLayer(
            f"the parameters {', '.join(unused)} are not used as weights by the forward pass, so inference cannot "
            "reach them. Remove them, or freeze them: requires_grad_(False)."
        )


def require_learnable(algorithm: Algorithm[Any]) -> None:
    """Raise unless a prior can be learned with this algorithm."""
    if algorithm.learns_prior_in == "nowhere":
        raise InvalidInput(
            f"{type(algorithm).__name__} has no standard deviations of its own while it is trained, so that a "
            "LearnedPrior has nothing to learn from: the joint density of weights and their variances grows without "
            "bound where both go to 0. Take GaussianPrior, or NoisyAdam, VOGN, BBB, IVON or Laplace."
        )


def require_precision(precision: Any) -> None:
    """Raise unless ``precision`` is one that training knows."""
    if precision not in PRECISIONS:
        raise InvalidInput(
            'precision is "highest", or for faster training "high" (TF32 on a GPU) or "medium" (convolutions on a GPU '
            f"and products on a CPU in bfloat16), got {precision!r}."
        )


def require_clip(clip: Any, full_batch: bool) -> None:
    """Raise unless ``clip`` is None or a norm, for a method that descends gradients of batches."""
    if clip is None:
        return
    if isinstance(clip, bool) or not isinstance(clip, Real) or not (math.isfinite(clip) and float(clip) > 0.0):
        raise InvalidInput(f"clip is the largest norm of the gradient, a positive number such as 10.0, got {clip!r}.")
    if full_batch:
        raise InvalidInput(
            "clipped gradients would lead HMC astray: its trajectories follow the gradient of the density that they "
            "sample. Leave clip out, and lower the learning rate if trajectories diverge."
        )
