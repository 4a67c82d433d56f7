"""Figures of the study of deep networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from certibayes.experiments.figures import CERTIFIED, INK, PALETTE, new_figure, patch, save


def draw_rows(rows: Sequence[tuple[str, str, Mapping[str, Any]]], path: Path) -> None:
    """Draw, for each posterior, what is proved, what an attack left unbroken, and accuracy.

    Args:
        rows: task, posterior and figures each.
        path: of the PNG.
    """
    figure = new_figure(11, 1.6 + 0.42 * len(rows))
    axes = figure.subplots()
    for place, (_, _, f) in enumerate(rows):
        certified, unbroken, accuracy = (100 * f[key] for key in ("certified", "unbroken", "accuracy"))
        axes.barh(place, certified, 0.6, color=CERTIFIED, linewidth=0)
        axes.barh(place, max(unbroken - certified, 0.0), 0.6, left=certified, color=CERTIFIED, alpha=0.25, linewidth=0)
        (star,) = axes.plot(accuracy, place, marker="*", markersize=11, color=INK, linestyle="none", label="accurate")
        words = f"{certified:.1f} proved, {accuracy:.1f} accurate, MI {f['mutual_information']:.4f}"
        axes.annotate(words, (max(certified, unbroken, accuracy) + 1.5, place), va="center", color=INK, fontsize=8)
    labels = [f"{task}: {posterior}, {f['samples']} networks" for task, posterior, f in rows]
    axes.set_yticks(range(len(rows)), labels)
    axes.invert_yaxis()
    axes.set_xlim(0, 135)
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel("% of test images", color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    handles = [patch(CERTIFIED, "proved"), patch(CERTIFIED, "unbroken by PGD (first 500 images)", 0.25), star]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    save(figure, path)


def draw_paths(histories: Mapping[str, Sequence[Mapping[str, float]]], path: Path) -> None:
    """Draw the loss, what is proved and accuracy over training, a curve for each way to the likelihood.

    Args:
        histories: by name, what was recorded after each epoch.
        path: of the PNG.
    """
    figure = new_figure(12, 4.2)
    panels = figure.subplots(1, 3)
    shown = {
        "loss": ("training loss (nats)", 1.0),
        "validation_robust_accuracy": ("proved by intervals at the trained radius (%)", 100.0),
        "validation_accuracy": ("accuracy (%)", 100.0),
    }
    for axes, (key, (title, scale)) in zip(panels, shown.items(), strict=True):
        for (name, history), color in zip(histories.items(), PALETTE[::2], strict=False):
            epochs = [record["epoch"] for record in history]
            axes.plot(epochs, [scale * record[key] for record in history], marker="o", ms=3, color=color, label=name)
        axes.set_title(title, fontsize=11, color=INK)
        axes.set_xlabel("epoch", color=INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        if scale == 100.0:
            axes.set_ylim(-2, 102)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    save(figure, path)
