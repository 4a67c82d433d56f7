"""The study of certification: what each rule proves of a posterior and what it costs, and what no attack may break.

Posteriors are those of the study of uncertainty, under the same names, so that both studies can share a directory and
train once. Of each, the first test images are certified by every rule, attacked as the paper does (PGD, 10 iterations)
and by everything there is, and attacked again at the largest radius that was certified for each point: for the
predictor, and for each of its networks alone. The radii of the simple and of the best rule are reported side by side,
which distinguishes the two where neither proves a point at the radius of the study.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from certibayes import data
from certibayes.attacks import PGD, as_attack, attack
from certibayes.bounds import Domain
from certibayes.certification import Best, Elided, Method, as_method, certified_radius, certify
from certibayes.experiments.evaluator import Evaluator, Figures
from certibayes.experiments.figures import require_matplotlib, rules_figure
from certibayes.experiments.grid import run_grid
from certibayes.experiments.inference_study import METHODS
from certibayes.experiments.spec import TrainSpec
from certibayes.experiments.tables import rows_csv
from certibayes.experiments.uncertainty_study import LIKELIHOODS, study_specs
from certibayes.posteriors import Posterior
from certibayes.prediction import Predictor
from certibayes.support.files import write_atomically

POINTS = 500
"""Test images, unless another number is asked for."""

TOLERANCE = 2.5e-4
"""Of the search for radii."""

HULL_POINTS, HULL_TOLERANCE = 40, 5e-3
"""The same with the tightest bounds, for which every radius close to the largest is costly."""


class Step(NamedTuple):
    """A way to certify: rule, bounds, and whether points that stay open are attacked and split."""

    rule: str
    bounds: str
    splits: bool = False

    def method(self, budget: float | None) -> Method:
        """Return the method, with so many seconds for splitting."""
        return as_method(self.rule, bounds=self.bounds, budget=budget)

    @property
    def name(self) -> str:
        """As in the table."""
        return f"{self.rule}, {self.bounds}" + (", splitting" if self.splits else "")


LADDER = (
    Step("theorem1", "ibp"),
    Step("pairwise", "ibp"),
    Step("elided", "ibp"),
    Step("elided", "crown"),
    Step("joint", "crown"),
    Step("best", "alpha-crown"),
    Step("best", "hull"),
    Step("best", "hull", splits=True),
)


@dataclass(frozen=True)
class RuleEvaluator(Evaluator):
    """How the study evaluates a run.

    Attributes:
        budget: seconds for splitting; None leaves it out.
    """

    budget: float | None = None

    @property
    def key(self) -> str:
        """Figures of other points or with more time are other figures."""
        return f"certification, with radii, first {self.limit or 'all'}, budget {self.budget or 'none'}"

    def evaluate(self, posterior: Posterior, spec: TrainSpec) -> Figures:
        """Certify by every rule, attack, and attack at the largest certified radii."""
        dataset, predictor = data.load(spec.dataset, self.data_dir), self.predictor(posterior)
        x, y = (tensor[: self.limit].to(predictor.device) for tensor in dataset.test)
        # The costly rules find nothing to prove in a network that was not trained for it.
        ladder = LADDER if spec.likelihood != "standard" else LADDER[:4]
        steps = [step for step in ladder if self.budget is not None or not step.splits]
        rules, proved = {}, torch.zeros(len(x), dtype=torch.bool, device=x.device)
        for step in steps:
            rules[step.name], certified = _certified(
                predictor, x, y, step, self.eps, dataset.domain, self.budget if step.splits else None
            )
            proved |= certified
        return {
            "n": len(x),
            "accuracy": float((predictor.predict(x) == y).double().mean()),
            "temperature": posterior.metadata["temperature"],
            "eps": self.eps,
            "samples": predictor.size,
            "rules": rules,
            "attacks": _attacks(predictor, x, y, self.eps, dataset.domain, proved),
            "radii": {"pairwise, ibp": {"mean radius": _pairwise_radius(predictor, x, y, dataset.domain)}},
            "trials": _trials(predictor, x, y, dataset.domain, spec.likelihood != "standard"),
        }


def _certified(
    predictor: Predictor, x: Tensor, y: Tensor, step: Step, eps: float, domain: Domain, budget: float | None
) -> tuple[Figures, Tensor]:
    """Return what a rule proves and how long it takes, and which points."""
    began = time.monotonic()
    result = certify(predictor, x, y, eps=eps, method=step.method(budget), domain=domain)
    certified = result.certified.to(x.device)
    found: Figures = {"certified": result.certified_fraction, "seconds": round(time.monotonic() - began, 2)}
    if budget is not None:
        assert result.attacked is not None
        found |= {"attacked": float(result.attacked.double().mean()), "unknown": float(result.unknown.double().mean())}
    return found, certified


def _attacks(predictor: Predictor, x: Tensor, y: Tensor, eps: float, domain: Domain, proved: Tensor) -> Figures:
    """Return the robust accuracy under the paper's PGD, a stronger one and everything, and how many proofs broke."""
    runs = {
        "pgd, 10 iterations": PGD(steps=10, restarts=1, losses=("cross-entropy",)),
        "pgd, 100 iterations, 5 restarts": PGD(steps=100, restarts=5),
        "ensemble": as_attack("ensemble", steps=100, restarts=5, queries=1000),
    }
    found = {}
    for name, method in runs.items():
        result = attack(predictor, x, y, eps=eps, domain=domain, method=method)
        broken = int((result.success.to(proved.device) & proved).sum())
        found[name] = {"robust_accuracy": result.robust_accuracy, "certified points broken": broken}
    return found


