"""certibayes attack."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from certibayes.attacks import GROUPS, METHODS, Attack, Attacked, as_attack, attack
from certibayes.attacks.methods import members
from certibayes.cli.opening import open_run, radius_for, source_of
from certibayes.cli.options import (
    ArchitectureOption,
    AtLeast,
    DataDir,
    DatasetOption,
    DeviceOption,
    EpsOption,
    JsonOption,
    LimitOption,
    ModulesOption,
    NormOption,
    OptionalRun,
    SamplesOption,
    SeedOption,
)
from certibayes.cli.terminal import check_bar, console, error_handler, print_json
from certibayes.errors import InvalidInput
from certibayes.experiments.tables import require_format, write_table
from certibayes.support.progress import reporting


def _having(setting: str) -> dict[str, Attack]:
    """Return the attacks that have a setting, by name."""
    return {name: each for name, each in METHODS.items() if setting in {field.name for field in fields(each)}}


def _help(setting: str, meaning: str) -> str:
    having = _having(setting)
    defaults = {str(getattr(each, setting)) for each in having.values()}
    return f"{meaning} For {', '.join(having)}; {' or '.join(sorted(defaults))} by default."


def attack_command(
    run: OptionalRun = None,
    modules: ModulesOption = None,
    architecture: ArchitectureOption = None,
    dataset: DatasetOption = None,
    eps: EpsOption = None,
    method: Annotated[
        str,
        typer.Option(
            help=f"The attack: {', '.join(METHODS)}; apgd for both of them; ensemble for "
            f"{', '.join(GROUPS['ensemble'].names)}, each on what the last one left unbroken; or names with commas."
        ),
    ] = "pgd",
    norm: NormOption = "linf",
    steps: Annotated[int | None, typer.Option(help=_help("steps", "Iterations per restart."))] = None,
    restarts: Annotated[
        int | None,
        typer.Option(help=_help("restarts", "Starts; the first is the point, others are random.")),
    ] = None,
    queries: Annotated[int | None, typer.Option(help=_help("queries", "Inputs tried for each point."))] = None,
    draws: Annotated[
        int | None,
        typer.Option(
            help="Follow gradients of so many weights drawn afresh at every step, instead of the predictor's own. The "
            "predictor still decides."
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

    Example: certibayes attack runs/a --method ensemble --limit 500
    """
    with error_handler():
        form = "parquet" if out is not None and out.suffix == ".parquet" else "csv"
        require_format(form)
        flags = {"steps": steps, "restarts": restarts, "queries": queries}
        chosen = members(as_attack(method.split(","), **flags))
        _require_known(chosen, flags)
        case = open_run(source_of(run, modules, architecture), dataset, data_dir, samples, seed, limit, device)
        radius = radius_for(case, eps, norm)
        settings: dict[str, Any] = {
            "eps": radius.eps,
            "method": chosen,
            "norm": norm,
            "domain": case.domain,
            "seed": seed,
        }
        with reporting(not as_json, "attacking") as move:
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
                    "n": len(case.x), "accuracy": after["clean"], "robust_accuracy": result.robust_accuracy,
                    "after": after, "eps": radius.eps, "eps_source": radius.source, "norm": norm, "method": method,
                    "attacks": {each.name: asdict(each) for each in chosen}, "draws": draws,
                    "samples": case.predictor.size, "dataset": case.dataset, "digest": case.predictor.digest,
                }
            )  # fmt: skip
        else:
            console.print(
                f"[bold]{100 * result.robust_accuracy:.2f}%[/bold] of {len(case.x)} points are unbroken at "
                f"{radius.words} ({norm}; {', '.join(result.methods)}); accuracy {100 * after['clean']:.2f}%",
                highlight=False,
            )
            if len(result.methods) > 1:
                _print_table(after)
            if out is not None:
                console.print(f"points in [bold]{escape(str(out))}[/bold]", highlight=False)
        check_bar(result.robust_accuracy, at_least, "robust accuracy")


def _require_known(chosen: tuple[Attack, ...], flags: dict[str, int | None]) -> None:
    """Raise if a flag was given that none of the chosen attacks has: it would do nothing."""
    names = [each.name for each in chosen]
    for flag, value in flags.items():
        having = _having(flag)
        if value is not None and not having.keys() & set(names):
            raise InvalidInput(f"--{flag} means nothing to {', '.join(names)}; it is for {', '.join(having)}.")


def _print_table(after: dict[str, float]) -> None:
    table = Table("after", "robust accuracy")
    table.columns[1].justify = "right"
    for name, fraction in after.items():
        table.add_row("no attack" if name == "clean" else name, f"{100 * fraction:.2f}%")
    console.print(table)


def _store(out: Path, form: str, result: Attacked) -> None:
    columns = {
        "point": range(len(result.success)),
        "label": result.labels.tolist(),
        "predicted": result.predicted.tolist(),
        "broken": result.success.tolist(),
        "broken_by": result.breakers(),
        "distance": result.distance.tolist(),
    }
    write_table(out, columns, form)
