"""Interval certification of 35 networks of 784-512-10 against the matrix products it needs.

"Bare" is: for each network, its two layers' products with the centers and with the radii, by the same ``linear`` calls,
on tensors that are already there: no absolute values, no rounding, no activations, no softmax, no rule. 500 images on a
CPU, 10,000 on a GPU.
"""

from __future__ import annotations

import torch
from torch.nn import functional

import certibayes as cb
from benchmarks.records import Figures, ratio, seconds
from benchmarks.setup import DOMAIN, IMAGES, NETWORKS, dense_predictor, digits
from benchmarks.timing import medians
from certibayes.bounds import outward_box
from certibayes.certification import logit_bounds
from certibayes.support.stacks import pick

EPS = 0.1
BARS = {"cpu": 1.2, "cuda": 1.5}


@torch.no_grad()
def bare_products(networks: list[dict[str, torch.Tensor]], box: cb.bounds.Box) -> None:
    """The products of interval propagation and nothing else."""
    for params in networks:
        first, second = params["1.weight"], params["3.weight"]
        center = functional.linear(box.center, first, params["1.bias"])
        radius = functional.linear(box.radius, first)
        functional.linear(center, second, params["3.bias"])
        functional.linear(radius, second)


@torch.no_grad()
def clean_products(networks: list[dict[str, torch.Tensor]], x: torch.Tensor) -> None:
    """The products of a prediction and nothing else."""
    for params in networks:
        hidden = functional.linear(x, params["1.weight"], params["1.bias"])
        functional.linear(hidden, params["3.weight"], params["3.bias"])


def measure(device: str) -> Figures:
    predictor, x = dense_predictor(device), digits(device, 10_000 if device == "cuda" else IMAGES)
    y = predictor.predict(x)
    box = outward_box(x, EPS, DOMAIN)
    networks = [pick(predictor.samples, index) for index in range(NETWORKS)]
    times = medians(
        {
            "bare products": lambda: bare_products(networks, box),
            "logit bounds, outward": lambda: logit_bounds(predictor, box),
            "certify(method=theorem1)": lambda: cb.certify(predictor, x, y, eps=EPS, domain=DOMAIN, method="theorem1"),
            "predictor(x)": lambda: predictor.predict(x),
            "clean products": lambda: clean_products(networks, x),
        },
        device=device,
    )
    bare, whole = times["bare products"], times["certify(method=theorem1)"]
    return {
        # What proves: bounds, softmax, rule and digest.
        "certification / bare products": ratio((whole - times["predictor(x)"]) / bare, BARS[device]),
        # The whole call also predicts, for its report of accuracy, which needs the clean products as well.
        "whole call / (bare + clean products)": ratio(whole / (bare + times["clean products"])),
        **{name: seconds(value) for name, value in times.items()},
    }
