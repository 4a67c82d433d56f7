"""Figures, drawn with matplotlib's object interface so that no global state or display is needed.

matplotlib comes with the extra ``figures`` and is imported where something is drawn.
"""

from __future__ import annotations

import io
import itertools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from certibayes.errors import InvalidInput
from certibayes.experiments.evaluate import Evaluation
from certibayes.networks.operations import Linear
from certibayes.posteriors import Posterior
from certibayes.support.files import write_atomically
from certibayes.support.optional import require_package

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

EXTRA = "figures"
"""The extra that brings matplotlib and Jinja."""

CERTIFIED, OPEN, BROKEN, INK, FAINT = "#1a7f5a", "#d99a1c", "#c0392b", "#1f2933", "#8a94a0"
ROWS, COLUMNS = 2, 8
PALETTE = ("#1a7f5a", "#d99a1c", "#c0392b", "#2f6fb0", "#7a4fa3", "#00838f", "#8a6d3b", "#e07a5f", "#5a6572", "#3d405b")
"""Colors of methods, in the order in which they are given."""


def require_matplotlib() -> None:
    """Raise unless figures can be drawn; for commands that would notice only after hours of work."""
    require_package("matplotlib.figure", EXTRA)


def new_figure(width: float, height: float) -> Figure:
    """Make an empty figure of so many inches."""
    figure: Figure = require_package("matplotlib.figure", EXTRA).Figure(
        figsize=(width, height), layout="constrained", facecolor="white"
    )
    return figure


def patch(color: str, label: str, alpha: float = 1.0) -> Patch:
    """Make a colored entry of a legend."""
    made: Patch = require_package("matplotlib.patches", EXTRA).Patch(color=color, alpha=alpha, label=label)
    return made


def save(figure: Figure, *paths: Path) -> None:
    """Write a figure, as PNG or SVG by the ends of the names; the same figure is the same bytes."""
    require_package("matplotlib.backends.backend_agg", EXTRA).FigureCanvasAgg(figure)
    for path in paths:
        content = io.BytesIO()
        vector = path.suffix == ".svg"
        with require_package("matplotlib", EXTRA).rc_context({"svg.hashsalt": "certibayes"}):
            figure.savefig(
                content, dpi=150, format="svg" if vector else "png", metadata={"Date": None} if vector else None
            )
        write_atomically(path, content.getvalue())


def robustness_bars(axes: Axes, summaries: dict[str, dict[str, float]]) -> None:
    """Draw, for each predictor, what is proved, what no attack has broken yet, and accuracy, in the paper's form."""
    for position, figures in enumerate(summaries.values()):
        certified, pgd, accuracy = (100 * figures[key] for key in ("certified", "pgd", "accuracy"))
        axes.bar(position, certified, 0.5, color=CERTIFIED)
        axes.bar(position, max(pgd - certified, 0.0), 0.5, bottom=certified, color=CERTIFIED, alpha=0.25)
        axes.plot(position, accuracy, marker="*", markersize=15, color=INK, linestyle="none")
        axes.annotate(f"{accuracy:.1f}% accurate", (position, accuracy + 3.5), ha="center", color=INK, fontsize=9)
        # Beside the bar, where the star is never in the way, and above the axis.
        beside = (position + 0.28, max(pgd, 6.0))
        axes.annotate(f"{pgd:.1f}%\nsurvive\nPGD", beside, va="center", color=FAINT, fontsize=9)
        inside = certified > 15
        axes.annotate(
            f"{certified:.1f}%\nproved",
            (position, certified / 2 if inside else certified + 8),
            ha="center", va="center", color="white" if inside else CERTIFIED, fontsize=11, fontweight="bold",
        )  # fmt: skip
    labels = [f"{name} likelihood\nmutual inf. {f['mutual_information']:.4f}" for name, f in summaries.items()]
    axes.set_xticks(range(len(summaries)), labels)
    axes.set_ylim(0, 110)
    axes.set_xlim(-0.6, len(summaries) - 0.3)
    axes.set_ylabel("% of test digits")
    axes.spines[["top", "right"]].set_visible(False)


