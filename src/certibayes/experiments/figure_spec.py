"""What a figure of the paper is made of: a TOML file that says which posteriors, how they are made, what is measured.

``specs/recipes.toml`` has the settings of all methods, and one file per figure says which of them it shows. A cell is
one posterior: a data set, network, method, likelihood, recipe, variation and seed. Which cells are trained together is
part of the file, so that a cell has the same bits wherever, and however often interrupted, it is trained.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from certibayes.errors import InvalidInput
from certibayes.experiments.settings import settings_of
from certibayes.experiments.spec import TrainSpec
from certibayes.support.names import nearest, unknown_name

KINDS = ("robustness", "radius", "entropy", "regression")
"""What a figure shows of its posteriors."""

TWIN = "map"
"""The deterministic network beside the posteriors of a figure."""

AXES = ("dataset", "method", "likelihood", "recipe", "network", "variation", "seed")
RECIPES = "recipes"
CLAIMS = "claims"
"""Files beside those of the figures: settings of all methods, and what the paper says."""

Values = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One posterior of a figure.

    Attributes:
        dataset: name of the data set.
        method: of inference.
        likelihood: its kind.
        recipe: name of its recipe.
        network: name of its network among those of the data set.
        variation: of the figure, such as ``eta 0.05``; empty where it has none.
        seed: of network, data order and inference.
        spec: all that determines its training.
        source: where its settings are from.
        group: name of the cells that it is trained with, its own included.
    """

    dataset: str
    method: str
    likelihood: str
    recipe: str
    network: str
    variation: str
    seed: int
    spec: TrainSpec
    source: str
    group: str

    @property
    def axes(self) -> Values:
        """What distinguishes it from other cells."""
        return {axis: getattr(self, axis) for axis in AXES}


