"""certibayes reproduce."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from certibayes.cli.options import DataDir, DeviceOption, JsonOption, LimitOption
from certibayes.cli.reproduce_figure import reproduce_figure
from certibayes.cli.terminal import console, error_handler, print_json
from certibayes.errors import InvalidInput
from certibayes.experiments import Evaluator, run_study
from certibayes.experiments.certification_study import POINTS, RuleEvaluator, run_certification_study
from certibayes.experiments.certification_study import Row as RuleRow
from certibayes.experiments.certification_study import flat as flat_rules
from certibayes.experiments.claims import Claim
from certibayes.experiments.deep_study import DeepEvaluator, choose, run_deep_study, run_paths
from certibayes.experiments.deep_study import Row as DeepRow
from certibayes.experiments.deep_study import flat as flat_deep
from certibayes.experiments.deep_tasks import chosen_tasks
from certibayes.experiments.engines import ENGINES
from certibayes.experiments.figure_spec import figure_names
from certibayes.experiments.honest_study import Evaluation, by_recipe, chosen_recipes, run_honest_study
from certibayes.experiments.honest_study import row_cells as honest_cells
from certibayes.experiments.inference_study import EPS, Row
from certibayes.experiments.out_of_distribution import usual_out_of_distribution
from certibayes.experiments.run import CHECKPOINT_EVERY
from certibayes.experiments.uncertainty_study import (
    TEMPERATURES,
    UncertaintyEvaluator,
    flat,
    radius_of,
    run_uncertainty_study,
)
from certibayes.experiments.uncertainty_study import Row as UncertaintyRow
from certibayes.support.names import unknown_name
from certibayes.support.progress import reporting

STUDIES = ("inference", "uncertainty", "certification", "deep", "honest")
FIGURES = tuple(figure_names())

PARTS = ("results", "choice", "paths")

SHOWN = {
    "theorem1, ibp": "theorem1",
    "pairwise, ibp": "pairwise",
    "elided, crown": "crown",
    "best, hull": "hull",
    "best, hull, splitting": "split",
}
"""Rules in the terminal's table, and what they are called there."""


