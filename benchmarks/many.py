"""A step of one of 16 models that ``fit_many`` trains as one program, 784-512-10, batch 128; on a GPU alone."""

from __future__ import annotations

import certibayes as cb
from benchmarks.records import Figures, seconds
from benchmarks.setup import CLASSES, MNIST, random_images
from benchmarks.steps import ALGORITHMS, BATCH, EPS

MODELS, BAR = 16, 6e-5


def measure(device: str) -> Figures:
    if device != "cuda":
        return {}
    data, found = random_images(MNIST, (1, 28, 28), device), {}
    for name, algorithm in ALGORITHMS.items():
        nets = [cb.networks.mlp(784, [512], CLASSES, seed=seed).to(device) for seed in range(MODELS)]
        taken: list[float] = []
        # Every model reports the seconds of its group, after every epoch.
        cb.fit_many(
            None, data, [{"net": net, "seed": seed} for seed, net in enumerate(nets)], algorithm=algorithm, epochs=4,
            likelihood=cb.RobustCategorical(eps=EPS), batch_size=BATCH, progress=False,
            callbacks=[lambda record, taken=taken: taken.append(record["seconds"])],
        )  # fmt: skip
        step = min(taken[MODELS:]) / (MNIST // BATCH) / MODELS
        found[f"{name}, a step of one of {MODELS} models"] = seconds(step, BAR)
    return found