def _pairwise_radius(predictor: Predictor, x: Tensor, y: Tensor, domain: Domain) -> float:
    return certified_radius(predictor, x, y, method="pairwise", domain=domain, tolerance=TOLERANCE).mean


class Trial(NamedTuple):
    """Attacks at the largest certified radii: of which models, on how many points, and how radii are found."""

    models: list[Predictor]
    points: int
    method: Method
    tolerance: float = TOLERANCE


def _trials(predictor: Predictor, x: Tensor, y: Tensor, domain: Domain, robust: bool) -> Figures:
    """Attack points at their largest certified radii: of the predictor, and of each network alone."""
    alone = [
        Predictor(predictor.graph, {name: value[i : i + 1] for name, value in predictor.samples.items()})
        for i in range(predictor.size)
    ]
    trials = {
        "predictor": Trial([predictor], len(x), Best("crown")),
        "predictor, hull": Trial([predictor], HULL_POINTS if robust else 0, Best("hull"), HULL_TOLERANCE),
        "single networks": Trial(alone, len(x), Elided("crown")),
    }
    return {
        name: _attacked_at_radii(trial, x[: trial.points], y[: trial.points], domain) for name, trial in trials.items()
    }


def _attacked_at_radii(trial: Trial, x: Tensor, y: Tensor, domain: Domain) -> Figures:
    """Return how many points were attacked at the largest certified radius of each, how many broke, and the radii."""
    radii, broken, trials = [], 0, 0
    for model in trial.models:
        found = certified_radius(model, x, y, method=trial.method, domain=domain, tolerance=trial.tolerance)
        radii.append(found.mean)
        reached = found.certified.to(x.device)
        if bool(reached.any()):
            # The model itself decides, on every point at a radius of its own.
            result = attack(
                model, x[reached], y[reached], eps=found.radius.to(x.device)[reached], domain=domain,
                method=as_attack("ensemble", steps=40, restarts=2, queries=200),
            )  # fmt: skip
            broken += int(result.success.sum())
            trials += int(reached.sum())
    return {"trials": trials, "broken": broken, "mean radius": sum(radii) / len(radii)}


@dataclass(frozen=True)
class Row:
    """One row of the table: a run and what was found."""

    method: str
    likelihood: str
    temperature: float
    figures: Figures


