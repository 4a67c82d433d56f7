"""PGD on 35 networks x 500 images, 784-512-10, 10 steps, against the matrix products it needs.

"Bare" is: for each step and network, its two layers' products forward and back to the input, on tensors that are
already there: no activations, no softmax, no loss, no projection, and no gradients of weights. No point falls at this
radius, so both work on 500 images throughout.
"""

from __future__ import annotations

import torch
from torch.nn import functional

import certibayes as cb
from benchmarks.records import Figures, ratio, seconds
from benchmarks.setup import DOMAIN, IMAGES, NETWORKS, dense_predictor, digits
from benchmarks.timing import medians
from certibayes.attacks import PGD
from certibayes.support.stacks import pick

STEPS, EPS, BAR = 10, 1e-5, 1.5


@torch.no_grad()
def bare_products(networks: list[dict[str, torch.Tensor]], x: torch.Tensor, slope: torch.Tensor) -> None:
    """The products of forward and backward passes and nothing else."""
    for _ in range(STEPS):
        for params in networks:
            first, second = params["1.weight"], params["3.weight"]
            hidden = functional.linear(x, first, params["1.bias"])
            functional.linear(hidden, second, params["3.bias"])
            slope @ second @ first


def measure(device: str) -> Figures:
    predictor, x = dense_predictor(device), digits(device)
    log_p = predictor(x).detach().topk(2).values
    # Clear of every border between classes, so that none falls.
    x = x[(log_p[:, 0] - log_p[:, 1]) > 1e-2]
    x = x.repeat(2, 1)[:IMAGES]
    y = predictor.predict(x)
    networks = [pick(predictor.samples, index) for index in range(NETWORKS)]
    slope = torch.randn(IMAGES, 10, generator=torch.Generator().manual_seed(0)).to(device)

    def attack() -> None:
        found = cb.attack(predictor, x, y, eps=EPS, domain=DOMAIN, method=PGD(STEPS, restarts=1))
        if found.robust_accuracy < 1.0:
            raise RuntimeError("a point was broken, so the comparison is not fair.")

    times = medians(
        {
            "bare products": lambda: bare_products(networks, x, slope),
            "attack(method=pgd)": attack,
        },
        rounds=3,
        device=device,
    )
    return {
        "attack / bare products": ratio(times["attack(method=pgd)"] / times["bare products"], BAR),
        **{name: seconds(value) for name, value in times.items()},
    }
