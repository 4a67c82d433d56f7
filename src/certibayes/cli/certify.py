"""certibayes certify."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from certibayes.certificates import Certificate
from certibayes.certification import BOUNDS, INTERMEDIATES, METHODS, as_method, certified_scores, certify
from certibayes.certification.shards import certify_in_shards
from certibayes.cli.opening import OpenedRun, Radius, open_run, radius_for, source_of
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
from certibayes.cli.terminal import check_bar, console, error_handler, print_json, strict
from certibayes.errors import Interrupted, InvalidInput
from certibayes.evaluation import brier_score, negative_log_likelihood, uncertainty
from certibayes.experiments.tables import FORMATS, require_format, write_table
from certibayes.support.files import write_atomically
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
        "crown: tighter in deep networks, at higher cost; needs --bounds other than ibp. auto (of the methods auto and "
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
    eps: EpsOption = None,
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
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Directory for a table of the points, the summary and the certificate; a command that was stopped "
            "goes on there. A name that ends in .json means the certificate alone.",
        ),
    ] = None,
    budget: BudgetOption = None,
    form: Annotated[str, typer.Option("--format", help=f"The table's format: {' or '.join(FORMATS)}.")] = "csv",
    shard: Annotated[int, typer.Option("--shard", help="Points after which OUT is brought up to date.")] = 500,
    verify: Annotated[
        Path | None,
        typer.Option("--verify", hidden=True),
    ] = None,
    at_least: AtLeast = None,
    as_json: JsonOption = False,
) -> None:
    """Prove how many test points no change within EPS can move to another class.

    The proof is about the predictor made of SAMPLES weight samples drawn with SEED; the same samples predict.
    Fractions are of all points; a certified point is also classified correctly.

    What --out writes is checked by a second, independent program: certibayes check RUN OUT.

    Example: certibayes certify runs/a --method theorem1 --out runs/a-certified
    """
    with error_handler():
        if verify is not None:
            raise InvalidInput(f"--verify is a command of its own now: certibayes check {run} {verify}")
        require_format(form)
        case = open_run(source_of(run, modules, architecture), dataset, data_dir, samples, seed, limit, device)
        chosen = as_method(method, bounds=bounds, intermediates=intermediates, budget=budget)
        radius = radius_for(case, eps, norm)
        settings: dict[str, Any] = {
            "eps": radius.eps, "norm": norm, "domain": case.domain, "method": chosen, "rounding": rounding,
        }  # fmt: skip
        with reporting(not as_json, "certifying") as move:
            if out is None or out.suffix == ".json":
                result = certify(case.predictor, case.x, case.y, progress=move, **settings)
            else:
                try:
                    result = certify_in_shards(
                        case.predictor, case.x, case.y, out, shard=shard, progress=move, **settings
                    )
                except KeyboardInterrupt:
                    raise Interrupted(f"stopped. Finished points are in {out}; the same command goes on.") from None
        # Only here is it known how the samples were drawn.
        result = replace(result, provenance=replace(result.provenance, seed=seed))
        record = _summary(case, result, radius)
        if out is not None:
            _store(out, form, result, record)
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
        "eps": result.eps,
        "eps_source": radius.source,
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


def _store(out: Path, form: str, result: Certificate, record: dict[str, Any]) -> None:
    if out.suffix == ".json":
        result.save(out)
        return
    columns: dict[str, Any] = {
        "point": range(len(result)),
        "label": result.labels.tolist(),
        "predicted": result.predicted.tolist(),
        "certified": result.certified.tolist(),
    }
    if result.attacked is not None:
        columns |= {"attacked": result.attacked.tolist(), "unknown": result.unknown.tolist()}
    for end, values in (("lower", result.lower), ("upper", result.upper)):
        columns |= {f"{end}_{c}": column for c, column in enumerate(values.T.tolist())}
    write_table(out / f"points.{form}", columns, form)
    result.save(out / "certificate.json")
    write_atomically(out / "summary.json", (json.dumps(record, indent=2) + "\n").encode())


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
        f"temperature {record['temperature']}, mutual information {record['mutual_information']:.5f}, "
        f"disagreement {record['disagreement']:.4f}",
        highlight=False,
    )
    if (count := int(result.open.sum())) > 0:
        harder = "a larger --budget" if result.spent is not None else HARDER[result.method]
        console.print(f"{count} points stay open; to try harder: {harder}", highlight=False)
    console.print(f"\n{result.statement}", highlight=False)
