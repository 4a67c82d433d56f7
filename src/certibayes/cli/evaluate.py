"""certibayes evaluate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from certibayes import data
from certibayes.attacks import PGD
from certibayes.cli.opening import ModuleFiles, OpenedRun, Points, Radius, open_run, radius_for, source_of
from certibayes.cli.options import (
    ArchitectureOption,
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
    run_directory,
)
from certibayes.cli.output import FormatOption, OutOption, is_file, require_out, store
from certibayes.cli.regression import evaluate_regression
from certibayes.cli.terminal import console, error_handler, notes, print_json
from certibayes.errors import InvalidInput
from certibayes.evaluation import Assessment, assess
from certibayes.experiments.figures import require_matplotlib
from certibayes.experiments.out_of_distribution import MADE, load_out_of_distribution, usual_out_of_distribution
from certibayes.experiments.uncertainty_figures import TITLES, calibration_figure, curves_of, histogram_grid
from certibayes.posteriors import Posterior
from certibayes.support.optional import require_package


def evaluate_command(
    run: OptionalRun = None,
    other: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RUN2]", help="A second run to set beside it, such as the robust one.", parser=run_directory
        ),
    ] = None,
    modules: ModulesOption = None,
    architecture: ArchitectureOption = None,
    dataset: DatasetOption = None,
    file: DataOption = None,
    target: TargetOption = None,
    task: TaskOption = None,
    domain: DomainOption = None,
    ood: Annotated[
        str | None,
        typer.Option("--ood", help=f"Out-of-distribution inputs: another data set, or {', '.join(MADE)}."),
    ] = None,
    eps: EpsOption = None,
    fixed: FixedOption = None,
    norm: NormOption = "linf",
    adversarial: Annotated[
        bool, typer.Option("--adversarial/--no-adversarial", help="Whether to evaluate on adversarial examples, too.")
    ] = True,
    steps: Annotated[int, typer.Option("--steps", help="Iterations of that attack (PGD).")] = 20,
    restarts: Annotated[int, typer.Option("--restarts", help="Starts of that attack.")] = 2,
    samples: SamplesOption = None,
    seed: SeedOption = 0,
    limit: LimitOption = None,
    data_dir: DataDir = None,
    device: DeviceOption = None,
    out: OutOption = None,
    form: FormatOption = "csv",
    as_json: JsonOption = False,
) -> None:
    """Evaluate predictions and their uncertainty: in distribution, out of distribution and on adversarial examples.

    Out-of-distribution inputs are the positive class of AUROC, AUPR and FPR95, and the score is the uncertainty. Unless
    --ood is given they are fashion-mnist for mnist, svhn for cifar10, shuffled pixels for the embedded digits, and for
    a table columns that are drawn independently. Of a regression, errors, standard deviations and likelihood are
    measured, and errors under attack.

    Example: certibayes evaluate runs/standard runs/robust --dataset mnist --ood fashion-mnist --out runs/evaluated
    """
    with error_handler():
        require_out(out, form, proves=False)
        first = source_of(run, modules, architecture)
        paths = [first] if other is None else [first, other]
        points = Points(dataset, file, target, task, domain, data_dir, limit)
        opened = [open_run(path, points, samples, seed, device) for path in paths]
        inside = opened[0].dataset
        if any(case.dataset != inside for case in opened):
            raise InvalidInput("the two runs were trained on different data; say with --dataset what to test on.")
        cases = dict(zip(_names(paths, opened), opened, strict=True))
        radius = _radius(opened, eps, norm, fixed) if adversarial else None
        if opened[0].posterior.task == "regression":
            if ood is not None:
                raise InvalidInput("--ood is for classes: out-of-distribution inputs are detected by entropies.")
            evaluate_regression(cases, radius, norm, PGD(steps, restarts), seed, out, form, as_json)
            return
        require_package("torchmetrics", "evaluation")
        if out is not None:
            require_matplotlib()
        ood = ood or ("independent" if opened[0].features else usual_out_of_distribution(inside))
        outside = load_out_of_distribution(ood, _inside(opened[0]), data_dir, limit)
        assessments = {}
        for name, case in cases.items():
            with notes.status(f"{escape(name)}: evaluating"):
                assessments[name] = assess(
                    case.predictor, case.x, case.y, outside.to(case.predictor.device),
                    eps=None if radius is None else radius.eps, norm=norm, domain=case.domain, steps=steps,
                    restarts=restarts, seed=seed,
                )  # fmt: skip
        record = _record(cases, assessments, ood, radius, norm)
        if out is not None:
            _store(out, form, record, assessments)
        if as_json:
            print_json(record)
            return
        console.print(_table(record))
        if radius is None:
            console.print("without adversarial examples; --eps adds them", highlight=False)
        elif radius.own:
            console.print(f"adversarial examples within {radius.words}", highlight=False)
        if out is not None:
            console.print(f"figures, summary and points in [bold]{escape(str(out))}[/bold]", highlight=False)


def _inside(case: OpenedRun) -> data.DataSet:
    """Return the points as a data set, of which out-of-distribution inputs can be made."""
    test = data.Split(case.x.cpu(), case.y.cpu())
    classes = tuple(map(str, range(case.predictor.classes)))
    return data.DataSet(case.dataset, test, test, classes, case.domain)


def _radius(cases: list[OpenedRun], eps: Any, norm: str, fixed: str | None) -> Radius | None:
    """Return the radius of adversarial examples: the one asked for, or the one that all robust runs were trained for.

    None if no run was trained for one: what is left can be evaluated without.
    """
    robust = [case for case in cases if case.own_radius is not None]
    if len({case.own_radius for case in robust}) > 1 and eps is None:
        first, second = (f"{case.own_radius:g}" for case in robust)
        raise InvalidInput(f"one run was trained for {first}, the other for {second}; say with --eps which to take.")
    return radius_for((robust or cases)[0], eps, norm, fixed) if robust or eps is not None else None


def _names(paths: Sequence[Path | ModuleFiles], cases: list[OpenedRun]) -> list[str]:
    """Name runs by their likelihoods if that tells them apart, else by their directories."""
    words = {"Categorical": "standard", "RobustCategorical": "robust"}
    kinds = [words.get(_likelihood(case.posterior), path.name) for path, case in zip(paths, cases, strict=True)]
    for names in (kinds, [path.name for path in paths], [str(path) for path in paths]):
        if len(set(names)) == len(names):
            return names
    raise InvalidInput(f"{paths[0]} is given twice; a run beside itself shows nothing.")


def _likelihood(posterior: Posterior) -> str:
    """Return the name of a posterior's likelihood, as its metadata have it; nothing if they have none."""
    described = posterior.metadata.get("likelihood")
    return str(described.get("name")) if isinstance(described, dict) else ""


