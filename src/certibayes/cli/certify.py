"""certibayes certify."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from certibayes.certificates import Certificate
from certibayes.certification import BOUNDS, INTERMEDIATES, METHODS, Method, as_method, certified_scores, certify
from certibayes.certification.shards import certify_in_shards
from certibayes.cli import intervals
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
from certibayes.cli.output import FormatOption, OutOption, is_file, require_out, store
from certibayes.cli.terminal import check_bar, console, error_handler, print_json, strict
from certibayes.errors import Interrupted, InvalidInput
from certibayes.evaluation import brier_score, negative_log_likelihood, uncertainty
from certibayes.experiments import certify_with
from certibayes.experiments.engines import ENGINES, make_engine
from certibayes.support.progress import reporting

BoundsOption = Annotated[
    str | None,
    typer.Option("--bounds", help=f"How networks are bounded: {', '.join(BOUNDS)}. By default what the method needs."),
]
MethodOption = Annotated[
    str,
    typer.Option(
        "--method",
        help=f"How points are proved: {', '.join(METHODS)}. auto: intervals, then CROWN where they do not suffice. "
        "theorem1: the paper's rule. best: everything there is.",
    ),
]
BudgetOption = Annotated[
    float | None,
    typer.Option(
        "--budget",
        help="Seconds for attacks and branch and bound on points the bounds leave open (method best); with OUT for all "
        "shards in total.",
    ),
]
IntermediatesOption = Annotated[
    str | None,
    typer.Option(
        "--intermediates",
        help=f"What linear bounds know of the layers in between: {', '.join(INTERMEDIATES)} or auto. ibp: intervals. "
        "crown: tighter in deep networks, at higher cost; needs --bounds other than ibp. alpha-crown: tighter and "
        "costlier still. auto (of the methods auto and "
        "best): crown where intervals explode from layer to layer.",
    ),
]
HARDER = {
    "theorem1": "--method auto",
    "pairwise": "--method auto",
    "auto": "--method best",
    "elided": "--method best",
    "joint": "--method best",
    "best": "--budget SECONDS",
}
"""What to try on points that a method leaves open."""

RoundingOption = Annotated[
    str, typer.Option("--rounding", help="outward: proved for the float program. ideal: for exact arithmetic only.")
]


def certify_command(
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
    norm: NormOption = "linf",
    bounds: BoundsOption = None,
    method: MethodOption = "auto",
    intermediates: IntermediatesOption = None,
    rounding: RoundingOption = "outward",
    samples: SamplesOption = None,
    seed: SeedOption = 0,
    limit: LimitOption = None,
    data_dir: DataDir = None,
    device: DeviceOption = None,
    out: OutOption = None,
    budget: BudgetOption = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            "--tolerance", help="For a regression: a point is certified up to this deviation from its target."
        ),
    ] = None,
    form: FormatOption = "csv",
    shard: Annotated[
        int,
        typer.Option(
            "--shard", help="Points after which OUT is brought up to date; a command that was stopped goes on there."
        ),
    ] = 500,
    workers: Annotated[
        int | None,
        typer.Option("--workers", help="Processes that divide the shards of OUT, or tasks on a cluster.", min=1),
    ] = None,
    engine: Annotated[
        str, typer.Option("--engine", help=f"Where shards are worked on: {' or '.join(ENGINES)}.")
    ] = ENGINES[0],
    address: Annotated[
        str | None,
        typer.Option("--address", help="Of a Ray cluster that runs already, such as auto (--engine ray)."),
    ] = None,
    verify: Annotated[
        Path | None,
        typer.Option("--verify", hidden=True),
    ] = None,
    at_least: AtLeast = None,
    as_json: JsonOption = False,
) -> None:
    """Prove how many test points no change within EPS can move to another class.

    The proof is about the predictor made of SAMPLES weight samples drawn with SEED; the same samples predict.
    Fractions are of all points; a certified point is also classified correctly. For a regression the interval of each
    prediction is proved, and with --tolerance how many predictions stay that close to their targets.

    What --out writes is checked by a second, independent program: certibayes check RUN OUT.

    Example: certibayes certify runs/a --method theorem1 --out runs/a-certified
    """
    with error_handler():
        if verify is not None:
            raise InvalidInput(f"--verify is a command of its own now: certibayes check {run} {verify}")
        require_out(out, form)
        points = Points(dataset, file, target, task, domain, data_dir, limit)
        case = open_run(source_of(run, modules, architecture), points, samples, seed, device)
        chosen = as_method(method, bounds=bounds, intermediates=intermediates, budget=budget)
        radius = radius_for(case, eps, norm, fixed)
        if case.posterior.task == "regression":
            _certify_regression(case, radius, chosen, norm, rounding, tolerance, out, form, at_least, as_json)
            return
        if tolerance is not None:
            raise InvalidInput("--tolerance is for a regression; classes are certified or not.")
        divided = workers is not None or address is not None or engine != ENGINES[0]
        if divided and (out is None or is_file(out)):
            raise InvalidInput("--workers and --engine divide the shards of a directory; name one with --out.")
        settings: dict[str, Any] = {
            "eps": radius.eps, "norm": norm, "domain": case.domain, "method": chosen, "rounding": rounding,
        }  # fmt: skip
        with reporting(not as_json, "certifying") as move:
            if out is None or is_file(out):
                result = certify(case.predictor, case.x, case.y, progress=move, **settings)
            else:
                try:
                    if divided:
                        chosen_engine = make_engine(engine, workers=workers, device=device, address=address)
                        result = certify_with(
                            chosen_engine, case.predictor, case.x, case.y, out,
                            workers=workers or chosen_engine.workers or len(case.x), shard=shard, **settings,
                        )  # fmt: skip
                    else:
                        result = certify_in_shards(
                            case.predictor, case.x, case.y, out, shard=shard, progress=move, **settings
                        )
                except KeyboardInterrupt:
                    raise Interrupted(f"stopped. Finished points are in {out}; the same command goes on.") from None
        # Only here is it known how the samples were drawn.
        result = replace(result, provenance=replace(result.provenance, seed=case.seed))
        record = _summary(case, result, radius)
        store(out, form, result.columns(), record, result)
        if as_json:
            print_json(record)
        else:
            _print(result, record, radius)
        check_bar(result.certified_fraction, at_least, "certified fraction")


def _summary(case: OpenedRun, result: Certificate, radius: Radius) -> dict[str, Any]:
    found, worst = uncertainty(case.predictor, case.x), certified_scores(result).summary()
    return {
        "n": len(result),
        "accuracy": result.accuracy,
        "certified": result.certified_fraction,
        **_answers(result),
        "nll": negative_log_likelihood(found.log_probabilities, case.y),
        "certified_nll": strict(worst["nll"]),
        "brier": brier_score(found.log_probabilities, case.y),
        "certified_brier": worst["brier"],
        "entropy": float(found.predictive_entropy.mean()),
        "certified_entropy": [worst["entropy_lower"], worst["entropy_upper"]],
        **radius.to_json(),
        "norm": result.norm,
        "bounds": result.bounds,
        "intermediates": result.intermediates,
        "method": result.method,
        "rounding": result.rounding,
        "samples": result.samples,
        "dataset": case.dataset,
        "temperature": case.posterior.metadata.get("temperature"),
        "mutual_information": float(found.mutual_information.mean()),
        "disagreement": float(found.disagreement.mean()),
        "digest": result.digest,
        "statement": result.statement,
    }


def _answers(result: Certificate) -> dict[str, float]:
    """Return the fractions of the other two answers, where they were looked for."""
    if result.attacked is None:
        return {}
    return {
        "attacked": float(result.attacked.double().mean()),
        "unknown": float(result.unknown.double().mean()),
    }


def _certify_regression(
    case: OpenedRun,
    radius: Radius,
    method: Method,
    norm: str,
    rounding: str,
    tolerance: float | None,
    out: Path | None,
    form: str,
    at_least: float | None,
    as_json: bool,
) -> None:
    if at_least is not None and tolerance is None:
        raise InvalidInput("--at-least is a fraction of certified points, which --tolerance tells apart; pass both.")
    with reporting(not as_json, "bounding") as move:
        settings = {"norm": norm, "rounding": rounding, "progress": move}
        result = intervals.certified_intervals(case, radius, method, tolerance, settings)
    record = intervals.summary(case, result, radius)
    store(out, form, intervals.columns(case, result), record, result)
    if as_json:
        print_json(record)
    else:
        intervals.show(result, record, radius)
    if result.certified_fraction is not None:
        check_bar(result.certified_fraction, at_least, "certified fraction")


def _print(result: Certificate, record: dict[str, Any], radius: Radius) -> None:
    norm = "" if result.norm == "linf" else f" in {result.norm}"
    console.print(
        f"[bold green]{100 * result.certified_fraction:.2f}%[/bold green] of {len(result)} points certified at "
        f"{radius.words}{norm} ({result.method}, {result.bounds} bounds); accuracy {100 * result.accuracy:.2f}%",
        highlight=False,
    )
    if result.attacked is not None:
        console.print(
            f"{100 * record['attacked']:.2f}% attacked or misclassified, {100 * record['unknown']:.2f}% unknown",
            highlight=False,
        )
    console.print(
        ("" if record["temperature"] is None else f"temperature {record['temperature']}, ")
        + f"mutual information {record['mutual_information']:.5f}, "
        f"disagreement {record['disagreement']:.4f}",
        highlight=False,
    )
    if (count := int(result.open.sum())) > 0:
        harder = "a larger --budget" if result.spent is not None else HARDER[result.method]
        stay = "point stays" if count == 1 else "points stay"
        console.print(f"{count} {stay} open; to try harder: {harder}", highlight=False)
    console.print(f"\n{result.statement}", highlight=False)