def reproduce_command(
    study: Annotated[
        str,
        typer.Argument(
            help=f"A figure: {', '.join(FIGURES)}, or a TOML file like theirs. Or a study: {', '.join(STUDIES)}."
        ),
    ],
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="Data set to train and test on; mnist, or a figure's only one.")
    ] = None,
    ood: Annotated[
        str | None, typer.Option("--ood", help="Out-of-distribution inputs (uncertainty); the usual ones by default.")
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option("--method", help="Take only this method (not inference); may be given several times."),
    ] = None,
    recipes: Annotated[
        list[str] | None,
        typer.Option("--recipe", help="Take only this recipe (figures): paper, now or validated; likewise."),
    ] = None,
    likelihoods: Annotated[
        list[str] | None, typer.Option("--likelihood", help="Take only this likelihood (figures); likewise.")
    ] = None,
    networks: Annotated[
        list[str] | None,
        typer.Option("--network", help="Take only this network (figures), such as supplement of CIFAR-10's; likewise."),
    ] = None,
    engine: Annotated[
        str, typer.Option("--engine", help=f"Where a figure's cells are worked on: {' or '.join(ENGINES)}.")
    ] = ENGINES[0],
    address: Annotated[
        str | None,
        typer.Option("--address", help="Of a Ray cluster that runs already, such as auto (--engine ray)."),
    ] = None,
    temperatures: Annotated[
        list[float] | None,
        typer.Option("--temperature", help="Of posteriors (certification); 1 and 0.001 by default."),
    ] = None,
    budget: Annotated[
        float | None, typer.Option("--budget", help="Seconds of splitting for each run (certification).")
    ] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option("--task", help="Take only this task (deep), such as cifar10-2; may be given several times."),
    ] = None,
    part: Annotated[str, typer.Option("--part", help=f"Of the study of deep networks: {', '.join(PARTS)}.")] = PARTS[0],
    channels: Annotated[
        int | None,
        typer.Option("--channels", min=1, help="Of cnn7's first layer (deep, --part paths); 8 train on a CPU."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", help="Trainings of every recipe (deep); its own number by default.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Directory to write to; runs/STUDY by default, runs/paper for all figures."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny networks and few epochs, to see that it works; figures mean nothing.")
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            help="Runs at once, each a process of its own; 1 by default, for figures on a CPU as many as cores.",
        ),
    ] = None,
    checkpoint_every: Annotated[
        float, typer.Option("--checkpoint-every", help="Seconds of training between checkpoints (figures).")
    ] = CHECKPOINT_EVERY,
    seed: Annotated[int, typer.Option("--seed", help="Seed of networks, data order and inference.")] = 0,
    limit: LimitOption = None,
    device: DeviceOption = None,
    data_dir: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Make a figure of the paper again, or run a whole study: train and evaluate many posteriors.

    Figures: fig1, accuracy, PGD and certified accuracy of every method and likelihood, as the paper does it and with
    what we know now; fig2, certified radii; fig3, entropies in and out of distribution and likelihood ratios; eta,
    lambda, rayleigh, exponential, the supplement's studies of p_eps; regression, certified intervals. A cell is one
    posterior in a directory of its own. Finished cells are kept, half-finished ones go on from their checkpoint, also
    after kill -9, and several commands may work on one directory. --engine ray takes a cluster.

    Studies: inference, ten methods, certified and attacked; uncertainty, the paper's methods, standard beside robust,
    on inputs in and out of distribution and on adversarial ones; certification, what each rule proves, and what attacks
    leave unbroken; deep, posteriors of deep networks, with --part choice what was compared on held-out images, and with
    --part paths lam ramped beside lam from the start; honest, posteriors at temperature 1, compared by the evidence,
    and what their uncertainty is worth, where --method takes those whose names begin so. What is finished is kept: a
    study that was stopped goes on where it was when the command is given again, and uncertainty and certification share
    their runs where they are given the same directory.

    Example: certibayes reproduce fig1 --dataset mnist --device cuda
    """
    with error_handler():
        if study in FIGURES or study.endswith(".toml"):
            if seed or seeds or ood or budget is not None or tasks or temperatures or part != PARTS[0] or channels:
                raise InvalidInput(
                    "a figure's seeds, temperatures and all that is measured are in its file; write one of your own "
                    "for others. --seed, --seeds, --ood, --budget, --task, --temperature, --part and --channels belong "
                    "to studies."
                )
            reproduce_figure(
                study, dataset, out, engine=engine, address=address, workers=workers, quick=quick, limit=limit,
                device=device, data_dir=data_dir, as_json=as_json, checkpoint_every=checkpoint_every,
                chosen={"method": methods, "recipe": recipes, "likelihood": likelihoods, "network": networks},
            )  # fmt: skip
            return
        if study not in STUDIES:
            raise InvalidInput(unknown_name("figure or study", study, (*FIGURES, *STUDIES)))
        if recipes or likelihoods or networks or address is not None or engine != ENGINES[0]:
            raise InvalidInput(
                "--recipe, --likelihood, --network, --engine and --address belong to figures, not to studies."
            )
        if channels and (study, part) != ("deep", "paths"):
            raise InvalidInput("--channels belongs to deep --part paths; other tasks have the networks of their table.")
        workers, dataset = workers or 1, dataset or "mnist"
        out = Path("runs") / study if out is None else out
        if study == "inference":
            if ood is not None or methods:
                raise InvalidInput(
                    "--ood belongs to the study of uncertainty, and --method to the others than inference."
                )
            evaluator = Evaluator(EPS, limit=limit, data_dir=data_dir, device=device)
            with reporting(not as_json, study) as moved:
                rows = run_study(
                    out, evaluator, dataset=dataset, quick=quick, seed=seed, workers=workers,
                    on_progress=lambda done, total, name: moved(done, total),
                )  # fmt: skip
            record = {"out": str(out), "rows": [{**vars(row), "figures": row.figures} for row in rows]}
            table = _table(rows)
        elif study == "deep":
            if part not in PARTS:
                raise InvalidInput(unknown_name("part", part, PARTS))
            deep = DeepEvaluator(EPS, limit=limit, data_dir=data_dir, device=device)
            with reporting(not as_json, study) as moved:
                common: dict[str, Any] = {"quick": quick, "on_progress": lambda done, total, name: moved(done, total)}
                if part == "paths":
                    paths = run_paths(out, deep, channels=channels, **common)
                    deep_rows = [DeepRow("fashion-mnist", name, figures["1"]) for name, figures in paths.items()]
                else:
                    chosen = chosen_tasks(dataset, tasks)
                    if part == "choice":
                        deep_rows = choose(out, deep, chosen, **common)
                    else:
                        deep_rows = run_deep_study(out, deep, chosen, seeds=seeds, **common)
            record = {"out": str(out), "rows": [flat_deep(row) for row in deep_rows]}
            table = _deep_table(deep_rows)
        elif study == "honest":
            ood = usual_out_of_distribution(dataset) if ood is None else ood
            honest = Evaluation(ood, limit=limit, data_dir=data_dir, device=device)
            with reporting(not as_json, study) as moved:
                measured, claims = run_honest_study(
                    out, honest, chosen_recipes(methods), dataset=dataset, quick=quick,
                    on_progress=lambda done, total, name: moved(done, total),
                )  # fmt: skip
            record = {"out": str(out), "rows": measured, "claims": [vars(c) for c in claims]}
            table = _honest_table(measured)
        elif study == "certification":
            limit = POINTS if limit is None else limit
            by_rule = RuleEvaluator(EPS, limit=limit, data_dir=data_dir, device=device, budget=budget)
            with reporting(not as_json, study) as moved:
                certified = run_certification_study(
                    out, by_rule, dataset=dataset, methods=methods, temperatures=temperatures or TEMPERATURES,
                    seed=seed, quick=quick, workers=workers, on_progress=lambda done, total, name: moved(done, total),
                )  # fmt: skip
            record = {"out": str(out), "rows": [flat_rules(row) for row in certified]}
            table = _rules_table(certified)
        else:
            ood = usual_out_of_distribution(dataset) if ood is None else ood
            uncertain = UncertaintyEvaluator(radius_of(dataset), limit=limit, data_dir=data_dir, device=device, ood=ood)
            with reporting(not as_json, study) as moved:
                found, claims = run_uncertainty_study(
                    out, uncertain, dataset=dataset, methods=methods, seeds=(seed,), quick=quick, workers=workers,
                    on_progress=lambda done, total, name: moved(done, total),
                )  # fmt: skip
            record = {"out": str(out), "rows": [flat(row) for row in found], "claims": [vars(c) for c in claims]}
            table = _uncertainty_table(found, claims, dataset, ood)
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
            fractions = (f"{100 * f[key]:.1f}%" for key in ("certified", "pgd", "accuracy"))
            others = (f"{f['nll']:.3f}", f"{f['ece']:.3f}", f"{f['mutual_information']:.5f}")
            table.add_row(name, f"{chosen}{f['temperature']:g}", *fractions, *others)
        table.add_section()
    return table


def _rules_table(rows: list[RuleRow]) -> Table:
    robust = [row for row in rows if row.likelihood == "robust"]
    n = robust[0].figures["n"] if robust else 0
    table = Table(title=f"% of {n:,} test images certified at ±{EPS:g}, and unbroken", title_style="bold")
    table.add_column("robust method")
    table.add_column("T", justify="right")
    # A terminal has no room for all; the files have them.
    names = [name for name in robust[0].figures["rules"] if name in SHOWN] if robust else []
    for name in names:
        table.add_column(SHOWN[name], justify="right")
    table.add_column("unbroken", justify="right")
    for row in robust:
        fractions = [row.figures["rules"][name]["certified"] for name in names]
        fractions.append(row.figures["attacks"]["ensemble"]["robust_accuracy"])
        table.add_row(row.method, f"{row.temperature:g}", *(f"{100 * fraction:.1f}" for fraction in fractions))
    return table


def _deep_table(rows: list[DeepRow]) -> Table:
    table = Table(title="certified by intervals; MI: mutual information", title_style="bold")
    table.add_column("task", no_wrap=True)
    # In two lines on a narrow terminal, so that no figure is cut off.
    table.add_column("posterior")
    for name in ("nets", "proved", "PGD", "accuracy", "NLL", "MI"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        f = row.figures
        fractions = (f"{100 * f[key]:.1f}%" for key in ("certified", "unbroken", "accuracy"))
        others = (f"{f['nll']:.3f}", f"{f['mutual_information']:.5f}")
        table.add_row(row.task, row.posterior, str(f["samples"]), *fractions, *others)
    return table


def _honest_table(rows: list[dict[str, Any]]) -> Table:
    title = f"% proved at ±{EPS:g} and accurate; means over seeds; MI: mutual information"
    table = Table(title=title, title_style="bold")
    table.add_column("posterior", no_wrap=True)
    for name in ("proved", "accuracy", "NLL", "MI", "ELBO"):
        table.add_column(name, justify="right")
    for name, own in by_recipe(rows).items():
        # A terminal has no room for spreads; the files have them.
        table.add_row(name, *(cell.partition(" ±")[0].rstrip("%") for cell in honest_cells(own)[1:6]))
    return table


def _uncertainty_table(rows: list[UncertaintyRow], claims: list[Claim], dataset: str, ood: str) -> Table:
    title = f"expected entropy on {dataset} (in), on {ood} (out) and under PGD"
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
