"""The recipes of the study of deep networks, by data set and radius. Chosen on held-out training images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from certibayes.errors import InvalidInput
from certibayes.experiments.spec import TrainSpec
from certibayes.support.names import unknown_name

SEEDS = 3
"""Trainings of a recipe, where their means are compared with one posterior."""

HELD_OUT = 1 / 12
"""Fraction of the training images on which settings are compared."""

COMMON: dict[str, Any] = {
    "architecture": "cnn7",
    "channels": 64,
    "likelihood": "ibp",
    "margins": True,
    "ramp": 0.35,
    "lam_ramp": 0.1,
    "ramp_shape": "smooth",
    "algorithm": "swag",
    "lr": 5e-4,
    "schedule": "cosine",
    "lr_floor": 0.4,
    "lr_end": 0.7,
    "warmup": 0.0,
    "clip": 10.0,
    # A prior that is hardly there: of 17 million weights most lie in one dense layer, which 300 / fan_in holds back.
    "variance_scale": 3e5,
    "batch_size": 256,
    "precision": "medium",
    "temperature": 1.0,
    "settings": {"optimizer": "adam", "start": 0.7, "rank": 20, "every": 100},
}
"""What all recipes share, spelled out, so that a change of defaults changes no table."""


@dataclass(frozen=True)
class Task:
    """A data set, a radius, and the recipe for it.

    Attributes:
        dataset: name of the data set.
        eps: radius that is certified.
        samples: weight samples of the predictors that are certified; the last number is the one of the table.
        settings: of the spec, beside the common ones.
        seeds: number of trainings.
        method: of certification: ``elided``, or ``theorem1``, which is the paper's. By intervals in both cases.
        dtype: precision of the predictors that are certified. In float32 the sum over the 32,768 inputs of ``cnn7``'s
            dense layer may be off by so much that bounds at 1/255 are a quarter wider for it.
        candidates: what was tried on held-out images instead, by name: further settings each.
    """

    dataset: str
    eps: float
    samples: tuple[int, ...]
    settings: Mapping[str, Any]
    seeds: int = SEEDS
    method: str = "elided"
    dtype: torch.dtype = torch.float64
    candidates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def posterior(self) -> str:
        """What the posterior of one training is called."""
        return "snapshot ensemble" if self.settings.get("algorithm") == "snapshot" else "SWAG"

    def spec(self, seed: int = 0, quick: bool = False, **changed: Any) -> TrainSpec:
        """Return the spec of a run."""
        settings = {**COMMON, "dataset": self.dataset, "eps": self.eps, "seed": seed, **self.settings, **changed}
        if quick:
            settings |= {"channels": 2, "epochs": 2}
            if settings["algorithm"] == "swag":
                settings["settings"] = {**settings["settings"], "every": 2, "rank": 2}
        return TrainSpec(**settings)


_CIFAR: dict[str, Any] = {
    "multiplier": 1.0,
    # With 0.05 training gives hard images up after a while: accuracy rises, and ever less is certified.
    "lam": 1e-3,
    "lr": 1e-3,
    "epochs": 70,
    "batch_size": 128,
    "augment": "flip,crop:2",
    "algorithm": "snapshot",
    "schedule": "constant",
    "lr_end": 1.0,
    "validation": HELD_OUT,
    "settings": {"members": 3, "start": 0.6, "optimizer": "adam"},
}

_PAPER: dict[str, Any] = {
    "channels": None,
    "margins": False,
    "multiplier": 1.1,
    "lam": 0.25,
    "ramp": None,
    "lam_ramp": None,
    "schedule": "constant",
    "lr_end": 1.0,
    "clip": None,
    "batch_size": 128,
    "precision": "highest",
}
"""The paper's own networks and final likelihood, with lam ramped."""

TASKS = {
    "digits": Task(
        "digits",
        0.1,
        (10, 35),
        {
            "architecture": "cnn5",
            "channels": 8,
            "multiplier": 1.1,
            "lam": 0.25,
            "ramp": None,
            "lam_ramp": None,
            "tightness": 0.5,
            "balance": 0.5,
            "lr": 0.003,
            "schedule": "constant",
            "warmup": 0.02,
            "epochs": 20,
            "batch_size": 128,
            "settings": {"optimizer": "adam", "start": 0.6, "rank": 20, "every": 20},
        },
    ),
    "mnist": Task(
        "mnist",
        0.1,
        (10, 35),
        {"multiplier": 2.0, "lam": 0.05, "lr": 1e-3, "lr_floor": 0.1, "epochs": 60},
        candidates={"lam 0.25": {"lam": 0.25}, "lr 0.002": {"lr": 2e-3}},
    ),
    "mnist-paper": Task(
        "mnist",
        0.1,
        (10, 35),
        {
            **_PAPER,
            "architecture": "mlp",
            "hidden": (512,),
            "lr": 0.05,
            "epochs": 30,
            "variance_scale": 300.0,
            "validation": HELD_OUT,
            "settings": {"every": 100},
        },
        seeds=1,
        method="theorem1",
        dtype=torch.float32,
        candidates={"lr 0.1": {"lr": 0.1}},
    ),
    "fashion-mnist": Task(
        "fashion-mnist",
        0.1,
        (10, 35),
        {"multiplier": 1.1, "lam": 0.05, "epochs": 45},
        candidates={"lam 0.25": {"lam": 0.25}, "lr 0.002": {"lr": 2e-3}, "narrow": {"channels": 32}},
    ),
    "cifar10-1": Task("cifar10", 1 / 255, (10,), _CIFAR, seeds=1),
    "cifar10-paper": Task(
        "cifar10",
        1 / 255,
        (10,),
        {
            **_PAPER,
            "architecture": "paper-cifar-supplement",
            "lr": 5e-4,
            "epochs": 45,
            "augment": "flip,crop:4",
            "validation": HELD_OUT,
            "settings": {"optimizer": "adam", "start": 0.7, "every": 100},
        },
        seeds=1,
        candidates={
            "SGD": {"lr": 0.005, "settings": {"every": 100}},
            "no augmentation": {"augment": None},
            "late lam": {"ramp": 0.55, "lam_ramp": 0.3, "settings": {"start": 0.86, "every": 50}},
        },
    ),
    "cifar10-2": Task(
        "cifar10",
        2 / 255,
        (10,),
        _CIFAR,
        seeds=1,
        candidates={
            "lam 0.05": {"lam": 0.05},
            "lr 0.0005": {"lr": 5e-4},
            "narrow prior": {"variance_scale": 300.0},
            "flips alone": {"augment": "flip"},
            "batches of 256": {"batch_size": 256},
            # The field's regularizers, with its longer ramp (Shi et al., 2021; CTBench).
            "regularizers": {"tightness": 0.5, "balance": 0.5, "l1": 1e-6, "ramp": 0.5},
        },
    ),
    "cifar10-8": Task("cifar10", 8 / 255, (10,), {**_CIFAR, "augment": "flip"}, seeds=1),
}
"""Tasks by name; those named after the paper have its networks."""


def chosen_tasks(dataset: str, names: Sequence[str] | None = None) -> dict[str, Task]:
    """Return the tasks of these names or, where none are given, all of a data set."""
    for name in names or ():
        if name not in TASKS:
            raise InvalidInput(unknown_name("task", name, TASKS))
    if names:
        return {name: TASKS[name] for name in names}
    of_data = {name: task for name, task in TASKS.items() if task.dataset == dataset}
    if not of_data:
        known = ", ".join(dict.fromkeys(task.dataset for task in TASKS.values()))
        raise InvalidInput(f"deep networks are studied on {known}, not on {dataset!r}.")
    return of_data
