"""What a GPU makes of it: python -m benchmarks.cuda [--json].

Steps of training as ``fit`` makes them, captured and one kernel at a time, 784-512-10, batch 128, robust likelihood;
steps of ``fit_many`` with 16 models; a leapfrog step of HMC over 55,000 images against the bare products of its
gradient; certificates of convolutional networks. Inputs are random: they take as long as images do.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import certibayes as cb
from benchmarks.setup import random_predictor
from certibayes.inference import _capture, loop

IMAGES, CLASSES, BATCH, EPS = 55_000, 10, 128, 0.1
ALGORITHMS = {
    "MAP": cb.MAP(),
    "SWAG": cb.SWAG(),
    "NoisyAdam": cb.NoisyAdam(),
    "IVON": cb.IVON(),
    "BBB": cb.BBB(),
    "VOGN": cb.VOGN(),
    "SGHMC": cb.SGHMC(samples=4),
    "ensemble of 3": cb.DeepEnsemble(members=3),
}


class Uncaptured:
    """Steps as they stand, for comparison."""

    def __init__(self, algorithm: Any, generator: torch.Generator, order: Any = None):
        self.algorithm, self.generator = algorithm, generator

    def __call__(self, target: Any, state: Any, steps: Any) -> Any:
        """Make steps as they stand."""
        return _capture._made(self.algorithm, target, state, steps, self.generator)


def images(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(count, 1, 28, 28, generator=generator)
    return x.cuda(), torch.randint(0, CLASSES, (count,), generator=generator).cuda()


def seconds_per_epoch(algorithm: Any, data: Any, epochs: int) -> float:
    """Return the shortest epoch after the first, in which kernels are loaded and a step is recorded."""
    seconds: list[float] = []
    cb.fit(
        cb.networks.mlp(784, [512], CLASSES, seed=0).cuda(), data, algorithm=algorithm, epochs=epochs,
        likelihood=cb.RobustCategorical(eps=EPS), progress=False, callbacks=[lambda r: seconds.append(r["seconds"])],
    )  # fmt: skip
    return min(seconds[1:])


def steps() -> dict[str, float]:
    data = images(IMAGES)
    few = tuple(part[: 20 * BATCH] for part in data)
    found = {}
    for name, algorithm in ALGORITHMS.items():
        found[f"{name}, captured"] = seconds_per_epoch(algorithm, data, 4) / (IMAGES // BATCH)
        real, loop.CapturedUpdate = loop.CapturedUpdate, Uncaptured  # type: ignore[misc, assignment]
        try:
            found[f"{name}, uncaptured"] = seconds_per_epoch(algorithm, few, 6) / 20
        finally:
            loop.CapturedUpdate = real  # type: ignore[misc]
    return found


def models(count: int = 16) -> dict[str, float]:
    """Return the time of a step of one model, where many are trained as one program."""
    data, found = images(IMAGES), {}
    for name, algorithm in ALGORITHMS.items():
        if algorithm.stacked:
            continue
        nets = [cb.networks.mlp(784, [512], CLASSES, seed=seed).cuda() for seed in range(count)]
        seconds: list[float] = []
        # Every model reports the seconds of its group.
        cb.fit_many(
            None, data, [{"net": net, "seed": seed} for seed, net in enumerate(nets)], algorithm=algorithm, epochs=4,
            likelihood=cb.RobustCategorical(eps=EPS), progress=False,
            callbacks=[lambda r, seconds=seconds: seconds.append(r["seconds"])],
        )  # fmt: skip
        found[f"{name}, a step of one of {count} models"] = min(seconds[count:]) / (IMAGES // BATCH) / count
    return found


def fastest(run: Callable[[], object], rounds: int = 3) -> float:
    run()
    seconds = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def leapfrog() -> dict[str, float]:
    x, y = images(IMAGES)
    step = seconds_per_epoch(cb.HMC(lr=1e-4, leapfrog=10, burn_in=1), (x, y), 3) / 10
    flat = x.flatten(1)
    first, last = torch.randn(512, 784, device="cuda"), torch.randn(CLASSES, 512, device="cuda")

    def products() -> None:
        for _ in range(3):  # clean, center, radius
            hidden = flat @ first.T
            outputs = hidden @ last.T
            _ = outputs @ last, outputs.T @ hidden, hidden.T @ flat

    bare = fastest(products)
    return {"a leapfrog step of HMC": step, "bare products of a gradient": bare, "ratio": step / bare}


def certificates() -> dict[str, float]:
    x, _ = images(2000)
    found = {}
    for name, make in {"small": cb.networks.cnn_small, "medium": cb.networks.cnn_medium}.items():
        predictor = random_predictor(make((1, 28, 28), CLASSES), 0.001, 10).cuda()
        for method, count in ((cb.Theorem1(), 2000), (cb.Elided("crown"), 500)):
            what = f"{name} CNN, {method}, 10 samples x {count} images"
            found[what] = fastest(lambda p=predictor, m=method, n=count: cb.certify(p, x[:n], eps=0.002, method=m))
    return found


def main() -> None:
    results = {"training steps": steps(), "many models": models(), "HMC": leapfrog(), "certificates": certificates()}
    if "--json" in sys.argv:
        print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__, **results}))
        return
    for name, figures in results.items():
        table = Table("", "", title=f"{name}, {torch.cuda.get_device_name()}")
        for key, value in figures.items():
            table.add_row(key, f"{value:.2f}x" if key == "ratio" else f"{1000 * value:.3f} ms")
        Console().print(table)


if __name__ == "__main__":
    main()
