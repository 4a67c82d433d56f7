"""certibayes train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from certibayes.cli.options import DataDir, DeviceOption, JsonOption, config_file
from certibayes.cli.terminal import console, error_handler, print_json
from certibayes.cli.train_options import hyperparameter_options, spec_options, with_options
from certibayes.data import names_file
from certibayes.errors import InvalidInput
from certibayes.experiments import TrainSpec, add_figures, started_spec, train
from certibayes.experiments.config import TABLE, assemble, read_config, require_agreement
from certibayes.experiments.presets import PRESETS
from certibayes.posteriors import Posterior

_SPEC, _HYPERPARAMETERS = spec_options(), hyperparameter_options()


@with_options(_SPEC + _HYPERPARAMETERS)
def train_command(
    out: Annotated[Path, typer.Option("--out", help="Directory of the run.")],
    file: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="FILE",
            help="Instead of --dataset, a file of your own: .csv, .npz or .pt (see `certibayes data`).",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            help="TOML file with settings, or zoo:NAME for those of an entry; flags win over it.",
            parser=config_file,
            metavar="FILE",
        ),
    ] = None,
    preset: Annotated[
        str | None, typer.Option("--preset", help="Settings to start from; the file and flags win over them.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the unfinished run in OUT, with the settings it was started with."),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the finished run in OUT.")] = False,
    checkpoint_every: Annotated[float, typer.Option(help="Seconds between checkpoints.")] = 30.0,
    device: DeviceOption = None,
    data_dir: DataDir = None,
    as_json: JsonOption = False,
    **given: Any,
) -> None:
    """Infer a posterior and store it in OUT."""
    with error_handler():
        if resume and overwrite:
            raise InvalidInput("--resume goes on with the run in OUT, and --overwrite replaces it; pass one of them.")
        flags = {p.name: given[p.name] for p in _SPEC if given[p.name] is not None}
        flags[TABLE] = {p.name: given[p.name] for p in _HYPERPARAMETERS if given[p.name] is not None}
        if file is not None:
            if "dataset" in flags:
                raise InvalidInput(f"--dataset {flags['dataset']} and --data {file} are two sets of data; pass one.")
            if not names_file(str(file)):
                raise InvalidInput(f"{file} is no known file of data: its name must end in .csv, .npz or .pt.")
            flags["dataset"] = str(file)
        if preset is not None:
            flags["preset"] = preset
        values = None if config is None else read_config(config)
        # A resumed run keeps the settings it was started with; train() raises if there is nothing to resume.
        spec = started_spec(out) if resume else None
        if spec is None:
            spec = assemble(flags, values)
        else:
            require_agreement(spec, flags, values, out)
        posterior = train(
            spec, out, data_dir=data_dir, device=device, resume=resume, overwrite=overwrite, progress=not as_json,
            checkpoint_every=checkpoint_every,
        )  # fmt: skip
        history = posterior.metadata["history"]
        final = history[-1] if history else {}
        add_figures(out, "training", final)
        if as_json:
            chosen = {"temperature": posterior.metadata["temperature"], **_chosen(posterior)}
            print_json({"out": str(out), "spec": spec.resolved().to_json(), **chosen, **final})
            return
        _print_curve(posterior)
        _print_temperature(spec, posterior)
        loss = f", final loss {final['loss']:.4f}" if final else ""
        console.print(f"posterior in [bold]{escape(str(out))}[/bold]{loss}", highlight=False)
        console.print(f"next: certibayes certify {escape(str(out))}{_eps(spec)}", highlight=False)


def _eps(spec: TrainSpec) -> str:
    """The flag that a run without a radius of its own needs to be certified."""
    return f" --eps {spec.eps:g}" if spec.trained_radius is None else ""


def _chosen(posterior: Posterior) -> dict[str, Any]:
    """Return the temperature that was chosen and the figures behind the choice, where there was one."""
    keys = ("temperature", "temperature_curve")
    return {key: posterior.metadata[key] for key in keys} if "temperature_curve" in posterior.metadata else {}


def _print_temperature(spec: TrainSpec, posterior: Posterior) -> None:
    """Say why the temperature is not 1, where that is the algorithm's default and not someone's choice."""
    temperature = posterior.metadata["temperature"]
    if "temperature_curve" in posterior.metadata or temperature == 1.0 or temperature != spec.default_temperature():
        return
    console.print(
        f"temperature [bold]{temperature:g}[/bold], the default of {spec.algorithm} under a likelihood of bounds: "
        "at 1, Bayes' rule, its weights vary too much for anything to be proved (--temperature 1 to have it so)",
        highlight=False,
        soft_wrap=True,
    )


def _print_curve(posterior: Posterior) -> None:
    """Show how the temperature was chosen, where it was."""
    chosen = _chosen(posterior)
    if not chosen:
        return
    curve = chosen["temperature_curve"]
    table = Table(title="temperatures on held-out training data", title_style="bold")
    # A temperature at which training diverged has other figures than the rest.
    names = list(dict.fromkeys(name for row in curve for name in row))
    for name in names:
        table.add_column(name.replace("_", " "), justify="right")
    for row in curve:
        best = row["temperature"] == chosen["temperature"]
        table.add_row(*(f"{row[n]:.4g}" if n in row else "" for n in names), style="bold green" if best else None)
    console.print(table)
    console.print(f"chosen temperature [bold]{chosen['temperature']:g}[/bold]", highlight=False)


train_command.__doc__ = "\n\n".join(
    (
        "Infer a posterior and store it in OUT, with all settings in OUT/spec.toml.",
        "Settings come from flags, from a TOML file (--config) with the same names and a table \\[settings] for the "
        "algorithm's hyperparameters, from a preset, and from defaults, in this order of rank.",
        "Ctrl-C keeps a checkpoint; `certibayes train --out OUT --resume` goes on with the settings the run was "
        "started with, and ends with the same bits as a run that was never interrupted.",
        "Example: certibayes train --dataset digits --algorithm swag --likelihood ibp --eps 0.1 --out runs/a",
        *(f"Preset {name} ({', '.join(preset.algorithms)}): {preset.description}." for name, preset in PRESETS.items()),
    )
)
