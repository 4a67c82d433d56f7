"""Tables of results, one row per point, as CSV or Parquet."""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from certibayes.errors import InvalidInput, MissingPackage
from certibayes.support.files import write_atomically

FORMATS = ("csv", "parquet")

Columns = Mapping[str, Sequence[Any]]


def require_format(form: str) -> None:
    """Raise, before anything is computed, if a table cannot be written in this format."""
    if form not in FORMATS:
        raise InvalidInput(f"a table is written as {' or '.join(FORMATS)}, not {form!r}.")
    if form == "parquet" and not any(importlib.util.find_spec(name) for name in ("pyarrow", "pandas")):
        raise MissingPackage("Parquet needs pyarrow or pandas: pip install pyarrow. Or write CSV.")


def write_table(path: Path, columns: Columns, form: str) -> None:
    """Write columns of equal length, whole or not at all."""
    require_format(form)
    write_atomically(path, _csv(columns) if form == "csv" else _parquet(columns))


def rows_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write rows of named figures in full precision; what a row lacks is left empty."""
    columns = dict.fromkeys(name for row in rows for name in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _csv(columns: Columns) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    # Python writes floats with as many digits as it takes to read the same number back.
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue().encode()


def _parquet(columns: Columns) -> bytes:
    content = io.BytesIO()
    if importlib.util.find_spec("pyarrow"):
        parquet = importlib.import_module("pyarrow.parquet")
        table = importlib.import_module("pyarrow").table({name: list(values) for name, values in columns.items()})
        parquet.write_table(table, content)
    else:
        try:
            importlib.import_module("pandas").DataFrame(dict(columns)).to_parquet(content)
        except ImportError as error:
            raise MissingPackage(f"pandas cannot write Parquet by itself: pip install pyarrow. ({error})") from error
    return content.getvalue()
