"""What a command is about: a stored run or networks trained elsewhere, test data and a radius."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import typer
from torch import Tensor

from certibayes import data
from certibayes.cli.terminal import notes
from certibayes.errors import InvalidInput
from certibayes.experiments import TrainSpec, load_run, trained_radius, training_data
from certibayes.experiments.factory import FORM
from certibayes.posteriors import Posterior, Samples
from certibayes.prediction import Predictor
from certibayes.regions import Domain, domain_to_json, require_norm


class ModuleFiles(NamedTuple):
    """Networks that were trained elsewhere.

    Attributes:
        files: of their weights.
        architecture: what makes the network that they are weights of.
    """

    files: tuple[Path, ...]
    architecture: str

    @property
    def name(self) -> str:
        """As a directory has one."""
        return self.architecture.rpartition(":")[2]

    def __str__(self) -> str:
        return f"{self.architecture} with the weights of {', '.join(map(str, self.files))}"


class OpenedRun(NamedTuple):
    """A predictor and the points to evaluate it on.

    Attributes:
        run: its directory, or the files that it is made of.
        posterior: what was stored.
        predictor: drawn from it.
        x: test inputs.
        y: their targets.
        domain: of the inputs.
        dataset: where the inputs are from.
        own_radius: the radius that the run was trained for, in l-infinity; None if it was not.
    """

    run: Path | ModuleFiles
    posterior: Posterior
    predictor: Predictor
    x: Tensor
    y: Tensor
    domain: Domain
    dataset: str
    own_radius: float | None


class Radius(NamedTuple):
    """A radius, and whether it is the one that the run was trained for because no other was asked for."""

    eps: float
    own: bool

    @property
    def words(self) -> str:
        """As in the output of a command."""
        return f"eps {self.eps:g}" + (", the run's own" if self.own else "")

    @property
    def source(self) -> str:
        """As in JSON."""
        return "run" if self.own else "option"


def source_of(run: Path | None, modules: list[Path] | None, architecture: str | None) -> Path | ModuleFiles:
    """Return what a command is to open: a run, or modules of an architecture."""
    if modules:
        if run is not None:
            raise typer.BadParameter(f"{run} and --modules are two different predictors; pass one of them.")
        if architecture is None:
            raise typer.BadParameter(
                f"files of weights do not say which network they are for: pass --architecture {FORM}."
            )
        return ModuleFiles(tuple(modules), architecture)
    if architecture is not None:
        raise typer.BadParameter("--architecture is for the weights of --modules; a run knows its own network.")
    if run is None:
        raise typer.BadParameter(f"pass the directory of a run; or --modules FILE... --architecture {FORM}.")
    return run


def open_run(
    run: Path | ModuleFiles,
    dataset: str | None,
    data_dir: Path | None,
    samples: int | None,
    seed: int,
    limit: int | None,
    device: str | None,
) -> OpenedRun:
    """Load a run, draw its predictor and load the test data.

    A posterior that holds fewer samples than were asked for gives all it holds, which is noted on standard error.
    """
    posterior = load_run(run) if isinstance(run, Path) else None
    name = dataset or (None if posterior is None else posterior.metadata.get("dataset"))
    if name is None:
        raise InvalidInput(f"nothing says which data {run} was trained on; pass --dataset NAME.")
    loaded = data.load(name, data_dir)
    if isinstance(run, ModuleFiles):
        posterior = _from_modules(run, loaded)
    assert posterior is not None
    if limit is not None and limit < 1:
        raise InvalidInput(f"--limit must be at least 1, got {limit}.")
    if samples is not None and posterior.held is not None and samples > posterior.held:
        _note(f"{run} holds {posterior.held} of the {samples} samples asked for; all of them are taken")
        samples = posterior.held
    predictor = posterior.predictor(samples, seed=seed, device=device, data=training_data(posterior, data_dir))
    x, y = loaded.test.inputs[:limit].to(predictor.device), loaded.test.targets[:limit].to(predictor.device)
    domain = _domain(predictor, loaded, named=dataset is not None)
    radius = trained_radius(run, posterior) if isinstance(run, Path) else None
    return OpenedRun(run, posterior, predictor, x, y, domain, name, radius)


def _from_modules(run: ModuleFiles, loaded: data.DataSet) -> Posterior:
    """Read the weights of an ensemble, and say what was done to their names."""
    network = TrainSpec(dataset=loaded.name, architecture=run.architecture).network(loaded)
    shape = tuple(loaded.test.inputs.shape[1:])
    posterior = Samples.from_state_dicts(network, run.files, input_shape=shape, domain=loaded.domain)
    posterior.metadata["task"] = "classification" if loaded.classes else "regression"
    _note(f"weights of {posterior.metadata['origin']}")
    return posterior


def radius_for(case: OpenedRun, eps: float | None, norm: str) -> Radius:
    """Return the radius that was asked for or, where none was, the one that the run was trained for."""
    require_norm(norm)
    if eps is not None:
        return Radius(eps, own=False)
    if case.own_radius is None:
        raise InvalidInput(f"{case.run} was not trained for a radius; say which one you mean, such as --eps 0.1.")
    if norm != "linf":
        raise InvalidInput(
            f"{case.run} was trained for {case.own_radius:g} in linf, which says nothing about {norm}; pass --eps."
        )
    return Radius(case.own_radius, own=True)


def _domain(predictor: Predictor, loaded: data.DataSet, named: bool) -> Domain:
    """Return the domain of a data set that was named, else the predictor's own, where it knows one."""
    own = predictor.domain
    if own is None or domain_to_json(own) == domain_to_json(loaded.domain):
        return loaded.domain
    if not named:
        return own
    _note(
        f"inputs of {loaded.name} have the domain {domain_to_json(loaded.domain)}, which is taken; the run was trained "
        f"for {domain_to_json(own)}"
    )
    return loaded.domain


def _note(text: str) -> None:
    notes.print(text, soft_wrap=True, markup=False, highlight=False)
