"""certibayes certify."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from certibayes.certify import ALL_RULES, BOUNDS, INTERMEDIATES, Certificate, certify
from certibayes.certify.certificate import bounds_in_words
from certibayes.certify.check import Check, check_certificate, read_certificate
from certibayes.certify.shards import certify_in_shards
from certibayes.cli.opening import OpenedRun, open_run
from certibayes.cli.options import (
    AtLeast,
    DataDir,
    DatasetOption,
    DeviceOption,
    EpsOption,
    JsonOption,
    LimitOption,
    NormOption,
    RunArgument,
    SamplesOption,
    SeedOption,
)
from certibayes.cli.terminal import BELOW_BAR, check_bar, console, notes, print_json, progress_bar, told_plainly
from certibayes.errors import CorruptFile, Interrupted
from certibayes.experiments.tables import FORMATS, require_format, write_table
from certibayes.posteriors.storage import write_atomically
from certibayes.uncertainty import uncertainty

BoundsOption = Annotated[
    str | None,
    typer.Option("--bounds", help=f"How networks are bounded: {', '.join(BOUNDS)}. By default what the rule needs."),
]
RuleOption = Annotated[str, typer.Option("--rule", help=f"How the bounds are combined: {', '.join(ALL_RULES)}.")]
IntermediatesOption = Annotated[
    str,
    typer.Option(
        "--intermediates",
        help=f"What linear bounds know of the layers in between: {' or '.join(INTERMEDIATES)}. ibp: intervals. crown: "
        "tighter in deep networks, at far higher cost; needs --bounds other than ibp.",
    ),
]
RoundingOption = Annotated[
    str, typer.Option("--rounding", help="outward: proved for the float program. ideal: for exact arithmetic only.")
]


def certify_command(
    run: RunArgument,
    dataset: DatasetOption = None,
    eps: EpsOption = 0.1,
    norm: NormOption = "linf",
    bounds: BoundsOption = None,
    rule: RuleOption = "theorem1",
    intermediates: IntermediatesOption = "ibp",
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
            "goes on there. A name that ends in .json stands for the certificate alone.",
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            "--budget",
            help="Seconds for attacks and splitting on points the bounds leave open (rule best); with OUT for all "
            "shards together.",
        ),
    ] = None,
    form: Annotated[str, typer.Option("--format", help=f"The table's format: {' or '.join(FORMATS)}.")] = "csv",
    shard: Annotated[int, typer.Option("--shard", help="Points after which OUT is brought up to date.")] = 500,
    verify: Annotated[
        Path | None,
        typer.Option("--verify", help="Prove nothing new; check this certificate (a file, or OUT) independently."),
    ] = None,
    at_least: AtLeast = None,
    as_json: JsonOption = False,
) -> None:
    """Prove how many test points no change within EPS can move to another class.

    The proof is about the predictor made of SAMPLES weight samples drawn with SEED; the same samples predict.
    Fractions are of all points; a certified point is also classified correctly.

    With --verify, a certificate that was written by --out is checked by a second, independent program: exit code 0 if
    nothing in it is refuted, 3 otherwise.

    Example: certibayes certify runs/a --eps 0.1 --rule pairwise --out runs/a-certified
    """
    with told_plainly():
        if verify is not None:
            _verify(verify, run, dataset, data_dir, samples, seed, limit, device, as_json)
            return
        require_format(form)
        case = open_run(run, dataset, data_dir, samples, seed, limit, device)
        settings: dict[str, Any] = {
            "eps": eps, "norm": norm, "bounds": bounds, "rule": rule, "rounding": rounding, "domain": case.domain,
            "intermediates": intermediates, "budget": budget,
        }  # fmt: skip
        with progress_bar("certifying", shown=not as_json) as move:
            if out is None or out.suffix == ".json":
                result = certify(case.predictor, case.x, case.y, progress=move, **settings)
            else:
                try:
                    result = certify_in_shards(
                        case.predictor, case.x, case.y, out, shard=shard, progress=move, **settings
                    )
                except KeyboardInterrupt:
                    raise Interrupted(f"stopped. Finished points are in {out}; the same command goes on.") from None
        record = _summary(case, result)
        if out is not None:
            _store(out, form, result, record)
        if as_json:
            print_json(record)
        else:
            _print(result, record)
        check_bar(result.certified_fraction, at_least, "certified fraction")


def _summary(case: OpenedRun, result: Certificate) -> dict[str, Any]:
    doubt = uncertainty(case.predictor, case.x)
    return {
        "n": len(result),
        "accuracy": result.accuracy,
        "certified": result.certified_fraction,
        **_answers(result),
        "eps": result.eps,
        "norm": result.norm,
        "bounds": result.bounds,
        "intermediates": result.intermediates,
        "rule": result.rule,
        "rounding": result.rounding,
        "samples": result.samples,
        "dataset": case.dataset,
        "temperature": case.posterior.metadata.get("temperature"),
        "mutual_information": float(doubt.mutual_information.mean()),
        "disagreement": float(doubt.disagreement.mean()),
        "digest": result.digest,
        "statement": result.statement,
    }


def _answers(result: Certificate) -> dict[str, float]:
    """Return the shares of the other two answers, where they were looked for."""
    if result.attacked is None:
        return {}
    return {
        "attacked": float(result.attacked.double().mean()),
        "unknown": float(result.unknown.double().mean()),
    }


def _store(out: Path, form: str, result: Certificate, record: dict[str, Any]) -> None:
    certificate = json.dumps(result.to_json()).encode()
    if out.suffix == ".json":
        write_atomically(out, certificate)
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
    write_atomically(out / "certificate.json", certificate)
    write_atomically(out / "summary.json", (json.dumps(record, indent=2) + "\n").encode())


def _print(result: Certificate, record: dict[str, Any]) -> None:
    norm = "" if result.norm == "linf" else f" in {result.norm}"
    console.print(
        f"[bold green]{100 * result.certified_fraction:.2f}%[/bold green] of {len(result)} points certified at "
        f"eps {result.eps:g}{norm} ({result.bounds}, {result.rule}); accuracy {100 * result.accuracy:.2f}%",
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
    console.print(f"\n{result.statement}", highlight=False)


def _verify(
    file: Path,
    run: Path,
    dataset: str | None,
    data_dir: Path | None,
    samples: int | None,
    seed: int,
    limit: int | None,
    device: str | None,
    as_json: bool,
) -> None:
    """Check a certificate and exit with code 3 if it does not hold."""
    record = read_certificate(file)
    try:
        count, drawn = len(record["labels"]), int(record["samples"])
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptFile(f"{file} is not a certificate, or it is incomplete ({error!r}).") from error
    # What the certificate says of itself is only where to look; digests decide whether it was found there.
    case = open_run(run, dataset, data_dir, samples or max(drawn, 1), seed, limit or max(count, 1), device)
    with progress_bar("checking", shown=not as_json) as move:
        check = check_certificate(record, case.predictor, case.x, progress=move)
    same_labels = not check.problems and record["labels"] == case.y.tolist()
    if as_json:
        print_json(
            {
                "holds": check.holds,
                "problems": list(check.problems),
                **check.counts(),
                "eps": record["eps"],
                "norm": record.get("norm", "linf"),
                "labels_of_dataset": same_labels,
                "note": check.note,
            }
        )
    else:
        _print_check(check, record, same_labels)
    if not check.holds:
        raise typer.Exit(BELOW_BAR)


def _print_check(check: Check, record: dict[str, Any], same_labels: bool) -> None:
    for problem in check.problems:
        notes.print(Text(f"{problem}.", style="red"), soft_wrap=True)
    if check.problems:
        notes.print("nothing was checked; are RUN, --dataset, --samples, --seed and --limit those of the certificate?")
        return
    counts = check.counts()
    table = Table(title=f"{counts['points']} points, checked independently", title_style="bold")
    table.add_column("")
    for name in ("claimed", "confirmed", "not confirmed", "refuted"):
        table.add_column(name, justify="right")
    rows = (
        ("class certified", counts["certified"], ""),
        ("bounds on probabilities", counts["points"], "bounds_"),
    )
    for title, claimed, prefix in rows:
        found = [counts[f"{prefix}{name}"] for name in ("confirmed", "not_confirmed", "refuted")]
        table.add_row(title, str(claimed), *map(str, found), style="red" if found[-1] else None)
    console.print(table)
    if check.note:
        console.print(check.note, highlight=False)
    if counts["not_confirmed"] or counts["bounds_not_confirmed"]:
        console.print(
            "Not confirmed means: plain intervals do not prove it. The certificate was made with "
            f"{bounds_in_words(str(record.get('bounds')), str(record.get('intermediates', 'ibp')))} and the rule "
            f"{record.get('rule')}, in {record['rounding']} rounding.",
            highlight=False,
        )
    if not same_labels:
        console.print(
            "The labels are not those of the data set, so the certified fraction is no robust accuracy.",
            highlight=False,
        )
