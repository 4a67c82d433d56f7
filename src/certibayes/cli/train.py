"""certibayes train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from certibayes.cli.options import DataDir, DeviceOption, JsonOption
from certibayes.cli.terminal import console, print_json, told_plainly
from certibayes.experiments import TrainSpec, add_figures, started_spec, train

DEFAULT = TrainSpec()


def train_command(
    out: Annotated[Path, typer.Option("--out", help="Directory of the run.")],
    dataset: Annotated[str, typer.Option(help="Data set; `certibayes data` lists them.")] = DEFAULT.dataset,
    architecture: Annotated[
        str, typer.Option(help="mlp, cnn-small, cnn-medium, paper-cifar or paper-cifar-supplement.")
    ] = DEFAULT.architecture,
    hidden: Annotated[str, typer.Option(help="Hidden widths of the mlp, such as 512 or 256,128.")] = "512",
    algorithm: Annotated[
        str, typer.Option(help="Inference: vogn, noisy-adam, bbb, ivon, swag or map.")
    ] = DEFAULT.algorithm,
    likelihood: Annotated[
        str, typer.Option(help="standard, ibp (certifiable) or pgd (adversarial training).")
    ] = DEFAULT.likelihood,
    eps: Annotated[float, typer.Option(help="Radius you want to certify; training uses 1.1 times that.")] = DEFAULT.eps,
    lam: Annotated[float, typer.Option(help="Weight of the clean term in the robust likelihood.")] = DEFAULT.lam,
    margins: Annotated[bool, typer.Option(help="Bound class margins instead of a box of logits.")] = False,
    ramp: Annotated[float, typer.Option(help="Fraction of training over which the radius grows.")] = DEFAULT.ramp,
    noise_std: Annotated[float, typer.Option(help="Observation noise, for regression.")] = DEFAULT.noise_std,
    lr: Annotated[float | None, typer.Option(help="Learning rate; the algorithm's own by default.")] = None,
    prior_inflation: Annotated[
        float, typer.Option(help="Prior variance is this over fan_in.")
    ] = DEFAULT.prior_inflation,
    temperature: Annotated[
        float, typer.Option(help="1 is Bayes' rule; colder is narrower and easier to certify.")
    ] = DEFAULT.temperature,
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = DEFAULT.epochs,
    batch_size: Annotated[int, typer.Option(help="Examples a step.")] = DEFAULT.batch_size,
    schedule: Annotated[str, typer.Option(help="Learning rate: constant, cosine or exponential.")] = DEFAULT.schedule,
    warmup: Annotated[
        float, typer.Option(help="Fraction of training over which the learning rate rises.")
    ] = DEFAULT.warmup,
    validation: Annotated[
        float, typer.Option(help="Fraction of the training data to hold out and report on; 0 for none.")
    ] = DEFAULT.validation,
    seed: Annotated[int, typer.Option(help="Seed of network, data order and inference.")] = DEFAULT.seed,
    device: DeviceOption = None,
    data_dir: DataDir = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the unfinished run in OUT; other options are not looked at.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the finished run in OUT.")] = False,
    checkpoint_every: Annotated[float, typer.Option(help="Seconds between checkpoints.")] = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Infer a posterior and store it in OUT.

    Ctrl-C keeps a checkpoint; `certibayes train --out OUT --resume` goes on with the settings the run was
    started with, and ends with the same bits as a run that was never interrupted.

    Example: certibayes train --dataset digits --likelihood ibp --eps 0.1 --temperature 0.001 --epochs 40 --out runs/a
    """
    with told_plainly():
        # A resumed run keeps the settings it was started with; train() raises if there is nothing to resume.
        spec = started_spec(out) if resume else None
        if spec is None:
            spec = TrainSpec(
                dataset=dataset, architecture=architecture, hidden=_widths(hidden), algorithm=algorithm,
                likelihood=likelihood, eps=eps, lam=lam, margins=margins, ramp=ramp, noise_std=noise_std, lr=lr,
                prior_inflation=prior_inflation, temperature=temperature, epochs=epochs, batch_size=batch_size,
                schedule=schedule, warmup=warmup, validation=validation, seed=seed,
            )  # fmt: skip
        posterior = train(
            spec, out, data_dir=data_dir, device=device, resume=resume, overwrite=overwrite, progress=not as_json,
            checkpoint_every=checkpoint_every,
        )  # fmt: skip
        final = posterior.metadata["history"][-1]
        add_figures(out, "training", final)
        if as_json:
            print_json({"out": str(out), "spec": spec.to_json(), **final})
        else:
            console.print(
                f"posterior in [bold]{escape(str(out))}[/bold], final loss {final['loss']:.4f}", highlight=False
            )
            if posterior.task == "classification":
                console.print(f"next: certibayes certify {escape(str(out))} --eps {spec.eps:g}", highlight=False)


def _widths(text: str) -> tuple[int, ...]:
    try:
        widths = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        widths = ()
    if not widths or min(widths) < 1:
        raise typer.BadParameter(f"--hidden takes widths such as 512 or 256,128; got {text!r}.")
    return widths
