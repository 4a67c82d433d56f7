"""certibayes info."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from certibayes import data
from certibayes.bounds import registered
from certibayes.cli.options import DataDir, JsonOption, run_directory
from certibayes.cli.terminal import console, error_handler, print_json, strict
from certibayes.errors import CertibayesError, InvalidInput
from certibayes.evaluation import diagnose, elbo
from certibayes.experiments import ALGORITHMS, LIKELIHOODS, TrainSpec, load_run
from certibayes.experiments.own_data import own_data
from certibayes.experiments.run import read_record
from certibayes.inference import held_out
from certibayes.networks import BY_NAME
from certibayes.posteriors import GaussianMixture, Posterior, versions

POINTS = 200
"""Test inputs whose predictions are followed along Markov chains."""

DIGEST = 16
"""Characters of a SHA-256 that are shown."""


def info_command(
    run: Annotated[
        Path | None,
        typer.Argument(help="A run to describe, or zoo:NAME; without it, the installation.", parser=run_directory),
    ] = None,
    evidence: Annotated[
        bool,
        typer.Option(
            "--evidence",
            help="Also the ELBO per training example, under the run's own likelihood and the standard one.",
        ),
    ] = False,
    data_dir: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Describe a stored run, or this installation and what it knows.

    For a run of Markov chains it also says how well they have mixed, by their predictions of test inputs.

    Example: certibayes info runs/a --evidence
    """
    with error_handler():
        if evidence and run is None:
            raise InvalidInput("--evidence is that of a run: certibayes info RUN --evidence.")
        record = _installation() if run is None else _run(run, data_dir)
        if evidence and run is not None:
            record["evidence"] = _evidence(run, data_dir)
        diagnostics = record.pop("diagnostics", None)
        if as_json:
            print_json(record if diagnostics is None else {**record, "diagnostics": strict(diagnostics)})
            return
        sampler = record.pop("sampler", None)
        console.print(_pairs(record))
        if sampler is not None:
            console.print(_sampler_table(sampler))
        if diagnostics is not None:
            _print_diagnostics(diagnostics)


def _installation() -> dict[str, Any]:
    return {
        **versions(),
        "cuda": torch.cuda.is_available(),
        "algorithms": list(ALGORITHMS),
        "likelihoods": list(LIKELIHOODS),
        "architectures": list(BY_NAME),
        "layers": [kind.__name__ for kind in registered()],
        "data": [name for name in data.names() if data.is_available(name)],
    }


def _run(run: Path, data_dir: Path | None) -> dict[str, Any]:
    posterior = load_run(run)
    drawn = posterior.sample(1, torch.Generator().manual_seed(0))
    record = {
        "posterior": type(posterior).__name__,
        "parameters": sum(drawn[name].numel() for name in posterior.graph.parameters),
        "network": " → ".join(type(node.operation).__name__ for node in posterior.graph.nodes),
        **({"weights": posterior.weights.tolist()} if isinstance(posterior, GaussianMixture) else {}),
        **_trained(posterior.metadata),
        **({"prior variances": posterior.prior_in_words} if posterior.prior_variances else {}),
    }
    if "chains" in posterior.metadata:
        record["diagnostics"] = _diagnostics(posterior, data_dir)
    return record


def _evidence(run: Path, data_dir: Path | None) -> dict[str, Any]:
    """Return the ELBO under both likelihoods, of the data that the run was trained on."""
    record = read_record(run)
    spec = TrainSpec.from_json(record["spec"])
    train: Any = spec.load_data(data_dir).train
    if spec.validation:
        train = held_out(train, spec.validation, spec.seed)[0]
    posterior = load_run(run)
    names = {"own likelihood": None} if spec.likelihood == "standard" else {
        "own likelihood": None, "standard likelihood": "standard"
    }  # fmt: skip
    found = {name: elbo(posterior, train, likelihood=likelihood) for name, likelihood in names.items()}
    own = found["own likelihood"]
    shown = ("elbo", "standard_error", "log_likelihood", "kl")
    return {
        **{name: {key: getattr(bound, key) for key in shown} for name, bound in found.items()},
        "examples": own.examples,
        "random weights": own.weights,
        "learned variances": own.learned_variances,
    }


