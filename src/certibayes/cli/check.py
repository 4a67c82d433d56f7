"""certibayes check."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from certibayes.certificates import Certificate, Radius, RegressionCertificate, read_record
from certibayes.certificates.certificate import parse
from certibayes.certificates.words import bounds_in_words
from certibayes.checker import Check, check_certificate
from certibayes.cli.opening import Points, open_run, source_of
from certibayes.cli.options import (
    ArchitectureOption,
    DataDir,
    DataOption,
    DatasetOption,
    DeviceOption,
    JsonOption,
    LimitOption,
    ModulesOption,
    TargetOption,
    TaskOption,
    run_directory,
)
from certibayes.cli.terminal import BELOW_BAR, console, error_handler, notes, print_json
from certibayes.errors import InvalidInput
from certibayes.support.progress import reporting


def check_command(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="[RUN] CERTIFICATE",
            help="Directory of the run, or zoo:NAME, left out with --modules; and the certificate, a file or the "
            "directory that `certibayes certify --out` wrote.",
            show_default=False,
        ),
    ],
    strict: Annotated[
        bool, typer.Option("--strict", help="Leave nothing open: every marked point and all bounds must be confirmed.")
    ] = False,
    dataset: DatasetOption = None,
    file: DataOption = None,
    modules: ModulesOption = None,
    architecture: ArchitectureOption = None,
    target: TargetOption = None,
    task: TaskOption = None,
    samples: Annotated[
        int | None, typer.Option("--samples", help="Weight samples in the predictor; the certificate's by default.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed of the weight samples; the certificate's by default.")
    ] = None,
    limit: LimitOption = None,
    data_dir: DataDir = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a certificate with a second, independent program.

    Its intervals, softmax and rules are its own. Every marked point is proved again and attacked; predicted classes
    are computed again, counterexamples are tried, and every word of the statement is built again from the record.

    Exit codes: 0 if the certificate belongs to the run, nothing in it is refuted and all words agree (with --strict:
    and everything is confirmed); 3 if not; 1 if the file is no certificate.

    Example: certibayes check runs/a runs/a-certified --strict
    """
    with error_handler():
        *runs, last = paths
        if len(runs) > 1:
            raise typer.BadParameter(f"takes one run and one certificate, got {' '.join(paths)}.")
        source = source_of(run_directory(runs[0]) if runs else None, modules, architecture)
        certificate = Path(last)
        record = read_record(certificate)
        if record.get("kind") in (RegressionCertificate.kind, Radius.kind):
            raise InvalidInput(
                f"{certificate} is of the kind {record['kind']}, and the independent program checks certificates of "
                "classes. certibayes.load_certificate(PATH) checks what such a record alone can tell."
            )
        claimed = parse(record)
        # What the certificate says of itself is only where to look; digests decide whether it was found there.
        drawn = samples or claimed.samples
        seed = (claimed.seed or 0) if seed is None else seed
        points = Points(dataset, file, target, task, None, data_dir, limit or max(len(claimed), 1))
        case = open_run(source, points, drawn, seed, device)
        with reporting(not as_json, "checking") as move:
            check = check_certificate(record, case.predictor, case.x, progress=move)
        same_labels = not check.problems and record["labels"] == case.y.tolist()
        if as_json:
            print_json(_summary(check, claimed, same_labels))
        else:
            _print(check, claimed, same_labels)
            _print_verdict(check, strict)
        if not (check.holds_strictly if strict else check.holds):
            raise typer.Exit(BELOW_BAR)


def _summary(check: Check, claimed: Certificate, same_labels: bool) -> dict[str, Any]:
    return {
        "holds": check.holds,
        "holds_strictly": check.holds_strictly,
        "problems": list(check.problems),
        "contradictions": list(check.contradictions),
        **check.counts(),
        "eps": claimed.to_json()["eps"],
        "norm": claimed.norm,
        "labels_of_dataset": same_labels,
        "note": check.note,
    }


def _print(check: Check, claimed: Certificate, same_labels: bool) -> None:
    for problem in (*check.problems, *check.contradictions):
        notes.print(Text(f"{problem}.", style="red"), soft_wrap=True)
    if check.problems:
        notes.print("nothing was checked; are RUN, --dataset, --samples, --seed and --limit those of the certificate?")
        return
    counts = check.counts()
    table = Table(title=f"{counts['points']} points, checked independently", title_style="bold")
    table.add_column("")
    for name in ("claimed", "confirmed", "not confirmed", "refuted"):
        table.add_column(name, justify="right")
    points, attacked = counts["points"], counts["attacked"]
    wrong, saved = counts["predicted_refuted"], counts["attacked_refuted"]
    answers = ("confirmed", "not_confirmed", "refuted")
    rows = {
        "class certified": [counts["certified"], *(counts[name] for name in answers)],
        "bounds on probabilities": [points, *(counts[f"bounds_{name}"] for name in answers)],
        "class predicted": [points, points - wrong, 0, wrong],
    }
    if claimed.attacked is not None:
        rows["attacked"] = [attacked, attacked - saved, 0, saved]
    for title, numbers in rows.items():
        table.add_row(title, *map(str, numbers), style="red" if numbers[-1] else None)
    console.print(table)
    if check.note:
        console.print(check.note, highlight=False)
    if counts["not_confirmed"] or counts["bounds_not_confirmed"]:
        console.print(
            "Not confirmed means: plain intervals do not prove it. The certificate was made with "
            f"{bounds_in_words(claimed.provenance)} and the method {claimed.method}, in {claimed.rounding} rounding.",
            highlight=False,
        )
    if not same_labels:
        console.print(
            "The labels are not those of the data set, so the certified fraction is no robust accuracy.",
            highlight=False,
        )


def _print_verdict(check: Check, strict: bool) -> None:
    """Say in a sentence what the exit code says, and how much is left open."""
    if check.problems:
        return
    counts = check.counts()
    left = f"{counts['not_confirmed']} of {counts['certified']} marked points"
    bounds = f"the bounds of {counts['bounds_not_confirmed']} of {counts['points']} points"
    if not check.holds:
        console.print("[red]The certificate does not hold.[/red]")
    elif check.holds_strictly:
        console.print("[green]The certificate holds, and all of it is confirmed.[/green]")
    elif strict:
        console.print(f"[red]Not all of it is confirmed: {left} and {bounds} are left open.[/red]", highlight=False)
    else:
        console.print(f"Nothing is refuted. Left open: {left} and {bounds}; --strict refuses that.", highlight=False)
