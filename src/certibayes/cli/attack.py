"""certibayes attack."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from certibayes.attacks import GROUPS, METHODS, PGD, Attack, Attacked, as_attack, attack, attack_regression
from certibayes.attacks.methods import members
from certibayes.cli.opening import OpenedRun, Points, Radius, open_run, radius_for, source_of
from certibayes.cli.options import (
    ArchitectureOption,
    AtLeast,
    DataDir,
    DataOption,
    DatasetOption,
    DeviceOption,
    DomainOption,
    EpsOption,
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
)
from certibayes.cli.output import FormatOption, OutOption, require_out, store
from certibayes.cli.terminal import check_bar, console, error_handler, print_json
from certibayes.errors import InvalidInput
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
    file: DataOption = None,
    target: TargetOption = None,
    task: TaskOption = None,
    domain: DomainOption = None,
    eps: EpsOption = None,
    fixed: FixedOption = None,
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
    out: OutOption = None,
    form: FormatOption = "csv",
    at_least: AtLeast = None,
    as_json: JsonOption = False,
) -> None:
    """Attack the predictor: how many test points are still classified correctly?

    An attack gives an upper bound on robustness and proves nothing; `certibayes certify` gives the lower bound. Of a
    regression, predictions are moved as far as possible, up and down (pgd).

    Example: certibayes attack runs/a --method ensemble --limit 500
    """
    with error_handler():
        require_out(out, form, proves=False)
        flags = {"steps": steps, "restarts": restarts, "queries": queries}
        chosen = members(as_attack(method.split(","), **flags))
        _require_known(chosen, flags)
        points = Points(dataset, file, target, task, domain, data_dir, limit)
        case = open_run(source_of(run, modules, architecture), points, samples, seed, device)
        radius = radius_for(case, eps, norm, fixed)
        if case.posterior.task == "regression":
            if draws is not None or at_least is not None:
                raise InvalidInput("--draws and --at-least are for classes; a regression has neither broken points.")
            _attack_regression(case, radius, method, chosen, norm, seed, out, form, as_json)
            return
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
        record = {
            "n": len(case.x), "accuracy": after["clean"], "robust_accuracy": result.robust_accuracy, "after": after,
            **radius.to_json(), "norm": norm, "method": method,
            "attacks": {each.name: asdict(each) for each in chosen}, "draws": draws, "samples": case.predictor.size,
            "dataset": case.dataset, "digest": case.predictor.digest,
        }  # fmt: skip
        store(out, form, _columns(result), record)
        if as_json:
            print_json(record)
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


def _columns(result: Attacked) -> dict[str, Any]:
    return {
        "point": range(len(result.success)),
        "label": result.labels.tolist(),
        "predicted": result.predicted.tolist(),
        "broken": result.success.tolist(),
        "broken_by": result.breakers(),
        "distance": result.distance.tolist(),
    }


def _attack_regression(
    case: OpenedRun,
    radius: Radius,
    method: str,
    chosen: tuple[Attack, ...],
    norm: str,
    seed: int,
    out: Path | None,
    form: str,
    as_json: bool,
) -> None:
    """Move predictions as far as possible; what `certify` proves contains what is found."""
    pgd = chosen[0]
    if len(chosen) > 1 or not isinstance(pgd, PGD):
        raise InvalidInput(f"a regression is attacked by pgd, which climbs its prediction; {method} is for classes.")
    with reporting(not as_json, "attacking") as move:
        result = attack_regression(
            case.predictor, case.x, case.y, eps=radius.eps, method=pgd, norm=norm, domain=case.domain, seed=seed,
            progress=move,
        )  # fmt: skip
    error = (result.predicted - result.reference).double()
    width = (result.upper - result.lower).double()
    record = {
        "n": len(result), "rmse": float(error.square().mean().sqrt()),
        "attacked_rmse": float(result.deviation.double().square().mean().sqrt()), "mean_width": float(width.mean()),
        **radius.to_json(), "norm": norm, "method": method, "attacks": {pgd.name: asdict(pgd)}, "task": "regression",
        "samples": case.predictor.size, "dataset": case.dataset, "digest": case.predictor.digest,
    }  # fmt: skip
    columns: dict[str, Any] = {"point": range(len(result))}
    parts = {"target": case.y, "predicted": result.predicted, "lower": result.lower, "upper": result.upper}
    for name, values in parts.items():
        for k, column in enumerate(values.T.tolist()):
            columns[name if values.shape[1] == 1 else f"{name}_{k}"] = column
    store(out, form, columns, record)
    if as_json:
        print_json(record)
        return
    console.print(
        f"predictions of {len(result)} points were moved over [bold]{record['mean_width']:.4g}[/bold] on average at "
        f"{radius.words} ({norm}; pgd); root mean squared error {record['rmse']:.4g}, attacked "
        f"{record['attacked_rmse']:.4g}",
        highlight=False,
    )
    if out is not None:
        console.print(f"points in [bold]{escape(str(out))}[/bold]", highlight=False)
