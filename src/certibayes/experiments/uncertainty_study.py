"""The study of uncertainty: does robust training raise it out of distribution, and keep confidence in distribution?

As in the paper's "Evaluation on out-of-distribution uncertainty": its methods with the standard and with the
robust likelihood, evaluated on the test images of a data set and on those of another (FashionMNIST for MNIST, SVHN for
CIFAR-10), on PGD examples, and by the supplement's likelihood ratio. The two likelihoods are compared at the same
temperature: at 1, Bayes' rule, and at 0.001, which held-out training images of MNIST chose for all five methods with
the robust likelihood (`inference_study`). Settings are those of that study; for CIFAR-10 the supplement's, with fewer
epochs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from certibayes import data
from certibayes.errors import InvalidInput
from certibayes.evaluation import SCORES, assess
from certibayes.experiments.claims import Claim, claims_markdown, decide_claim
from certibayes.experiments.evaluator import Evaluator, Figures
from certibayes.experiments.figures import require_matplotlib
from certibayes.experiments.grid import run_grid
from certibayes.experiments.inference_study import EPS, METHODS, study_spec
from certibayes.experiments.out_of_distribution import load_out_of_distribution
from certibayes.experiments.presets import preset_values
from certibayes.experiments.spec import ALGORITHMS, TrainSpec
from certibayes.experiments.tables import rows_csv
from certibayes.experiments.uncertainty_figures import TITLES, calibration_figure, curves_of, histogram_grid
from certibayes.posteriors import Posterior
from certibayes.support.files import write_atomically
from certibayes.support.names import unknown_name
from certibayes.support.optional import require_package

PAPER = ("hmc", "swag", "noisy-adam", "vogn", "bbb")
"""The paper's methods."""

CIFAR_METHODS = ("swag",)
CIFAR_EPOCHS = 20
TEMPERATURES = (1.0, 0.001)
LIKELIHOODS = {"standard": "standard", "ibp": "robust"}
"""What the likelihoods that are compared are called in tables."""


@dataclass(frozen=True)
class UncertaintyEvaluator(Evaluator):
    """How the study evaluates a run.

    Attributes:
        ood: name of the out-of-distribution inputs.
    """

    ood: str = "fashion-mnist"

    @property
    def key(self) -> str:
        """Figures on other inputs are other figures."""
        return f"uncertainty on {self.ood}, {self.limit or 'all'}"

    def evaluate(self, posterior: Posterior, spec: TrainSpec) -> Figures:
        """Measure uncertainty on inputs in and out of distribution, and under attack."""
        dataset, predictor = data.load(spec.dataset, self.data_dir), self.predictor(posterior)
        x, y = (tensor[: self.limit].to(predictor.device) for tensor in dataset.test)
        outside = load_out_of_distribution(self.ood, dataset, self.data_dir, self.limit).to(predictor.device)
        found = assess(
            predictor, x, y, outside, eps=self.eps, domain=dataset.domain, steps=self.steps, restarts=self.restarts
        )
        return {
            **found.summary(),
            "curves": curves_of(found),
            "temperature": posterior.metadata["temperature"],
            "eps": self.eps,
            "samples": predictor.size,
        }


@dataclass(frozen=True)
class Row:
    """One row of the table: a run and what was found."""

    method: str
    likelihood: str
    temperature: float
    seed: int
    figures: Figures


def radius_of(dataset: str) -> float:
    """Return the radius that the paper trains for."""
    return 1 / 255 if dataset == "cifar10" else EPS


