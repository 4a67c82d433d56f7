"""The paper's figures in the paper's form, from rows of results: bars from certified to PGD, radii, entropies.

A row is a posterior: its axes (data set, method, likelihood, recipe, network, variation, seed) and its figures. Where
there are several seeds, bars are means, and lines their standard deviations.
"""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from certibayes.experiments.figures import CERTIFIED, EXTRA, FAINT, INK, OPEN, PALETTE, new_figure, patch, save
from certibayes.experiments.uncertainty_figures import TITLES, histogram_grid
from certibayes.support.optional import require_package

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

Row = Mapping[str, Any]

SHORT = {
    "swag": "SWAG", "noisy-adam": "NA", "vogn": "VOGN", "bbb": "BBB", "hmc": "HMC", "map": "MAP",
    "snapshot": "snapshots",
}  # fmt: skip
DATASETS = {
    "digits": "digits", "mnist": "MNIST", "fashion-mnist": "FashionMNIST", "cifar10": "CIFAR-10", "svhn": "SVHN",
}  # fmt: skip
LIKELIHOODS = {"standard": "standard likelihood", "pgd": "PGD likelihood", "ibp": "IBP likelihood"}
RECIPES = {"paper": "as the paper does it", "now": "with what we know now", "validated": "validated temperature"}
_WORDS = LIKELIHOODS | RECIPES
TRIAL = "Trial run (--quick): small networks and few epochs; these figures mean nothing."
COLORS = {"standard": PALETTE[8], "pgd": OPEN, "ibp": CERTIFIED}

DENSITIES: dict[str, Callable[[Any, float], Any]] = {
    "rayleigh": lambda x, eta: x / eta**2 * np.exp(-(x**2) / (2 * eta**2)),
    "exponential": lambda x, eta: np.exp(-x / eta) / eta,
}


def draw_robustness(
    rows: Sequence[Row], title: str, density: Mapping[str, Any], *paths: Path, trial: bool = False
) -> None:
    """Draw bars from what is proved to what PGD leaves, stars for accuracy; a panel for each likelihood or variation.

    Args:
        rows: figures of robustness.
        title: of the figure.
        density: family and scales of the densities to be drawn on the left, if any.
        *paths: of the PNG and the SVG.
        trial: whether the rows are those of a trial run.
    """
    across = "recipe" if density else "variation" if any(row["variation"] for row in rows) else "likelihood"
    strips = _by(rows, lambda row: _strip(row, across))
    columns = list(dict.fromkeys(row[across] for row in rows))
    figure = new_figure(1.2 + 3.4 * (len(columns) + bool(density)), 1.2 + 2.3 * len(strips))
    place: Figure | SubFigure = figure
    if density:
        left, place = figure.subfigures(1, 2, width_ratios=[1, 1.2 * len(columns)], squeeze=False)[0]
        _draw_density(left.subplots(), density)
    panels = place.subplots(len(strips), len(columns), squeeze=False, sharey=True)
    for strip, (name, own) in zip(panels, strips.items(), strict=True):
        for axes, column in zip(strip, columns, strict=True):
            shown = [row for row in own if row[across] == column]
            _bars(axes, shown)
            if not shown:
                axes.text(0.5, 0.5, "not run yet", transform=axes.transAxes, ha="center", fontsize=8, color=FAINT)
        _label(strip, f"{name}\n% of test images")
    for axes, column in zip(panels[0], columns, strict=True):
        axes.set_title(_in_words(column), fontsize=10, color=INK)
    linear = any("lbp" in row for row in rows)
    lower = "linear bounds" if linear else "interval bounds"
    handles: list[Any] = [patch(CERTIFIED, f"from certified by {lower} to unbroken by PGD")]
    if linear:
        handles.append(patch(CERTIFIED, "from certified by interval to linear bounds", 0.3))
    handles.append(_star("accuracy"))
    _finish(figure, handles, title, ["Numbers: certified by interval bounds (%)", *_about(rows)], trial)
    save(figure, *paths)


def _finish(figure: Figure, handles: Sequence[Any], title: str, notes: Sequence[str], trial: bool) -> None:
    """Put the title above, and below the legend and a line of what must be known to read the figure."""
    width = int(16 * figure.get_figwidth())
    lines = [*textwrap.wrap("; ".join(notes) + ".", width), *([TRIAL] if trial else [])]
    legend = figure.legend(
        handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8,
        title="\n".join(lines), title_fontproperties={"size": 7.5},
    )  # fmt: skip
    legend.get_title().set(color=FAINT, multialignment="center")
    figure.suptitle(title, fontsize=11, color=INK)


