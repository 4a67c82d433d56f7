"""Draw how interval bounds go through a small network: boxes.png. Run it with ``python docs/figures/boxes.py``."""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.patches import Rectangle
from torch import nn

import certibayes as cb

INK, FAINT, BOX, EXACT = "#1f2933", "#8a94a0", "#1a7f5a", "#9dbfe3"


def network() -> nn.Sequential:
    """Two inputs, two hidden units, two logits, with weights that make a readable picture."""
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0, 0.8], [-0.7, 1.1]]))
        net[0].bias.copy_(torch.tensor([-0.5, 0.2]))
        net[2].weight.copy_(torch.tensor([[1.0, -0.6], [-0.8, 0.9]]))
        net[2].bias.copy_(torch.tensor([0.2, 0.1]))
    return net


def main() -> None:
    """Follow one box, and a cloud of its points, through every layer."""
    traced = cb.networks.trace(network())
    x, eps = torch.tensor([[0.45, 0.4]]), 0.3
    start = cb.bounds.ideal_box(x, eps)
    boxes, clouds = [start], []

    def keep_box(node, inputs, output):
        boxes.append(output)
        return output

    def keep_points(node, inputs, output):
        clouds.append(output)
        return output

    cb.bounds.interval_bounds(traced.graph, traced.params, start, observe=keep_box)
    ticks = torch.linspace(-eps, eps, 500)
    cloud = x + torch.stack(torch.meshgrid(ticks, ticks, indexing="xy"), -1).reshape(-1, 2)
    traced.graph.evaluate(traced.params, cloud, keep_points)
    clouds.insert(0, cloud)

    titles = ("input: the ball around $x$", r"linear layer: $c' = Wc + b$, $r' = |W|\,r$", "ReLU", "logits")
    labels = (("$x_1$", "$x_2$"), ("$f_1$", "$f_2$"), (r"$\phi_1$", r"$\phi_2$"), ("$z_1$", "$z_2$"))
    figure, panels = plt.subplots(1, 4, figsize=(13.2, 3.7), layout="constrained")
    for axes, box, points, title, names in zip(panels, boxes, clouds, titles, labels, strict=True):
        axes.scatter(*points.T, s=3, color=EXACT, linewidths=0)
        low, high = box.lower[0], box.upper[0]
        size = high - low
        axes.add_patch(Rectangle(low.tolist(), *size.tolist(), fill=False, edgecolor=BOX, linewidth=2))
        axes.plot(*box.center[0], "+", color=INK, markersize=9)
        center, reach = box.center[0], float(size.max()) / 2 * 1.2
        axes.set(
            xlim=(center[0] - reach, center[0] + reach), ylim=(center[1] - reach, center[1] + reach), aspect="equal"
        )
        axes.axhline(0, color=FAINT, linewidth=0.6, zorder=0)
        axes.axvline(0, color=FAINT, linewidth=0.6, zorder=0)
        axes.set_title(title, fontsize=11, color=INK)
        axes.set_xlabel(names[0])
        axes.set_ylabel(names[1], rotation=0, labelpad=8)
        axes.tick_params(colors=FAINT, labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(FAINT)
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=120)


if __name__ == "__main__":
    main()
