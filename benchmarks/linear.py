"""Linear bounds: CROWN margins of 35 networks against the products they need, a convolutional network, and growth.

"Bare" is, for each network of 784-512-10, the matrix products of its margins, on tensors that are already there: both
layers with the centers, with the radii, and with the magnitudes, which would give the rounding error, and the backward
pass of the coefficients of nine margins per image through both layers. "Ideal products" leaves the magnitudes out, as
margins do today: lengths of rows bound that error well enough. The convolutional network is the paper's for CIFAR-10;
the time of all networks at once is compared with the sum of their times one by one.
"""

from __future__ import annotations

import resource
import statistics
import time
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional

import certibayes as cb
from benchmarks.certification import bare_products
from benchmarks.setup import DOMAIN, IMAGES, NETWORKS, dense_predictor, digits, random_predictor
from benchmarks.timing import medians
from certibayes.bounds import outward_box
from certibayes.certification import margin_bounds
from certibayes.experiments.figures import save
from certibayes.prediction import Predictor
from certibayes.support.stacks import pick

EPS = 0.1


def rivals_of(y: Tensor) -> Tensor:
    every = torch.arange(9).expand(len(y), 9)
    return every + (every >= y[:, None])


@torch.no_grad()
def products(networks: list[dict[str, Tensor]], box: cb.bounds.Box, specification: Tensor, rounding: bool) -> None:
    for params in networks:
        first, second = params["1.weight"], params["3.weight"]
        bare_products([params], box)
        if rounding:
            functional.linear(functional.linear(box.center, first, params["1.bias"]), second, params["3.bias"])
        (specification @ second) @ first


def dense() -> dict[str, float]:
    predictor, x = dense_predictor(), digits()
    y = predictor.predict(x)
    box, rivals = outward_box(x, EPS, DOMAIN), rivals_of(y)
    networks = [pick(predictor.samples, index) for index in range(NETWORKS)]
    specification = torch.randn(IMAGES * 9, 10)
    times = medians(
        {
            "bare products": lambda: products(networks, box, specification, True),
            "ideal products": lambda: products(networks, box, specification, False),
            "CROWN margins, outward": lambda: margin_bounds(predictor, box, y, rivals),
        },
        rounds=15,
    )
    margins = times["CROWN margins, outward"]
    return {
        **times,
        "ratio": margins / times["bare products"],
        "margins / ideal products": margins / times["ideal products"],
    }


def convolutional(images: int = 50) -> dict[str, float]:
    predictor = random_predictor(cb.networks.paper_cifar_supplement(), 0.001)
    x = torch.rand(images, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    y = predictor.predict(x)
    box, rivals = outward_box(x, 1 / 255, DOMAIN), rivals_of(y)
    alone = [
        Predictor(predictor.graph, {name: value[i : i + 1] for name, value in predictor.samples.items()})
        for i in range(NETWORKS)
    ]
    margin_bounds(alone[0], box, y, rivals)
    seconds: dict[str, list[float]] = {"all networks": [], "one by one": []}
    for _ in range(2):
        began = time.perf_counter()
        for single in alone:
            margin_bounds(single, box, y, rivals)
        seconds["one by one"].append(time.perf_counter() - began)
        began = time.perf_counter()
        margin_bounds(predictor, box, y, rivals)
        seconds["all networks"].append(time.perf_counter() - began)
    times = {name: statistics.median(values) for name, values in seconds.items()}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {**times, "peak memory of the process, GB": peak, "ratio": times["all networks"] / times["one by one"]}


def growth(path: Path) -> dict[str, float]:
    """Time per network and image, over numbers of networks and of images; a level curve is linear growth."""
    predictor, x = dense_predictor(), digits()
    y = predictor.predict(x)
    figure = Figure(figsize=(9, 3.6), layout="constrained", facecolor="white")
    panels = figure.subplots(1, 2, sharey=True)
    found: dict[str, float] = {}
    grids = {"networks": (1, 2, 4, 9, 18, 35), "images": (16, 62, 125, 250, 500)}
    for axes, (what, counts) in zip(panels, grids.items(), strict=True):
        for method in ("ibp", "crown", "alpha-crown"):
            each = []
            for count in counts:
                networks, images = (count, 125) if what == "networks" else (4, count)
                samples = {name: value[:networks] for name, value in predictor.samples.items()}
                some, box = Predictor(predictor.graph, samples), outward_box(x[:images], EPS, DOMAIN)
                rivals = rivals_of(y[:images])
                run = medians({"": lambda: margin_bounds(some, box, y[:images], rivals, bounds=method)}, rounds=3)  # noqa: B023
                each.append(1e6 * run[""] / (networks * images))
            axes.plot(counts, each, marker="o", label=method)
            found[f"{method}, {what}: last / first"] = each[-1] / each[0]
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.minorticks_off()
        axes.set_xlabel(what)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    panels[0].set_ylabel("µs per network and image")
    panels[0].legend(frameon=False)
    save(figure, path)
    return found
