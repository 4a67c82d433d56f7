"""What `certibayes evaluate` does for a regression: errors, likelihood, and errors under attack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from certibayes.attacks import PGD, attack_regression
from certibayes.cli.intervals import noise_of
from certibayes.cli.opening import OpenedRun, Radius, regression_of
from certibayes.cli.output import store
from certibayes.cli.terminal import console, print_json
from certibayes.evaluation import RegressionAssessment, assess_regression

ROWS = {
    "rmse": "root mean squared error",
    "mae": "mean absolute error",
    "r2": "R²",
    "nll": "negative log-likelihood",
    "coverage_95": "coverage of 95% intervals",
    "standard_deviation": "standard deviation of the networks",
    "attacked_rmse": "root mean squared error, attacked",
}


def evaluate_regression(
    cases: dict[str, OpenedRun],
    radius: Radius | None,
    norm: str,
    attack: PGD,
    seed: int,
    out: Path | None,
    form: str,
    as_json: bool,
) -> None:
    """Measure one run, or two beside each other, and print or write what was found."""
    runs: dict[str, dict[str, Any]] = {}
    columns: dict[str, list[Any]] = {}
    for name, case in cases.items():
        found = assess_regression(regression_of(case), case.x, case.y, noise_std=noise_of(case))
        runs[name] = {
            "n": len(found),
            **found.summary(),
            "samples": case.predictor.size,
            "temperature": case.posterior.metadata.get("temperature"),
            "digest": case.predictor.digest,
        }
        if radius is not None:
            moved = attack_regression(
                case.predictor, case.x, case.y, eps=radius.eps, method=attack, norm=norm, domain=case.domain, seed=seed
            )
            runs[name]["attacked_rmse"] = float(moved.deviation.double().square().mean().sqrt())
        _add(columns, name, found)
    record = {
        "dataset": next(iter(cases.values())).dataset,
        "task": "regression",
        **({"eps": None, "eps_source": None} if radius is None else radius.to_json()),
        "norm": norm,
        "runs": runs,
    }
    store(out, form, columns, record)
    if as_json:
        print_json(record)
        return
    table = Table(title=f"{next(iter(runs.values()))['n']:,} points of {record['dataset']}", title_style="bold")
    table.add_column("")
    for name in runs:
        table.add_column(escape(name), justify="right")
    for key, title in ROWS.items():
        if all(key in figures for figures in runs.values()):
            cells = [figures[key] for figures in runs.values()]
            table.add_row(title, *("unknown" if cell is None else f"{cell:.4f}" for cell in cells))
    console.print(table)
    console.print(
        "without an attack; --eps adds one" if radius is None else f"attacked within {radius.words} (pgd)",
        highlight=False,
    )


def _add(columns: dict[str, list[Any]], name: str, found: RegressionAssessment) -> None:
    """Add the points of a run to a table; a column for each output where there are several."""
    parts: dict[str, list[Any]] = {"run": [name] * len(found), "point": list(range(len(found)))}
    for key, values in {
        "target": found.targets,
        "predicted": found.predicted,
        "standard_deviation": found.standard_deviation,
    }.items():
        for k, column in enumerate(values.T.tolist()):
            parts[key if values.shape[1] == 1 else f"{key}_{k}"] = column
    for key, part in parts.items():
        columns.setdefault(key, []).extend(part)
