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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from certibayes import data
from certibayes.attacks import PGD, attack
from certibayes.certification import Elided, Theorem1, certify
from certibayes.data import DataSet
from certibayes.errors import RunExists
from certibayes.evaluation import uncertainty
from certibayes.experiments._deep_figures import draw_paths, draw_rows
from certibayes.experiments.deep_tasks import HELD_OUT, TASKS, Task
from certibayes.experiments.evaluator import Evaluator, Figures
from certibayes.experiments.figures import require_matplotlib
from certibayes.experiments.grid import run_grid
from certibayes.experiments.run import load_run, training_data
from certibayes.experiments.spec import TrainSpec
from certibayes.experiments.tables import rows_csv
from certibayes.inference import held_out
from certibayes.posteriors import DiagonalGaussian, Posterior, Samples
from certibayes.prediction import Predictor
from certibayes.support.files import write_atomically

ATTACKED = 500
"""Test images that are attacked."""

METHODS = {"elided": Elided(bounds="ibp"), "theorem1": Theorem1()}
"""How predictors are certified, by name."""

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
        dtype: precision of the predictors.
        validated: take the images that training held out in the place of test images.
    """

    method: str = "elided"
    steps: int = 10
    restarts: int = 1
    sizes: tuple[int, ...] = (35,)
    dtype: torch.dtype = torch.float32
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
            found[str(size)] = self.measure(predictor.to(self.dtype), x, y, dataset)
        return found

    def _images(self, dataset: DataSet, spec: TrainSpec) -> tuple[Tensor, Tensor]:
        x, y = held_out(dataset.train, spec.validation, spec.seed)[1] if self.validated else dataset.test
        return x[: self.limit], y[: self.limit]

    def measure(self, predictor: Predictor, x: Tensor, y: Tensor, dataset: DataSet) -> Figures:
        """Certify, attack and measure one predictor."""
        x, y = x.to(predictor.device), y.to(predictor.device)
        started = time.monotonic()
        certificate = certify(predictor, x, y, eps=self.eps, method=METHODS[self.method], domain=dataset.domain)
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
            "dtype": str(predictor.dtype).removeprefix("torch."),
            "digest": predictor.digest,
            "seconds": seconds,
        }


@dataclass(frozen=True)
class Row:
    """One row of the table: a task, a posterior, its size, and what was found."""

    task: str
    posterior: str
    figures: Figures


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
        out: where everything goes; runs into ``out / "runs"``, rows into ``out / "rows"``. What other commands
            finished there is part of the table too.
        evaluator: how posteriors are evaluated; radius, method and number of samples are the task's.
        tasks: by name.
        seeds: number of trainings of each; by default the task's own.
        quick: tiny networks and few epochs.
        on_progress: called with (done, total, name) after each run.
    """
    require_matplotlib()
    numbers = {name: task.seeds if seeds is None else seeds for name, task in tasks.items()}
    done = 0
    for name, task in tasks.items():
        sizes = task.samples[:1] if quick else task.samples
        own = replace(evaluator, eps=task.eps, method=task.method, dtype=task.dtype, sizes=sizes)
        specs = {f"{name}-s{seed}": task.spec(seed, quick) for seed in range(numbers[name])}
        if not _is_finished(out, name, list(specs.values())):
            _run_task(out, own, name, specs)
        done += numbers[name]
        on_progress(done, sum(numbers.values()), name)
        _write(out)
    return [row for row in _finished_rows(out) if row.task in tasks]


def _run_task(out: Path, evaluator: DeepEvaluator, name: str, specs: Mapping[str, TrainSpec]) -> None:
    """Train and evaluate one task, and write down its rows."""
    task = TASKS[name]
    found: dict[str, Figures] = {}
    for run, spec in specs.items():
        # Of the other seeds only the means are of interest, and samples among those of all.
        own = evaluator if spec.seed == 0 else replace(evaluator, sizes=())
        found |= run_grid({run: spec}, out / "runs", own)
    if any("diverged" in figures for figures in found.values()):
        return
    first = next(iter(found.values()))
    rows = [Row(name, task.posterior, first[size]) for size in first if size.isdigit()]
    if len(specs) > 1:
        rows += _rows_together(name, out, list(specs), evaluator)
    record = {"specs": _as_json(specs.values()), "rows": [vars(row) for row in rows]}
    write_atomically(_rows_file(out, name), (json.dumps(record, indent=2) + "\n").encode())


