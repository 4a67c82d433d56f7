"""The study of inference methods: each with the robust likelihood at several temperatures, and with the standard one.

Of each method two posteriors are reported: the one at temperature 1, which is Bayes' rule, and the one at the
temperature whose predictor explained held-out training images best, under its own likelihood. The rates and averages
below were chosen on held-out training images of MNIST, never on test images.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from certibayes.experiments.evaluator import Evaluator, Figures
from certibayes.experiments.figures import require_matplotlib, temperature_figure
from certibayes.experiments.grid import run_grid
from certibayes.experiments.spec import ALGORITHMS, TrainSpec
from certibayes.support.files import write_atomically

TEMPERATURES = (1.0, 0.1, 0.01, 0.001)
EPS = 0.1

COMMON: dict[str, Any] = {
    "eps": EPS,
    "epochs": 20,
    "ramp": 0.5,
    "ramp_shape": "linear",
    "lam_ramp": 0.0,
    "variance_scale": 300.0,
    "start_epochs": 0,
    "start_lr": 0.05,
    "validation": 1 / 12,
}
"""What all methods share, spelled out, so that a change of defaults changes no table."""

METHODS: dict[str, dict[str, Any]] = {
    "swag": {"lr": 0.05, "settings": {"every": 100}},
    # Kinks are the subject of another study, ``honest_study``.
    "noisy-adam": {"lr": 0.001, "settings": {"kinks": False}},
    "vogn": {"lr": 0.001, "settings": {"kinks": False}},
    "bbb": {"lr": 0.003},
    "hmc": {
        "lr": 2e-4,
        "epochs": 25,
        "start_epochs": 10,
        "settings": {"burn_in": 25, "leapfrog": 20, "chains": 4},
    },
    "ivon": {"lr": 0.2, "settings": {"betas": (0.9, 0.9998)}},
    # Its first cycle samples after 0.7 of a quarter of training; the radius has grown by then.
    "sghmc": {"lr": 0.1, "ramp": 0.15},
    "laplace": {"lr": 0.003, "settings": {"structure": "diagonal", "kinks": False}},
    "ensemble": {"lr": 0.003},
    "map": {"lr": 0.003},
}
"""What each method takes beside the common settings; the first five are the paper's."""

QUICK: dict[str, dict[str, Any]] = {
    "swag": {"every": 10},
    "hmc": {"burn_in": 2, "leapfrog": 2, "chains": 2},
    "ensemble": {"members": 2},
}
"""What a trial run needs to end in seconds."""

ROUGH = 0.1
"""The coldest temperature at which HMC may round factors to TF32 between the ends of its trajectories, on a GPU. Colder
chains take steps that are shorter than what TF32 rounds off the weights."""

COLUMNS = ("certified", "accuracy", "pgd", "nll", "ece", "disagreement", "mutual_information")


@dataclass(frozen=True)
class Row:
    """One row of the table: a method, its likelihood, why this temperature, and what was found."""

    method: str
    likelihood: str
    choice: str
    figures: Figures


def method_settings(method: str, dataset: str = "mnist", quick: bool = False, seed: int = 0) -> dict[str, Any]:
    """Return what a spec takes for a method, all but likelihood and temperature."""
    own = METHODS[method]
    settings = {**COMMON, "dataset": dataset, "seed": seed, "algorithm": method, **own}
    if quick:
        settings |= {"hidden": (16,), "epochs": 4, "start_epochs": min(1, own.get("start_epochs", 0))}
        settings["settings"] = {**own.get("settings", {}), **QUICK.get(method, {})}
    return settings


def study_specs(dataset: str = "mnist", quick: bool = False, seed: int = 0) -> dict[str, TrainSpec]:
    """Return the specs of the study by name: METHOD-LIKELIHOOD-tTEMPERATURE."""
    specs = {}
    for method in METHODS:
        temperatures = TEMPERATURES[:1] if ALGORITHMS[method].temperature_in == "nowhere" else TEMPERATURES
        chosen = [("ibp", temperature) for temperature in (temperatures[:2] if quick else temperatures)]
        for likelihood, temperature in [*chosen, ("standard", 1.0)]:
            name = f"{method}-{likelihood}-t{temperature:g}"
            specs[name] = study_spec(method, likelihood, temperature, dataset, quick, seed)
    return specs


def study_spec(
    method: str, likelihood: str, temperature: float, dataset: str = "mnist", quick: bool = False, seed: int = 0
) -> TrainSpec:
    """Return the spec of one run of the study."""
    settings = method_settings(method, dataset, quick, seed)
    if method == "hmc" and temperature >= ROUGH:
        settings["precision"] = "high"
    return TrainSpec(likelihood=likelihood, temperature=temperature, **settings)


def together(specs: Mapping[str, TrainSpec]) -> dict[str, str]:
    """Return the group of every run: those that differ in their temperature alone are trained as one program.

    Chains go over all data at once anyway, and are better off side by side.
    """
    return {
        name: name if spec.algorithm == "hmc" else f"{spec.algorithm}-{spec.likelihood}" for name, spec in specs.items()
    }


