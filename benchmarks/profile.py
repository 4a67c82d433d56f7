"""Where the time of a robust training step goes, by ``torch.profiler``: python -m benchmarks.profile [--device cuda].

Profiles an epoch of ``fit``, 784-512-10, batch 128, robust likelihood, on either device, and writes the seconds per
step in each of ``PARTS`` into benchmarks/results/profile-*.json; ``docs/figures/profile.py`` draws them. What no
operation or kernel accounts for is launching and Python. The whole step is timed in other epochs, without the profiler;
on a CPU, where the profiler slows all parts down, they are scaled to it. There, elementwise work outside the gradient
is the optimizer's. On a GPU a recorded step is a row of kernels that no longer know who asked for them, so that only
kernels of a name count as the optimizer's.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from typing import Any
from unittest.mock import patch

import torch
from torch.profiler import ProfilerActivity, profile, record_function

import certibayes as cb
from benchmarks import records
from benchmarks.setup import CLASSES, random_images
from benchmarks.steps import ALGORITHMS, BATCH, EPS
from certibayes.inference import Target

STEPS, WARM_UP, SHOWN_KERNELS = 100, 2, 30
PARTS = ("products", "elementwise", "optimizer", "random numbers", "copies", "launching and Python")
"""Elementwise includes sums and everything else that reads numbers and writes about as many."""

KINDS = {
    "products": r"mm\b|gemm|gemv|matmul|cutlass|xmma|linear|convol|conv2d|einsum|cublas",
    "random numbers": r"normal|randn|uniform|bernoulli|exponential_|philox|distribution|random|rand\b|randperm",
    "optimizer": r"adam|multi_tensor|foreach|optimizer",
    "copies": r"memcpy|memset|copy|_to_copy|aten::to\b|clone|contiguous|index_select|gather|aten::cat|CatArray",
}
GRADIENT = "gradient of the likelihood"


def kind_of(name: str) -> str:
    """Tell from the name of an operation or kernel which part it belongs to."""
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, name, re.IGNORECASE)), "elementwise")


def in_gradient(event: Any) -> bool:
    """Whether an operation was asked for while the gradient was computed."""
    while event is not None:
        if event.name == GRADIENT:
            return True
        event = event.cpu_parent
    return False


def marked(method: Any) -> Any:
    """Let the profiler know what a method of the target asks for."""

    def call(*arguments: Any, **settings: Any) -> Any:
        with record_function(GRADIENT):
            return method(*arguments, **settings)

    return call


def profiled(algorithm: Any, device: str) -> dict[str, Any]:
    """Return seconds per step, by part, and the kernels or operations that take most of them."""
    data = random_images(STEPS * BATCH, (1, 28, 28), device)
    activity = ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU
    profiler = profile(activities=[activity])
    seconds: list[float] = []

    def after_epoch(record: dict[str, Any]) -> None:
        seconds.append(record["seconds"])
        if len(seconds) == WARM_UP:
            profiler.start()
        elif len(seconds) == WARM_UP + 1:
            profiler.stop()

    with (
        patch.object(Target, "mean_loss_and_gradient", marked(Target.mean_loss_and_gradient)),
        patch.object(Target, "gradients", marked(Target.gradients)),
    ):
        cb.fit(
            cb.networks.mlp(784, [512], CLASSES).to(device), data, algorithm=algorithm, batch_size=BATCH,
            likelihood=cb.RobustCategorical(eps=EPS), epochs=WARM_UP + 4, progress=False, callbacks=[after_epoch],
        )  # fmt: skip
    step = min(seconds[WARM_UP + 1 :]) / STEPS
    parts, kernels, counts = Counter[str](), Counter[str](), Counter[str]()
    for event in profiler.events():
        on_gpu = event.device_type == torch.autograd.DeviceType.CUDA
        if on_gpu != (device == "cuda") or event.name == GRADIENT or event.name.startswith("Profiler"):
            continue
        taken = 1e-6 * (event.time_range.elapsed_us() if on_gpu else event.self_cpu_time_total) / STEPS
        kind = kind_of(event.name)
        if kind == "elementwise" and not on_gpu and not in_gradient(event):
            kind = "optimizer"
        parts[kind] += taken
        kernels[event.name] += taken
        counts[event.name] += 1
    whole = step if device == "cuda" else seconds[WARM_UP] / STEPS
    parts["launching and Python"] = max(0.0, whole - sum(parts.values()))
    scale = step / sum(parts.values())
    most = {name: {"seconds": s, "per step": counts[name] / STEPS} for name, s in kernels.most_common(SHOWN_KERNELS)}
    return {"seconds": step, "parts": {part: scale * parts[part] for part in PARTS}, "kernels": most}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    device = parser.parse_args().device
    machine = records.machine(device)
    path = records.path_of(machine)
    path = path.with_name(f"profile-{path.name}")
    steps = {name: profiled(algorithm, device) for name, algorithm in ALGORITHMS.items()}
    path.write_text(json.dumps({"machine": machine, "steps": steps}, indent=2) + "\n", encoding="utf-8")
    for name, found in steps.items():
        shares = ", ".join(f"{part} {100 * s / found['seconds']:.0f}%" for part, s in found["parts"].items())
        print(f"{name}: {1e6 * found['seconds']:.0f} µs; {shares}")
    print(f"kept in {path}")


if __name__ == "__main__":
    main()
