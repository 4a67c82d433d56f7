"""certibayes reproduce."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from certibayes.cli.options import DataDir, DeviceOption, JsonOption, LimitOption
from certibayes.cli.terminal import console, error_handler, print_json, progress_bar
from certibayes.errors import InvalidInput
from certibayes.experiments import Judging, run_study
from certibayes.experiments.certification_study import POINTS, RuleJudging, run_certification_study
from certibayes.experiments.certification_study import Row as RuleRow
from certibayes.experiments.certification_study import flat as flat_rules
from certibayes.experiments.claims import Claim
from certibayes.experiments.inference_study import EPS, Row
from certibayes.experiments.out_of_distribution import usual_foreign
from certibayes.experiments.uncertainty_study import TEMPERATURES, DoubtJudging, flat, radius_of, run_uncertainty_study
from certibayes.experiments.uncertainty_study import Row as DoubtRow

STUDIES = ("inference", "uncertainty", "certification")


SHOWN = {
    "theorem1, ibp": "theorem1",
    "pairwise, ibp": "pairwise",
    "elided, crown": "crown",
    "best, hull": "hull",
    "best, hull, splitting": "split",
}
"""Rules in the terminal's table, and what they are called there."""


def reproduce_command(
    study: Annotated[str, typer.Argument(help=f"What to reproduce: {', '.join(STUDIES)}.")],
    dataset: Annotated[str, typer.Option("--dataset", help="Data set to train and test on.")] = "mnist",
    ood: Annotated[
        str | None, typer.Option("--ood", help="Out-of-distribution inputs (uncertainty); the usual ones by default.")
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option("--method", help="Take only this method (not inference); may be given several times."),
    ] = None,
    temperatures: Annotated[
        list[float] | None,
        typer.Option("--temperature", help="Of posteriors (certification); 1 and 0.001 by default."),
    ] = None,
    budget: Annotated[
        float | None, typer.Option("--budget", help="Seconds of splitting for each run (certification).")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Directory to write to; runs/STUDY by default.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny networks and few epochs, to see that it works; figures mean nothing.")
    ] = False,
    workers: Annotated[int, typer.Option("--workers", help="Runs at once, each a process of its own.")] = 1,
    seed: Annotated[int, typer.Option("--seed", help="Seed of networks, data order and inference.")] = 0,
    limit: LimitOption = None,
    device: DeviceOption = None,
    data_dir: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Run a whole study: train and judge many posteriors, and write tables and figures.

    inference: ten methods, certified and attacked. uncertainty: the paper's methods, standard beside robust, on
    familiar, foreign and adversarial inputs. certification: what each rule proves, and what attacks leave. What is
    finished is kept: a study that was stopped goes on where it was when the command is given again, and uncertainty and
    certification share their runs where they are given the same directory.

    Example: certibayes reproduce inference --dataset mnist --device cuda --workers 8
    """
    with error_handler():
        if study not in STUDIES:
            raise InvalidInput(f"there is no study {study!r}; known are {', '.join(STUDIES)}.")
        out = Path("runs") / study if out is None else out
        if study == "inference":
            if ood is not None or methods:
                raise InvalidInput(
                    "--ood belongs to the study of uncertainty, and --method to the others than inference."
                )
            judging = Judging(EPS, limit=limit, data_dir=data_dir, device=device)
            with progress_bar(study, not as_json) as moved:
                rows = run_study(
                    out, judging, dataset=dataset, quick=quick, seed=seed, workers=workers,
                    on_progress=lambda done, total, name: moved(done, total),
                )  # fmt: skip
            record = {"out": str(out), "rows": [{**vars(row), "figures": row.figures} for row in rows]}
            table = _table(rows)
        elif study == "certification":
            limit = POINTS if limit is None else limit
            ruling = RuleJudging(EPS, limit=limit, data_dir=data_dir, device=device, budget=budget)
            with progress_bar(study, not as_json) as moved:
                ruled = run_certification_study(
                    out, ruling, dataset=dataset, methods=methods, temperatures=temperatures or TEMPERATURES,
                    seed=seed, quick=quick, workers=workers, on_progress=lambda done, total, name: moved(done, total),
                )  # fmt: skip
            record = {"out": str(out), "rows": [flat_rules(row) for row in ruled]}
            table = _rules_table(ruled)
        else:
            foreign = usual_foreign(dataset) if ood is None else ood
            doubting = DoubtJudging(radius_of(dataset), limit=limit, data_dir=data_dir, device=device, ood=foreign)
            with progress_bar(study, not as_json) as moved:
                found, claims = run_uncertainty_study(
                    out, doubting, dataset=dataset, methods=methods, seeds=(seed,), quick=quick, workers=workers,
                    on_progress=lambda done, total, name: moved(done, total),
                )  # fmt: skip
            record = {"out": str(out), "rows": [flat(row) for row in found], "claims": [vars(c) for c in claims]}
            table = _doubt_table(found, claims, dataset, foreign)
        if as_json:
            print_json(record)
            return
        console.print(table)
        console.print(f"tables, figures and every run in [bold]{escape(str(out))}[/bold]", highlight=False)


def _table(rows: list[Row]) -> Table:
    n = rows[0].figures["n"]
    table = Table(title=f"{n:,} test images, theorem1 at ±{EPS:g}; v: validated temperature", title_style="bold")
    table.add_column("robust method")
    for name in ("T", "proved", "PGD", "accuracy", "NLL", "ECE", "mutual inf."):
        table.add_column(name, justify="right")
    for likelihood in ("ibp", "standard"):
        for row in (row for row in rows if row.likelihood == likelihood):
            f = row.figures
            name = row.method if likelihood == "ibp" else f"{row.method} [dim](standard)[/dim]"
            chosen = "v " if row.choice == "validated" else ""
            shares = (f"{100 * f[key]:.1f}%" for key in ("certified", "pgd", "accuracy"))
            doubts = (f"{f['nll']:.3f}", f"{f['ece']:.3f}", f"{f['mutual_information']:.5f}")
            table.add_row(name, f"{chosen}{f['temperature']:g}", *shares, *doubts)
        table.add_section()
    return table


def _rules_table(rows: list[RuleRow]) -> Table:
    robust = [row for row in rows if row.likelihood == "robust"]
    n = robust[0].figures["n"] if robust else 0
    table = Table(title=f"% of {n:,} test images certified at ±{EPS:g}, and still standing", title_style="bold")
    table.add_column("robust method")
    table.add_column("T", justify="right")
    # A terminal has no room for all; the files have them.
    names = [name for name in robust[0].figures["rules"] if name in SHOWN] if robust else []
    for name in names:
        table.add_column(SHOWN[name], justify="right")
    table.add_column("stand", justify="right")
    for row in robust:
        shares = [row.figures["rules"][name]["certified"] for name in names]
        shares.append(row.figures["attacks"]["ensemble"]["standing"])
        table.add_row(row.method, f"{row.temperature:g}", *(f"{100 * share:.1f}" for share in shares))
    return table


def _doubt_table(rows: list[DoubtRow], claims: list[Claim], dataset: str, foreign: str) -> Table:
    title = f"expected entropy on {dataset} (in), on {foreign} (out) and under PGD"
    table = Table(title=title, title_style="bold")
    table.add_column("method")
    table.add_column("T", justify="right")
    table.add_column("likelihood")
    for name in ("accuracy", "in", "out", "PGD", "AUROC", "ratio"):
        table.add_column(name, justify="right")
    table.add_column("paper's claim")
    verdicts = {(c.method, c.temperature, c.seed): c.confirmed for c in claims}
    words = {True: "[green]holds[/green]", False: "[red]fails[/red]", None: "diverged"}
    for row in rows:
        f, robust = row.figures, row.likelihood == "robust"
        verdict = words[verdicts[row.method, row.temperature, row.seed]] if robust else ""
        start = (row.method, f"{row.temperature:g}", row.likelihood)
        if "diverged" in f:
            table.add_row(*start, *["–"] * 6, verdict, end_section=robust)
            continue
        shown = [f"{100 * f['in']['accuracy']:.1f}%"]
        shown += [f"{f[part]['expected_entropy']:.3f}" for part in ("in", "out", "adversarial")]
        shown += [f"{f['detection']['expected_entropy']['auroc']:.3f}", f"{f['likelihood_ratio']:.3f}"]
        table.add_row(*start, *shown, verdict, end_section=robust)
    return table
