"""Draw the posterior of a weight at a kink, and how wide a weight is at and beside one: kink.png."""

import math
from pathlib import Path
from types import SimpleNamespace

import matplotlib.pyplot as plt
import torch

from certibayes.inference._kink import PRECISE, kink_curvatures

INK, FAINT, EXACT, KINK, SQUARES = "#1f2933", "#8a94a0", "#8a94a0", "#1a7f5a", "#c0392b"
N, SLOPE, CURVATURE = 100, 1.0, 0.02


# What ``kink_curvatures`` looks at of a target, with a prior that hardly matters.
TARGET = SimpleNamespace(precision={"w": torch.tensor(1e-6, dtype=torch.float64)}, data_size=N, temperature=1.0)


def widths(mean: torch.Tensor, curvature: float) -> torch.Tensor:
    """Return the standard deviation of the nearest Gaussian for each mean."""
    h = torch.full_like(mean, curvature)
    kinks = kink_curvatures(TARGET, {"w": mean}, {"w": h}, {"w": torch.full_like(mean, SLOPE)}, PRECISE)["w"]
    return (N * (h + kinks) + TARGET.precision["w"]).rsqrt()


def normal(w: torch.Tensor, std: float) -> torch.Tensor:
    """Return the density of N(0, std²)."""
    return torch.exp(-((w / std) ** 2) / 2) / (std * math.sqrt(2 * math.pi))


def main() -> None:
    """Draw both panels."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.4, 3.9), layout="constrained")
    w = torch.linspace(-0.2, 0.2, 2001, dtype=torch.float64)
    nearest, squares = math.sqrt(math.pi / 2) / (N * SLOPE), 1 / (math.sqrt(N) * SLOPE)
    left.fill_between(w, N * SLOPE / 2 * torch.exp(-N * SLOPE * w.abs()), color=EXACT, alpha=0.35, linewidth=0,
                      label="posterior, a Laplace density")  # fmt: skip
    left.plot(w, normal(w, nearest), color=KINK, linewidth=2.2, label="nearest Gaussian")
    left.plot(w, normal(w, squares), color=SQUARES, linewidth=2.2, label="from squared gradients")
    left.set(xlim=(-0.2, 0.2), ylim=(0, 52), xlabel="weight", ylabel="density")
    left.set_title(f"A weight at its kink, {N} examples, c = {SLOPE:g}", fontsize=11, color=INK)
    left.legend(frameon=False, fontsize=8.5, loc="upper right")
    mean = torch.linspace(0, 2.5, 500, dtype=torch.float64)
    right.plot(mean, widths(mean, CURVATURE), color=KINK, linewidth=2.2, label="with the kink")
    right.axhline(1 / math.sqrt(N * CURVATURE), color=SQUARES, linewidth=2.2, label="without it")
    right.set(xlim=(0, 2.5), ylim=(0, 0.8), xlabel="mean of the weight", ylabel="standard deviation")
    right.set_title(f"Beside the kink, with a curvature of {CURVATURE:g} everywhere", fontsize=11, color=INK)
    right.legend(frameon=False, fontsize=8.5, loc="lower right")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(FAINT)
        axes.tick_params(colors=FAINT)
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=120)


if __name__ == "__main__":
    main()
