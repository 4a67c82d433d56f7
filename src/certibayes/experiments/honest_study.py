"""The study of honest posteriors: temperature 1, compared by the evidence.

At temperature 1 a mean-field posterior under the robust likelihood used to certify nothing. Two things make it too
wide: squared gradients do not see the kinks of |w| (``inference._kink``), and a prior of given variance pays for width
that the data do not need (``inference.learned_prior``). The study takes them one at a time and together, for several
methods, with everything random or the last layer alone, one Gaussian or several; and it measures what the uncertainty
is worth, and what of it is proved.

Evidence compares posteriors of one likelihood and one set of random weights: that of a row with the last layer random,
or of the convolutional network, is not on the scale of the others. Settings were chosen on held-out training images of
MNIST, by held-out loss and evidence, never on test images.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from certibayes import data
from certibayes.certification import Elided, Method, Theorem1
from certibayes.data import DataSet
from certibayes.errors import InvalidInput
from certibayes.evaluation import assess
from certibayes.experiments._honest_figures import draw_recipes
from certibayes.experiments.claims import Claim, claims_markdown, decide_claim
from certibayes.experiments.figures import relevance_figure, require_matplotlib
from certibayes.experiments.out_of_distribution import load_out_of_distribution
from certibayes.experiments.tables import rows_csv
from certibayes.experiments.uncertainty_worth import worth_markdown, worth_of_uncertainty
from certibayes.inference import (
    BBB,
    VOGN,
    Algorithm,
    GaussianPrior,
    Laplace,
    LearnedPrior,
    NoisyAdam,
    Schedule,
    fit_many,
    held_out,
)
from certibayes.likelihoods import Categorical, Likelihood, RobustCategorical
from certibayes.networks import build
from certibayes.posteriors import DiagonalGaussian, GaussianMixture, Posterior
from certibayes.support.files import write_atomically
from certibayes.support.names import unknown_name

EPS = 0.1
HELD_OUT = 1 / 12
Figures = dict[str, Any]


@dataclass(frozen=True)
class Recipe:
    """How posteriors of one kind are made.

    Attributes:
        algorithm: of inference.
        prior: given, or learned.
        seeds: trainings, each from weights of its own.
        epochs: of each.
        likelihood: ``"robust"`` or ``"standard"``.
        stochastic: which parameters are random; all by default.
        architecture: of the network.
        temperature: 1, but for what the others are compared with.
        method: of certification.
        mixture: name of the row in which all seeds are the components of one mixture, if there is one.
        counterpart: name of the recipe with the standard likelihood, for the claim about out-of-distribution inputs.
    """

    algorithm: Algorithm[Any]
    prior: GaussianPrior
    seeds: int = 3
    epochs: int = 40
    likelihood: str = "robust"
    stochastic: str | None = None
    architecture: str = "mlp"
    temperature: float = 1.0
    method: Method = Theorem1()  # noqa: RUF009 - frozen
    mixture: str | None = None
    counterpart: str | None = None


_GIVEN = GaussianPrior()
_LEARNED = LearnedPrior(every=50)
_BY_WEIGHT = replace(_LEARNED, groups="weights")
_ONCE: dict[str, Any] = {"seeds": 1, "epochs": 20}
_STANDARD: dict[str, Any] = {"seeds": 1, "epochs": 20, "likelihood": "standard"}

RECIPES: dict[str, Recipe] = {
    "noisy-adam, as it was": Recipe(NoisyAdam(lr=0.01, kinks=False), _GIVEN, **_ONCE),
    "noisy-adam, kinks": Recipe(NoisyAdam(lr=0.01), _GIVEN, **_ONCE),
    "noisy-adam, learned prior": Recipe(NoisyAdam(lr=0.01, kinks=False), _LEARNED, **_ONCE),
    "noisy-adam, both": Recipe(
        NoisyAdam(lr=0.005),
        _LEARNED,
        seeds=5,
        mixture="mixture of these 5",
        counterpart="noisy-adam, standard",
    ),
    "noisy-adam, both, by weight": Recipe(NoisyAdam(lr=0.01), _BY_WEIGHT),
    "vogn, both": Recipe(VOGN(lr=0.01), _LEARNED, counterpart="vogn, standard"),
    "bbb, learned prior": Recipe(BBB(lr=0.01), _LEARNED, counterpart="bbb, standard"),
    "laplace, last layer": Recipe(Laplace(lr=0.003), _GIVEN, epochs=20, counterpart="laplace, standard"),
    "noisy-adam, last layer": Recipe(NoisyAdam(lr=0.003), _GIVEN, epochs=30, stochastic="last"),
    "noisy-adam, both, cnn-small": Recipe(
        NoisyAdam(lr=0.01), _LEARNED, seeds=1, epochs=15, architecture="cnn-small", method=Elided(bounds="ibp")
    ),
    "noisy-adam, temperature 0.001": Recipe(NoisyAdam(lr=0.01), _GIVEN, seeds=1, epochs=20, temperature=0.001),
    "noisy-adam, standard": Recipe(NoisyAdam(lr=0.01), _LEARNED, **_STANDARD),
    "vogn, standard": Recipe(VOGN(lr=0.01), _LEARNED, **_STANDARD),
    "bbb, standard": Recipe(BBB(lr=0.01), _LEARNED, **_STANDARD),
    "laplace, standard": Recipe(Laplace(lr=0.003), _GIVEN, **_STANDARD),
}


def chosen_recipes(names: Sequence[str] | None) -> dict[str, Recipe]:
    """Return the recipes whose names begin with one of these; all of them by default."""
    if not names:
        return RECIPES
    for name in names:
        if not any(recipe.startswith(name) for recipe in RECIPES):
            raise InvalidInput(unknown_name("recipe", name, list(RECIPES)))
    return {recipe: own for recipe, own in RECIPES.items() if recipe.startswith(tuple(names))}


@dataclass(frozen=True)
class Evaluation:
    """Where and on what posteriors are measured.

    Attributes:
        ood: name of the out-of-distribution inputs.
        samples: of each predictor.
        limit: take only the first so many test images.
        data_dir: where data sets lie.
        device: where to compute.
    """

    ood: str
    samples: int = 35
    limit: int | None = None
    data_dir: str | Path | None = None
    device: str | None = None


def run_honest_study(
    out: Path,
    evaluation: Evaluation,
    recipes: Mapping[str, Recipe],
    *,
    dataset: str = "mnist",
    quick: bool = False,
    on_progress: Callable[[int, int, str], Any] = lambda done, total, name: None,
) -> tuple[list[Figures], list[Claim]]:
    """Train and measure; write ``results.csv``, ``table.md``, ``worth.md``, ``claims.md`` and figures into ``out``.

    Args:
        out: where everything goes. Recipes that earlier commands finished there are part of the tables too, and are
            not made again.
        evaluation: how posteriors are measured.
        recipes: by name.
        dataset: to train and test on.
        quick: tiny networks and few epochs.
        on_progress: called with (done, total, name) after each recipe.
    """
    require_matplotlib()
    loaded = data.load(dataset, evaluation.data_dir)
    for number, (name, recipe) in enumerate(recipes.items(), 1):
        file = _file(out, name)
        if not file.exists():
            rows = _measured(name, recipe, loaded, evaluation, out, quick)
            write_atomically(file, (json.dumps(rows, indent=1) + "\n").encode())
        on_progress(number, len(recipes), name)
        _write(out, dataset, evaluation.ood)
    return _finished(out), _claims(out, dataset, evaluation.ood)


def _measured(
    name: str, recipe: Recipe, loaded: DataSet, evaluation: Evaluation, out: Path, quick: bool
) -> list[Figures]:
    """Train all seeds of a recipe and return their rows, and that of their mixture."""
    posteriors = _trained(recipe, loaded, evaluation.device, quick)
    outside = load_out_of_distribution(evaluation.ood, loaded, evaluation.data_dir, evaluation.limit)
    named: dict[str, Posterior] = dict(enumerate(posteriors))  # type: ignore[arg-type]
    if recipe.mixture is not None:
        named["mixture"] = GaussianMixture.of(*posteriors)  # type: ignore[arg-type]
    train = held_out(loaded.train, HELD_OUT, 0)[0]
    rows = worth_of_uncertainty(
        named, loaded, outside, eps=EPS, method=recipe.method, samples=evaluation.samples, limit=evaluation.limit,
        device=evaluation.device, train=train, evidence_samples=2 if quick else 8,
    )  # fmt: skip
    for row, (seed, posterior) in zip(rows, named.items(), strict=True):
        mixed = seed == "mixture"
        row |= {"posterior": recipe.mixture if mixed else name, "seed": "" if mixed else seed}
        row |= {"random_weights": _random_weights(posterior), "held_out_loss": _held_out_loss(posterior)}
    # The claim is about one seed; means over test images have errors of their own.
    x, y = (tensor[: evaluation.limit] for tensor in loaded.test)
    predictor = posteriors[0].predictor(evaluation.samples, device=evaluation.device)
    found = assess(predictor, *(part.to(predictor.device) for part in (x, y, outside)))
    rows[0]["assessment"] = {key: found.summary()[key] for key in ("in", "out", "detection")}
    if isinstance(recipe.prior, LearnedPrior) and recipe.architecture == "mlp" and recipe.likelihood == "robust":
        relevance_figure(posteriors[0], out / f"pixels-{_slug(name)}.png")
    return rows


def _trained(recipe: Recipe, loaded: DataSet, device: str | None, quick: bool) -> list[Posterior]:
    likelihood: Likelihood = RobustCategorical(eps=EPS) if recipe.likelihood == "robust" else Categorical()
    shape, classes = tuple(loaded.train.inputs.shape[1:]), len(loaded.classes)
    hidden: dict[str, Any] = {"hidden": (16,) if quick else (512,)} if recipe.architecture == "mlp" else {}
    nets = [build(recipe.architecture, shape, classes, seed=seed, **hidden) for seed in range(recipe.seeds)]
    # All seeds hold out the same images, so that one bound is about the same data for all.
    train, validation = held_out(loaded.train, HELD_OUT, 0)
    return fit_many(
        None, train, [{"net": net, "seed": seed} for seed, net in enumerate(nets)], algorithm=recipe.algorithm,
        likelihood=likelihood, prior=recipe.prior, epochs=1 if quick else recipe.epochs, device=device,
        temperature=recipe.temperature, schedule=Schedule("cosine", warmup=0.05), stochastic=recipe.stochastic,
        validation=validation, progress=False,
    )  # fmt: skip


def _random_weights(posterior: Posterior) -> int | str:
    names = getattr(posterior, "names", posterior.graph.parameters)
    return sum(posterior.mean[name].numel() for name in names) if isinstance(posterior, DiagonalGaussian) else ""


def _held_out_loss(posterior: Posterior) -> float | str:
    return posterior.metadata.get("held_out", {}).get("validation_loss", "")


def _slug(name: str) -> str:
    return name.replace(",", "").replace(" ", "-")


def _file(out: Path, name: str) -> Path:
    return out / "rows" / f"{_slug(name)}.json"


def _finished(out: Path) -> list[Figures]:
    """Return the rows of all recipes that are finished, in their own order."""
    files = [_file(out, name) for name in RECIPES]
    return [row for file in files if file.exists() for row in json.loads(file.read_text())]


def _claims(out: Path, dataset: str, ood: str) -> list[Claim]:
    """Decide the paper's claim for every recipe that has a counterpart with the standard likelihood."""
    found = {row["posterior"]: row["assessment"] for row in _finished(out) if "assessment" in row}
    return [
        decide_claim(name, recipe.temperature, 0, found[recipe.counterpart], found[name], dataset, ood)
        for name, recipe in RECIPES.items()
        if name in found and recipe.counterpart in found
    ]


