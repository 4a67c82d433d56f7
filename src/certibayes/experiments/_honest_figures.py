"""The figure of the study of honest posteriors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from certibayes.experiments.figures import CERTIFIED, FAINT, INK, PALETTE, new_figure, save

LEAST = -3.0
"""ELBO at which the axis ends; that of a cold posterior, which is far too narrow to be one, is written at its edge."""


def draw_recipes(
    recipes: Mapping[str, Sequence[Mapping[str, Any]]], comparable: Collection[str], eps: float, path: Path
) -> None:
    """Draw, for each recipe, what is proved, how much the networks differ, and the evidence; a dot for every seed.

    Args:
        recipes: rows of each, by name.
        comparable: recipes of one likelihood and one set of random weights, whose evidence compares; those of others
            are drawn as circles.
        eps: radius of the certificates.
        path: of the PNG.
    """
    figure = new_figure(12.5, 1.7 + 0.36 * len(recipes))
    panels = figure.subplots(1, 3, sharey=True, width_ratios=(1.2, 1, 1))
    shown = {
        "certified": (f"proved at ±{eps:g} (% of test images)", 100.0),
        "mutual_information": ("mutual information (nats)", 1.0),
        "elbo": ("ELBO per example (○ other models)", 1.0),
    }
    for axes, (key, (title, scale)) in zip(panels, shown.items(), strict=True):
        for place, (name, rows) in enumerate(recipes.items()):
            values = [scale * row[key] for row in rows if isinstance(row[key], int | float)]
            if not values:
                continue
            color = CERTIFIED if key == "certified" else PALETTE[3]
            if key == "certified":
                axes.barh(place, fmean(values), 0.6, color=color, alpha=0.25, linewidth=0)
            face = "none" if key == "elbo" and name not in comparable else color
            words = f"{fmean(values):.{1 if key == 'certified' else 4 if key == 'mutual_information' else 2}f}"
            if key == "elbo" and min(values) < LEAST:
                values, words = [LEAST], f"◂ {words}"
                face = "none"
            axes.plot(values, [place] * len(values), "o", ms=4, color=color, markerfacecolor=face, alpha=0.8)
            axes.annotate(
                words, (max(values), place), xytext=(6, 0), textcoords="offset points", va="center", fontsize=8,
                color=INK,
            )  # fmt: skip
        axes.set_title(title, fontsize=10, color=INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x", color=FAINT, alpha=0.25, linewidth=0.6)
        axes.margins(x=0.18, y=0.03)
    panels[0].set_xlim(0, 112)
    panels[0].set_xticks(range(0, 101, 20))
    # Figures span orders of magnitude; a network that guesses has next to none.
    panels[1].set_xscale("log")
    panels[0].set_yticks(range(len(recipes)), list(recipes), fontsize=8)
    panels[0].invert_yaxis()
    save(figure, path)
