"""Certificates of convolutional networks.

On a CPU, CROWN margins of 35 networks of the paper's for CIFAR-10: all at once against the sum of one by one, and the
memory that they need. On a GPU, ``theorem1`` and elided CROWN of 10 networks, the small and medium CNN of Gowal et al.,
whose bars are a fifth of what they took with torch's own convolutions.
"""

from __future__ import annotations

import resource

import torch

import certibayes as cb
from benchmarks.linear import rivals_of
from benchmarks.records import Figure, Figures, ratio, seconds
from benchmarks.setup import CLASSES, DOMAIN, NETWORKS, random_images, random_predictor
from benchmarks.timing import medians
from certibayes.bounds import outward_box
from certibayes.certification import margin_bounds
from certibayes.prediction import Predictor

IMAGES, BAR = 25, 1.1
CNNS = {"small CNN": cb.networks.cnn_small, "medium CNN": cb.networks.cnn_medium}
THEOREM1_SECONDS = {"small CNN": 1.45 / 5, "medium CNN": 4.1 / 5}


def on_a_cpu() -> Figures:
    predictor = random_predictor(cb.networks.paper_cifar_supplement(), 0.001)
    x, _ = random_images(IMAGES, (3, 32, 32), "cpu")
    y = predictor.predict(x)
    box, rivals = outward_box(x, 1 / 255, DOMAIN), rivals_of(y)
    alone = [
        Predictor(predictor.graph, {name: value[i : i + 1] for name, value in predictor.samples.items()})
        for i in range(NETWORKS)
    ]
    times = medians(
        {
            "one by one": lambda: [margin_bounds(single, box, y, rivals, slopes=("zero",)) for single in alone],
            "all networks": lambda: margin_bounds(predictor, box, y, rivals, slopes=("zero",)),
        },
        rounds=1,
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {
        "all networks / one by one": ratio(times["all networks"] / times["one by one"], BAR),
        "peak memory of the process": Figure("GB", (peak,)),
        **{name: seconds(value) for name, value in times.items()},
    }


def on_a_gpu() -> Figures:
    x, _ = random_images(2000, (1, 28, 28), "cuda")
    found: Figures = {}
    for name, make in CNNS.items():
        predictor = random_predictor(make((1, 28, 28), CLASSES), 0.001, 10).cuda()

        def certify(method: object, count: int, p: Predictor = predictor) -> float:
            return medians({"": lambda: cb.certify(p, x[:count], eps=0.002, method=method)}, 3, "cuda")[""]

        found[f"{name}, theorem1, 10 networks x 2,000 images"] = seconds(
            certify(cb.Theorem1(), 2000), THEOREM1_SECONDS[name]
        )
        found[f"{name}, elided CROWN, 10 networks x 500 images"] = seconds(certify(cb.Elided("crown"), 500))
    return found


def measure(device: str) -> Figures:
    with torch.no_grad():
        return on_a_gpu() if device == "cuda" else on_a_cpu()
