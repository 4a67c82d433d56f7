"""An epoch of CNN7 on images of 3 x 32 x 32, batch 256, robust likelihood, with TF32, against its bare convolutions.

"Bare" is every layer with weights, once for clean inputs and centers together and once for radii, forward, back to its
input and back to its weights, on tensors that are already there. On a GPU alone: a CPU takes minutes for an epoch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import certibayes as cb
from benchmarks.records import Figures, ratio, seconds
from benchmarks.setup import random_images, seconds_per_epoch
from benchmarks.timing import medians

IMAGES, BATCH, SHAPE = 50_000, 256, (3, 32, 32)


def bare_layers(net: nn.Module) -> Callable[[], object]:
    """Return the products of one step's layers and nothing else."""
    passes: list[tuple[nn.Module, Tensor, Tensor]] = []

    def keep(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        for copies in (2, 1):
            x = inputs[0].detach().repeat(copies, *[1] * (inputs[0].dim() - 1)).requires_grad_()
            passes.append((layer, x, torch.ones_like(output).repeat(copies, *[1] * (output.dim() - 1))))

    hooks = [layer.register_forward_hook(keep) for layer in net.modules() if isinstance(layer, (nn.Conv2d, nn.Linear))]
    net(torch.rand(BATCH, *SHAPE, device="cuda"))
    for hook in hooks:
        hook.remove()

    def products() -> None:
        for layer, x, slope in passes:
            torch.autograd.grad(layer(x), (x, layer.weight), slope)

    return products


def tf32(allowed: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed


def measure(device: str) -> Figures:
    if device != "cuda":
        return {}
    net, data = cb.networks.cnn7(SHAPE).cuda(), random_images(IMAGES, SHAPE, device)
    likelihood = cb.RobustCategorical(eps=2 / 255)
    found: Figures = {}
    for precision, bar in (("high", 2.0), ("highest", None)):
        epoch = seconds_per_epoch(
            net, data, 3, algorithm=cb.MAP(), likelihood=likelihood, batch_size=BATCH, precision=precision
        )
        tf32(precision == "high")
        try:
            bare = medians({"": bare_layers(net)}, 5, device)[""] * (IMAGES / BATCH)
        finally:
            tf32(False)
        name = "TF32" if precision == "high" else "float32"
        found[f"an epoch of 50,000 images, {name}"] = seconds(epoch, bar)
        found[f"an epoch / its bare layers, {name}"] = ratio(epoch / bare, 1.5 if precision == "high" else None)
    return found