def by_recipe(rows: Sequence[Figures]) -> dict[str, list[Figures]]:
    """Return the rows by the name of their posterior."""
    return {name: [row for row in rows if row["posterior"] == name] for name in dict.fromkeys(
        row["posterior"] for row in rows
    )}  # fmt: skip


def markdown(rows: Sequence[Figures]) -> str:
    """The table: means over seeds, with their standard deviations where there are several."""
    lines = [
        "| posterior | seeds | certified | accuracy | NLL | mutual information | ELBO per example | learned variances "
        "| held-out loss |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, own in by_recipe(rows).items():
        lines.append("| " + " | ".join([name, *row_cells(own)]) + " |")
    return "\n".join(lines) + "\n"


def row_cells(rows: Sequence[Figures]) -> list[str]:
    """Return the cells of one posterior's row, without its name."""
    cells = [str(len(rows)), *(_spread(rows, key, 100, 1) + "%" for key in ("certified", "accuracy"))]
    cells += [_spread(rows, key, 1, digits) for key, digits in (("nll", 3), ("mutual_information", 4), ("elbo", 3))]
    learned = rows[0]["learned_variances"]
    return [*cells, "-" if learned is None else f"{learned:,}", _spread(rows, "held_out_loss", 1, 3)]


def _spread(rows: Sequence[Figures], key: str, factor: float, digits: int) -> str:
    values = [factor * row[key] for row in rows if isinstance(row[key], int | float)]
    if not values:
        return "-"
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{deviation}"


def _write(out: Path, dataset: str, ood: str) -> None:
    """Write tables and figure of all recipes that are finished, those of earlier commands too."""
    rows = _finished(out)
    plain = [{key: value for key, value in row.items() if key != "assessment"} for row in rows]
    write_atomically(out / "results.csv", rows_csv(plain).encode())
    write_atomically(out / "table.md", markdown(rows).encode())
    write_atomically(out / "worth.md", worth_markdown([own[0] for own in by_recipe(rows).values()]).encode())
    if claims := _claims(out, dataset, ood):
        write_atomically(out / "claims.md", claims_markdown(claims, dataset, ood).encode())
    draw_recipes(by_recipe(rows), _comparable(), EPS, out / "honest.png")


def _comparable() -> set[str]:
    """Return the posteriors of all weights of the MLP under the robust likelihood: their evidence compares."""
    found = set()
    for name, recipe in RECIPES.items():
        whole = recipe.stochastic is None and not isinstance(recipe.algorithm, Laplace)
        if whole and (recipe.architecture, recipe.likelihood, recipe.temperature) == ("mlp", "robust", 1.0):
            found |= {name} if recipe.mixture is None else {name, recipe.mixture}
    return found
