"""What a command is about: a stored run or networks trained elsewhere, test data and a radius."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import typer
from torch import Tensor

from certibayes import data
from certibayes.cli.terminal import notes
from certibayes.errors import InvalidInput
from certibayes.experiments import TrainSpec, load_run, trained_radius, training_data
from certibayes.experiments.columns import read_names, with_domain
from certibayes.experiments.factory import FORM
from certibayes.experiments.own_data import TABLE, other_data, own_data, own_scale
from certibayes.posteriors import Posterior, Samples
from certibayes.prediction import Predictor, RegressionPredictor
from certibayes.regions import Domain, domain_to_json, fixed_by_name, radii_by_name, require_norm


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
        seed: of that draw; None where all samples that are held were taken, so that nothing was drawn.
        x: test inputs.
        y: their targets.
        domain: of the inputs.
        dataset: where the inputs are from.
        own_radius: the radius that the run was trained for, in l-infinity; None if it was not.
        features: names of a table's columns.
        scale: what radii are multiples of, (1, d); None where they are in the units of the inputs.
    """

    run: Path | ModuleFiles
    posterior: Posterior
    predictor: Predictor
    seed: int | None
    x: Tensor
    y: Tensor
    domain: Domain
    dataset: str
    own_radius: float | None
    features: tuple[str, ...] = ()
    scale: Tensor | None = None


def regression_of(case: OpenedRun) -> RegressionPredictor:
    """Return the predictor of a regression, as what it is."""
    assert isinstance(case.predictor, RegressionPredictor)
    return case.predictor


class Points(NamedTuple):
    """Which points a command is about, as its options say it.

    Attributes:
        dataset: name of a data set; None for the run's own.
        file: a file of one's own instead.
        target: what is to be predicted, in that file.
        task: of that file.
        domain: values that inputs can take, as text; None for those of the run or data.
        data_dir: where data sets lie.
        limit: take only the first so many.
    """

    dataset: str | None = None
    file: Path | None = None
    target: str | None = None
    task: str | None = None
    domain: str | None = None
    data_dir: Path | None = None
    limit: int | None = None


class Radius(NamedTuple):
    """A radius.

    Attributes:
        eps: as the library takes it: a number, or one for each column, (1, d).
        own: whether it is the one that the run was trained for because no other was asked for.
        given: as a person says it: a number, or radii by name.
        fixed: columns that do not change.
        scaled: whether the number counts multiples of a scale of each column.
    """

    eps: float | Tensor
    own: bool
    given: float | dict[str, float]
    fixed: tuple[str, ...] = ()
    scaled: bool = False

    @property
    def words(self) -> str:
        """As in the output of a command."""
        if isinstance(self.given, dict):
            named = ", ".join(f"{name} ±{value:g}" for name, value in self.given.items())
            return f"{named} (other columns do not change)"
        unit = " times each column's scale" if self.scaled else ""
        fixed = f", but for {', '.join(self.fixed)}" if self.fixed else ""
        return f"eps {self.given:g}{unit}" + (", the run's own" if self.own else "") + fixed

    @property
    def source(self) -> str:
        """As in JSON."""
        return "run" if self.own else "option"

    def to_json(self) -> dict[str, Any]:
        """Return what JSON says of it."""
        record: dict[str, Any] = {"eps": self.given, "eps_source": self.source}
        if self.scaled:
            record["scaled"] = True
        return {**record, "fixed": list(self.fixed)} if self.fixed else record


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


