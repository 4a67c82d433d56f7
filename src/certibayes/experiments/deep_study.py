"""The study of deep networks: posteriors of CNN7 that can be certified, by data set and radius.

Where the posterior is SWAG's, several are trained that differ by their seed alone. Reported are the first of them; the
ensemble of their means, which are independently trained networks of one recipe; and all of them together (MultiSWAG;
Wilson and Izmailov, 2020). The mutual information of the ensemble is what that of a posterior is compared with: a
posterior that has far less hardly differs from one network. Where training takes longer, on CIFAR-10, the posterior is
a snapshot ensemble, of which one training has all members.

Settings were chosen on held-out training images (``choose``), never on test images.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from certibayes import data
from certibayes.attacks import PGD, attack
from certibayes.certification import Elided, certify
from certibayes.data import DataSet
from certibayes.errors import InvalidInput
from certibayes.evaluation import uncertainty
from certibayes.experiments._deep_figures import draw_paths, draw_rows
from certibayes.experiments.figures import require_matplotlib
from certibayes.experiments.grid import Evaluator, Figures, run_grid
from certibayes.experiments.run import load_run, training_data
from certibayes.experiments.spec import TrainSpec
from certibayes.experiments.tables import rows_csv
from certibayes.inference import held_out
from certibayes.posteriors import Posterior, Samples
from certibayes.prediction import Predictor
from certibayes.support.files import write_atomically

MEMBERS = 3
"""Seeds of every recipe."""

ATTACKED = 500
"""Test images that are attacked."""

HELD_OUT = 1 / 12
"""Fraction of the training images on which settings are compared."""

COMMON: dict[str, Any] = {
    "architecture": "cnn7",
    "channels": 64,
    "likelihood": "ibp",
    "margins": True,
    "ramp": 0.35,
    "lam_ramp": 0.1,
    "ramp_shape": "smooth",
    "algorithm": "swag",
    "lr": 5e-4,
    "schedule": "cosine",
    "lr_floor": 0.4,
    "lr_end": 0.7,
    "warmup": 0.0,
    "clip": 10.0,
    "batch_size": 256,
    "precision": "high",
    "temperature": 1.0,
    "settings": {"optimizer": "adam", "start": 0.7, "rank": 20, "every": 100},
}
"""What all recipes share, spelled out, so that a change of defaults changes no table."""


@dataclass(frozen=True)
class Task:
    """A data set, a radius, and the recipe for it.

    Attributes:
        dataset: name of the data set.
        eps: radius that is certified.
        samples: weight samples of the predictors that are certified; the last number is the one of the table.
        settings: of the spec, beside the common ones.
        seeds: number of trainings.
        candidates: what was tried on held-out images instead, by name: further settings each.
    """

    dataset: str
    eps: float
    samples: tuple[int, ...]
    settings: Mapping[str, Any]
    seeds: int = MEMBERS
    candidates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def posterior(self) -> str:
        """What the posterior of one training is called."""
        return "snapshot ensemble" if self.settings.get("algorithm") == "snapshot" else "SWAG"

    def spec(self, seed: int = 0, quick: bool = False, **changed: Any) -> TrainSpec:
        """Return the spec of a run."""
        settings = {**COMMON, "dataset": self.dataset, "eps": self.eps, "seed": seed, **self.settings, **changed}
        if quick:
            settings |= {"channels": 2, "epochs": 2}
            if settings["algorithm"] == "swag":
                settings["settings"] = {**settings["settings"], "every": 2, "rank": 2}
        return TrainSpec(**settings)


_CIFAR: dict[str, Any] = {
    "multiplier": 1.0,
    "lam": 0.05,
    "lr": 2e-3,
    "epochs": 120,
    "augment": "flip",
    "algorithm": "snapshot",
    "schedule": "constant",
    "lr_end": 1.0,
    "settings": {"members": 3, "start": 0.6, "optimizer": "adam"},
}

TASKS = {
    "digits": Task(
        "digits",
        0.1,
        (10, 35),
        {
            "architecture": "cnn5",
            "channels": 8,
            "multiplier": 1.1,
            "lam": 0.25,
            "ramp": None,
            "lam_ramp": None,
            "tightness": 0.5,
            "balance": 0.5,
            "lr": 0.003,
            "schedule": "constant",
            "warmup": 0.02,
            "epochs": 20,
            "batch_size": 128,
            "settings": {"optimizer": "adam", "start": 0.6, "rank": 20, "every": 20},
        },
    ),
    "mnist": Task(
        "mnist",
        0.1,
        (10, 35),
        {"channels": 32, "multiplier": 2.0, "lam": 0.05, "epochs": 45},
        candidates={"lam 0.25": {"lam": 0.25}, "lr 0.002": {"lr": 2e-3}},
    ),
    "fashion-mnist": Task(
        "fashion-mnist",
        0.1,
        (10, 35),
        {"multiplier": 1.1, "lam": 0.05, "epochs": 45},
        candidates={"lam 0.25": {"lam": 0.25}, "lr 0.002": {"lr": 2e-3}, "narrow": {"channels": 32}},
    ),
    "cifar10-1": Task("cifar10", 1 / 255, (10,), _CIFAR, seeds=1),
    "cifar10-2": Task(
        "cifar10",
        2 / 255,
        (10,),
        _CIFAR,
        seeds=1,
        candidates={
            "lr 0.0005": {"lr": 5e-4},
            "lr 0.005": {"lr": 5e-3},
            "lam 0.25": {"lam": 0.25},
            "crops": {"augment": "flip,crop:2"},
            "batches of 128": {"batch_size": 128},
        },
    ),
    "cifar10-8": Task("cifar10", 8 / 255, (10,), _CIFAR, seeds=1),
}
"""Tasks by name."""

PATHS: dict[str, dict[str, Any]] = {
    "lam ramped": {},
    "lam from the start": {"lam_ramp": 0.0},
}
"""Two ways to the same likelihood."""


@dataclass(frozen=True)
class DeepEvaluator(Evaluator):
    """How a deep posterior is evaluated: certified by intervals with the last layer elided, at several sizes.

    Attributes:
        sizes: weight samples; fewer where a posterior holds fewer.
        validated: take the images that training held out in the place of test images.
    """

    method: str = "elided"
    steps: int = 10
    restarts: int = 1
    sizes: tuple[int, ...] = (35,)
    validated: bool = False

    @property
    def key(self) -> str:
        """See the base class."""
        return "held-out evaluation" if self.validated else "deep evaluation"

    def evaluate(self, posterior: Posterior, spec: TrainSpec) -> Figures:
        """See the base class: figures by number of samples, and the course of training."""
        dataset = data.load(spec.dataset, self.data_dir)
        x, y = self._images(dataset, spec)
        found: Figures = {"history": posterior.metadata.get("history", [])}
        held = max(self.sizes, default=0) if posterior.held is None else posterior.held
        for size in dict.fromkeys(min(size, held) for size in self.sizes):
            predictor = posterior.predictor(size, device=self.device, data=training_data(posterior, self.data_dir))
            found[str(size)] = self.measure(predictor, x, y, dataset)
        return found

    def _images(self, dataset: DataSet, spec: TrainSpec) -> tuple[Tensor, Tensor]:
        x, y = held_out(dataset.train, spec.validation, spec.seed)[1] if self.validated else dataset.test
        return x[: self.limit], y[: self.limit]

    def measure(self, predictor: Predictor, x: Tensor, y: Tensor, dataset: DataSet) -> Figures:
        """Certify, attack and measure one predictor."""
        x, y = x.to(predictor.device), y.to(predictor.device)
        started = time.monotonic()
        certificate = certify(predictor, x, y, eps=self.eps, method=Elided(bounds="ibp"), domain=dataset.domain)
        seconds = time.monotonic() - started
        few = min(ATTACKED, len(x))
        method = PGD(self.steps, self.restarts)
        attacked = attack(predictor, x[:few], y[:few], eps=self.eps, domain=dataset.domain, method=method)
        clean = uncertainty(predictor, x)
        nll = -clean.log_probabilities.gather(-1, y[:, None].to(clean.log_probabilities.device)).mean()
        return {
            "n": len(x),
            "samples": predictor.size,
            "eps": self.eps,
            "certified": certificate.certified_fraction,
            "accuracy": certificate.accuracy,
            "unbroken": attacked.robust_accuracy,
            "attacked": few,
            "nll": float(nll),
            "mutual_information": float(clean.mutual_information.mean()),
            "disagreement": float(clean.disagreement.mean()),
            "digest": predictor.digest,
            "seconds": seconds,
        }


@dataclass(frozen=True)
class Row:
    """One row of the table: a task, a posterior, its size, and what was found."""

    task: str
    posterior: str
    figures: Figures


def chosen_tasks(dataset: str, eps: float | None = None) -> dict[str, Task]:
    """Return the tasks of a data set, all of them or the one of a radius."""
    of_data = {name: task for name, task in TASKS.items() if task.dataset == dataset}
    if not of_data:
        known = ", ".join(dict.fromkeys(task.dataset for task in TASKS.values()))
        raise InvalidInput(f"deep networks are studied on {known}, not on {dataset!r}.")
    found = {name: task for name, task in of_data.items() if eps is None or abs(task.eps - eps) < 1e-9}
    if not found:
        radii = ", ".join(f"{task.eps:.4g}" for task in of_data.values())
        raise InvalidInput(f"on {dataset} the radii {radii} are studied, not {eps:g}.")
    return found


def run_deep_study(
    out: Path,
    evaluator: DeepEvaluator,
    tasks: Mapping[str, Task],
    *,
    seeds: int | None = None,
    quick: bool = False,
    on_progress: Callable[[int, int, str], Any] = lambda done, total, name: None,
) -> list[Row]:
    """Train and evaluate the tasks; write ``results.csv``, ``table.md`` and ``deep.png`` into ``out``.

    Args:
        out: where everything goes; runs into ``out / "runs"``.
        evaluator: how posteriors are evaluated; radius and number of samples are the task's.
        tasks: by name.
        seeds: number of trainings of each; by default the task's own.
        quick: tiny networks and few epochs.
        on_progress: called with (done, total, name) after each run.
    """
    require_matplotlib()
    rows: list[Row] = []
    numbers = {name: task.seeds if seeds is None else seeds for name, task in tasks.items()}
    done = 0
    for name, task in tasks.items():
        own = replace(evaluator, eps=task.eps, sizes=task.samples[:1] if quick else task.samples)
        specs = {f"{name}-s{seed}": task.spec(seed, quick) for seed in range(numbers[name])}
        found: dict[str, Figures] = {}
        for run, spec in specs.items():
            # Of the other seeds only the means are of interest, and samples among those of all.
            alone = own if spec.seed == 0 else replace(own, sizes=())
            found |= run_grid({run: spec}, out / "runs", alone)
            done += 1
            on_progress(done, sum(numbers.values()), run)
        if any("diverged" in figures for figures in found.values()):
            continue
        first = next(iter(found.values()))
        rows += [Row(name, task.posterior, first[size]) for size in first if size.isdigit()]
        if len(specs) > 1:
            rows += _rows_together(name, out, list(specs), own, task)
        _write(out, rows)
    return rows


def _rows_together(name: str, out: Path, runs: Sequence[str], evaluator: DeepEvaluator, task: Task) -> list[Row]:
    """Evaluate the ensemble of the means, and the samples of all posteriors together, unless that was done before."""
    kept = out / "together" / f"{name}.json"
    if kept.exists():
        return [Row(**row) for row in json.loads(kept.read_text())]
    posteriors = [load_run(out / "runs" / run) for run in runs]
    dataset = data.load(task.dataset, evaluator.data_dir)
    x, y = (tensor[: evaluator.limit] for tensor in dataset.test)
    each = -(-max(evaluator.sizes) // len(posteriors))
    together = {
        f"{len(posteriors)} members": Samples.join(*[posterior.center() for posterior in posteriors]),  # type: ignore[attr-defined]
        f"{len(posteriors)} SWAG": Samples.join(*posteriors, each=each, data=dataset),
    }
    rows = [
        Row(name, kind, evaluator.measure(joined.predictor(device=evaluator.device), x, y, dataset))
        for kind, joined in together.items()
    ]
    write_atomically(kept, (json.dumps([vars(row) for row in rows], indent=2) + "\n").encode())
    return rows


def run_paths(
    out: Path,
    evaluator: DeepEvaluator,
    *,
    quick: bool = False,
    on_progress: Callable[[int, int, str], Any] = lambda done, total, name: None,
) -> dict[str, Figures]:
    """Train CNN7 on FashionMNIST with lam ramped and with lam constant; write ``paths.md`` and ``paths.png``.

    Held-out training images are evaluated after each epoch: accuracy, and what intervals prove at the trained radius.
    """
    require_matplotlib()
    task = TASKS["fashion-mnist"]
    changed: dict[str, Any] = {
        "lam": 0.25, "epochs": 20, "algorithm": "map", "settings": {}, "lr_end": 1.0, "lr_floor": 0.01,
        "validation": HELD_OUT,
    }  # fmt: skip
    if quick:
        changed |= {"channels": 2, "epochs": 2}
    specs = {name.replace(" ", "-"): task.spec(**{**changed, **own}) for name, own in PATHS.items()}
    found = run_grid(specs, out / "runs", replace(evaluator, eps=task.eps, sizes=(1,)), on_progress=on_progress)
    by_path = dict(zip(PATHS, found.values(), strict=True))
    lines = ["| | training loss | certified | accuracy |", "| --- | --- | --- | --- |"]
    for name, figures in by_path.items():
        loss, last = figures["history"][-1]["loss"], figures["1"]
        lines.append(f"| {name} | {loss:.3f} | {100 * last['certified']:.1f}% | {100 * last['accuracy']:.1f}% |")
    write_atomically(out / "paths.md", ("\n".join(lines) + "\n").encode())
    draw_paths({name: figures["history"] for name, figures in by_path.items()}, out / "paths.png")
    return by_path


def choose(
    out: Path,
    evaluator: DeepEvaluator,
    tasks: Mapping[str, Task],
    *,
    quick: bool = False,
    on_progress: Callable[[int, int, str], Any] = lambda done, total, name: None,
) -> list[Row]:
    """Compare the candidates of each task with its recipe on held-out training images; write ``choice.csv``.

    For a third as long, so that all of it takes minutes.
    """
    rows: list[Row] = []
    for name, task in tasks.items():
        shorter = {"epochs": task.settings["epochs"] // 3, "validation": HELD_OUT}
        candidates = {"recipe": {}, **task.candidates}
        specs = {
            f"{name}-{candidate.replace(' ', '-').replace('/', '-')}": task.spec(quick=quick, **{**shorter, **changed})
            for candidate, changed in candidates.items()
        }
        own = replace(evaluator, eps=task.eps, sizes=(10,), validated=True)
        found = run_grid(specs, out / "candidates", own, on_progress=on_progress)
        for candidate, figures in zip(candidates, found.values(), strict=True):
            if "diverged" not in figures:
                rows.append(Row(name, candidate, figures["10"]))
    write_atomically(out / "choice.csv", rows_csv([flat(row) for row in rows]).encode())
    return rows


def flat(row: Row) -> dict[str, Any]:
    """Return a row as named values, with what the recipe says of the likelihood."""
    task = TASKS[row.task]
    stated = {"lam": task.settings["lam"], "eta": task.settings["multiplier"] * task.eps}
    return {"task": row.task, "posterior": row.posterior, **stated, **row.figures}


def compared(rows: Sequence[Row], row: Row) -> float | None:
    """Return a row's mutual information relative to that of the ensemble of independently trained members."""
    members = [other for other in rows if other.task == row.task and other.posterior.endswith("members")]
    information = members[0].figures["mutual_information"] if members else 0.0
    return row.figures["mutual_information"] / information if information else None


