"""Linear bounds: CROWN margins of 35 networks against the products they need.

"Bare" is, for each network of 784-512-10, the matrix products of its margins, on tensors that are already there: both
layers with the centers, with the radii, and with the magnitudes, which would give the rounding error, and the backward
pass of the coefficients of nine margins per image through both layers. "Ideal products" leaves the magnitudes out, as
margins do today: lengths of rows bound that error well enough.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

import certibayes as cb
from benchmarks.certification import bare_products
from benchmarks.records import Figures, ratio, seconds
from benchmarks.setup import DOMAIN, IMAGES, NETWORKS, dense_predictor, digits
from benchmarks.timing import medians
from certibayes.bounds import outward_box
from certibayes.certification import margin_bounds
from certibayes.support.stacks import pick

EPS = 0.1
BARS = {"cpu": 1.3, "cuda": None}


def rivals_of(y: Tensor) -> Tensor:
    every = torch.arange(9, device=y.device).expand(len(y), 9)
    return every + (every >= y[:, None])


@torch.no_grad()
def products(networks: list[dict[str, Tensor]], box: cb.bounds.Box, specification: Tensor, rounding: bool) -> None:
    for params in networks:
        first, second = params["1.weight"], params["3.weight"]
        bare_products([params], box)
        if rounding:
            functional.linear(functional.linear(box.center, first, params["1.bias"]), second, params["3.bias"])
        (specification @ second) @ first


def measure(device: str) -> Figures:
    predictor, x = dense_predictor(device), digits(device)
    y = predictor.predict(x)
    box, rivals = outward_box(x, EPS, DOMAIN), rivals_of(y)
    networks = [pick(predictor.samples, index) for index in range(NETWORKS)]
    specification = torch.randn(IMAGES * 9, 10, device=device)
    times = medians(
        {
            "bare products": lambda: products(networks, box, specification, True),
            "ideal products": lambda: products(networks, box, specification, False),
            "CROWN margins, outward": lambda: margin_bounds(predictor, box, y, rivals, slopes=("zero",)),
        },
        rounds=7,
        device=device,
    )
    margins = times["CROWN margins, outward"]
    return {
        "CROWN margins / bare products": ratio(margins / times["bare products"], BARS[device]),
        "CROWN margins / ideal products": ratio(margins / times["ideal products"]),
        **{name: seconds(value) for name, value in times.items()},
    }