def certificate_grid(cells: list[Axes], evaluation: Evaluation, x: Tensor) -> None:
    """Draw the first images in the color of what is known about them: proved, unknown, or broken by an attack."""
    certificate, attacked = evaluation.certificate, evaluation.attacked
    for index, cell in enumerate(cells):
        label = int(certificate.labels[index])
        if bool(certificate.certified[index]):
            # A lower bound is rounded down, or the picture would claim more than was proved.
            lower = math.floor(100 * float(certificate.lower[index, label])) / 100
            color, words = CERTIFIED, f"{label}: p ≥ {lower:.2f}"
        elif bool(attacked.success[index]):
            color, words = BROKEN, f"{label} → {int(attacked.predicted[index])}"
        else:
            color, words = OPEN, f"{label}: unknown"
        shown = attacked.inputs[index] if color == BROKEN else x[index]
        cell.imshow(shown.detach().cpu().squeeze(0), cmap="gray_r", vmin=0, vmax=1)
        cell.set_xticks([])
        cell.set_yticks([])
        for spine in cell.spines.values():
            spine.set_color(color)
            spine.set_linewidth(3)
        cell.set_xlabel(words, color=color, fontsize=9, fontweight="bold", labelpad=2)


def demo_figure(evaluations: dict[str, Evaluation], x: Tensor, eps: float, temperature: float, path: Path) -> None:
    """Draw the demo's figure: bars on the left, the first test images with their certificates on the right."""
    figure = new_figure(13, 6.2)
    left, right = figure.subfigures(1, 2, width_ratios=[1, 2], squeeze=False)[0]
    axes = left.subplots()
    robustness_bars(axes, {name: evaluation.summary() for name, evaluation in evaluations.items()})
    axes.set_xlabel(
        "green: proved for every such change\nred: changed by an attack (shown)\namber: neither", color=FAINT
    )
    axes.set_title(f"Every change of up to ±{eps:g} per pixel; temperature {temperature:g}", fontsize=11, color=INK)
    grids = right.subfigures(len(evaluations), 1, squeeze=False)[:, 0]
    for grid, (name, evaluation) in zip(grids, evaluations.items(), strict=True):
        cells = grid.subplots(ROWS, COLUMNS, squeeze=False)
        certificate_grid(list(cells.flat)[: len(x)], evaluation, x)
        grid.suptitle(f"{name} likelihood: the first {ROWS * COLUMNS} test digits", fontsize=11, color=INK)
    save(figure, path)


