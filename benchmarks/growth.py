"""How costs grow: time per unit of work over the numbers of networks, images and hidden units, and over depth.

A unit of work is one multiplication of the network for one image and one weight sample; where the time per unit stays
the same, the cost grows linearly with the work. ``python -m benchmarks.growth growth.png`` draws the curves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.figure import Figure as Picture

import certibayes as cb
from benchmarks.linear import rivals_of
from benchmarks.records import Figures, ratio
from benchmarks.setup import CLASSES, DOMAIN, digits, random_predictor
from benchmarks.steps import steps_of
from benchmarks.timing import medians
from certibayes.bounds import outward_box
from certibayes.certification import margin_bounds
from certibayes.experiments.figures import save
from certibayes.likelihoods import Batch

EPS = 0.1


class Size(NamedTuple):
    """One point of a curve: 784, ``depth`` hidden layers of ``width``, 10."""

    networks: int = 4
    images: int = 125
    width: int = 256
    depth: int = 1

    @property
    def work(self) -> int:
        """Multiplications in all."""
        layers = 784 * self.width + (self.depth - 1) * self.width**2 + self.width * CLASSES
        return self.networks * self.images * layers


GRIDS: dict[str, list[Size]] = {
    "networks": [Size(networks=count) for count in (1, 4, 12, 35)],
    "images": [Size(images=count) for count in (16, 62, 125, 500)],
    "width": [Size(width=count) for count in (64, 256, 512, 1024)],
    "depth": [Size(depth=count) for count in (1, 2, 4, 8)],
}
METHODS = ("ibp", "crown", "alpha-crown", "a training step")


def runner(method: str, size: Size, device: str) -> Callable[[], object]:
    """Return a function that certifies, or makes a step of MAP, at a size."""
    net = cb.networks.mlp(784, [size.width] * size.depth, CLASSES)
    x = digits(device, size.images)
    if method == "a training step":
        batch = Batch(x, torch.arange(size.images, device=device) % CLASSES)
        return steps_of(cb.MAP(), cb.RobustCategorical(cb.TwoPoint(0.11)), batch, net.to(device))
    predictor = random_predictor(net, 0.001, size.networks).to(device)
    y, box = predictor.predict(x), outward_box(x, EPS, DOMAIN)
    return lambda: margin_bounds(predictor, box, y, rivals_of(y), bounds=method, slopes=("zero",))


def curves(device: str) -> dict[str, dict[str, list[float]]]:
    """Return picoseconds per unit of work by what grows and method."""
    found: dict[str, dict[str, list[float]]] = {}
    for what, sizes in GRIDS.items():
        found[what] = {}
        for method in METHODS:
            if method == "a training step":
                # One network is trained at a time.
                sizes = [size._replace(networks=1) for size in sizes]
                if what == "networks":
                    continue
            times = medians({str(i): runner(method, size, device) for i, size in enumerate(sizes)}, 3, device)
            found[what][method] = [1e12 * times[str(i)] / size.work for i, size in enumerate(sizes)]
    return found


def measure(device: str) -> Figures:
    return {
        f"{method}, {getattr(GRIDS[what][0], what)} to {getattr(GRIDS[what][-1], what)} {NAMES[what]}": ratio(
            each[-1] / each[0]
        )
        for what, methods in curves(device).items()
        for method, each in methods.items()
    }


NAMES = {"networks": "networks", "images": "images", "width": "hidden units", "depth": "hidden layers"}


def draw(path: Path, device: str = "cpu") -> None:
    picture = Picture(figsize=(13, 3.4), layout="constrained", facecolor="white")
    panels = picture.subplots(1, len(GRIDS), sharey=True)
    for axes, (what, methods) in zip(panels, curves(device).items(), strict=True):
        counts = [getattr(size, what) for size in GRIDS[what]]
        for method, each in methods.items():
            axes.plot(counts, each, marker="o", label=method)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.minorticks_off()
        axes.set_xlabel(NAMES[what])
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    panels[0].set_ylabel("ps per multiplication")
    panels[1].legend(frameon=False)
    save(picture, path)


if __name__ == "__main__":
    draw(Path(sys.argv[1] if len(sys.argv) > 1 else "growth.png"))