def _trained(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return what is known of a training, its last epoch alone; and of each, where posteriors were joined."""
    known = {key: value for key, value in metadata.items() if key not in ("history", "joined")}
    if "joined" in metadata:
        return {**known, "joined": [_trained(own) for own in metadata["joined"]]}
    return {**known, "final epoch": (metadata.get("history") or [{}])[-1]}


def _diagnostics(posterior: Posterior, data_dir: Path | None) -> dict[str, Any]:
    """Return the figures, or why there are none: what is known about the run is worth showing without them."""
    try:
        name = posterior.metadata.get("dataset")
        if name is None:
            raise InvalidInput("the run does not say which data it was trained on; call certibayes.diagnose instead.")
        inputs = own_data(posterior, data_dir).test.inputs[:POINTS]
        return {"dataset": name, "points": len(inputs), **diagnose(posterior, inputs).summary()}
    except (CertibayesError, OSError) as error:
        return {"missing": str(error)}


def _pairs(record: dict[str, Any]) -> Table:
    """Show a record key by key; the settings of an object are indented under its name."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    _add_pairs(table, record, 0)
    return table


def _add_pairs(table: Table, record: dict[str, Any], depth: int) -> None:
    for key, value in record.items():
        title = Text("  " * depth + key, "" if depth else "bold")
        if key == "joined":
            value = {str(number): {"name": own.pop("posterior", ""), **own} for number, own in enumerate(value)}
        if not isinstance(value, dict):
            table.add_row(title, Text(_plain(value)))
            continue
        table.add_row(title, Text(_plain(value.get("name", ""))))
        _add_pairs(table, {name: item for name, item in value.items() if name != "name"}, depth + 1)


def _plain(value: Any) -> str:
    """Write a value for people; all digits and whole digests are in the JSON."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_plain, value))
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return f"{text[:DIGEST]}…" if re.fullmatch(r"[0-9a-f]{64}", text) else text


def _sampler_table(sampler: dict[str, Any]) -> Table:
    table = Table(show_header=False, title="sampler")
    for key, value in sampler.items():
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        alarming = key == "divergences" and value > 0
        table.add_row(f"[bold]{escape(key.replace('_', ' '))}[/bold]", Text(text, "bold red" if alarming else ""))
    return table


def _print_diagnostics(figures: dict[str, Any]) -> None:
    if "missing" in figures:
        # As text, not markup: a path may hold brackets.
        console.print(Text(f"diagnostics: {figures['missing']}", "yellow"), soft_wrap=True)
        return
    chains, draws = (_counted(figures[key], key.removesuffix("s")) for key in ("chains", "draws"))
    table = Table(title=f"{chains}, {draws} each; {figures['points']} test inputs of {escape(figures['dataset'])}")
    table.add_column()
    for heading in ("R-hat median", "95%", "max", "ESS min", "median", "stuck"):
        table.add_column(heading, justify="right")
    for name in ("predictions", "weights"):
        row = figures[name]
        rhats = [_number(row[key], ".3f") for key in ("rhat_median", "rhat_95", "rhat_max")]
        ess = [_number(row[key], ",.0f") for key in ("ess_min", "ess_median")]
        stuck = Text(f"{row['stuck']:,} of {row['count']:,}", "bold red" if row["stuck"] else "")
        table.add_row(name, *rhats, *ess, stuck)
    console.print(table)
    console.print(Text(figures["verdict"], "green" if figures["passed"] else "yellow"))


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def _number(value: float | None, spec: str) -> str:
    return "unknown" if value is None else "∞" if math.isinf(value) else format(value, spec)
