"""Certification of many points by several processes, or a cluster: each certifies some shards of one directory.

The certificate is the one that ``certify_in_shards`` gives, which is what joins the shards in the end. A worker that
dies costs the shard that it was at.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from certibayes.certificates import Certificate
from certibayes.certification import certify_in_shards
from certibayes.certification.shards import certify_shards, memory_for
from certibayes.experiments.engines import Engine
from certibayes.prediction import Predictor
from certibayes.support.checks import require_count


class ShardsTask(NamedTuple):
    """Some shards to be certified.

    Attributes:
        predictor: on the CPU, for its way to the worker.
        x: points, likewise.
        y: labels, or None.
        directory: of all shards.
        only: numbers of the shards.
        device: where the worker computes.
        settings: of ``certify_shards``.
    """

    predictor: Predictor
    x: Any
    y: Any
    directory: Path
    only: range
    device: str
    settings: Mapping[str, Any]


def certify_with(
    engine: Engine, predictor: Predictor, x: Any, y: Any, directory: Path | str, *, workers: int, shard: int = 500,
    **settings: Any,
) -> Certificate:  # fmt: skip
    """Certify points on an engine, shard by shard; what is finished is kept, as by ``certify_in_shards``.

    Args:
        engine: where shards are worked on: processes of this machine, or a Ray cluster.
        predictor: see ``certify_in_shards``.
        x: points, a tensor (B, ...).
        y: labels (B,), or None.
        directory: see ``certify_in_shards``; all workers must see it.
        workers: into how many tasks the shards are divided.
        shard: points per shard.
        **settings: others of ``certify_in_shards``; a method with a budget is refused.

    Raises:
        Exception: what the first worker that failed has raised, once all others are finished.
    """
    require_count(workers, "workers")
    require_count(shard, "shard")
    defaults = {"norm": "linf", "domain": "predictor", "method": "auto", "rounding": "outward", "batch_size": None}
    # Part of what shards are about: what is free at the moment must not make them differ.
    memory = memory_for(predictor, settings.pop("memory", None))
    own = {**defaults, **settings, "memory": memory, "shard": shard}
    place, number = str(predictor.device), -(-len(x) // shard)
    directory = Path(directory).resolve()
    # A copy, since moving a module moves it in place.
    copied = copy.deepcopy(predictor).cpu(), x.cpu(), None if y is None else y.cpu()
    tasks = [ShardsTask(*copied, directory, range(i, number, workers), place, own) for i in range(min(workers, number))]
    failed = [outcome for _, outcome in engine.run(certify_some, tasks) if isinstance(outcome, Exception)]
    if failed:
        raise failed[0]
    return certify_in_shards(predictor, x, y, directory, memory=memory, shard=shard, **settings)


def certify_some(task: ShardsTask) -> int:
    """Certify the shards of a task, and return how many they are."""
    predictor = task.predictor.to(task.device)
    x = task.x.to(task.device)
    parts, _ = certify_shards(predictor, x, task.y, task.directory, only=task.only, **task.settings)
    return len(parts)