def _label(strip: Sequence[Axes], label: str) -> None:
    """Name a line of panels at its left; those before the first one that shows something are left out."""
    strip[0].set_ylabel(label, fontsize=8, color=INK)
    for axes in strip:
        if axes.has_data():
            axes.tick_params(labelleft=True)
            return
        axes.tick_params(left=False, bottom=False, labelleft=False, labelbottom=False)
        axes.spines[:].set_visible(False)
        axes.grid(visible=False)
        for text in axes.texts:
            text.set_visible(False)


def _about(rows: Sequence[Row]) -> list[str]:
    """Say how much was measured: test images, weight samples, seeds."""
    lines = [f"{_range(rows, 'n')} test images", f"{_samples(rows)} weight samples"]
    if few := _range(rows, "n_lbp"):
        lines.insert(1, f"linear bounds on the first {few}")
    seeds = len({row["seed"] for row in rows})
    return [", ".join(lines), f"means of {seeds} seeds, with their standard deviations" if seeds > 1 else "one seed"]


def _range(rows: Sequence[Row], key: str) -> str:
    found = sorted({int(row[key]) for row in rows if key in row})
    return " or ".join(f"{number:,}" for number in found)


def _samples(rows: Sequence[Row]) -> int:
    """Return how many weight samples were drawn; MAP has one, and a chain may hold fewer."""
    return max((int(row["samples"]) for row in rows if "samples" in row), default=0)


def _in_words(name: str) -> str:
    """Name a likelihood, a recipe or a variation as it stands in a figure."""
    return _WORDS.get(name, name.replace("eta ", "η = ").replace("lambda ", "λ = "))


def _data(row: Row) -> str:
    """Name the data set of a row and, where there are several, the network."""
    return ", ".join([DATASETS[row["dataset"]], *([row["network"]] if row["dataset"] == "cifar10" else [])])


def _strip(row: Row, across: str) -> str:
    """Name the line of panels that a row belongs to: all that the columns do not say."""
    parts = [_data(row), *([LIKELIHOODS[row["likelihood"]]] if across != "likelihood" else [])]
    return ", ".join(parts) + ("" if across == "recipe" else f"\n{_in_words(row['recipe'])}")


def _bars(axes: Axes, rows: Sequence[Row]) -> None:
    methods = _by(rows, lambda row: str(row["method"]))
    for place, own in enumerate(methods.values()):
        own = [row for row in own if "pgd" in row]
        if not own:
            axes.annotate("diverged", (place, 3), ha="center", rotation=90, fontsize=7, color=FAINT)
            continue
        interval, top, accuracy = (100 * _mean(own, key) for key in ("ibp", "pgd", "accuracy"))
        # Linear bounds prove at least what intervals do, but they may be of fewer images, and a little below.
        bottom = max(100 * _mean(own, "lbp"), interval) if "lbp" in own[0] else interval
        axes.bar(place, max(top - bottom, 0.0), 0.6, bottom=bottom, color=CERTIFIED, linewidth=0)
        axes.bar(place, bottom - interval, 0.6, bottom=interval, color=CERTIFIED, alpha=0.3, linewidth=0)
        axes.plot([place - 0.36, place + 0.36], [interval] * 2, color=CERTIFIED, linewidth=1.4)
        for key in ("ibp", "pgd", "accuracy"):
            deviation = 100 * _deviation(own, key)
            if deviation:
                value = 100 * _mean(own, key)
                axes.plot([place] * 2, [value - deviation, value + deviation], color=INK, linewidth=0.9)
        axes.plot(place, accuracy, marker="*", markersize=9, color=INK, linestyle="none")
        axes.annotate(
            f"{interval:.0f}", (place, interval), xytext=(9, -2), textcoords="offset points", ha="center", va="top",
            fontsize=7, color=INK,
        )  # fmt: skip
    axes.set_xticks(range(len(methods)), [SHORT.get(name, name) for name in methods], fontsize=8)
    # One bar alone would be as wide as the panel.
    axes.set_xlim(-0.6, max(len(methods), 4) - 0.4)
    # Room for the figure below a bar that begins at 0.
    axes.set_ylim(-9, 104)
    axes.set_yticks(range(0, 101, 20))
    _plain(axes)
    axes.tick_params(axis="x", labelcolor=INK)