def _rows_together(name: str, out: Path, runs: Sequence[str], evaluator: DeepEvaluator) -> list[Row]:
    """Evaluate the ensemble of the means, and the samples of all posteriors together."""
    posteriors = [load_run(out / "runs" / run) for run in runs]
    dataset = data.load(TASKS[name].dataset, evaluator.data_dir)
    x, y = (tensor[: evaluator.limit] for tensor in dataset.test)
    each = -(-max(evaluator.sizes) // len(posteriors))
    centers = [posterior.center() for posterior in posteriors if isinstance(posterior, DiagonalGaussian)]
    together = {
        f"{len(posteriors)} members": Samples.join(*centers),
        f"{len(posteriors)} SWAG": Samples.join(*posteriors, each=each, data=dataset),
    }
    return [
        Row(name, kind, evaluator.measure(joined.predictor(device=evaluator.device).to(evaluator.dtype), x, y, dataset))
        for kind, joined in together.items()
    ]


def _rows_file(out: Path, name: str) -> Path:
    return out / "rows" / f"{name}.json"


def _is_finished(out: Path, name: str, specs: Sequence[TrainSpec]) -> bool:
    """Tell whether the rows of a task are written down; raise if they are those of another recipe."""
    if not _rows_file(out, name).exists():
        return False
    if json.loads(_rows_file(out, name).read_text())["specs"] == _as_json(specs):
        return True
    raise RunExists(
        f"{out} holds rows of {name} with other settings. Choose another directory (--out), or remove them."
    )


def _as_json(specs: Iterable[TrainSpec]) -> Any:
    """Return specs as a file gives them back, with lists for tuples."""
    return json.loads(json.dumps([spec.resolved().to_json() for spec in specs]))


def _finished_rows(out: Path) -> list[Row]:
    """Return the rows of all tasks that are finished in a directory, in their own order."""
    records = [json.loads(file.read_text()) for name in TASKS if (file := _rows_file(out, name)).exists()]
    return [Row(**row) for record in records for row in record["rows"]]


def run_paths(
    out: Path,
    evaluator: DeepEvaluator,
    *,
    channels: int | None = None,
    quick: bool = False,
    on_progress: Callable[[int, int, str], Any] = lambda done, total, name: None,
) -> dict[str, Figures]:
    """Train CNN7 on FashionMNIST with lam ramped and with lam constant; write ``paths.md`` and ``paths.png``.

    Held-out training images are evaluated after each epoch: accuracy, and what intervals prove at the trained radius.
    Fewer ``channels`` than the recipe's 64 train on a CPU.
    """
    require_matplotlib()
    task = TASKS["fashion-mnist"]
    changed: dict[str, Any] = {
        "lam": 0.25, "epochs": 20, "algorithm": "map", "settings": {}, "lr_end": 1.0, "lr_floor": 0.01,
        "validation": HELD_OUT,
    }  # fmt: skip
    if quick:
        changed |= {"channels": 2, "epochs": 2}
    if channels is not None:
        changed["channels"] = channels
    specs = {name.replace(" ", "-"): task.spec(**{**changed, **own}) for name, own in PATHS.items()}
    found = run_grid(
        specs, out / "runs", replace(evaluator, eps=task.eps, dtype=task.dtype, sizes=(1,)), on_progress=on_progress
    )
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
        own = replace(evaluator, eps=task.eps, method=task.method, dtype=task.dtype, sizes=(10,), validated=True)
        found = run_grid(specs, out / "candidates", own, on_progress=on_progress)
        for candidate, spec, figures in zip(candidates, specs.values(), found.values(), strict=True):
            stated = {"lam": spec.lam, "eta": spec.multiplier * spec.eps}
            # By number of samples: ten, or as many as a posterior holds.
            rows += [Row(name, candidate, {**figures[size], **stated}) for size in figures if size.isdigit()]
    write_atomically(out / "choice.csv", rows_csv([flat(row) for row in rows]).encode())
    return rows


def flat(row: Row) -> dict[str, Any]:
    """Return a row as named values, with what the recipe says of the likelihood, unless the row does."""
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
        "| task | radius | posterior | networks | final λ | η | certified | accuracy | unbroken | NLL "
        "| mutual information | of members' |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        f, task = row.figures, TASKS[row.task]
        share = compared(rows, row)
        eta = task.settings["multiplier"] * task.eps
        cells = [
            row.task, in_pixels(task.eps, task), row.posterior, str(f["samples"]), f"{task.settings['lam']:g}",
            in_pixels(eta, task), *(f"{100 * f[key]:.1f}%" for key in ("certified", "accuracy", "unbroken")),
            f"{f['nll']:.3f}", f"{f['mutual_information']:.5f}", "-" if share is None else f"{share:.2f}",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def in_pixels(radius: float, task: Task) -> str:
    """Write a radius as its data set's literature does."""
    return f"{radius * 255:g}/255" if task.dataset == "cifar10" else f"{radius:g}"


def _write(out: Path) -> None:
    """Write tables and figure of all tasks that are finished, those of earlier commands too."""
    if not (rows := _finished_rows(out)):
        return
    write_atomically(out / "results.csv", rows_csv([flat(row) for row in rows]).encode())
    write_atomically(out / "table.md", markdown(rows).encode())
    shown = [row for row in rows if _is_largest(row)]
    draw_rows([(row.task, row.posterior, row.figures) for row in shown], out / "deep.png")


def _is_largest(row: Row) -> bool:
    """Tell whether the predictor has all the samples that its task has."""
    return row.posterior != "SWAG" or row.figures["samples"] == max(TASKS[row.task].samples)
