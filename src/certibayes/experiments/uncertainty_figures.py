"""Figures of uncertainty: histograms in the paper's form, reliability diagrams, risk-coverage curves.

All are drawn from what ``Assessment`` sums up as plain lists, so a stored run can be drawn again without its inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from certibayes.evaluation import Assessment
from certibayes.experiments.figures import EXTRA, FAINT, INK, PALETTE, new_figure, patch, save
from certibayes.support.optional import require_package

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INSIDE, OUTSIDE, ATTACKED = "#3a76b5", "#ee8a2b", "#5a6572"
TITLES = {"expected_entropy": "expected entropy", "predictive_entropy": "entropy of the mean"}
"""What histograms are drawn of: the paper's entropy, and that of the mean prediction."""

FEWEST = 10
"""Predictions from which on a bin of a reliability diagram is drawn."""

Curves = dict[str, Any]


def curves_of(assessment: Assessment) -> Curves:
    """Return what the figures need, as plain values: histograms by score and set, reliability, risk and coverage."""
    drawn = {score: assessment.histograms(score) for score in TITLES}
    return {
        "histograms": {score: {name: h.summary() for name, h in sets.items()} for score, sets in drawn.items()},
        "reliability": assessment.reliability.summary(),
        "risk_coverage": assessment.risk_coverage.thinned().summary(),
    }