def study_specs(
    dataset: str = "mnist",
    methods: Sequence[str] | None = None,
    *,
    temperatures: Sequence[float] = TEMPERATURES,
    seeds: Sequence[int] = (0,),
    quick: bool = False,
) -> dict[str, TrainSpec]:
    """Return the specs of the study by name: METHOD-LIKELIHOOD-tTEMPERATURE-sSEED."""
    chosen = methods or (CIFAR_METHODS if dataset == "cifar10" else PAPER)
    for method in chosen:
        if method not in METHODS:
            raise InvalidInput(unknown_name("method", method, METHODS))
    specs = {}
    for seed, method in itertools.product(seeds, chosen):
        for temperature in temperatures[:1] if ALGORITHMS[method].temperature_in == "nowhere" else temperatures:
            for likelihood in LIKELIHOODS:
                name = f"{method}-{likelihood}-t{temperature:g}-s{seed}"
                specs[name] = _spec(method, likelihood, temperature, dataset, quick, seed)
    return specs


def _spec(method: str, likelihood: str, temperature: float, dataset: str, quick: bool, seed: int) -> TrainSpec:
    if dataset != "cifar10":
        return study_spec(method, likelihood, temperature, dataset, quick, seed)
    settings = {
        **preset_values("paper-cifar", method), "epochs": 1 if quick else CIFAR_EPOCHS, "validation": 1 / 12,
        "seed": seed, "likelihood": likelihood, "temperature": temperature,
    }  # fmt: skip
    return TrainSpec(**settings)


def run_uncertainty_study(  # noqa: PLR0913 - public
    out: Path,
    evaluator: UncertaintyEvaluator,
    *,
    dataset: str = "mnist",
    methods: Sequence[str] | None = None,
    temperatures: Sequence[float] = TEMPERATURES,
    seeds: Sequence[int] = (0,),
    quick: bool = False,
    workers: int = 1,
    on_progress: Callable[[int, int, str], Any] = lambda done, total, name: None,
) -> tuple[list[Row], list[Claim]]:
    """Run the study; write ``results.csv``, ``table.md``, ``claims.md``, ``histograms.png`` and ``calibration.png``.

    Args:
        out: where everything goes; runs into ``out / "runs"``.
        evaluator: how runs are evaluated.
        dataset: the in-distribution one.
        methods: the paper's by default; for CIFAR-10 SWAG alone.
        temperatures: at which the likelihoods are compared.
        seeds: of networks, data order and inference.
        quick: tiny networks and few epochs.
        workers: processes at once.
        on_progress: called with (done, total, name) after each run.
    """
    # Before anything is trained, likewise.
    require_matplotlib()
    require_package("torchmetrics", "evaluation")
    specs = study_specs(dataset, methods, temperatures=temperatures, seeds=seeds, quick=quick)
    # Before anything is trained: inputs that are missing or of another shape would be noticed only after it.
    load_out_of_distribution(evaluator.ood, data.load(dataset, evaluator.data_dir), evaluator.data_dir, 1)
    figures = run_grid(specs, out / "runs", evaluator, workers=workers, on_progress=on_progress)
    rows = [
        Row(
            spec.algorithm,
            LIKELIHOODS[spec.likelihood],
            float(spec.temperature or spec.default_temperature()),
            spec.seed,
            figures[name],
        )
        for name, spec in specs.items()
    ]
    claims = claims_of(rows, dataset, evaluator.ood)
    write_atomically(out / "results.csv", rows_csv([flat(row) for row in rows]).encode())
    write_atomically(out / "table.md", markdown(rows).encode())
    write_atomically(out / "claims.md", claims_markdown(claims, dataset, evaluator.ood).encode())
    draw(rows, dataset, evaluator.ood, out)
    return rows, claims


def claims_of(rows: Sequence[Row], dataset: str, ood: str) -> list[Claim]:
    """Decide the paper's claim for each method, temperature and seed."""
    pairs: dict[tuple[str, float, int], dict[str, Figures]] = {}
    for row in rows:
        pairs.setdefault((row.method, row.temperature, row.seed), {})[row.likelihood] = row.figures
    return [decide_claim(*key, pair["standard"], pair["robust"], dataset, ood) for key, pair in pairs.items()]


