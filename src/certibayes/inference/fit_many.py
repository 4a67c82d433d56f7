"""``fit_many``: whole grids of models, those of one architecture as one program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from certibayes.data import Augmentation
from certibayes.errors import CertibayesError, Diverged, InvalidInput
from certibayes.inference._batches import Data, Pair
from certibayes.inference._border import callbacks_of, directory_of, require_progress
from certibayes.inference._group import trained
from certibayes.inference._prepare import Asked, Known, prepare
from certibayes.inference._run import Result, Run
from certibayes.inference.algorithm import Algorithm
from certibayes.inference.loop import Callback, Loop
from certibayes.inference.map import MAP
from certibayes.inference.prior import GaussianPrior
from certibayes.inference.schedule import Schedule
from certibayes.likelihoods import Likelihood
from certibayes.networks import Network
from certibayes.posteriors import Posterior
from certibayes.support.checks import whole_number
from certibayes.support.progress import Report

OWN = (
    "net",
    "train",
    "algorithm",
    "likelihood",
    "prior",
    "epochs",
    "batch_size",
    "seed",
    "temperature",
    "schedule",
    "validation",
    "batch_norm",
    "clip",
    "augment",
    "stochastic",
    "map_lr",
    "callbacks",
)
"""Arguments of ``fit`` that a run may have of its own."""


def fit_many(  # noqa: PLR0913 - public
    net: nn.Module | Network | None,
    train: Data | None,
    runs: Iterable[Mapping[str, Any]],
    *,
    algorithm: Algorithm[Any] | str | None = None,
    likelihood: Likelihood | str | None = None,
    prior: GaussianPrior | None = None,
    epochs: int = 20,
    batch_size: int = 128,
    seed: int = 0,
    temperature: float | str | Sequence[float] | None = None,
    schedule: Schedule | None = None,
    validation: float | Pair | None = None,
    device: str | torch.device | None = None,
    precision: str = "highest",
    batch_norm: str | None = None,
    clip: float | None = None,
    augment: Augmentation | Sequence[Augmentation] | str | None = None,
    stochastic: str | Sequence[str] | None = None,
    map_lr: float = MAP.lr,
    callbacks: Iterable[Callback] = (),
    progress: bool | Report = True,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = 60.0,
    resume: bool = False,
    on_start: Callable[[], None] = lambda: None,
    group_size: int | None = None,
    return_exceptions: bool = False,
) -> list[Posterior]:
    """Infer many posteriors, each the one that ``fit`` would give.

    Every run is a dictionary of arguments of ``fit`` in which it differs from what all have in common:

        nets = [cb.networks.mlp(784, [512], 10, seed=seed) for seed in range(8)]
        posteriors = cb.fit_many(
            None, train, [dict(net=net, seed=seed) for seed, net in enumerate(nets)], algorithm="swag", epochs=20
        )
        posteriors = cb.fit_many(
            net, train, [dict(algorithm=cb.VOGN(lr=lr)) for lr in (0.001, 0.003, 0.01)], likelihood=likelihood
        )

    Runs whose steps are the same program are trained together, as one: a step of all of them takes as many kernels as
    a step of one, which counts on a GPU and, where networks are small, on a CPU. They may differ in the weights they
    start from, in seed, in data of the same size and how they are augmented, in learning rate, schedule, prior and
    temperature, and in radii, their probabilities and their ramp. Runs that differ in anything else make groups of
    their own. HMC, ensembles, partly random networks, algorithms that do not declare themselves ``elementwise`` and
    data from a Dataset or DataLoader are trained one after another.

    Each model has the random numbers that it would have alone, and the posterior agrees with that of ``fit`` up to
    rounding. The same call on the same machine gives the same bits, also after a resume.

    Args:
        net: of every run that has none of its own.
        train: data, of every run that has none of its own.
        runs: for each posterior its own arguments: any of net, train, algorithm, likelihood, prior, epochs, batch_size,
            seed, temperature, schedule, validation, batch_norm, clip,
            augment, stochastic, map_lr, callbacks. ``{}`` takes all from the others.
        algorithm: see ``fit``, as for all that is not explained here.
        likelihood: see ``fit``.
        prior: see ``fit``.
        epochs: see ``fit``.
        batch_size: see ``fit``.
        seed: see ``fit``. A network's initial weights do not depend on it; give each run its own ``net`` for those.
        temperature: see ``fit``; the candidates of all runs that search one are trained together.
        schedule: see ``fit``.
        validation: see ``fit``.
        device: see ``fit``.
        precision: see ``fit``.
        batch_norm: see ``fit``.
        clip: see ``fit``.
        augment: see ``fit``; each model draws its own changes, those that it would have alone.
        stochastic: see ``fit``; such runs are trained one after another.
        map_lr: see ``fit``.
        callbacks: called after each epoch of each model; the record says which, under ``"run"``.
        progress: True for a bar for each group; a function is called with the steps of all groups, and all models of a
            group make a step at once.
        checkpoint: directory for checkpoints, in which every group, and every run that is trained alone, has its own.
        checkpoint_every: see ``fit``.
        resume: go on from the checkpoints in that directory; the call must be the same.
        on_start: see ``fit``.
        group_size: the most models in one program; by default all on a GPU, and on a CPU as many as its caches like.
            Fewer take less memory.
        return_exceptions: what to do about models that diverge, which never affects the others. False: raise
            ``Diverged`` when all runs have ended; its ``posteriors`` are those of the others, with None in the gaps.
            True: return the error in the place of the posterior.

    Returns:
        The posteriors, in the order of the runs.

    Raises:
        InvalidInput: data, labels or settings cannot be used; the message names the run.
        UnsupportedLayer: a network holds a layer without rules.
        RunExists: the checkpoint directory holds other runs, or ``resume`` is false and it holds any.
        Diverged: see ``return_exceptions``.
        Interrupted: Ctrl-C; a checkpoint was written if a directory was given.
    """
    require_progress(progress)
    if group_size is not None:
        group_size = whole_number(group_size, "group_size", smallest=1)
    directory = directory_of(checkpoint, checkpoint_every)
    common = {
        "net": net,
        "train": train,
        "algorithm": algorithm,
        "likelihood": likelihood,
        "prior": prior,
        "epochs": epochs,
        "batch_size": batch_size,
        "seed": seed,
        "temperature": temperature,
        "schedule": schedule,
        "validation": validation,
        "batch_norm": batch_norm,
        "clip": clip,
        "augment": augment,
        "stochastic": stochastic,
        "map_lr": map_lr,
        "callbacks": callbacks,
    }
    fixed = {"device": device, "precision": precision, "checkpoint_every": checkpoint_every}
    known = Known()
    prepared = []
    for number, own in enumerate(_checked(runs)):
        checkpoint = None if directory is None else directory / f"run-{number}"
        prepared.append(_prepared(number, {**common, **own, **fixed, "checkpoint": checkpoint}, known))
    on_start()
    results = [Result(run) for run in prepared]
    errors: dict[int, Exception] = {}
    for number, place, outcome in _outcomes(
        prepared, directory, group_size=group_size, resume=resume, progress=progress
    ):
        try:
            results[number].add(place, outcome)
        except Diverged as error:
            errors[number] = error
    found: list[Any] = []
    for number, result in enumerate(results):
        try:
            found.append(errors[number] if number in errors else result.posterior())
        except Diverged as error:
            found.append(error)
    return found if return_exceptions else _all_finite(found)


def _checked(runs: Any) -> list[Mapping[str, Any]]:
    """Return the runs as a list of dictionaries with known names."""
    if isinstance(runs, (str, Mapping)) or not isinstance(runs, Iterable):
        raise InvalidInput(
            f"runs is a list of dictionaries, each with the arguments of one run: [dict(seed=0), dict(seed=1)]; got "
            f"{runs!r}."
        )
    found = list(runs)
    if not found:
        raise InvalidInput("runs is empty. Give a dictionary for each run, {} for one with all settings in common.")
    for number, own in enumerate(found):
        if not isinstance(own, Mapping):
            raise InvalidInput(f"run {number} is no dictionary of arguments, such as dict(seed=0), but {own!r}.")
        for name in own:
            if name not in OWN:
                raise InvalidInput(
                    f"run {number} has {name!r}, which no run can have of its own. These can differ: {', '.join(OWN)}."
                )
    return found


def _prepared(number: int, settings: dict[str, Any], known: Known) -> Run:
    """Check one run; errors name it."""
    try:
        for name in ("net", "train", "algorithm"):
            if settings[name] is None:
                raise InvalidInput(f"there is no {name}, neither in common nor of its own.")
        callbacks = [partial(_called, callback, number) for callback in callbacks_of(settings["callbacks"])]
        return prepare(Asked(**{**settings, "callbacks": callbacks}), known)
    except CertibayesError as error:
        raise type(error)(f"run {number}: {error}") from error


def _called(callback: Callback, number: int, record: dict[str, float]) -> None:
    callback({**record, "run": float(number)})


def _outcomes(
    runs: Sequence[Run], directory: Path | None, **settings: Any
) -> Iterator[tuple[int, int, Loop | Diverged]]:
    """Train the loops of all runs; yield run, place among the run's loops, and what became of it."""
    owners, loops = [], []
    for number, run in enumerate(runs):
        own = run.loops()
        owners += [(number, place) for place in range(len(own))]
        loops += own
    for index, outcome in trained(loops, directory, **settings):
        yield *owners[index], outcome


def _all_finite(found: list[Any]) -> list[Posterior]:
    """Return the posteriors, or raise if there are errors among them."""
    diverged = [number for number, result in enumerate(found) if isinstance(result, Diverged)]
    if not diverged:
        return found
    error = Diverged(
        f"{len(diverged)} of {len(found)} runs diverged: {', '.join(map(str, diverged))}. The first: "
        f"{found[diverged[0]]} The others are in the attribute posteriors of this error; return_exceptions=True "
        "returns them, with errors in the places of those that diverged."
    )
    error.posteriors = tuple(None if isinstance(result, Diverged) else result for result in found)
    raise error
