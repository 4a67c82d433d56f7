"""certibayes uncertainty."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from certibayes import data
from certibayes.cli.opening import OpenedRun, open_run
from certibayes.cli.options import (
    DataDir,
    DeviceOption,
    JsonOption,
    LimitOption,
    RunArgument,
    SamplesOption,
    SeedOption,
)
from certibayes.cli.terminal import console, error_handler, notes, print_json
from certibayes.errors import InvalidInput
from certibayes.evaluation import Assessment, assess
from certibayes.experiments.out_of_distribution import MADE, load_foreign, usual_foreign
from certibayes.experiments.tables import FORMATS, require_format, write_table
from certibayes.experiments.uncertainty_figures import TITLES, calibration_figure, curves_of, histogram_grid
from certibayes.support.files import write_atomically


def uncertainty_command(
    run: RunArgument,
    other: Annotated[
        Path | None, typer.Argument(metavar="[RUN2]", help="A second run to set beside it, such as the robust one.")
    ] = None,
    inside: Annotated[
        str | None, typer.Option("--in", help="In-distribution data set; the run's own by default.")
    ] = None,
    outside: Annotated[
        str | None,
        typer.Option("--out", help=f"Out-of-distribution inputs: another data set, or {', '.join(MADE)}."),
    ] = None,
    eps: Annotated[
        float | None, typer.Option("--eps", help="Also measure doubt on PGD examples within this radius.")
    ] = None,
    steps: Annotated[int, typer.Option("--steps", help="Iterations of that attack.")] = 20,
    restarts: Annotated[int, typer.Option("--restarts", help="Starts of that attack.")] = 2,
    samples: SamplesOption = None,
    seed: SeedOption = 0,
    limit: LimitOption = None,
    data_dir: DataDir = None,
    device: DeviceOption = None,
    save: Annotated[
        Path | None, typer.Option("--save", help="Directory for figures, the summary and a table of all points.")
    ] = None,
    form: Annotated[str, typer.Option("--format", help=f"The table's format: {' or '.join(FORMATS)}.")] = "csv",
    as_json: JsonOption = False,
) -> None:
    """Measure doubt: on familiar inputs, on foreign ones and, with --eps, on adversarial ones.

    Out-of-distribution inputs are the positive class of AUROC, AUPR and FPR95, and the score is the uncertainty. Unless
    --out is given they are fashion-mnist for mnist, svhn for cifar10, and shuffled pixels for the embedded digits.

    Example: certibayes uncertainty runs/standard runs/robust --in mnist --out fashion-mnist --save runs/doubt
    """
    with error_handler():
        require_format(form)
        paths = [run] if other is None else [run, other]
        opened = [open_run(path, inside, data_dir, samples, seed, limit, device, "--in") for path in paths]
        dataset = opened[0].dataset
        if any(case.dataset != dataset for case in opened):
            raise InvalidInput("the two runs were trained on different data; say with --in what is familiar.")
        cases = dict(zip(_names(paths, opened), opened, strict=True))
        outside = outside or usual_foreign(dataset)
        foreign = load_foreign(outside, data.load(dataset, data_dir), data_dir, limit)
        assessments = {}
        for name, case in cases.items():
            with notes.status(f"{escape(name)}: measuring doubt"):
                assessments[name] = assess(
                    case.predictor, case.x, case.y, foreign.to(case.predictor.device), eps=eps, domain=case.domain,
                    steps=steps, restarts=restarts, seed=seed,
                )  # fmt: skip
        record = _record(cases, assessments, outside, eps)
        if save is not None:
            _store(save, form, record, assessments)
        if as_json:
            print_json(record)
            return
        console.print(_table(record))
        if save is not None:
            console.print(f"figures, summary and points in [bold]{escape(str(save))}[/bold]", highlight=False)


def _names(paths: list[Path], cases: list[OpenedRun]) -> list[str]:
    """Name runs by their likelihoods if that tells them apart, else by their directories."""
    words = {"Categorical": "standard", "RobustCategorical": "robust"}
    kinds = [words.get(str(c.posterior.metadata.get("likelihood")), p.name) for p, c in zip(paths, cases, strict=True)]
    for names in (kinds, [path.name for path in paths], [str(path) for path in paths]):
        if len(set(names)) == len(names):
            return names
    raise InvalidInput(f"{paths[0]} is given twice; a run beside itself shows nothing.")


def _record(
    cases: dict[str, OpenedRun], assessments: dict[str, Assessment], outside: str, eps: float | None
) -> dict[str, Any]:
    runs = {
        name: {
            **assessment.summary(),
            "samples": cases[name].predictor.size,
            "temperature": cases[name].posterior.metadata.get("temperature"),
            "digest": cases[name].predictor.digest,
        }
        for name, assessment in assessments.items()
    }
    return {"in": next(iter(cases.values())).dataset, "out": outside, "eps": eps, "runs": runs}


def _store(save: Path, form: str, record: dict[str, Any], assessments: dict[str, Assessment]) -> None:
    write_table(save / f"points.{form}", _points(assessments), form)
    write_atomically(save / "summary.json", (json.dumps(record, indent=2) + "\n").encode())
    curves = {name: curves_of(assessment) for name, assessment in assessments.items()}
    histogram_grid(
        {title: {name: c["histograms"][score] for name, c in curves.items()} for score, title in TITLES.items()},
        save / "histograms.png",
        xlabel="nats",
        title=f"{record['in']} (in) and {record['out']} (out)",
    )
    calibration_figure({"": {name: {name: drawn} for name, drawn in curves.items()}}, save / "calibration.png")


def _points(assessments: dict[str, Assessment]) -> dict[str, list[Any]]:
    """One row for each input of each set and run; foreign inputs have no label."""
    columns: dict[str, list[Any]] = {name: [] for name in ("run", "set", "point", "label", "predicted")}
    scores = ("predictive_entropy", "expected_entropy", "mutual_information", "max_probability", "disagreement")
    columns |= {score: [] for score in scores}
    for name, assessment in assessments.items():
        for kind, doubt in assessment.sets.items():
            columns["run"] += [name] * len(doubt)
            columns["set"] += [kind] * len(doubt)
            columns["point"] += range(len(doubt))
            columns["label"] += [None] * len(doubt) if kind == "out" else assessment.labels.tolist()
            columns["predicted"] += doubt.predicted.tolist()
            for score in scores:
                columns[score] += getattr(doubt, score).tolist()
    return columns


def _table(record: dict[str, Any]) -> Table:
    runs = list(record["runs"].values())
    sizes = f"{runs[0]['in']['n']:,} of {record['in']} (in), {runs[0]['out']['n']:,} of {record['out']} (out)"
    table = Table(title=sizes, title_style="bold")
    table.add_column("")
    for name in record["runs"]:
        table.add_column(escape(name), justify="right")

    def add(title: str, form: str, *path: str) -> None:
        cells = []
        for figures in runs:
            for key in path:
                figures = figures[key]
            cells.append(format(figures, form))
        table.add_row(title, *cells)

    add("temperature", "", "temperature")
    add("accuracy", ".2%", "in", "accuracy")
    if record["eps"] is not None:
        add(f"accuracy, PGD ±{record['eps']:g}", ".2%", "adversarial", "accuracy")
    for title, key in (
        ("negative log-likelihood", "nll"),
        ("Brier score", "brier"),
        ("expected calibration error", "ece"),
        ("area under risk and coverage", "aurc"),
    ):
        add(title, ".4f", "in", key)
    parts = {"in": "in", "out": "out"}
    if record["eps"] is not None:
        parts["adversarial"] = f"PGD ±{record['eps']:g}"
    for title, key in (
        ("expected entropy", "expected_entropy"),
        ("entropy of the mean", "predictive_entropy"),
        ("mutual information", "mutual_information"),
        ("maximum probability", "max_probability"),
    ):
        table.add_section()
        for part, words in parts.items():
            add(f"{title}, {words}", ".4f", part, key)
        for figure, words in (("auroc", "AUROC"), ("aupr", "AUPR"), ("fpr95", "FPR95")):
            add(f"  {words}", ".4f", "detection", key, figure)
    add("  likelihood ratio", ".4f", "likelihood_ratio")
    return table