def table_rows(specs: Mapping[str, TrainSpec], figures: Mapping[str, Figures]) -> list[Row]:
    """Pick, for each method, temperature 1 and the validated temperature; then the standard likelihood."""
    rows = []
    for method in METHODS:
        runs = [figures[name] for name, s in specs.items() if (s.algorithm, s.likelihood) == (method, "ibp")]
        runs = [found for found in runs if "diverged" not in found]
        honest = [found for found in runs if found["temperature"] == 1.0]
        rows += [Row(method, "ibp", "bayes", found) for found in honest]
        if ALGORITHMS[method].temperature_in != "nowhere" and runs:
            best = min(runs, key=lambda found: found["held_out"]["validation_loss"])
            rows.append(Row(method, "ibp", "validated", best))
    for name, spec in specs.items():
        if spec.likelihood == "standard" and "diverged" not in figures[name]:
            rows.append(Row(spec.algorithm, "standard", "bayes", figures[name]))
    return rows


def run_study(
    out: Path,
    evaluator: Evaluator,
    *,
    dataset: str = "mnist",
    quick: bool = False,
    seed: int = 0,
    workers: int = 1,
    on_progress: Callable[[int, int, str], Any] = lambda done, total, name: None,
) -> list[Row]:
    """Run the study and write ``results.csv`` (every run), ``table.md`` and ``temperature.png`` into ``out``."""
    require_matplotlib()
    specs = study_specs(dataset, quick, seed)
    figures = run_grid(specs, out / "runs", evaluator, groups=together(specs), workers=workers, on_progress=on_progress)
    rows = table_rows(specs, figures)
    write_atomically(out / "results.csv", _csv(specs, figures).encode())
    write_atomically(out / "table.md", (markdown(rows) + chains_markdown(figures)).encode())
    curves: dict[str, list[Figures]] = {}
    for name, spec in specs.items():
        if spec.likelihood == "ibp" and "diverged" not in figures[name]:
            curves.setdefault(spec.algorithm, []).append(figures[name])
    temperature_figure(curves, EPS, out / "temperature.png")
    return rows


def _csv(specs: Mapping[str, TrainSpec], figures: Mapping[str, Figures]) -> str:
    """Every run, one row each, in full precision."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["run", "method", "likelihood", "temperature", "n", *COLUMNS, "validation_loss"])
    for name, spec in specs.items():
        found = figures[name]
        values = [found.get(column, "") for column in ("n", *COLUMNS)]
        validation = found.get("held_out", {}).get("validation_loss", "diverged" if "diverged" in found else "")
        writer.writerow([name, spec.algorithm, spec.likelihood, spec.temperature, *values, validation])
    return text.getvalue()


def markdown(rows: list[Row]) -> str:
    """The table: percentages of all test images, then the figures of uncertainty."""
    lines = [
        "| likelihood | method | temperature | certified | accuracy | survive PGD | NLL | ECE | disagreement "
        "| mutual information |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        f = row.figures
        temperature = f"{f['temperature']:g}" + (" (validated)" if row.choice == "validated" else "")
        fractions = (f"{100 * f[key]:.1f}%" for key in ("certified", "accuracy", "pgd"))
        others = (f"{f[key]:{form}}" for key, form in zip(COLUMNS[3:], (".3f", ".4f", ".4f", ".5f"), strict=True))
        likelihood = "robust" if row.likelihood == "ibp" else row.likelihood
        lines.append("| " + " | ".join((likelihood, row.method, temperature, *fractions, *others)) + " |")
    return "\n".join(lines) + "\n"


def chains_markdown(figures: Mapping[str, Figures]) -> str:
    """A second table for runs that are Markov chains: what was accepted, and whether the chains agree."""
    lines = [
        "",
        "| chains | accepted moves | divergences | step size | R-hat of predictions, median | largest "
        "| effective sample size, smallest |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, found in figures.items():
        sampler, predictions = found.get("sampler"), found.get("diagnostics", {}).get("predictions")
        if sampler is None or predictions is None:
            continue
        moves = f"{sampler['accepted']} of {sampler['proposed']}" if "accepted" in sampler else "all"
        rhats = (f"{_number(predictions[key], '.2f')}" for key in ("rhat_median", "rhat_max"))
        size, fewest = f"{sampler['step_size']:.2g}", _number(predictions["ess_min"], ".1f")
        lines.append(
            "| " + " | ".join((name, moves, str(sampler.get("divergences", "-")), size, *rhats, fewest)) + " |"
        )
    return "\n".join(lines) + "\n" if len(lines) > 3 else ""


def _number(value: Any, form: str) -> str:
    """A figure that may be missing (None) or, in JSON, the word "inf"."""
    return format(value, form) if isinstance(value, float) else "-" if value is None else str(value)
