"""A grid: many specs trained and evaluated, each into a directory of its own, several at once.

Whatever is finished stays finished: a grid that was stopped goes on where it was, with the same results.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from certibayes import data
from certibayes.errors import Diverged, InvalidInput, MissingPackage, RunExists
from certibayes.evaluation import diagnose
from certibayes.experiments.evaluate import evaluate
from certibayes.experiments.run import RECORD, add_figures, load_run, read_record, started_spec, train, training_data
from certibayes.experiments.spec import TrainSpec
from certibayes.posteriors import Posterior
from certibayes.prediction import Predictor

EVALUATION = "evaluation"

DIAGNOSED = 200
"""Test inputs on which chains are compared."""

Figures = dict[str, Any]


@dataclass(frozen=True)
class Evaluator:
    """How the runs of a grid are evaluated, on the test images of their data sets.

    Attributes:
        eps: radius of certificates and attacks.
        samples: weight samples of the predictor; all that are held, where there are fewer.
        method: of certification, by name.
        limit: take only the first so many test images.
        steps: iterations of the attack.
        restarts: of the attack.
        data_dir: where data sets lie.
        device: where to compute.
    """

    eps: float
    samples: int = 35
    method: str = "theorem1"
    limit: int | None = None
    steps: int = 20
    restarts: int = 2
    data_dir: str | Path | None = None
    device: str | None = None

    @property
    def key(self) -> str:
        """Under what a run's record keeps the figures."""
        return EVALUATION

    def predictor(self, posterior: Posterior) -> Predictor:
        """Draw the predictor that is evaluated."""
        held = self.samples if posterior.held is None else posterior.held
        known = training_data(posterior, self.data_dir)
        return posterior.predictor(min(self.samples, held), seed=1, device=self.device, data=known)

    def evaluate(self, posterior: Posterior, spec: TrainSpec) -> Figures:
        """Evaluate the posterior that a spec was trained to."""
        return _evaluate(posterior, spec, self)


def run_grid(
    specs: Mapping[str, TrainSpec],
    out: Path,
    evaluator: Evaluator,
    *,
    workers: int = 1,
    on_progress: Callable[[int, int, str], Any] = lambda done, total, name: None,
) -> dict[str, Figures]:
    """Train and evaluate every spec in ``out / name`` and return their figures by name.

    Args:
        specs: by name; names are directories.
        out: where the runs go.
        evaluator: how they are evaluated.
        workers: processes at once; each has one thread if there are several.
        on_progress: called with (done, total, name) after each run.
    """
    if workers < 1:
        raise InvalidInput(f"workers must be at least 1, got {workers}.")
    figures: dict[str, Figures] = {}
    if workers == 1:
        for name, spec in specs.items():
            figures[name] = run_one(spec, out / name, evaluator)
            on_progress(len(figures), len(specs), name)
        return figures
    # Not fork: CUDA does not survive it.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        ordered = sorted(specs, key=lambda name: passes_over_data(specs[name]), reverse=True)
        pending = {pool.submit(run_one, specs[name], out / name, evaluator): name for name in ordered}
        try:
            while pending:
                for future in wait(pending, return_when=FIRST_COMPLETED).done:
                    name = pending.pop(future)
                    figures[name] = future.result()
                    on_progress(len(figures), len(specs), name)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {name: figures[name] for name in specs}


def passes_over_data(spec: TrainSpec) -> int:
    """Return about how often a run goes through all data: the longest runs start first, so that none is left alone."""
    algorithm = spec.make_algorithm()
    networks = getattr(algorithm, "chains", 1) * getattr(algorithm, "members", 1)
    return (spec.epochs + algorithm.burn_in_epochs) * getattr(algorithm, "leapfrog", 1) * networks


def run_one(spec: TrainSpec, out: Path, evaluator: Evaluator) -> Figures:
    """Train and evaluate one spec, or read what was found before; training that diverges is a finding, too."""
    finished, started = (out / RECORD).exists(), started_spec(out)
    if finished and started is None:
        record = read_record(out)
        _require_same(TrainSpec.from_json(record["spec"]), spec.resolved(), out)
        if evaluator.key in record:
            return dict(record[evaluator.key])
    try:
        if finished and started is None:
            posterior = load_run(out)
        else:
            resume = started == spec.resolved()
            posterior = train(
                spec, out, data_dir=evaluator.data_dir, device=evaluator.device, resume=resume, overwrite=True,
                progress=False,
            )  # fmt: skip
    except Diverged as error:
        return {"diverged": str(error)}
    figures = evaluator.evaluate(posterior, spec)
    add_figures(out, evaluator.key, figures)
    return figures


def _require_same(stored: TrainSpec, wanted: TrainSpec, out: Path) -> None:
    """Raise if the finished run is another one, whose figures would pass for the wanted one's."""
    here, there = stored.to_json(), wanted.to_json()
    if other := [name for name in there if here[name] != there[name]]:
        raise RunExists(
            f"{out} holds a run with other settings ({', '.join(other)}). Choose another directory (--out)."
        )


def _evaluate(posterior: Posterior, spec: TrainSpec, evaluator: Evaluator) -> Figures:
    dataset = data.load(spec.dataset, evaluator.data_dir)
    predictor = evaluator.predictor(posterior)
    x, y = (tensor[: evaluator.limit].to(predictor.device) for tensor in dataset.test)
    found = evaluate(
        predictor, x, y, eps=evaluator.eps, domain=dataset.domain, method=evaluator.method, steps=evaluator.steps,
        restarts=evaluator.restarts,
    )  # fmt: skip
    metadata = posterior.metadata
    figures: Figures = {**found.summary(), "temperature": metadata["temperature"], "eps": evaluator.eps}
    figures |= {key: metadata[key] for key in ("held_out", "sampler") if key in metadata}
    if "chains" in metadata:
        try:
            figures["diagnostics"] = diagnose(posterior, x[:DIAGNOSED].cpu()).summary()
        except MissingPackage as missing:
            figures["diagnostics"] = {"missing": str(missing)}
    return figures
