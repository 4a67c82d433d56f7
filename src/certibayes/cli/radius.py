"""certibayes radius."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from certibayes.certificates import Radius
from certibayes.certification import as_method, certified_radius
from certibayes.cli.certify import BoundsOption, BudgetOption, IntermediatesOption, MethodOption, RoundingOption
from certibayes.cli.opening import open_run, source_of
from certibayes.cli.options import (
    ArchitectureOption,
    DataDir,
    DatasetOption,
    DeviceOption,
    JsonOption,
    LimitOption,
    ModulesOption,
    NormOption,
    OptionalRun,
    SamplesOption,
    SeedOption,
    radius_of_text,
)
from certibayes.cli.terminal import console, error_handler, print_json
from certibayes.experiments.tables import require_format, write_table
from certibayes.support.progress import reporting

FRACTIONS = (0.02, 0.1, 0.2, 0.4, 1.0)
"""Radii, as parts of the largest, for which the certified fraction is reported; beside the run's own radius."""


def radius_command(
    run: OptionalRun = None,
    modules: ModulesOption = None,
    architecture: ArchitectureOption = None,
    dataset: DatasetOption = None,
    norm: NormOption = "linf",
    bounds: BoundsOption = None,
    method: MethodOption = "auto",
    intermediates: IntermediatesOption = None,
    budget: BudgetOption = None,
    rounding: RoundingOption = "outward",
    largest: Annotated[
        float, typer.Option("--largest", parser=radius_of_text, metavar="RADIUS", help="Largest radius to try.")
    ] = 0.5,
    tolerance: Annotated[
        float,
        typer.Option("--tolerance", parser=radius_of_text, metavar="RADIUS", help="How precisely to find the radius."),
    ] = 1e-3,
    samples: SamplesOption = None,
    seed: SeedOption = 0,
    limit: LimitOption = None,
    data_dir: DataDir = None,
    device: DeviceOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write a table of the points, as CSV or, if so named, .parquet.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find how far from each test point the proof of its class reaches.

    Every radius that is reported was itself proved. Points that are misclassified count as 0.

    Example: certibayes radius runs/a --limit 500 --out radii.csv
    """
    with error_handler():
        form = "parquet" if out is not None and out.suffix == ".parquet" else "csv"
        require_format(form)
        case = open_run(source_of(run, modules, architecture), dataset, data_dir, samples, seed, limit, device)
        chosen = as_method(method, bounds=bounds, intermediates=intermediates, budget=budget)
        with reporting(not as_json, "bisecting") as move:
            result = certified_radius(
                case.predictor, case.x, case.y, norm=norm, domain=case.domain, method=chosen, rounding=rounding,
                largest=largest, tolerance=tolerance, progress=move,
            )  # fmt: skip
        if out is not None:
            _store(out, form, result)
        own = case.own_radius if norm == "linf" and (case.own_radius or 0.0) <= largest else None
        radii = sorted({largest * part for part in FRACTIONS} | (set() if own is None else {own}))
        fractions = {eps: result.certified_at(eps) for eps in radii}
        accuracy = float(result.correct.double().mean())
        if as_json:
            print_json(
                {
                    "n": len(result), "accuracy": accuracy, "mean_radius": result.mean, "median_radius": result.median,
                    "certified": {f"{eps:g}": fraction for eps, fraction in fractions.items()},
                    "own_radius": case.own_radius, "largest": largest,
                    "tolerance": tolerance, "norm": norm, "bounds": result.bounds, "method": result.method,
                    "rounding": rounding, "intermediates": result.intermediates, "samples": result.samples,
                    "dataset": case.dataset, "digest": result.digest, "statement": result.statement,
                }
            )  # fmt: skip
            return
        measured = "" if norm == "linf" else f" in {norm}"
        console.print(
            f"mean radius [bold green]{result.mean:.4f}[/bold green], median {result.median:.4f}{measured} over "
            f"{len(result)} points ({result.method}, {result.bounds} bounds); accuracy {100 * accuracy:.2f}%",
            highlight=False,
        )
        table = Table("radius", "certified")
        for eps, fraction in fractions.items():
            table.add_row(f"{eps:g}" + (", the run's own" if eps == own else ""), f"{100 * fraction:.2f}%")
        console.print(table)
        if out is not None:
            console.print(f"radii in [bold]{escape(str(out))}[/bold]", highlight=False)
        console.print(f"\n{result.statement}", highlight=False)


def _store(out: Path, form: str, result: Radius) -> None:
    columns = {
        "point": range(len(result)),
        "label": result.labels.tolist(),
        "correct": result.correct.tolist(),
        "certified": result.certified.tolist(),
        "radius": result.radius.tolist(),
        "unproved": result.unproved.tolist(),
    }
    write_table(out, columns, form)
