"""What ``--out`` means, in every command: a directory for the table of points, the summary and the certificate.

OUT/points.csv         a row for each point
OUT/summary.json       what --json prints
OUT/certificate.json   what was proved, where something was; `certibayes check` reads it

A name that ends in .csv or .parquet is the table alone, and one that ends in .json the certificate alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from certibayes.certificates import Certificate, Radius, RegressionCertificate
from certibayes.errors import InvalidInput
from certibayes.experiments.tables import FORMATS, require_format, write_table
from certibayes.support.files import write_atomically

OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="Directory for a table of the points, the summary and, where something is proved, the certificate. A name "
        "that ends in .csv or .parquet means the table alone, and one in .json the certificate alone.",
    ),
]
FormatOption = Annotated[
    str, typer.Option("--format", help=f"The table's format in that directory: {' or '.join(FORMATS)}.")
]
CERTIFICATE, SUMMARY = "certificate.json", "summary.json"


def is_file(out: Path | None) -> bool:
    """Tell whether a part alone is asked for."""
    return out is not None and out.suffix in (".json", *(f".{form}" for form in FORMATS))


def require_out(out: Path | None, form: str, proves: bool = True) -> None:
    """Raise, before anything is computed, if nothing could be written to ``out``.

    Args:
        out: what was asked for.
        form: the table's format in a directory.
        proves: whether there will be a certificate.
    """
    require_format(form)
    if out is None or not is_file(out):
        return
    if out.suffix != ".json":
        require_format(out.suffix[1:])
    elif not proves:
        raise InvalidInput(
            f"{out} would be a certificate, and nothing is proved here. Name a directory, or a table: "
            f"{out.with_suffix('.csv')}."
        )


def store(
    out: Path | None,
    form: str,
    columns: Mapping[str, Any],
    record: Mapping[str, Any],
    certificate: Certificate | RegressionCertificate | Radius | None = None,
) -> None:
    """Write what was asked for, each file whole or not at all.

    Args:
        out: directory or file; None for nothing.
        form: the table's format in a directory.
        columns: the table.
        record: the summary.
        certificate: what was proved.
    """
    if out is None:
        return
    if is_file(out):
        if out.suffix != ".json":
            write_table(out, columns, out.suffix[1:])
        elif certificate is not None:
            certificate.save(out)
        return
    write_table(out / f"points.{form}", columns, form)
    if certificate is not None:
        certificate.save(out / CERTIFICATE)
    write_atomically(out / SUMMARY, (json.dumps(record, indent=2) + "\n").encode())