def draw(rows: Sequence[Row], dataset: str, ood: str, out: Path) -> None:
    """Draw the first seed's runs: histograms of the paper's entropy, and calibration."""
    grid: dict[str, dict[str, Any]] = {}
    calibration: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        if row.seed != rows[0].seed or "diverged" in row.figures:
            continue
        curves, temperature = row.figures["curves"], f"temperature {row.temperature:g}"
        histograms = curves["histograms"]["expected_entropy"]
        grid.setdefault(row.method, {})[f"{row.likelihood}, {temperature}"] = histograms
        calibration.setdefault(temperature, {}).setdefault(row.likelihood, {})[row.method] = curves
    if not grid:
        return
    title = f"{dataset} (in) and {ood} (out)"
    histogram_grid(grid, out / "histograms.png", xlabel=f"{TITLES['expected_entropy']} (nats)", title=title)
    calibration_figure(calibration, out / "calibration.png")


def flat(row: Row) -> dict[str, Any]:
    """Return a run as one row of figures; those of a run that diverged are missing."""
    f = row.figures
    found: dict[str, Any] = {
        "method": row.method, "likelihood": row.likelihood, "temperature": row.temperature, "seed": row.seed,
        "diverged": "diverged" in f,
    }  # fmt: skip
    if found["diverged"]:
        return found
    for part in ("in", "out", "adversarial"):
        found |= {f"{part}_{key}": value for key, value in f[part].items()}
    for score in SCORES:
        found |= {f"{score}_{key}": value for key, value in f["detection"][score].items()}
    return found | {"likelihood_ratio": f["likelihood_ratio"], "eps": f["eps"], "samples": f["samples"]}


COLUMNS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "accuracy": lambda f: f"{100 * f['in']['accuracy']:.1f}%",
    "NLL": lambda f: f"{f['in']['nll']:.3f}",
    "Brier": lambda f: f"{f['in']['brier']:.3f}",
    "ECE": lambda f: f"{f['in']['ece']:.4f}",
    "AURC": lambda f: f"{f['in']['aurc']:.4f}",
    "E[H] in": lambda f: f"{f['in']['expected_entropy']:.3f}",
    "E[H] out": lambda f: f"{f['out']['expected_entropy']:.3f}",
    "E[H] PGD": lambda f: f"{f['adversarial']['expected_entropy']:.3f}",
    "H[mean] in": lambda f: f"{f['in']['predictive_entropy']:.3f}",
    "H[mean] out": lambda f: f"{f['out']['predictive_entropy']:.3f}",
    "H[mean] PGD": lambda f: f"{f['adversarial']['predictive_entropy']:.3f}",
    "AUROC by E[H]": lambda f: f"{f['detection']['expected_entropy']['auroc']:.3f}",
    "by H[mean]": lambda f: f"{f['detection']['predictive_entropy']['auroc']:.3f}",
    "AUPR": lambda f: f"{f['detection']['expected_entropy']['aupr']:.3f}",
    "FPR95": lambda f: f"{f['detection']['expected_entropy']['fpr95']:.3f}",
    "likelihood ratio": lambda f: f"{f['likelihood_ratio']:.3f}",
}
"""The table's columns and how they are written: E[H] is the expected entropy, H[mean] that of the mean prediction;
AUPR and FPR95 are by E[H]."""


def markdown(rows: Sequence[Row]) -> str:
    """The table, standard above robust for each method and temperature."""
    head = ["method", "temperature", "likelihood", *COLUMNS]
    if several := len({row.seed for row in rows}) > 1:
        head.insert(2, "seed")
    lines = [head, ["---"] * len(head)]
    for row in rows:
        start = [row.method, f"{row.temperature:g}", *([str(row.seed)] if several else []), row.likelihood]
        diverged = "diverged" in row.figures
        lines.append([*start, *("diverged" if diverged else write(row.figures) for write in COLUMNS.values())])
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
