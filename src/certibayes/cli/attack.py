"""certibayes attack."""

from __future__ import annotations

from typing import Annotated

import typer

from certibayes.attack import attack
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
from certibayes.cli.terminal import check_bar, console, notes, print_json, told_plainly


def attack_command(
    run: RunArgument,
    dataset: DatasetOption = None,
    eps: EpsOption = 0.1,
    method: Annotated[str, typer.Option(help="The attack: pgd.")] = "pgd",
    steps: Annotated[int, typer.Option(help="Iterations a restart.")] = 40,
    restarts: Annotated[int, typer.Option(help="Starts; the first is the point itself, the others are random.")] = 4,
    samples: SamplesOption = None,
    seed: SeedOption = 0,
    limit: LimitOption = None,
    data_dir: DataDir = None,
    device: DeviceOption = None,
    at_least: AtLeast = None,
    as_json: JsonOption = False,
) -> None:
    """Attack the predictor: how many test points are still classified correctly?

    An attack gives an upper bound on robustness and proves nothing; `certibayes certify` gives the lower bound.

    Example: certibayes attack runs/a --eps 0.1 --limit 500
    """
    with told_plainly():
        case = open_run(run, dataset, data_dir, samples, seed, limit, device)
        with notes.status(f"attacking {len(case.x)} points"):
            result = attack(
                case.predictor, case.x, case.y, eps=eps, method=method, domain=case.domain, steps=steps,
                restarts=restarts, seed=seed,
            )  # fmt: skip
        accuracy = float((case.predictor.predict(case.x) == case.y).double().mean())
        record = {
            "n": len(case.x), "accuracy": accuracy, "standing": result.standing, "eps": eps, "method": method,
            "steps": steps, "restarts": restarts, "samples": case.predictor.size, "dataset": case.dataset,
            "digest": case.predictor.digest,
        }  # fmt: skip
        if as_json:
            print_json(record)
        else:
            console.print(
                f"[bold]{100 * result.standing:.2f}%[/bold] of {len(case.x)} points still stand at eps {eps:g} "
                f"({method}, {steps} steps, {restarts} restarts); accuracy {100 * accuracy:.2f}%",
                highlight=False,
            )
        check_bar(result.standing, at_least, "fraction standing")
