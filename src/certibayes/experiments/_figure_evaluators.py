"""How the posteriors of the paper's figures are measured, by the kind of figure."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from certibayes import data
from certibayes.certification import as_method, certified_radius, certify, certify_regression
from certibayes.data import DataSet, Split
from certibayes.errors import InvalidInput
from certibayes.evaluation import assess
from certibayes.experiments.evaluate import evaluate
from certibayes.experiments.evaluator import Evaluator, Figures, trained_figures
from certibayes.experiments.figure_spec import FigureSpec, Values, merged, read_toml
from certibayes.experiments.out_of_distribution import load_out_of_distribution
from certibayes.experiments.spec import TrainSpec
from certibayes.experiments.uncertainty_figures import curves_of
from certibayes.posteriors import Posterior
from certibayes.prediction import Predictor, RegressionPredictor
from certibayes.support.names import nearest

FIRST = "ibp"
"""The rule that every figure of robustness has; it decides which points need not be attacked."""


@dataclass(frozen=True)
class FigureEvaluator(Evaluator):
    """Measures posteriors as the file of a figure says.

    Attributes:
        settings: the table ``evaluation`` of the figure.
        kind: of the figure.
    """

    settings: Values = field(default_factory=dict, hash=False)
    kind: str = ""

    @property
    def key(self) -> str:
        """Figures that were measured otherwise are other figures."""
        described = json.dumps([self.settings, self.eps, self.limit], sort_keys=True)
        return f"{self.kind}-{hashlib.sha256(described.encode()).hexdigest()[:12]}"

    def evaluate(self, posterior: Posterior, spec: TrainSpec) -> Figures:
        """Measure a posterior on the test data of its data set."""
        dataset, predictor = _to_test_on(spec.dataset, self.data_dir), self.predictor(posterior)
        test = Split(*(part[: self.limit].to(predictor.device) for part in dataset.test))
        found = MEASURES[self.kind](self, predictor, replace(dataset, test=test), spec)
        about = {"eps": self.eps, "samples": predictor.size}
        return {"n": len(test.inputs), **found, **trained_figures(posterior), **about}


@lru_cache(maxsize=1)
def _to_test_on(name: str, data_dir: str | Path | None) -> DataSet:
    """Read a data set once for all posteriors that are measured one after another, and keep what they are tested on."""
    found = data.load(name, data_dir)
    return replace(found, train=Split(*(part[:0].clone() for part in found.train)))


@lru_cache(maxsize=1)
def _outside(ood: str, name: str, data_dir: str | Path | None, limit: int | None) -> Tensor:
    """Read out-of-distribution inputs once, likewise."""
    return load_out_of_distribution(ood, _to_test_on(name, data_dir), data_dir, limit)


def make_evaluator(
    figure: FigureSpec, dataset: str, *, quick: bool = False, limit: int | None = None,
    data_dir: str | Path | None = None, device: str | None = None,
) -> FigureEvaluator:  # fmt: skip
    """Return how a figure's posteriors on a data set are measured; ``limit`` takes fewer test images."""
    settings = figure.evaluation_of(dataset, quick)
    own = read_toml("recipes")["data"][dataset]
    if figure.kind == "entropy":
        settings = merged({"ood": own["ood"]}, settings)
    for key in settings:
        if key not in (known := ("samples", "limit", *KEYS[figure.kind])):
            raise InvalidInput(f"the evaluation of {figure.name} has an unknown key {key!r}{nearest(key, known)}.")
    limits = [number for number in (limit, settings.get("limit")) if number is not None]
    # By way of a spec, which reads 1/255 as well.
    eps = TrainSpec(eps=own["common"]["eps"]).eps
    return FigureEvaluator(
        eps, samples=settings.get("samples", Evaluator.samples), limit=min(limits, default=None), data_dir=data_dir,
        device=device, settings=settings, kind=figure.kind,
    )  # fmt: skip