def histogram_panel(axes: Axes, histograms: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    """Draw one score: blue in, orange out of distribution, an outline for attacked inputs.

    Fractions are drawn on a square-root scale: a confident predictor has most of its inputs in a single bin, beside
    which no other would be seen.
    """
    for name, color in (("in", INSIDE), ("out", OUTSIDE)):
        values = [100 * fraction for fraction in histograms[name]["fractions"]]
        axes.stairs(values, histograms[name]["edges"], fill=True, color=color, alpha=0.6)
        axes.stairs(values, histograms[name]["edges"], color=color, linewidth=0.8)
    if "adversarial" in histograms:
        found = histograms["adversarial"]
        axes.stairs([100 * fraction for fraction in found["fractions"]], found["edges"], color=ATTACKED, linewidth=1.2)
    axes.set_xlim(0, histograms["in"]["edges"][-1])
    axes.set_yscale("function", functions=(lambda percent: np.sqrt(np.maximum(percent, 0)), np.square))
    axes.set_ylim(0, 100)
    axes.set_yticks([0, 1, 5, 20, 50, 100])
    _plain(axes)


def histogram_grid(
    rows: Mapping[str, Mapping[str, Mapping[str, Mapping[str, Sequence[float]]] | None]],
    *paths: Path,
    xlabel: str,
    title: str,
    note: str = "",
) -> None:
    """Draw histograms in a grid, all to the same scale, so that panels can be compared.

    Args:
        rows: histograms by set, by title of the column, by title of the row; None leaves a panel empty.
        *paths: of the PNG or SVG.
        xlabel: of the score.
        title: of the figure.
        note: in small letters below it.
    """
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    figure = new_figure(1.6 + 3.1 * len(columns), (1.3 if len(columns) > 1 else 1.8) + 1.7 * len(rows))
    panels = figure.subplots(len(rows), len(columns), squeeze=False, sharey=True, sharex=True)
    attacked = False
    for strip, (row, cells) in zip(panels, rows.items(), strict=True):
        for axes, column in zip(strip, columns, strict=True):
            histograms = cells.get(column)
            if histograms is None:
                axes.text(0.5, 0.5, "no run", transform=axes.transAxes, ha="center", color=FAINT)
                _plain(axes)
                continue
            histogram_panel(axes, histograms)
            attacked |= "adversarial" in histograms
        strip[0].set_ylabel(f"{row}\n% of inputs", color=INK)
    for axes, column in zip(panels[0], columns, strict=True):
        axes.set_title(column, fontsize=11, color=INK)
    for axes in panels[-1]:
        axes.set_xlabel(xlabel, color=INK)
    figure.suptitle(title, fontsize=12, color=INK)
    handles: list[Any] = [patch(INSIDE, "in-distribution", 0.7), patch(OUTSIDE, "out-of-distribution", 0.7)]
    if attacked:
        line = require_package("matplotlib.lines", EXTRA).Line2D
        handles.append(line([], [], color=ATTACKED, linewidth=1.2, label="in-distribution after PGD"))
    # Side by side they are wider than a single panel.
    beside = len(handles) if len(columns) > 1 else 1
    below = {"title": note, "title_fontproperties": {"size": 8}} if note else {}
    legend = figure.legend(handles=handles, loc="outside lower center", ncols=beside, frameon=False, **below)
    legend.get_title().set(color=FAINT, multialignment="center")
    save(figure, *paths)


def calibration_figure(rows: Mapping[str, Mapping[str, Mapping[str, Curves]]], path: Path) -> None:
    """Draw reliability diagrams and risk-coverage curves, one of each for each predictor.

    Args:
        rows: what ``curves_of`` returned, by name of the predictor (such as a method), by title of the column (such as
            a likelihood), by title of the row (such as a temperature).
        path: of the PNG.
    """
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    names = list(dict.fromkeys(name for row in rows.values() for cells in row.values() for name in cells))
    colors = dict(zip(names, PALETTE, strict=False))
    figure = new_figure(4.2 * (len(columns) + 1), 0.7 + 3.6 * len(rows))
    panels = figure.subplots(len(rows), len(columns) + 1, squeeze=False)
    for strip, (row, cells) in zip(panels, rows.items(), strict=True):
        for axes, column in zip(strip, columns, strict=False):
            axes.plot([0, 1], [0, 1], color=FAINT, linestyle=":", linewidth=1)
            for name, curves in cells.get(column, {}).items():
                _reliability(axes, curves["reliability"], colors[name])
            axes.set(xlim=(0, 1), ylim=(0, 1), xlabel=f"confidence (bins of {FEWEST} or more)", ylabel="accuracy")
            axes.set_title(_title(row, f"{column}: reliability"), fontsize=11, color=INK)
        last = strip[-1]
        for style, column in zip(("--", "-"), columns, strict=False):
            for name, curves in cells.get(column, {}).items():
                found = curves["risk_coverage"]
                wrong = [100 * risk for risk in found["risk"]]
                last.plot(found["coverage"], wrong, color=colors[name], linestyle=style, linewidth=1.4)
        words = ", ".join(f"{name} {style}" for name, style in zip(columns, ("dashed", "solid"), strict=False))
        coverage = f"coverage ({words})" if len(columns) > 1 else "coverage"
        last.set(xlim=(0, 1), xlabel=coverage, ylabel="wrong among answered (%)")
        last.set_ylim(bottom=0)
        last.set_title(_title(row, "risk and coverage"), fontsize=11, color=INK)
        for axes in strip:
            _plain(axes)
            axes.grid(alpha=0.25)
    if len(names) > 1:
        patches = [patch(colors[name], name) for name in names]
        figure.legend(handles=patches, loc="outside lower center", ncols=len(patches), frameon=False)
    save(figure, path)


def _reliability(axes: Axes, found: Mapping[str, Sequence[Any]], color: str) -> None:
    """A point for each bin that holds enough predictions for an accuracy; large where most of them are."""
    columns = zip(*(found[key] for key in ("counts", "confidence", "accuracy")), strict=True)
    bins = [(n, x, y) for n, x, y in columns if n >= FEWEST]
    axes.plot([x for _, x, _ in bins], [y for _, _, y in bins], color=color, linewidth=1.2)
    for n, x, y in bins:
        axes.scatter(x, y, s=12 + 60 * n / sum(found["counts"]), color=color, zorder=3, clip_on=False)


def _title(row: str, words: str) -> str:
    return f"{row}, {words}" if row else words


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=FAINT, labelsize=8)