@dataclass(frozen=True)
class FigureSpec:
    """A figure: its posteriors and what is measured of them, as its file has them.

    Attributes:
        name: of the figure.
        title: in a line.
        kind: what is shown, one of ``KINDS``.
        recipes: names of recipes; every cell is made by each.
        optional: recipes that are there to be asked for.
        likelihoods: names of likelihoods.
        seeds: of every cell.
        together: axes that cells which are trained as one program may differ in: ``seed``, ``variation``.
        datasets: for each data set its ``methods``, ``networks`` (the first one by default) and ``evaluation``.
        twin: whether the deterministic network is shown as well.
        variations: settings by name that are changed in turn.
        extra: further cells, one by one.
        evaluation: how posteriors are measured.
        density: family and scales of the densities that are drawn beside.
        quick: ``seeds`` and ``evaluation`` of a trial run.
    """

    name: str
    title: str
    kind: str
    recipes: tuple[str, ...]
    likelihoods: tuple[str, ...]
    seeds: tuple[int, ...]
    together: tuple[str, ...]
    datasets: Mapping[str, Values]
    optional: tuple[str, ...] = ()
    twin: bool = False
    variations: Mapping[str, Values] = field(default_factory=dict)
    extra: tuple[Values, ...] = ()
    evaluation: Values = field(default_factory=dict)
    density: Values = field(default_factory=dict)
    quick: Values = field(default_factory=dict)

    def cells(self, dataset: str, *, quick: bool = False, **chosen: Sequence[str] | None) -> dict[str, Cell]:
        """Return the cells of a data set by name, which is also their directory.

        Args:
            dataset: name of the data set.
            quick: small networks and few epochs.
            **chosen: values of the axes ``method``, ``likelihood``, ``recipe`` or ``network`` that are taken; all by
                default. Cells that are trained together do not differ in these.
        """
        self.require_dataset(dataset)
        recipes = read_toml(RECIPES)
        found: dict[str, Cell] = {}
        for axes in [*self._regular(dataset, recipes, chosen.get("recipe"), quick), *self._extra(dataset)]:
            if all(not values or axes[axis] in values for axis, values in chosen.items()):
                cell = self._cell(axes, recipes, quick)
                found[_name(axes, AXES, recipes)] = cell
        for axis, values in chosen.items():
            for value in values or ():
                if not any(getattr(cell, axis) == value for cell in found.values()):
                    known = dict.fromkeys(getattr(cell, axis) for cell in self.cells(dataset, quick=quick).values())
                    raise InvalidInput(unknown_name(axis, value, list(known)))
        return found

    def require_dataset(self, dataset: str) -> None:
        """Raise unless the figure has this data set."""
        if dataset not in self.datasets:
            raise InvalidInput(f"{self.name} is about {', '.join(self.datasets)}, not about {dataset!r}.")

    def _regular(
        self, dataset: str, recipes: Values, asked: Sequence[str] | None, quick: bool
    ) -> Iterator[dict[str, Any]]:
        own = self.datasets[dataset]
        methods = [*own["methods"], *([TWIN] if self.twin else [])]
        networks = own.get("networks") or [next(iter(recipes["data"][dataset]["networks"]))]
        more = [name for name in asked or () if name in self.optional]
        seeds = self.quick.get("seeds", self.seeds) if quick else self.seeds
        values = (
            methods, self.likelihoods, [*self.recipes, *more], networks, list(self.variations) or [""], seeds,
        )  # fmt: skip
        for combination in itertools.product(*values):
            yield dict(zip(AXES, (dataset, *combination), strict=True))

    def _extra(self, dataset: str) -> Iterator[dict[str, Any]]:
        for cell in self.extra:
            if cell["dataset"] == dataset and cell["likelihood"] in self.likelihoods:
                yield {"variation": "", "seed": 0, **cell}

    def _cell(self, axes: Values, recipes: Values, quick: bool) -> Cell:
        values = _settings(axes, recipes)
        values = merged(values, self.variations.get(axes["variation"], {}))
        if quick:
            tables = (("data", "dataset"), ("likelihoods", "likelihood"), ("methods", "method"))
            own = [recipes["quick"].get(table, {}).get(axes[axis], {}) for table, axis in tables]
            values = merged(values, recipes["quick"]["common"], *own)
        source = values.pop("source", "")
        values |= {"dataset": axes["dataset"], "algorithm": axes["method"], "seed": axes["seed"]}
        spec = _spec(merged(values, {"likelihood": axes["likelihood"]}), f"{self.name}, {_name(axes, AXES, recipes)}")
        # What starts elsewhere has two stages of its own, and is trained alone.
        shared = () if spec.start_epochs else self.together
        group = _name(axes, [axis for axis in AXES if axis not in shared], recipes)
        if axes["variation"] and "variation" in shared:
            group += f"-{self.name}"
        return Cell(**axes, spec=spec, source=source, group=group)

    def evaluation_of(self, dataset: str, quick: bool = False) -> Values:
        """Return how the posteriors of a data set are measured."""
        own = self.datasets[dataset].get("evaluation", {})
        return merged(self.evaluation, own, self.quick.get("evaluation", {}) if quick else {})


def figure_names() -> list[str]:
    """Return the names of the figures that come with the package."""
    found = [file.name for file in _folder().iterdir() if file.name.endswith(".toml")]
    return sorted({name.removesuffix(".toml") for name in found} - {RECIPES, CLAIMS})


def load_figure(name: str) -> FigureSpec:
    """Return a figure by its name, or that of a TOML file of one's own.

    Raises:
        InvalidInput: there is none of this name, or its file holds something that no figure has.
    """
    path = Path(name) if name.endswith(".toml") else None
    if path is None and name not in figure_names():
        raise InvalidInput(unknown_name("figure", name, figure_names()))
    return _figure(read_toml(name) if path is None else _parsed(path.read_text(encoding="utf-8"), name), name)


