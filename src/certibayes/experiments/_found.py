"""What a directory holds, whoever wrote it: runs, certificates, and tables with their pictures."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from certibayes.errors import CorruptFile, InvalidInput
from certibayes.experiments.figure_spec import AXES
from certibayes.experiments.paper import CELLS, RESULTS
from certibayes.experiments.run import METRICS, RECORD, SPEC, STARTED
from certibayes.experiments.train_many import DIVERGED

CERTIFICATE = "certificate.json"
PICTURES = (".svg", ".png")
"""Endings of pictures, the better one first."""

Row = dict[str, Any]


@dataclass(frozen=True)
class FoundRun:
    """A run, finished or not.

    Attributes:
        name: its place below the directory that was asked about.
        path: its directory.
        state: ``"finished"``, ``"unfinished"`` or ``"diverged"``.
        record: what is stored of it: spec, versions and figures.
        metrics: figures of every epoch.
        spec: its settings as TOML; empty where there is no such file.
    """

    name: str
    path: Path
    state: str
    record: dict[str, Any]
    metrics: list[dict[str, float]]
    spec: str


@dataclass(frozen=True)
class FoundTable:
    """A table of results: a figure of the paper, or a study.

    Attributes:
        name: of the figure, or its place.
        path: its directory.
        rows: what its file has, numbers as numbers; of a figure with ``figure``, and ``cell`` where that is known.
        records: of a figure, by data set: title, command, versions, and whether it was a trial run.
        pictures: files, each in its best form.
    """

    name: str
    path: Path
    rows: list[Row]
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    pictures: list[Path] = field(default_factory=list)

    @property
    def trial(self) -> bool:
        """Whether any of it was made with ``--quick``."""
        return any(record.get("quick") is True for record in self.records.values())


@dataclass(frozen=True)
class Found:
    """All that a directory holds.

    Attributes:
        path: the directory, or the file of a certificate.
        runs: in the order of their names.
        tables: likewise, but the paper's numbered figures first.
        certificates: files.
    """

    path: Path
    runs: list[FoundRun]
    tables: list[FoundTable]
    certificates: list[Path]

    @property
    def kind(self) -> str:
        """What it is, in a word."""
        return "grid" if self.tables or len(self.runs) > 1 else "run" if self.runs else "certificate"


def find(path: Path) -> Found:
    """Find out what a directory holds, itself and all below it.

    The directory of one figure also has the runs beside it that its table is about.

    Raises:
        FileNotFoundError: it does not exist.
        InvalidInput: it holds nothing that a report could be about.
    """
    if not path.exists():
        raise FileNotFoundError(f"there is no directory {path}.")
    if path.is_file():
        return Found(path, [], [], [path])
    runs, tables, certificates = [], [], []
    for folder in _folders(path):
        if any((folder / name).exists() for name in (RECORD, STARTED, DIVERGED)):
            runs.append(read_run(folder, _below(folder, path)))
        if (folder / RESULTS).exists():
            tables.append(_read_table(folder, _below(folder, path)))
        if (folder / CERTIFICATE).exists():
            certificates.append(folder / CERTIFICATE)
    cells = [row["cell"] for table in tables for row in table.rows if "cell" in row]
    if not runs and (beside := path.parent / CELLS).is_dir():
        places = {cell: _cell_folder(beside, cell) for cell in dict.fromkeys(cells)}
        runs = [read_run(folder, cell) for cell, folder in places.items() if folder is not None]
    if not (runs or tables or certificates):
        raise InvalidInput(
            f"{path} holds no run ({RECORD}), no certificate ({CERTIFICATE}) and no results ({RESULTS}). Name a "
            "directory that certibayes train, certify --out or reproduce wrote."
        )
    tables.sort(key=lambda table: not table.name.startswith("fig"))
    return Found(path, runs, tables, certificates)


def _folders(path: Path) -> Iterator[Path]:
    """Walk through directories by name, but for hidden ones: those hold locks, and runs that are being trained."""
    for folder, names, _ in os.walk(path):
        names[:] = sorted(name for name in names if not name.startswith("."))
        yield Path(folder)


def _below(folder: Path, path: Path) -> str:
    place = folder.relative_to(path).as_posix()
    return path.resolve().name if place == "." else place.removeprefix(f"{CELLS}/")


def _cell_folder(cells: Path, name: Any) -> Path | None:
    """Return the directory of a cell; a name that leads elsewhere is none."""
    folder = cells / str(name)
    inside = folder.resolve().is_relative_to(cells.resolve())
    return folder if inside and any((folder / file).exists() for file in (RECORD, STARTED, DIVERGED)) else None


def read_run(folder: Path, name: str = "") -> FoundRun:
    """Read what is stored of a run, whatever state it is in."""
    files = {"unfinished": STARTED, "finished": RECORD, "diverged": DIVERGED}
    state = next((state for state, file in files.items() if (folder / file).exists()), None)
    if state is None:
        raise FileNotFoundError(f"{folder} holds no run: there is no {RECORD} in it.")
    record = _object(folder / files[state])
    if not isinstance(record.get("spec"), dict):
        raise CorruptFile(f"{folder / files[state]} does not hold a run's record.")
    spec = (folder / SPEC).read_text(encoding="utf-8") if (folder / SPEC).exists() else ""
    return FoundRun(name or folder.resolve().name, folder, state, record, _metrics(folder / METRICS), spec)


def _metrics(path: Path) -> list[dict[str, float]]:
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            values = json.loads(line)
        except json.JSONDecodeError:
            # The last line of a run that is being trained.
            continue
        if isinstance(values, dict):
            found.append({str(key): value for key, value in values.items() if _is_number(value)})
    return [values for values in found if math.isfinite(values.get("epoch", math.nan))]


def _read_table(folder: Path, name: str) -> FoundTable:
    records: dict[str, dict[str, Any]] = {}
    cells: dict[tuple[str, ...], str] = {}
    for file in sorted(folder.glob("*.json")):
        record = _object(file)
        if isinstance(record.get("figure"), str) and isinstance(record.get("rows"), list):
            records[file.stem] = {key: value for key, value in record.items() if key != "rows"}
            name = record["figure"]
            cells |= {_axes(row): row["cell"] for row in record["rows"] if isinstance(row, dict) and "cell" in row}
    with (folder / RESULTS).open(newline="", encoding="utf-8") as lines:
        rows = [{str(key): _value(value) for key, value in row.items()} for row in csv.DictReader(lines)]
    if records:
        rows = [{"figure": name, **row} | _cell(cells, row) for row in rows]
    return FoundTable(name, folder, rows, records, _pictures(folder))


def _cell(cells: dict[tuple[str, ...], str], row: Row) -> Row:
    name = cells.get(_axes(row))
    return {} if name is None else {"cell": name}


def _axes(row: Row) -> tuple[str, ...]:
    return tuple(str(row.get(axis, "")) for axis in AXES)


def _pictures(folder: Path) -> list[Path]:
    best: dict[str, Path] = {}
    for ending in reversed(PICTURES):
        best |= {file.stem: file for file in sorted(folder.glob(f"*{ending}"))}
    return [best[stem] for stem in sorted(best)]


def _value(text: Any) -> Any:
    """Read a cell of a table: a number where it is one."""
    if not isinstance(text, str):
        return ""
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise CorruptFile(f"{path} is not valid JSON ({error}).") from error
    return found if isinstance(found, dict) else {}