def _record(
    cases: dict[str, OpenedRun], assessments: dict[str, Assessment], ood: str, radius: Radius | None, norm: str
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
    return {
        "dataset": next(iter(cases.values())).dataset,
        "ood": ood,
        **({"eps": None, "eps_source": None} if radius is None else radius.to_json()),
        "norm": norm,
        "runs": runs,
    }


def _store(out: Path, form: str, record: dict[str, Any], assessments: dict[str, Assessment]) -> None:
    store(out, form, _points(assessments), record)
    if is_file(out):
        return
    curves = {name: curves_of(assessment) for name, assessment in assessments.items()}
    histogram_grid(
        {title: {name: c["histograms"][score] for name, c in curves.items()} for score, title in TITLES.items()},
        out / "histograms.png",
        xlabel="nats",
        title=f"{record['dataset']} (in) and {record['ood']} (out)",
    )
    calibration_figure({"": {name: {name: drawn} for name, drawn in curves.items()}}, out / "calibration.png")


def _points(assessments: dict[str, Assessment]) -> dict[str, list[Any]]:
    """One row for each input of each set and run; out-of-distribution inputs have no label."""
    columns: dict[str, list[Any]] = {name: [] for name in ("run", "set", "point", "label", "predicted")}
    scores = ("predictive_entropy", "expected_entropy", "mutual_information", "max_probability", "disagreement")
    columns |= {score: [] for score in scores}
    for name, assessment in assessments.items():
        for kind, found in assessment.sets.items():
            columns["run"] += [name] * len(found)
            columns["set"] += [kind] * len(found)
            columns["point"] += range(len(found))
            columns["label"] += [None] * len(found) if kind == "out" else assessment.labels.tolist()
            columns["predicted"] += found.predicted.tolist()
            for score in scores:
                columns[score] += getattr(found, score).tolist()
    return columns


def _table(record: dict[str, Any]) -> Table:
    runs = list(record["runs"].values())
    inside, outside = (f"{runs[0][part]['n']:,}" for part in ("in", "out"))
    title = f"{inside} of {record['dataset']} (in), {outside} of {record['ood']} (out)"
    table = Table(title=title, title_style="bold")
    table.add_column("")
    for name in record["runs"]:
        table.add_column(escape(name), justify="right")

    def add(title: str, form: str, *path: str) -> None:
        cells = []
        for figures in runs:
            for key in path:
                figures = figures[key]
            cells.append("unknown" if figures is None else format(figures, form))
        table.add_row(title, *cells)

    if record["eps"] is not None:
        size = f"{record['eps']:g}" if isinstance(record["eps"], float) else "by name"
        attacked = f"PGD ±{size}" if record["norm"] == "linf" else f"PGD {record['norm']} {size}"
    add("temperature", "", "temperature")
    add("accuracy", ".2%", "in", "accuracy")
    if record["eps"] is not None:
        add(f"accuracy, {attacked}", ".2%", "adversarial", "accuracy")
    for title, key in (
        ("negative log-likelihood", "nll"),
        ("Brier score", "brier"),
        ("expected calibration error", "ece"),
        ("area under risk and coverage", "aurc"),
    ):
        add(title, ".4f", "in", key)
    parts = {"in": "in", "out": "out"}
    if record["eps"] is not None:
        parts["adversarial"] = attacked
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
