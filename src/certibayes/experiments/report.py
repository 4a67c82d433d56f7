"""A page about any run, certificate or grid: one file of HTML, with tables that can be sorted and filtered."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from certibayes.errors import InvalidInput
from certibayes.experiments._certificate_views import certificate_view, known_sets
from certibayes.experiments._found import Found, FoundRun, FoundTable, find
from certibayes.experiments._paper_claims import (
    AGREES,
    GROUPED,
    TRIAL,
    UNKNOWN,
    Compared,
    PaperClaim,
    compare,
    grouped,
    mean_of,
    read_claims,
    stated,
)
from certibayes.experiments._training_curves import curves_of
from certibayes.experiments._views import (
    GENERATOR,
    Cell,
    Column,
    Table,
    figure_in_words,
    flattened,
    number_cell,
    page_of,
    picture_source,
    without_digests,
)
from certibayes.experiments.figure_spec import AXES
from certibayes.experiments.paper import CELLS
from certibayes.support.files import write_atomically
from certibayes.support.templates import require_jinja

REPORT = "report.html"

MEASURES = (
    "accuracy", "pgd", "ibp", "lbp", "elided", "best", "radius", "in_expected_entropy", "out_expected_entropy",
    "adversarial_expected_entropy", "in_max_probability", "likelihood_ratio", "auroc", "rmse", "width", "certified",
    "mutual_information", "nll",
)  # fmt: skip
"""Columns of a figure's table that are set beside the paper's."""

NOT_STATED = "not stated"
NOT_FIGURES = ("spec", "versions", "diverged")


def write_report(
    path: Path, out: Path | None = None, *, dataset: str | None = None, data_dir: str | Path | None = None
) -> Path:
    """Write a page about all that a directory holds, and return where it is.

    Args:
        path: a run, a certificate or a grid, in a directory; or the file of a certificate.
        out: the page; by default ``report.html`` in the directory.
        dataset: data set whose first test points certificates are about; by default those of the runs that are there,
            or of the package, are tried. Only points with the certificate's digest are shown.
        data_dir: where data sets lie.

    Raises:
        FileNotFoundError: there is no such directory.
        InvalidInput: there is nothing in it to report, or another page is in the way.
        CorruptFile: what is there cannot be read.
    """
    require_jinja()
    target = out or (path if path.is_dir() else path.parent) / REPORT
    if out is None and target.exists() and GENERATOR not in target.read_text(encoding="utf-8", errors="replace")[:1000]:
        raise InvalidInput(f"{target} is another page. Choose where this one goes (--out).")
    page = page_of("report.html.j2", report_values(find(path), dataset, data_dir))
    write_atomically(target, page.encode())
    return target


def report_values(found: Found, dataset: str | None = None, data_dir: str | Path | None = None) -> dict[str, Any]:
    """Return everything that the page says, before it is laid out."""
    claims = read_claims()
    figures = [table for table in found.tables if table.records]
    trial = any(table.trial for table in figures)
    compared = compare([row for table in figures for row in table.rows], claims, trial)
    anchors = {run.name: f"run-{number}" for number, run in enumerate(found.runs)}
    names = [run.record["spec"].get("dataset") for run in found.runs]
    sets = known_sets(dataset, names, data_dir) if found.certificates else []
    return {
        "title": f"Report: {found.path.resolve().name}",
        "summary": _summary(found),
        "trial": trial,
        "claims": _claims_table(compared) if compared else None,
        "figures": [_figure(table, claims, anchors, number) for number, table in enumerate(found.tables)],
        "runs": [_run(run, anchors[run.name]) for run in found.runs],
        "index": _index(found.runs, anchors),
        "certificates": [
            certificate_view(file, found.path, sets, alone=found.kind == "certificate") for file in found.certificates
        ],
    }


def _summary(found: Found) -> str:
    states = [run.state for run in found.runs]
    parts = [f"{len(states)} run{'s' * (len(states) != 1)}"] if states else []
    parts += [f"{states.count(state)} of them {state}" for state in ("unfinished", "diverged") if state in states]
    for items, name in ((found.tables, "table"), (found.certificates, "certificate")):
        parts += [f"{len(items)} {name}{'s' * (len(items) != 1)}"] if items else []
    return f"A {found.kind}: {', '.join(parts)}."


def _claims_table(compared: Sequence[Compared]) -> Table:
    columns = [
        Column("the paper says"), Column("of"), Column("paper", number=True), Column("ours", number=True),
        Column("verdict", choice=True), Column("reason"), Column("figure", choice=True),
        Column("data set", choice=True), Column("recipe", choice=True), Column("where"),
    ]  # fmt: skip
    rows = []
    for found in compared:
        claim, axes = found.claim, found.axes
        of = ", ".join(axes[axis] for axis in ("method", "likelihood", "variation", "network") if axes[axis])
        against = ", ".join(value for value in claim.against.values() if value) or claim.against_measure
        rows.append(
            [
                Cell(f"“{claim.says}”", tone="wide"),
                Cell(f"{claim.measure} of {of}" + (f" against {against}" if against else ""), tone="medium"),
                Cell(paper_in_words(claim), claim.value, tone="number"),
                Cell(ours_in_words(claim, found.ours), found.ours, tone="number"),
                _verdict(found.verdict), Cell(found.reason, tone="wide"),
                Cell(axes["figure"]), Cell(axes["dataset"]), Cell(axes["recipe"]), Cell(claim.where, tone="wide"),
            ]
        )  # fmt: skip
    return Table("The paper's claims", columns, rows)


def _verdict(verdict: str) -> Cell:
    return Cell(verdict, tone="proved" if verdict == AGREES else "broken")


def ours_in_words(claim: PaperClaim, value: float) -> str:
    """Write a figure of ours as the claim is about it: as a percentage, points of difference, or a ratio."""
    if claim.how == "ratio":
        return f"{value:.2f}×"
    if claim.how == "difference":
        percent = figure_in_words(abs(value), claim.measure)
        return f"{'−' if value < 0 else '+'}{percent.replace('%', ' points')}"
    return figure_in_words(value, claim.measure)


def paper_in_words(claim: PaperClaim) -> str:
    """Write what the paper states, with the margin within which ours agrees."""
    if claim.is_ != "about":
        return f"{'>' if claim.is_ == 'above' else '<'} {figure_in_words(claim.value, claim.measure)}"
    margin = figure_in_words(claim.within, "" if claim.how == "ratio" else claim.measure)
    return f"{ours_in_words(claim, claim.value)} (± {margin.removesuffix('%')})"


def _figure(table: FoundTable, claims: Sequence[PaperClaim], anchors: Mapping[str, str], number: int) -> dict[str, Any]:
    titles = [str(record.get("title", "")) for record in table.records.values()]
    commands = [str(record.get("command") or "") for record in table.records.values()]
    return {
        "anchor": f"figure-{number}",
        "name": table.name,
        "title": f"{table.name}: {titles[0]}" if titles and titles[0] else table.name,
        "pictures": [{"name": file.stem, "source": picture_source(file)} for file in table.pictures],
        "compared": _compared_table(table, claims) if table.records else None,
        "rows_title": "Every posterior" if table.records else "Results",
        "rows": _rows_table(table, anchors),
        "commands": list(dict.fromkeys(command for command in commands if command)),
    }


def _compared_table(table: FoundTable, claims: Sequence[PaperClaim]) -> Table:
    """Every figure of the table beside what the paper states of it, a row each."""
    groups = grouped(table.rows)
    axes = [axis for axis in GROUPED[1:] if axis == "method" or len({key[GROUPED.index(axis)] for key in groups}) > 1]
    columns = [
        *(Column(axis, choice=True) for axis in axes), Column("figure", choice=True), Column("ours", number=True),
        Column("seeds", number=True), Column("paper", number=True), Column("difference", number=True),
        Column("verdict", choice=True), Column("reason"),
    ]  # fmt: skip
    rows = []
    for key, own in groups.items():
        named = [Cell(key[GROUPED.index(axis)]) for axis in axes]
        for measure in MEASURES:
            mean = mean_of(own, measure)
            if mean is None:
                continue
            ours = [Cell(measure), number_cell(mean.value, measure, mean.std), number_cell(mean.seeds)]
            rows.append([*named, *ours, *_beside(stated(claims, key, measure), mean.value, table.trial)])
    return Table(f"{table.name}, ours and the paper's", columns, rows)


def _beside(claim: PaperClaim | None, ours: float, trial: bool) -> list[Cell]:
    if claim is None:
        return [Cell(NOT_STATED, tone="faint"), Cell(""), Cell(NOT_STATED, tone="faint"), Cell("")]
    verdict = claim.decide(ours)
    reason = "" if verdict == AGREES else TRIAL if trial else claim.reason or UNKNOWN
    gap = ours - claim.value
    words = f"{'−' if gap < 0 else '+'}{figure_in_words(abs(gap), claim.measure)}"
    paper = Cell(paper_in_words(claim), claim.value, tone="number")
    return [paper, Cell(words, gap, tone="number"), _verdict(verdict), Cell(reason, tone="wide")]


def _rows_table(table: FoundTable, anchors: Mapping[str, str]) -> Table:
    """The table as its file has it, each posterior with a link to its run."""
    hidden = ("figure", "cell")
    names = [name for name in dict.fromkeys(name for row in table.rows for name in row) if name not in hidden]
    names = [name for name in names if any(row.get(name, "") != "" for row in table.rows)]
    numeric = {name for name in names if all(not isinstance(row.get(name), str) or not row[name] for row in table.rows)}
    linked = any(row.get("cell") in anchors for row in table.rows)
    columns = [Column(name, name in AXES, name in numeric and name not in AXES) for name in names]
    rows = []
    for row in table.rows:
        link = [Cell("run", href=anchors.get(str(row.get("cell")), ""))] if linked else []
        rows.append([*link, *(number_cell(row.get(name, ""), name if table.records else "") for name in names)])
    return Table(table.name, [*([Column("")] if linked else []), *columns], rows)


def _index(runs: Sequence[FoundRun], anchors: Mapping[str, str]) -> Table:
    """All runs in a line each."""
    settings = ("dataset", "architecture", "algorithm", "likelihood", "eps", "temperature", "epochs", "seed")
    columns = [Column("run"), Column("state", choice=True), *(Column(name, choice=True) for name in settings)]
    rows = [
        [Cell(run.name, href=anchors[run.name], tone="long"), Cell(run.state)]
        + [number_cell(run.record["spec"].get(name, "")) for name in settings]
        for run in runs
    ]
    return Table("Runs", columns, rows)


def _run(run: FoundRun, anchor: str) -> dict[str, Any]:
    spec = run.record["spec"]
    words = [str(spec[name]) for name in ("dataset", "algorithm", "likelihood") if spec.get(name)]
    names = without_digests(run.record)
    figures = [
        {"name": names[name], "rows": [(key, _plain(key, value)) for key, value in flattened(values).items()]}
        for name, values in run.record.items()
        if name not in NOT_FIGURES and isinstance(values, Mapping)
    ]
    versions = run.record.get("versions")
    pairs = versions.items() if isinstance(versions, Mapping) else ()
    return {
        "anchor": anchor,
        "name": run.name,
        "summary": ", ".join([*words, run.state]),
        "diverged": str(run.record.get("diverged", "")),
        "figures": figures,
        "curves": curves_of(run.metrics),
        "command": repeat_command(run),
        "note": "In a figure it may have been trained together with others, which changes the last digits; "
        "the figure's own command repeats it to the bit." if CELLS in run.path.resolve().parts else "",
        "spec": run.spec or "\n".join(f"{key} = {value!r}" for key, value in spec.items()),
        "versions": ", ".join(f"{name} {version}" for name, version in pairs),
    }  # fmt: skip


def repeat_command(run: FoundRun) -> str:
    """Return the command that trains the same again elsewhere, or goes on with a run that was stopped."""
    place = shlex.quote(str(run.path))
    if run.state == "unfinished":
        return f"certibayes train --out {place} --resume"
    if not run.spec:
        return f"certibayes info {place}"
    return f"certibayes train --config {shlex.quote(str(run.path / 'spec.toml'))} --out OTHER"


def _plain(name: str, value: Any) -> str:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return figure_in_words(value, name) if number else str(value)