def run_certification_study(  # noqa: PLR0913 - public
    out: Path,
    evaluator: RuleEvaluator,
    *,
    dataset: str = "mnist",
    methods: Sequence[str] | None = None,
    temperatures: Sequence[float] = (1.0, 0.001),
    seed: int = 0,
    quick: bool = False,
    workers: int = 1,
    on_progress: Callable[[int, int, str], Any] = lambda done, total, name: None,
) -> list[Row]:
    """Run the study; write ``results.csv``, ``table.md``, ``attacks.md`` and ``rules.png`` into ``out``.

    Args:
        out: where everything goes; runs into ``out / "runs"``.
        evaluator: how runs are evaluated.
        dataset: to train and test on.
        methods: all by default.
        temperatures: of the posteriors.
        seed: of networks, data order and inference.
        quick: tiny networks and few epochs.
        workers: processes at once.
        on_progress: called with (done, total, name) after each run.
    """
    require_matplotlib()
    chosen = methods or list(METHODS)
    specs = study_specs(dataset, chosen, temperatures=temperatures, seeds=(seed,), quick=quick)
    figures = run_grid(specs, out / "runs", evaluator, workers=workers, on_progress=on_progress)
    rows = [
        Row(
            spec.algorithm,
            LIKELIHOODS[spec.likelihood],
            float(spec.temperature or spec.default_temperature()),
            figures[name],
        )
        for name, spec in specs.items()
        if "diverged" not in figures[name]
    ]
    write_atomically(out / "results.csv", rows_csv([flat(row) for row in rows]).encode())
    write_atomically(out / "table.md", rules_markdown(rows).encode())
    write_atomically(out / "attacks.md", attacks_markdown(rows).encode())
    robust = {f"{row.method}, T = {row.temperature:g}": row.figures for row in rows if row.likelihood == "robust"}
    if robust:
        rules_figure(robust, out / "rules.png")
    return rows


def flat(row: Row) -> dict[str, Any]:
    """Return a run as one row of figures."""
    f = row.figures
    found: dict[str, Any] = {"method": row.method, "likelihood": row.likelihood, "temperature": row.temperature}
    found |= {key: f[key] for key in ("n", "eps", "samples", "accuracy")}
    for part in ("rules", "attacks", "radii", "trials"):
        found |= {f"{name}: {key}": value for name, figures in f[part].items() for key, value in figures.items()}
    return found


def _markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    return "".join("| " + " | ".join(cells) + " |\n" for cells in (head, ["---"] * len(head), *body))


def rules_markdown(rows: Sequence[Row]) -> str:
    """What each rule proves of each robust posterior, in percent of all points, with seconds below."""
    robust = [row for row in rows if row.likelihood == "robust"]
    if not robust:
        return ""
    names = list(robust[0].figures["rules"])
    head = ["method", "temperature", "accuracy", *names, "robust under all attacks", "gap closed"]
    head += ["mean radius: pairwise, ibp", "best, crown"]
    body = []
    for row in robust:
        f = row.figures
        fractions = [f["rules"][name]["certified"] for name in names]
        robust_accuracy = f["attacks"]["ensemble"]["robust_accuracy"]
        gap = robust_accuracy - fractions[0]
        closed = f"{100 * (max(fractions) - fractions[0]) / gap:.0f}%" if gap > 0 else "–"
        percents = [f"{100 * fraction:.1f}" for fraction in (f["accuracy"], *fractions, robust_accuracy)]
        radii = [f["radii"]["pairwise, ibp"]["mean radius"], f["trials"]["predictor"]["mean radius"]]
        body.append([row.method, f"{row.temperature:g}", *percents, closed, *(f"{radius:.4f}" for radius in radii)])
    mean = [f"{sum(row.figures['rules'][name]['seconds'] for row in robust) / len(robust):.1f}" for name in names]
    body.append(["seconds, mean", "", "", *mean, "", "", "", ""])
    return _markdown(head, body)


def attacks_markdown(rows: Sequence[Row]) -> str:
    """Robust accuracy under each attack, broken certified points, and the trials at the largest certified radii."""
    head = ["likelihood", "method", "temperature", "accuracy"]
    if not rows:
        return ""
    names = list(rows[0].figures["attacks"])
    places = list(rows[0].figures["trials"])
    first, *rest = places
    head += [*names, "certified points broken", f"trials at the largest radius: {first}", *rest, "broken"]
    body = []
    for row in rows:
        f = row.figures
        robust = [f"{100 * f['attacks'][name]['robust_accuracy']:.1f}" for name in names]
        proofs = max(f["attacks"][name]["certified points broken"] for name in names)
        trials = [f"{f['trials'][part]['trials']:,}" for part in places]
        broken = sum(f["trials"][part]["broken"] for part in places)
        start = [row.likelihood, row.method, f"{row.temperature:g}", f"{100 * f['accuracy']:.1f}"]
        body.append([*start, *robust, str(proofs), *trials, str(broken)])
    return _markdown(head, body)