def markdown(rows: Sequence[Row]) -> str:
    """The table: percentages of all test images, then the figures of uncertainty."""
    lines = [
        "| data | radius | posterior | networks | final λ | η | certified | accuracy | unbroken | NLL "
        "| mutual information | of members' |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        f, task = row.figures, TASKS[row.task]
        share = compared(rows, row)
        eta = task.settings["multiplier"] * task.eps
        cells = [
            task.dataset, in_pixels(task.eps, task), row.posterior, str(f["samples"]), f"{task.settings['lam']:g}",
            in_pixels(eta, task), *(f"{100 * f[key]:.1f}%" for key in ("certified", "accuracy", "unbroken")),
            f"{f['nll']:.3f}", f"{f['mutual_information']:.5f}", "-" if share is None else f"{share:.2f}",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def in_pixels(radius: float, task: Task) -> str:
    """Write a radius as its data set's literature does."""
    return f"{radius * 255:g}/255" if task.dataset == "cifar10" else f"{radius:g}"


def _write(out: Path, rows: Sequence[Row]) -> None:
    write_atomically(out / "results.csv", rows_csv([flat(row) for row in rows]).encode())
    write_atomically(out / "table.md", markdown(rows).encode())
    shown = [row for row in rows if _is_largest(row)]
    draw_rows([(row.task, row.posterior, row.figures) for row in shown], out / "deep.png")


def _is_largest(row: Row) -> bool:
    """Tell whether the predictor has all the samples that its task has."""
    return row.posterior != "SWAG" or row.figures["samples"] == max(TASKS[row.task].samples)
