"""A grid: many specs trained and evaluated, each into a directory of its own, several at once.

Whatever is finished stays finished: a grid that was stopped, or killed, goes on where it was, with the same results.
Several grids may work on one directory at once, also on several machines that share it: each group of runs is locked by
whoever works on it, and the others take what is free.

OUT/NAME/              a run
OUT/.groups/GROUP/*/   what runs that are trained together have in common, while they are trained
OUT/.groups/GROUP.lock the lock
OUT/journal.jsonl      what was done when, by which process
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from certibayes.errors import Diverged, RunExists
from certibayes.experiments.engines import Engine, Local
from certibayes.experiments.evaluator import Evaluator, Figures
from certibayes.experiments.run import (
    CHECKPOINT_EVERY,
    RECORD,
    add_figures,
    load_run,
    read_record,
    started_spec,
    train,
)
from certibayes.experiments.spec import TrainSpec
from certibayes.experiments.train_many import DIVERGED, is_trained, store_divergence, train_many
from certibayes.support.locks import locked
from certibayes.support.memory import shared_gpu

GROUPS = ".groups"
JOURNAL = "journal.jsonl"


class Failure(NamedTuple):
    """Why a run has no figures.

    Attributes:
        error: what was raised.
        trace: where.
    """

    error: Exception
    trace: str

    def __str__(self) -> str:
        return f"{type(self.error).__name__}: {self.error}"


class GroupTask(NamedTuple):
    """A group of runs to be trained and evaluated.

    Attributes:
        name: of the group.
        specs: of its runs, by name.
        out: directory of the grid.
        evaluator: how runs are evaluated.
        wait: for another process that is at work on the group; otherwise it is left to that one for the time being.
        checkpoint_every: seconds of training between checkpoints.
    """

    name: str
    specs: dict[str, TrainSpec]
    out: Path
    evaluator: Evaluator
    wait: bool
    checkpoint_every: float


Outcome = Figures | Failure


def run_grid(
    specs: Mapping[str, TrainSpec],
    out: Path,
    evaluator: Evaluator,
    *,
    groups: Mapping[str, str] | None = None,
    workers: int = 1,
    on_progress: Callable[[int, int, str], Any] = lambda done, total, name: None,
) -> dict[str, Figures]:
    """Train and evaluate every spec in ``out / name`` and return their figures by name.

    Args:
        specs: by name; names are directories.
        out: where the runs go.
        evaluator: how they are evaluated.
        groups: for each name its group, whose runs are trained together; each has its own by default.
        workers: processes at once; each has one thread if there are several.
        on_progress: called with (done, total, name) after each run.

    Raises:
        Exception: what the first run that failed has raised, once all others are finished.
    """
    outcomes = run_cells(specs, out, evaluator, engine=Local(workers), groups=groups, on_progress=on_progress)
    for outcome in outcomes.values():
        if isinstance(outcome, Failure):
            raise outcome.error
    return {name: outcome for name, outcome in outcomes.items() if not isinstance(outcome, Failure)}


def run_cells(
    specs: Mapping[str, TrainSpec],
    out: Path,
    evaluator: Evaluator,
    *,
    engine: Engine,
    groups: Mapping[str, str] | None = None,
    checkpoint_every: float = CHECKPOINT_EVERY,
    on_progress: Callable[[int, int, str], Any] = lambda done, total, name: None,
) -> dict[str, Outcome]:
    """Train and evaluate every spec in ``out / name``; return figures by name, or why there are none.

    Args:
        specs: by name; names are directories.
        out: where the runs go.
        evaluator: how they are evaluated.
        engine: where that is done.
        groups: for each name its group, whose runs are trained together; each has its own by default.
        checkpoint_every: seconds of training between checkpoints.
        on_progress: called with (done, total, name) after each run.
    """
    members: dict[str, dict[str, TrainSpec]] = {}
    for name, spec in specs.items():
        members.setdefault(name if groups is None else groups[name], {})[name] = spec
    # The longest first, so that none is left alone at the end.
    ordered = sorted(members, key=lambda group: sum(map(passes_over_data, members[group].values())), reverse=True)
    found: dict[str, Outcome] = {}
    for waits in (False, True):
        tasks = [GroupTask(group, members[group], out, evaluator, waits, checkpoint_every) for group in ordered]
        busy = []
        for place, outcome in engine.run(run_group, tasks):
            if outcome is None:
                busy.append(ordered[place])
                continue
            if isinstance(outcome, Exception):
                outcome = dict.fromkeys(members[ordered[place]], Failure(outcome, ""))
            for name, own in outcome.items():
                found[name] = own
                on_progress(len(found), len(specs), name)
        ordered = busy
    return {name: found[name] for name in specs}


def passes_over_data(spec: TrainSpec) -> int:
    """Return about how often a run goes through all data, the steps of an attack included."""
    algorithm = spec.make_algorithm()
    networks = getattr(algorithm, "chains", 1) * getattr(algorithm, "members", 1)
    attacked = spec.likelihood not in ("standard", "ibp", "crown-ibp")
    steps = (spec.resolved().attack_steps or 0) if attacked else 0
    return (spec.epochs + algorithm.burn_in_epochs) * getattr(algorithm, "leapfrog", 1) * networks * (1 + steps)


def run_group(task: GroupTask) -> dict[str, Outcome] | None:
    """Train and evaluate the runs of a group, or read what was found before; None if another process is at it."""
    with locked(task.out / GROUPS / f"{task.name}.lock", task.wait) as mine, shared_gpu():
        if not mine:
            return None
        if len(task.specs) > 1:
            try:
                _train_group(task)
            except Exception as error:
                failure = _failure(error)
                _enter(task.out, "failed", task.name, error=str(failure))
                return dict.fromkeys(task.specs, failure)
        found: dict[str, Outcome] = {}
        for name, spec in task.specs.items():
            try:
                found[name] = run_one(
                    spec, task.out / name, task.evaluator, _journal(task.out, name), task.checkpoint_every
                )
            except Exception as error:
                found[name] = _failure(error)
                _enter(task.out, "failed", name, error=str(found[name]))
        return found


def _failure(error: Exception) -> Failure:
    trace = "".join(traceback.format_exception(error))
    # It may have to come back from another process, which knows these kinds of errors; of others it gets the words.
    if type(error).__module__ not in ("builtins", "certibayes.errors") or not all(
        isinstance(part, (str, int)) for part in error.args
    ):
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return Failure(error, trace)


def _train_group(task: GroupTask) -> None:
    """Train those runs of a group together that are not trained yet."""
    # Of its own for these very runs: another grid may have the same group with other seeds, half-trained.
    described = json.dumps({name: spec.to_json() for name, spec in task.specs.items()}, sort_keys=True)
    directory = task.out / GROUPS / task.name / hashlib.sha256(described.encode()).hexdigest()[:12]
    for name, spec in task.specs.items():
        if is_trained(task.out / name):
            _require_same(_stored_spec(task.out / name), spec.resolved(), task.out / name)
    if all(is_trained(task.out / name) for name in task.specs):
        # Left behind by a process that was killed with its last stroke.
        shutil.rmtree(directory, ignore_errors=True)
        _remove_empty(directory.parent)
        return
    _enter(task.out, "training", task.name)
    resumed = train_many(
        task.specs, task.out, directory, data_dir=task.evaluator.data_dir, device=task.evaluator.device,
        checkpoint_every=task.checkpoint_every,
    )  # fmt: skip
    _remove_empty(directory.parent)
    for name in task.specs:
        _enter(task.out, "trained", name, resumed=resumed)


def _remove_empty(directory: Path) -> None:
    with contextlib.suppress(OSError):
        directory.rmdir()


def _stored_spec(out: Path) -> TrainSpec:
    record = json.loads((out / DIVERGED).read_text()) if (out / DIVERGED).exists() else read_record(out)
    return TrainSpec.from_json(record["spec"])


def run_one(
    spec: TrainSpec,
    out: Path,
    evaluator: Evaluator,
    enter: Callable[..., None] = lambda event, **more: None,
    checkpoint_every: float = CHECKPOINT_EVERY,
) -> Figures:
    """Train and evaluate one spec, or read what was found before; training that diverges is a finding, too.

    Args:
        spec: what is trained.
        out: directory of the run.
        evaluator: how it is evaluated.
        enter: called with what is done, for the journal.
        checkpoint_every: seconds of training between checkpoints.
    """
    done = is_trained(out)
    if done:
        if (out / DIVERGED).exists() and _stored_spec(out) == spec.resolved():
            return {"diverged": json.loads((out / DIVERGED).read_text())["diverged"]}
        (out / DIVERGED).unlink(missing_ok=True)
        done = (out / RECORD).exists()
    if done:
        record = read_record(out)
        _require_same(TrainSpec.from_json(record["spec"]), spec.resolved(), out)
        if evaluator.key in record:
            return dict(record[evaluator.key])
        posterior = load_run(out)
    else:
        resume = started_spec(out) == spec.resolved()
        enter("training")
        try:
            posterior = train(
                spec, out, data_dir=evaluator.data_dir, device=evaluator.device, resume=resume, overwrite=True,
                progress=False, checkpoint_every=checkpoint_every,
            )  # fmt: skip
        except Diverged as error:
            store_divergence(out, spec, error)
            enter("diverged")
            return {"diverged": str(error)}
        enter("trained", resumed=resume)
    began = time.monotonic()
    figures = evaluator.evaluate(posterior, spec)
    add_figures(out, evaluator.key, figures)
    enter("evaluated", figures=evaluator.key, seconds=round(time.monotonic() - began, 2))
    return figures


def is_finished(out: Path, evaluator: Evaluator) -> bool:
    """Tell whether a run has its figures, or will have none because it diverged."""
    return is_trained(out) and ((out / DIVERGED).exists() or evaluator.key in read_record(out))


def _journal(out: Path, name: str) -> Callable[..., None]:
    return lambda event, **more: _enter(out, event, name, **more)


def _enter(out: Path, event: str, name: str, **more: Any) -> None:
    """Enter an event into the journal: one write, so that those of several processes do not mix."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    record = {"time": stamp, "event": event, "name": name, **more, "host": platform.node(), "process": os.getpid()}
    with (out / JOURNAL).open("a") as file:
        file.write(json.dumps(record) + "\n")


def _require_same(stored: TrainSpec, wanted: TrainSpec, out: Path) -> None:
    """Raise if the finished run is another one, whose figures would pass for the wanted one's."""
    here, there = stored.to_json(), wanted.to_json()
    if other := [name for name in there if here[name] != there[name]]:
        raise RunExists(
            f"{out} holds a run with other settings ({', '.join(other)}). Choose another directory (--out)."
        )