def _figure(values: Values, name: str) -> FigureSpec:
    base = values.pop("posteriors", None)
    known = [key for key in settings_names() if key != "name"]
    for key in values:
        if key not in known:
            raise InvalidInput(f"{name} has an unknown key {key!r}{nearest(key, [*known, 'posteriors'])}.")
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    name = Path(name).stem
    if base is not None:
        # The same posteriors, measured in another way.
        first = load_figure(base)
        datasets = {key: {k: v for k, v in own.items() if k != "evaluation"} for key, own in first.datasets.items()}
        values["datasets"] = merged(datasets, values.get("datasets", {}))
        evaluation = {"evaluation": {}, "quick": {key: v for key, v in first.quick.items() if key != "evaluation"}}
        return replace(first, **{**evaluation, **values, "name": name})
    missing = [key for key in ("title", "kind", "recipes", "likelihoods", "seeds", "together", "datasets") if
               key not in values]  # fmt: skip
    if missing:
        raise InvalidInput(f"{name} lacks {', '.join(missing)}.")
    if values["kind"] not in KINDS:
        raise InvalidInput(unknown_name("kind of figure", values["kind"], KINDS))
    if strange := [axis for axis in values["together"] if axis not in ("seed", "variation")]:
        raise InvalidInput(f"cells of {name} are trained together over seed or variation, not over {strange[0]!r}.")
    return FigureSpec(name=name, **values)


def settings_names() -> list[str]:
    """Return the keys that a figure's file may have."""
    return list(FigureSpec.__dataclass_fields__)


def read_toml(name: str) -> Values:
    """Read one of the files that come with the package."""
    return _parsed((_folder() / f"{name}.toml").read_text(encoding="utf-8"), name)


def _parsed(text: str, name: str) -> Values:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{name} is not valid TOML: {error}.") from None


def _folder() -> Any:
    return resources.files("certibayes.experiments") / "specs"


def merged(*layers: Mapping[str, Any]) -> Values:
    """Return tables merged key by key, all the way down; the later ones win."""
    found: Values = {}
    for layer in layers:
        for key, value in layer.items():
            both = isinstance(value, Mapping) and isinstance(found.get(key), Mapping)
            found[key] = merged(found[key], value) if both else value
    return found


def _settings(axes: Values, recipes: Values) -> Values:
    """Return what ``recipes.toml`` says of a cell."""
    known, recipe = recipes["recipe"], axes["recipe"]
    if recipe not in known:
        raise InvalidInput(unknown_name("recipe", recipe, list(known)))
    own = known[recipe]
    if "like" in own:
        own = merged(known[own["like"]], own)
    data, method = recipes["data"][axes["dataset"]], axes["method"]
    special = own.get("data", {}).get(axes["dataset"], {})
    methods = [table.get("methods", {}).get(method) for table in (own, special)]
    if not any(methods):
        raise InvalidInput(f"the recipe {recipe!r} has no settings for {method!r} on {axes['dataset']}.")
    layers = (
        own["common"], data["common"], data["networks"][axes["network"]], methods[0] or {},
        special.get("common", {}), methods[1] or {},
    )  # fmt: skip
    # A recipe like another is that recipe but for what it changes for all.
    return merged(*layers, known[recipe]["common"] if "like" in known[recipe] else {})


def _spec(values: Values, where: str) -> TrainSpec:
    known = settings_of(TrainSpec)
    for key, value in values.items():
        if key in known:
            values[key] = known[key].check(value, f" in {where}")
        elif key != "settings":
            raise InvalidInput(f"{where} has an unknown setting {key!r}{nearest(key, [*known, 'settings'])}.")
    return TrainSpec(**values)


def _name(axes: Values, shown: Sequence[str], recipes: Values) -> str:
    """Name a cell, or a group of cells by the axes that they share."""
    parts = [str(axes[axis]) for axis in ("method", "likelihood", "recipe") if axis in shown]
    if len(recipes["data"][axes["dataset"]]["networks"]) > 1:
        parts.append(axes["network"])
    if "variation" in shown and axes["variation"]:
        parts.append(axes["variation"].replace(" ", "-"))
    if "seed" in shown:
        parts.append(f"s{axes['seed']}")
    return f"{axes['dataset']}/{'-'.join(parts)}"
