"""certibayes radius."""

from __future__ import annotations

from typing import Annotated

import torch
import typer
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from certibayes.certification import as_method, certified_radius
from certibayes.cli.certify import BoundsOption, BudgetOption, IntermediatesOption, MethodOption, RoundingOption
from certibayes.cli.opening import OpenedRun, Points, open_run, source_of
from certibayes.cli.options import (
    ArchitectureOption,
    DataDir,
    DataOption,
    DatasetOption,
    DeviceOption,
    DomainOption,
    FixedOption,
    JsonOption,
    LimitOption,
    ModulesOption,
    NormOption,
    OptionalRun,
    SamplesOption,
    SeedOption,
    TargetOption,
    TaskOption,
    radius_of_text,
)
from certibayes.cli.output import FormatOption, OutOption, require_out, store
from certibayes.cli.terminal import console, error_handler, print_json
from certibayes.errors import InvalidInput
from certibayes.experiments.columns import read_names
from certibayes.regions import fixed_by_name
from certibayes.support.progress import reporting

FRACTIONS = (0.02, 0.1, 0.2, 0.4, 1.0)
"""Radii, as parts of the largest, for which the certified fraction is reported; beside the run's own radius."""


def radius_command(
    run: OptionalRun = None,
    modules: ModulesOption = None,
    architecture: ArchitectureOption = None,
    dataset: DatasetOption = None,
    file: DataOption = None,
    target: TargetOption = None,
    task: TaskOption = None,
    domain: DomainOption = None,
    norm: NormOption = "linf",
    fixed: FixedOption = None,
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
    out: OutOption = None,
    form: FormatOption = "csv",
    as_json: JsonOption = False,
) -> None:
    """Find how far from each test point the proof of its class reaches.

    Every radius that is reported was itself proved. Points that are misclassified count as 0.

    Example: certibayes radius runs/a --limit 500 --out radii.csv
    """
    with error_handler():
        require_out(out, form)
        points = Points(dataset, file, target, task, domain, data_dir, limit)
        case = open_run(source_of(run, modules, architecture), points, samples, seed, device)
        if case.posterior.task == "regression":
            raise InvalidInput(
                "radius finds how far the proof of a class reaches, and a regression has no classes. How far a "
                "prediction can move at a radius: certibayes certify RUN --eps EPS, with --tolerance for how many "
                "predictions stay that close to their targets."
            )
        scale = _scale(case, norm, fixed)
        chosen = as_method(method, bounds=bounds, intermediates=intermediates, budget=budget)
        with reporting(not as_json, "bisecting") as move:
            result = certified_radius(
                case.predictor, case.x, case.y, norm=norm, domain=case.domain, method=chosen, rounding=rounding,
                largest=largest, tolerance=tolerance, progress=move, scale=scale,
            )  # fmt: skip
        own = case.own_radius if norm == "linf" and (case.own_radius or 0.0) <= largest else None
        radii = sorted({largest * part for part in FRACTIONS} | (set() if own is None else {own}))
        fractions = {eps: result.certified_at(eps) for eps in radii}
        accuracy = float(result.correct.double().mean())
        record = {
                    "n": len(result), "accuracy": accuracy, "mean_radius": result.mean, "median_radius": result.median,
                    "certified": {f"{eps:g}": fraction for eps, fraction in fractions.items()},
                    "own_radius": case.own_radius, "largest": largest, "scaled": scale is not None,
                    "tolerance": tolerance, "norm": norm, "bounds": result.bounds, "method": result.method,
                    "rounding": rounding, "intermediates": result.intermediates, "samples": result.samples,
                    "dataset": case.dataset, "digest": result.digest, "statement": result.statement,
        }  # fmt: skip
        store(out, form, result.columns(), record, result)
        if as_json:
            print_json(record)
            return
        measured = " times each column's scale" if scale is not None else "" if norm == "linf" else f" in {norm}"
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


def _scale(case: OpenedRun, norm: str, fixed: str | None) -> Tensor | None:
    """Return what radii are multiples of, (1, d), 0 for columns that do not change."""
    scale, names = case.scale if norm == "linf" else None, read_names(fixed)
    if names and scale is None:
        scale = torch.ones(1, *case.x.shape[1:], dtype=torch.float64)
    return scale if scale is None else fixed_by_name(case.features, scale, names)