def temperature_figure(curves: dict[str, list[dict[str, Any]]], eps: float, path: Path) -> None:
    """Draw certified accuracy, negative log-likelihood and mutual information against temperature, a curve per method.

    Args:
        curves: figures of every run, by method; methods without a temperature have one run and are drawn as a level.
        eps: radius of the certificates.
        path: of the PNG.
    """
    figure = new_figure(13, 4.6)
    panels = figure.subplots(1, 3)
    titles = {
        "certified": f"certified within ±{eps:g} (%)",
        "nll": "negative log-likelihood (nats)",
        "mutual_information": "mutual information (nats)",
    }
    for axes, (key, title) in zip(panels, titles.items(), strict=True):
        styles = itertools.cycle((":", "--"))
        for (method, runs), color in zip(curves.items(), PALETTE, strict=False):
            values = [(100 if key == "certified" else 1) * run[key] for run in runs]
            if len(runs) == 1:
                # A single network has no mutual information, and a logarithm no place for that.
                if values[0] > 0:
                    axes.axhline(values[0], color=color, linestyle=next(styles), label=method)
                continue
            axes.plot([run["temperature"] for run in runs], values, marker="o", color=color, label=method)
        axes.set_xscale("log")
        if key != "certified":
            axes.set_yscale("log")
        axes.set_xlabel("temperature (1 is Bayes' rule)", color=INK)
        axes.set_title(title, fontsize=11, color=INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    save(figure, path)


def relevance_figure(posterior: Posterior, path: Path) -> None:
    """Draw which pixels matter: the standard deviations of a learned prior for the weights that leave each input.

    Args:
        posterior: of a network of images whose first layer is linear, with ``LearnedPrior(groups="inputs")`` or finer.
        path: of the PNG.

    Raises:
        InvalidInput: the posterior has no variance for every pixel.
    """
    channels = _input_deviations(posterior)
    figure = new_figure(0.9 + 3.4 * len(channels), 3.6)
    largest = float(channels.max())
    for number, (axes, values) in enumerate(
        zip(figure.subplots(1, len(channels), squeeze=False)[0], channels, strict=True)
    ):
        image = axes.imshow(values.cpu(), cmap="viridis", vmin=0.0, vmax=largest)
        axes.set_xticks([])
        axes.set_yticks([])
        if len(channels) > 1:
            axes.set_xlabel(f"channel {number}", color=INK)
    figure.colorbar(image, ax=figure.axes, shrink=0.85)
    figure.suptitle("Learned prior: standard deviation of a pixel's weights", fontsize=11, color=INK)
    save(figure, path)


def _input_deviations(posterior: Posterior) -> Tensor:
    """Return the prior's standard deviation for each pixel, (channels, height, width)."""
    shape = tuple(posterior.graph.input_shape)
    first = next((node for node in posterior.graph.nodes if "weight" in node.roles), None)
    variances = None if first is None else posterior.prior_variances.get(first.roles["weight"])
    if variances is None or first is None or not isinstance(first.operation, Linear) or len(shape) != 3:
        raise InvalidInput(
            "which pixels matter is known of images (channels, height, width) whose first layer is linear, with a "
            'prior that was learned: fit(..., prior=LearnedPrior(groups="inputs")).'
        )
    if variances.shape[1] != math.prod(shape):
        raise InvalidInput('the prior has no variance for every pixel; learn it with LearnedPrior(groups="inputs").')
    return variances.double().mean(0).sqrt().reshape(shape)


def rules_figure(posteriors: dict[str, dict[str, Any]], path: Path) -> None:
    """Draw what each rule adds to what is certified, up to what no attack has broken; a bar per posterior.

    Args:
        posteriors: figures of the study of certification by name.
        path: of the PNG.
    """
    figure = new_figure(11, 1.6 + 0.42 * len(posteriors))
    axes = figure.subplots()
    rules = list(next(iter(posteriors.values()))["rules"])
    # From dark to light, in the order of effort.
    shades = [0.95 - 0.75 * index / max(1, len(rules) - 1) for index in range(len(rules))]
    for place, found in enumerate(posteriors.values()):
        proved = 0.0
        for rule, shade in zip(rules, shades, strict=True):
            percent = 100 * found["rules"][rule]["certified"]
            if percent > proved:
                axes.barh(place, percent - proved, 0.62, left=proved, color=CERTIFIED, alpha=shade, linewidth=0)
                proved = percent
        unbroken = 100 * found["attacks"]["ensemble"]["robust_accuracy"]
        axes.barh(place, max(unbroken - proved, 0.0), 0.62, left=proved, color=OPEN, alpha=0.55, linewidth=0)
        words = f"{proved:.1f} proved, {unbroken:.1f} unbroken"
        axes.annotate(words, (max(proved, unbroken) + 0.6, place), va="center", color=INK, fontsize=8)
    axes.set_yticks(range(len(posteriors)), list(posteriors))
    axes.invert_yaxis()
    axes.set_xlim(0, 105)
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel("% of test images", color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    handles = [patch(CERTIFIED, rule, shade) for rule, shade in zip(rules, shades, strict=True)]
    handles.append(patch(OPEN, "neither proved nor broken", 0.55))
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    save(figure, path)
