"""certibayes attack."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from certibayes.attacks import GROUPS, METHODS, NORMS, Attacked, as_attack, attack
from certibayes.cli.opening import open_run
from certibayes.cli.options import (
    AtLeast,
    DataDir,
    DatasetOption,
    DeviceOption,
    EpsOption,
    JsonOption,
    LimitOption,
    RunArgument,
    SamplesOption,
    SeedOption,
)
from certibayes.cli.terminal import check_bar, console, error_handler, print_json, progress_bar
from certibayes.experiments.tables import require_format, write_table


def attack_command(
    run: RunArgument,
    dataset: DatasetOption = None,
    eps: EpsOption = 0.1,
    method: Annotated[
        str,
        typer.Option(
            help=f"The attack: {', '.join(METHODS)}; apgd for both of them; ensemble for "
            f"{', '.join(GROUPS['ensemble'].names)}, each on what the last one left; or names with commas."
        ),
    ] = "pgd",
    norm: Annotated[str, typer.Option(help=f"Norm of the ball: {', '.join(NORMS)}.")] = "linf",
    steps: Annotated[int, typer.Option(help="Iterations per restart, of PGD and Auto-PGD.")] = 40,
    restarts: Annotated[int, typer.Option(help="Starts; the first is the point itself, the others are random.")] = 4,
    queries: Annotated[int, typer.Option(help="Inputs that Square tries for each point.")] = 500,
    draws: Annotated[
        int | None,
        typer.Option(
            help="Follow gradients of so many weights drawn afresh at every step, instead of the predictor's own. The "
            "predictor still judges."
        ),
    ] = None,
    samples: SamplesOption = None,
    seed: SeedOption = 0,
    limit: LimitOption = None,
    data_dir: DataDir = None,
    device: DeviceOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write a table of the points, as CSV or, if so named, .parquet.")
    ] = None,
    at_least: AtLeast = None,
    as_json: JsonOption = False,
) -> None:
    """Attack the predictor: how many test points are still classified correctly?

    An attack gives an upper bound on robustness and proves nothing; `certibayes certify` gives the lower bound.

    Example: certibayes attack runs/a --eps 0.1 --method ensemble --limit 500
    """
    with error_handler():
        form = "parquet" if out is not None and out.suffix == ".parquet" else "csv"
        require_format(form)
        chosen = as_attack(method.split(","), steps=steps, restarts=restarts, queries=queries)
        case = open_run(run, dataset, data_dir, samples, seed, limit, device)
        settings: dict[str, Any] = {"eps": eps, "method": chosen, "norm": norm, "domain": case.domain, "seed": seed}
        with progress_bar("attacking", shown=not as_json) as move:
            if draws is None:
                result = attack(case.predictor, case.x, case.y, progress=move, **settings)
            else:
                result = attack(
                    case.posterior, case.x, case.y, draws=draws, decided_by=case.predictor, progress=move, **settings
                )
        after = result.robust_accuracy_after()
        if out is not None:
            _store(out, form, result)
        if as_json:
            print_json(
                {
                    "n": len(case.x), "accuracy": after["clean"], "standing": result.robust_accuracy, "after": after,
                    "eps": eps, "norm": norm, "method": method, "steps": steps, "restarts": restarts,
                    "queries": queries, "draws": draws, "samples": case.predictor.size, "dataset": case.dataset,
                    "digest": case.predictor.digest,
                }
            )  # fmt: skip
        else:
            console.print(
                f"[bold]{100 * result.robust_accuracy:.2f}%[/bold] of {len(case.x)} points still stand at eps {eps:g} "
                f"({norm}; {', '.join(result.methods)}); accuracy {100 * after['clean']:.2f}%",
                highlight=False,
            )
            if len(result.methods) > 1:
                _print_table(after)
            if out is not None:
                console.print(f"points in [bold]{escape(str(out))}[/bold]", highlight=False)
        check_bar(result.robust_accuracy, at_least, "fraction standing")


def _print_table(after: dict[str, float]) -> None:
    table = Table("after", "standing")
    table.columns[1].justify = "right"
    for name, share in after.items():
        table.add_row("no attack" if name == "clean" else name, f"{100 * share:.2f}%")
    console.print(table)


def _store(out: Path, form: str, result: Attacked) -> None:
    columns = {
        "point": range(len(result.success)),
        "label": result.labels.tolist(),
        "predicted": result.predicted.tolist(),
        "stands": (~result.success).tolist(),
        "broken_by": result.breakers(),
        "distance": result.distance.tolist(),
    }
    write_table(out, columns, form)