def draw_radii(rows: Sequence[Row], title: str, *paths: Path, trial: bool = False) -> None:
    """Draw the mean certified radius of every method, a bar for each likelihood.

    Args:
        rows: figures of radii.
        title: of the figure.
        *paths: of the PNG and the SVG.
        trial: whether the rows are those of a trial run.
    """
    notes = ["A misclassified image has radius 0; inputs are in [0, 1]"]
    _beside(rows, "radius", "mean certified radius (l∞)", title, notes, *paths, trial=trial)


def draw_ratios(rows: Sequence[Row], title: str, *paths: Path, trial: bool = False) -> None:
    """Draw the likelihood ratio of every method, out of distribution over in: a low one is uncertain outside.

    Args:
        rows: figures of entropies.
        title: of the figure.
        *paths: of the PNG and the SVG.
        trial: whether the rows are those of a trial run.
    """
    notes = ["Mean probability of the predicted class, out of distribution over in"]
    _beside(rows, "likelihood_ratio", "likelihood ratio, out / in", title, notes, *paths, trial=trial)


def _beside(
    rows: Sequence[Row], key: str, label: str, title: str, notes: Sequence[str], *paths: Path, trial: bool
) -> None:
    """Draw one figure of every method, likelihoods side by side: data sets below one another, recipes beside."""
    strips, recipes = _by(rows, _data), list(dict.fromkeys(row["recipe"] for row in rows))
    figure = new_figure(1.0 + 4.2 * len(recipes), 1.3 + 2.4 * len(strips))
    panels = figure.subplots(len(strips), len(recipes), squeeze=False, sharey="row")
    likelihoods = [name for name in COLORS if any(row["likelihood"] == name for row in rows)]
    for strip, (name, own) in zip(panels, strips.items(), strict=True):
        for axes, recipe in zip(strip, recipes, strict=True):
            methods = _by((row for row in own if row["recipe"] == recipe), lambda row: str(row["method"]))
            _groups_of_bars(axes, methods, likelihoods, key)
        _label(strip, f"{name}\n{label}")
    for axes, recipe in zip(panels[0], recipes, strict=True):
        axes.set_title(_in_words(recipe), fontsize=10, color=INK)
    handles = [patch(COLORS[likelihood], LIKELIHOODS[likelihood]) for likelihood in likelihoods]
    _finish(figure, handles, title, [*notes, *_about(rows)], trial)
    save(figure, *paths)


def _groups_of_bars(axes: Axes, methods: Mapping[str, list[Row]], likelihoods: Sequence[str], key: str) -> None:
    for place, of_method in enumerate(methods.values()):
        for number, likelihood in enumerate(likelihoods):
            found = [row for row in of_method if row["likelihood"] == likelihood and key in row]
            if not found:
                continue
            x = place + 0.26 * (number - (len(likelihoods) - 1) / 2)
            value, deviation = _mean(found, key), _deviation(found, key)
            axes.bar(x, value, 0.24, color=COLORS[likelihood], linewidth=0)
            if deviation:
                axes.plot([x] * 2, [value - deviation, value + deviation], color=INK, linewidth=0.9)
    axes.set_xticks(range(len(methods)), [SHORT.get(method, method) for method in methods], fontsize=8)
    axes.set_xlim(-0.6, max(len(methods), 4) - 0.4)
    if methods:
        axes.set_ylim(bottom=0)
    _plain(axes)
    axes.tick_params(axis="x", labelcolor=INK)


def draw_entropies(rows: Sequence[Row], title: str, *paths: Path, trial: bool = False) -> None:
    """Draw histograms of the paper's entropy, standard beside robust, of the first seed.

    Args:
        rows: figures of entropies, with their histograms.
        title: of the figure.
        *paths: of the PNG and the SVG.
        trial: whether the rows are those of a trial run.
    """
    seed = min(row["seed"] for row in rows)
    grid: dict[str, dict[str, Any]] = {}
    # Standard beside robust, as in the paper.
    for row in sorted(rows, key=lambda row: [*RECIPES, row["recipe"]].index(row["recipe"])):
        if row["seed"] == seed and "curves" in row:
            column = f"{LIKELIHOODS[row['likelihood']]}\n{_in_words(row['recipe'])}"
            name = f"{_data(row)}\n{SHORT.get(row['method'], row['method'])}"
            grid.setdefault(name, {})[column] = row["curves"]["histograms"]["expected_entropy"]
    if grid:
        first = [row for row in rows if row["seed"] == seed and "ood" in row]
        pairs = {f"{DATASETS.get(row['ood'], row['ood'])} for {DATASETS[row['dataset']]}" for row in first}
        notes = [
            f"Out of distribution: {', '.join(sorted(pairs))}; {_about(first)[0]}; seed {seed}; vertical scale: square "
            "root."
        ]
        xlabel = f"{TITLES['expected_entropy']} (nats)"
        histogram_grid(grid, *paths, xlabel=xlabel, title=title, note="\n".join([*notes, *([TRIAL] * trial)]))