def _robustness(evaluator: FigureEvaluator, predictor: Predictor, dataset: DataSet, spec: TrainSpec) -> Figures:
    """Accuracy, PGD, what every rule proves, and uncertainty."""
    rules, attack = dict(evaluator.settings["rules"]), evaluator.settings.get("attack", {})
    first = rules.pop(FIRST)
    found = evaluate(
        predictor, *dataset.test, eps=evaluator.eps, domain=dataset.domain,
        method=as_method(first["method"], bounds=first["bounds"]), skip_proved=True, **attack,
    )  # fmt: skip
    figures: Figures = found.summary()
    figures[FIRST] = figures.pop("certified")
    for name, rule in rules.items():
        if not _applies(rule.get("only", {}), spec):
            continue
        x, y = (part[: rule.get("limit")] for part in dataset.test)
        method = as_method(rule["method"], bounds=rule["bounds"])
        result = certify(predictor, x, y, eps=evaluator.eps, method=method, domain=dataset.domain)
        figures |= {name: result.certified_fraction, f"n_{name}": len(x)}
    return figures


def _applies(only: Mapping[str, list[str]], spec: TrainSpec) -> bool:
    return all(getattr(spec, name) in values for name, values in only.items())


def _radius(evaluator: FigureEvaluator, predictor: Predictor, dataset: DataSet, spec: TrainSpec) -> Figures:
    """The largest certified radius of every image; 0 where it is misclassified."""
    settings = evaluator.settings
    found = certified_radius(
        predictor, *dataset.test, domain=dataset.domain, largest=settings["largest"], tolerance=settings["tolerance"],
        method=as_method(settings["method"], bounds=settings["bounds"]),
    )  # fmt: skip
    radii = found.radius.tolist()
    assert all(radius == 0.0 for radius, right in zip(radii, found.correct.tolist(), strict=True) if not right)
    return {"accuracy": float(found.correct.double().mean()), "radius": found.mean, "radii": radii}


def _entropy(evaluator: FigureEvaluator, predictor: Predictor, dataset: DataSet, spec: TrainSpec) -> Figures:
    """Entropies in and out of distribution and under attack, and the likelihood ratio."""
    outside = _outside(evaluator.settings["ood"], spec.dataset, evaluator.data_dir, evaluator.limit)
    found = assess(
        predictor, *dataset.test, outside.to(predictor.device), eps=evaluator.eps, domain=dataset.domain,
        **evaluator.settings.get("attack", {}),
    )  # fmt: skip
    return {**found.summary(), "curves": curves_of(found), "ood": evaluator.settings["ood"]}


def _regression(evaluator: FigureEvaluator, predictor: Predictor, dataset: DataSet, spec: TrainSpec) -> Figures:
    """Error, likelihood, and certified intervals of the predictive mean."""
    assert isinstance(predictor, RegressionPredictor)
    x, y = dataset.test
    result = certify_regression(
        predictor, x, y, eps=evaluator.eps, tolerance=evaluator.settings["tolerance"],
        method=as_method("elided", bounds=evaluator.settings["bounds"]),
    )  # fmt: skip
    with torch.no_grad():
        outputs = predictor.sample_outputs(x).double()
    normal = torch.distributions.Normal(outputs, spec.noise_std)
    nll = math.log(len(outputs)) - torch.logsumexp(normal.log_prob(y.double()).sum(-1), 0)
    return {
        "rmse": float((predictor(x).double() - y).square().mean().sqrt()),
        "nll": float(nll.mean()),
        "sample_std": float(outputs.std(0, unbiased=False).mean()),
        "width": float((result.upper - result.lower).mean()),
        "certified": result.certified_fraction,
        "intervals": {
            "target": y[:, 0].tolist(), "predicted": result.predicted[:, 0].tolist(),
            "lower": result.lower[:, 0].tolist(), "upper": result.upper[:, 0].tolist(),
        },
    }  # fmt: skip


MEASURES = {"robustness": _robustness, "radius": _radius, "entropy": _entropy, "regression": _regression}
KEYS = {
    "robustness": ("attack", "rules"),
    "radius": ("method", "bounds", "largest", "tolerance"),
    "entropy": ("attack", "ood"),
    "regression": ("bounds", "tolerance"),
}
"""What the table ``evaluation`` of each kind may hold beside ``samples`` and ``limit``."""
