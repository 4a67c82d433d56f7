"""Draw where the time of a training step goes: profile.svg, and profile-dark.svg for dark pages.

``python -m benchmarks.profile`` measures it and keeps it in benchmarks/results/profile-*.json; then run
``python docs/figures/profile.py``.
"""

import json
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

HERE = Path(__file__).parent
RESULTS = HERE.parent.parent / "benchmarks" / "results"
COLORS = {
    "products": "#1a7f5a",
    "elementwise": "#d99a1c",
    "optimizer": "#2f6fb0",
    "random numbers": "#7a4fa3",
    "copies": "#00838f",
    "launching and Python": "#8a94a0",
}
INK = {"profile.svg": "#1f2933", "profile-dark.svg": "#d7dce2"}


def draw(path: Path, profiles: list[dict], ink: str) -> None:
    """One panel a machine, one bar an algorithm, one color a part."""
    rows = max(len(profile["steps"]) for profile in profiles)
    figure = Figure(figsize=(5.2 * len(profiles), 0.42 * rows + 1.5), layout="constrained")
    panels = figure.subplots(1, len(profiles), squeeze=False)[0]
    for axes, profile in zip(panels, profiles, strict=True):
        machine, steps = profile["machine"], profile["steps"]
        scale, unit = (1e6, "µs") if machine["gpu"] else (1e3, "ms")
        names = list(steps)[::-1]
        start = [0.0] * len(names)
        for part, color in COLORS.items():
            taken = [scale * steps[name]["parts"][part] for name in names]
            axes.barh(names, taken, left=start, color=color, label=part, height=0.7)
            start = [a + b for a, b in zip(start, taken, strict=True)]
        axes.set_title(machine["gpu"] or f"{machine['cpu']}, {machine['threads']} threads", fontsize=10, color=ink)
        axes.set_xlabel(f"{unit} a step", color=ink)
        axes.tick_params(colors=ink, length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.spines["bottom"].set_color(ink)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=len(COLORS) // 2, frameon=False, labelcolor=ink, fontsize=9
    )
    # No date and the same names every time, so that a figure changes only if what it shows does; no background.
    with mpl.rc_context({"svg.hashsalt": path.name, "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure.savefig(path, format="svg", transparent=True, metadata={"Date": None})


def main() -> None:
    """Draw all machines that were profiled."""
    profiles = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("profile-*.json"))]
    for name, ink in INK.items():
        draw(HERE / name, profiles, ink)


if __name__ == "__main__":
    main()