def draw_intervals(rows: Sequence[Row], title: str, *paths: Path, trial: bool = False) -> None:
    """Draw the certified intervals of a regression for every method, standard beside robust, of the first seed.

    Args:
        rows: figures of regression.
        title: of the figure.
        *paths: of the PNG and the SVG.
        trial: whether the rows are those of a trial run.
    """
    rows = [row for row in rows if "intervals" in row]
    if not rows:
        return
    seed = min(row["seed"] for row in rows)
    methods = _by((row for row in rows if row["seed"] == seed), lambda row: str(row["method"]))
    figure = new_figure(11, 0.9 + 1.9 * len(methods))
    panels = figure.subplots(len(methods), 2, squeeze=False, sharex=True, sharey=True)
    for strip, (method, own) in zip(panels, methods.items(), strict=True):
        for axes, row in zip(strip, own, strict=False):
            found = row["intervals"]
            order = np.argsort(found["predicted"])
            places = np.arange(len(order))
            lower, upper, target, predicted = (
                np.array(found[key])[order] for key in ("lower", "upper", "target", "predicted")
            )
            axes.vlines(places, lower, upper, color=COLORS[row["likelihood"]], alpha=0.55, linewidth=2)
            axes.plot(places, predicted, color=INK, linewidth=1)
            axes.plot(places, target, ".", color=FAINT, markersize=3)
            words = f"{LIKELIHOODS[row['likelihood']]}: mean width {row['width']:.2f}, error {row['rmse']:.2f}"
            axes.set_title(words, fontsize=8, color=INK)
            _plain(axes)
        strip[0].set_ylabel(f"{SHORT.get(method, method)}\nin std of the target", fontsize=8, color=INK)
    for axes in panels[-1]:
        axes.set_xlabel("test points, in the order of their predictions", fontsize=8, color=INK)
    line = require_package("matplotlib.lines", EXTRA).Line2D
    handles = [
        patch(COLORS["standard"], "certified interval, standard likelihood", 0.55),
        patch(COLORS["ibp"], "certified interval, IBP likelihood", 0.55), line([], [], color=INK, label="prediction"),
        line([], [], color=FAINT, marker=".", markersize=5, linestyle="none", label="target"),
    ]  # fmt: skip
    about = f"{_range(rows, 'n')} test points, {_samples(rows)} weight samples; seed {seed}"
    _finish(figure, handles, title, [about], trial)
    save(figure, *paths)


def _draw_density(axes: Axes, density: Mapping[str, Any]) -> None:
    x = np.linspace(0.0, 0.5, 400)
    for color, eta in zip(PALETTE, density["scales"], strict=False):
        axes.plot(x, DENSITIES[density["family"]](x, eta), color=color, linewidth=1.6, label=f"η = {eta:g}")
    axes.set_xlabel("radius ε", color=INK)
    axes.set_ylabel("density", color=INK)
    family = str(density["family"])
    axes.set_title(f"{'Rayleigh' if family == 'rayleigh' else family} distribution", fontsize=10, color=INK)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)
    _plain(axes)


def _by(rows: Iterable[Row], key: Callable[[Row], str]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def _mean(rows: Sequence[Row], key: str) -> float:
    return statistics.fmean(row[key] for row in rows)


def _deviation(rows: Sequence[Row], key: str) -> float:
    return statistics.stdev(row[key] for row in rows) if len(rows) > 1 else 0.0


def _star(label: str) -> Any:
    line = require_package("matplotlib.lines", EXTRA).Line2D
    return line([], [], marker="*", markersize=9, color=INK, linestyle="none", label=label)


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=FAINT, labelsize=8)
    axes.grid(axis="y", color=FAINT, alpha=0.2, linewidth=0.6)
    axes.set_axisbelow(True)
