"""A leapfrog step of HMC over all data at once, 784-512-10, against the bare products of its gradient."""

from __future__ import annotations

import certibayes as cb
from benchmarks.records import Figures, ratio, seconds
from benchmarks.setup import CLASSES, MNIST, products_of_a_step, random_images, seconds_per_epoch
from benchmarks.timing import medians

BAR = 2.0


def measure(device: str) -> Figures:
    count, leapfrog = (MNIST, 10) if device == "cuda" else (MNIST // 10, 4)
    x, y = random_images(count, (1, 28, 28), device)
    net, algorithm = cb.networks.mlp(784, [512], CLASSES).to(device), cb.HMC(lr=1e-4, leapfrog=leapfrog, burn_in=1)
    likelihood = cb.RobustCategorical(eps=0.1)
    step = seconds_per_epoch(net, (x, y), 3, algorithm=algorithm, likelihood=likelihood) / leapfrog
    bare = medians({"bare": products_of_a_step(x.flatten(1))}, 5, device)["bare"]
    return {
        f"a leapfrog step / bare products, {count:,} images": ratio(step / bare, BAR if device == "cuda" else None),
        "a leapfrog step": seconds(step),
        "bare products": seconds(bare),
    }
