"""Figures, drawn with matplotlib's object interface so that no global state or display is needed."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from certibayes.experiments.evaluate import Evaluation

CERTIFIED, OPEN, BROKEN, INK, FAINT = "#1a7f5a", "#d99a1c", "#c0392b", "#1f2933", "#8a94a0"
COLUMNS = 8


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG."""
    FigureCanvasAgg(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def robustness_bars(axes: Axes, summaries: dict[str, dict[str, float]]) -> None:
    """Draw, for each predictor, what is proved, what no attack has broken yet, and accuracy, in the paper's form."""
    for position, figures in enumerate(summaries.values()):
        certified, pgd, accuracy = (100 * figures[key] for key in ("certified", "pgd", "accuracy"))
        axes.bar(position, certified, 0.5, color=CERTIFIED)
        axes.bar(position, max(pgd - certified, 0.0), 0.5, bottom=certified, color=CERTIFIED, alpha=0.25)
        axes.plot(position, accuracy, marker="*", markersize=15, color=INK, linestyle="none")
        axes.annotate(f"{accuracy:.1f}% accurate", (position, accuracy + 2.5), ha="center", color=INK, fontsize=9)
        axes.annotate(f"{pgd:.1f}% survive PGD", (position, pgd + 1.5), ha="center", color=FAINT, fontsize=9)
        inside = certified > 15
        axes.annotate(
            f"{certified:.1f}%\nproved",
            (position, certified / 2 if inside else certified + 8),
            ha="center", va="center", color="white" if inside else CERTIFIED, fontsize=11, fontweight="bold",
        )  # fmt: skip
    axes.set_xticks(range(len(summaries)), [f"{name} likelihood" for name in summaries])
    axes.set_ylim(0, 108)
    axes.set_xlim(-0.6, len(summaries) - 0.4)
    axes.set_ylabel("% of test digits")
    axes.spines[["top", "right"]].set_visible(False)


def certificate_row(cells: list[Axes], evaluation: Evaluation, x: Tensor, chosen: list[int]) -> None:
    """Draw images in the colour of what is known about them: proved, unknown, or broken by an attack."""
    certificate, attacked = evaluation.certificate, evaluation.attacked
    for cell, index in zip(cells, chosen, strict=True):
        label = int(certificate.labels[index])
        if bool(certificate.certified[index]):
            colour, words = CERTIFIED, f"{label}: p ≥ {float(certificate.lower[index, label]):.2f}"
        elif bool(attacked.success[index]):
            colour, words = BROKEN, f"{label} → {int(attacked.predicted[index])}"
        else:
            colour, words = OPEN, f"{label}: unknown"
        shown = attacked.inputs[index] if colour == BROKEN else x[index]
        cell.imshow(shown.detach().cpu().squeeze(0), cmap="gray_r", vmin=0, vmax=1)
        cell.set_xticks([])
        cell.set_yticks([])
        for spine in cell.spines.values():
            spine.set_color(colour)
            spine.set_linewidth(3)
        cell.set_xlabel(words, color=colour, fontsize=9, fontweight="bold")


def demo_figure(evaluations: dict[str, Evaluation], x: Tensor, eps: float, path: Path) -> None:
    """Draw the demo's figure: bars on the left, a grid of test images with their certificates on the right."""
    figure = Figure(figsize=(13, 4.8), layout="constrained", facecolor="white")
    left, right = figure.subfigures(1, 2, width_ratios=[1, 2.1], squeeze=False)[0]
    axes = left.subplots()
    robustness_bars(axes, {name: evaluation.summary() for name, evaluation in evaluations.items()})
    axes.set_title(f"Every change of up to ±{eps:g} per pixel", fontsize=11, color=INK)
    # The first test digit of every class but the last two, the same for both rows.
    labels = next(iter(evaluations.values())).certificate.labels.tolist()
    chosen = [labels.index(digit) for digit in range(10) if digit in labels][:COLUMNS]
    rows = right.subplots(len(evaluations), len(chosen), squeeze=False)
    for cells, (name, evaluation) in zip(rows, evaluations.items(), strict=True):
        certificate_row(list(cells), evaluation, x, chosen)
        cells[0].set_ylabel(name, fontsize=11, color=INK)
    legend = "green: proved for every such change     red: changed by an attack (shown)     amber: neither"
    right.suptitle(legend, fontsize=10, color=INK)
    save(figure, path)