def open_run(run: Path | ModuleFiles, points: Points, samples: int | None, seed: int, device: str | None) -> OpenedRun:
    """Load a run, draw its predictor and load the test data.

    A posterior that holds fewer samples than were asked for gives all it holds, which is noted on standard error.
    """
    if points.dataset is not None and points.file is not None:
        raise InvalidInput(f"--dataset {points.dataset} and --data {points.file} are two sets of points; pass one.")
    if points.file is None and (points.target is not None or points.task is not None):
        raise InvalidInput("--target and --task say how a file is read; pass --data FILE with them.")
    if points.limit is not None and points.limit < 1:
        raise InvalidInput(f"--limit must be at least 1, got {points.limit}.")
    if isinstance(run, ModuleFiles):
        loaded = _points_for_modules(run, points)
        posterior: Posterior = _from_modules(run, loaded)
    else:
        posterior = load_run(run)
        loaded = _points_for_run(run, posterior, points)
    if posterior.task != loaded.task:
        raise InvalidInput(f"{run} was trained for {posterior.task}, and {loaded.name} is for {loaded.task}.")
    loaded = with_domain(loaded, points.domain)
    if samples is not None and posterior.held is not None and samples > posterior.held:
        _note(f"{run} holds {posterior.held} of the {samples} samples asked for; all of them are taken")
        samples = posterior.held
    predictor = posterior.predictor(samples, seed=seed, device=device, data=training_data(posterior, points.data_dir))
    drawn_from = None if predictor.size == posterior.held else seed
    x, y = (part[: points.limit].to(predictor.device) for part in loaded.test)
    if not len(x):
        raise InvalidInput(f"{loaded.name} holds no points to test on.")
    named = points.dataset is not None or points.domain is not None
    domain = _domain(predictor, loaded, named)
    radius = trained_radius(run, posterior) if isinstance(run, Path) else None
    features = loaded.features or tuple(posterior.metadata.get(TABLE, {}).get("features", ()))
    return OpenedRun(
        run, posterior, predictor, drawn_from, x, y, domain, loaded.name, radius, features, own_scale(posterior)
    )


def _points_for_run(run: Path, posterior: Posterior, points: Points) -> data.DataSet:
    if points.file is not None:
        loaded = other_data(posterior, points.file, points.target, points.task)
        if len(loaded.train.inputs):
            _note(
                f"{run} was trained on {points.file}; {len(loaded.test.inputs)} points that training left out are taken"
            )
        return loaded
    if points.dataset is not None:
        return data.load(points.dataset, points.data_dir)
    if posterior.metadata.get("dataset") is None:
        raise InvalidInput(
            f"nothing says which data {run} was trained on; pass --dataset NAME, or --data FILE for your own."
        )
    return own_data(posterior, points.data_dir)


def _points_for_modules(run: ModuleFiles, points: Points) -> data.DataSet:
    if points.file is not None:
        return data.read_file(points.file, data.Reading(points.target, points.task, hold_out=False))
    if points.dataset is None:
        raise InvalidInput(
            f"nothing says which data {run} was trained on; pass --dataset NAME, or --data FILE for your own."
        )
    return data.load(points.dataset, points.data_dir)


def _from_modules(run: ModuleFiles, loaded: data.DataSet) -> Posterior:
    """Read the weights of an ensemble, and say what was done to their names."""
    # The network is as it was trained, so nothing is put in front for a table's sake.
    plain = replace(loaded, own_units=False)
    spec = TrainSpec(dataset=loaded.name, architecture=run.architecture, task=_file_task(loaded))
    shape = tuple(loaded.test.inputs.shape[1:])
    posterior = Samples.from_state_dicts(spec.network(plain), run.files, input_shape=shape, domain=loaded.domain)
    posterior.metadata["task"] = loaded.task
    _note(f"weights of {posterior.metadata['origin']}")
    return posterior


def _file_task(loaded: data.DataSet) -> str | None:
    return loaded.task if data.names_file(loaded.name) else None


def radius_for(case: OpenedRun, eps: float | dict[str, float] | None, norm: str, fixed: str | None = None) -> Radius:
    """Return the radius that was asked for or, where none was, the one that the run was trained for.

    A number counts multiples of the run's scale, where it has one; radii by name are in the columns' own units.
    """
    require_norm(norm)
    names = read_names(fixed)
    if isinstance(eps, dict):
        if names:
            raise InvalidInput("with radii by name, columns that are not named do not change; leave --fixed out.")
        return Radius(radii_by_name(case.features, eps), own=False, given=eps)
    own = eps is None
    if eps is None:
        if case.own_radius is None:
            raise InvalidInput(f"{case.run} was not trained for a radius; say which one you mean, such as --eps 0.1.")
        if norm != "linf":
            raise InvalidInput(
                f"{case.run} was trained for {case.own_radius:g} in linf, which says nothing about {norm}; pass --eps."
            )
        eps = case.own_radius
    scale = case.scale if norm == "linf" else None
    if case.scale is not None and scale is None:
        _note(f"in {norm} a radius is in the inputs' own units, all columns together, and no column is fixed")
    radius: Any = eps if scale is None else eps * scale
    return Radius(fixed_by_name(case.features, radius, names), own, eps, names, scaled=scale is not None)


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
