"""certibayes certify."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from certibayes.certify import certify
from certibayes.cli.opening import open_run
from certibayes.cli.options import (
    AtLeast,
    DataDir,
    DatasetOption,
    DeviceOption,
    EpsOption,
    JsonOption,
    LimitOption,
    RunArgument,
    SamplesOption,
    SeedOption,
)
from certibayes.cli.terminal import check_bar, console, print_json, progress_bar, told_plainly
from certibayes.posteriors.storage import write_atomically
from certibayes.uncertainty import uncertainty


def certify_command(
    run: RunArgument,
    dataset: DatasetOption = None,
    eps: EpsOption = 0.1,
    bounds: Annotated[str, typer.Option(help="How networks are bounded: ibp.")] = "ibp",
    rule: Annotated[str, typer.Option(help="How the bounds are combined: theorem1 or pairwise.")] = "theorem1",
    rounding: Annotated[
        str, typer.Option(help="outward: proved for the float program. ideal: for exact arithmetic only.")
    ] = "outward",
    samples: SamplesOption = None,
    seed: SeedOption = 0,
    limit: LimitOption = None,
    data_dir: DataDir = None,
    device: DeviceOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the whole certificate, with its statement, as JSON.")
    ] = None,
    at_least: AtLeast = None,
    as_json: JsonOption = False,
) -> None:
    """Prove how many test points no change within EPS can move to another class.

    The proof is about the predictor made of SAMPLES weight samples drawn with SEED; the same samples predict.
    Fractions are of all points; a certified point is also classified correctly.

    Example: certibayes certify runs/a --eps 0.1 --rule pairwise
    """
    with told_plainly():
        case = open_run(run, dataset, data_dir, samples, seed, limit, device)
        with progress_bar("certifying", shown=not as_json) as move:
            result = certify(
                case.predictor, case.x, case.y, eps=eps, bounds=bounds, rule=rule, rounding=rounding,
                domain=case.domain, progress=move,
            )  # fmt: skip
        doubt = uncertainty(case.predictor, case.x)
        if out is not None:
            write_atomically(out, json.dumps(result.to_json()).encode())
        record = {
            "n": len(result),
            "accuracy": result.accuracy,
            "certified": result.certified_fraction,
            "eps": eps,
            "bounds": bounds,
            "rule": rule,
            "rounding": rounding,
            "samples": result.samples,
            "dataset": case.dataset,
            "temperature": case.posterior.metadata.get("temperature"),
            "mutual_information": float(doubt.mutual_information.mean()),
            "disagreement": float(doubt.disagreement.mean()),
            "digest": result.digest,
            "statement": result.statement,
        }
        if as_json:
            print_json(record)
        else:
            console.print(
                f"[bold green]{100 * result.certified_fraction:.2f}%[/bold green] of {len(result)} points certified at "
                f"eps {eps:g} ({bounds}, {rule}); accuracy {100 * result.accuracy:.2f}%",
                highlight=False,
            )
            console.print(
                f"temperature {record['temperature']}, mutual information {record['mutual_information']:.5f}, "
                f"disagreement {record['disagreement']:.4f}",
                highlight=False,
            )
            console.print(f"\n{result.statement}", highlight=False)
        check_bar(result.certified_fraction, at_least, "certified fraction")
