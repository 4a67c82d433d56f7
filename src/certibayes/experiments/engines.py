"""Engines: where the tasks of a grid are worked on. One machine's processes, or a Ray cluster.

Both take a function of the package and its arguments, and return what comes of each as it is finished, errors too: a
task that fails does not stop the others. A worker that dies is replaced and its task given to another, which goes on
from the last checkpoint.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch

from certibayes.errors import InvalidInput, MissingPackage
from certibayes.support.names import unknown_name
from certibayes.support.optional import require_package

Task = TypeVar("Task")
Result = TypeVar("Result")

ENGINES = ("local", "ray")
EXTRA = "cluster"
"""The extra that brings Ray."""

TRIES = 3
"""Workers that may die over one task before it counts as failed."""

SUSPICIONS = 2
"""Deaths of workers of this machine that a task may have been beside before it is worked on alone."""


class Engine(Protocol):
    """Works on tasks."""

    def run(
        self, function: Callable[[Task], Result], tasks: Sequence[Task]
    ) -> Iterator[tuple[int, Result | Exception]]:
        """Yield, as they are finished, each task's place and what the function returned or raised."""


@dataclass(frozen=True)
class Local:
    """Processes of this machine.

    Attributes:
        workers: tasks at once; a single one is worked on in this process.
        threads: of each worker; None for as many as torch takes in this process, and one in others.
    """

    workers: int = 1
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise InvalidInput(f"workers must be at least 1, got {self.workers}.")

    def run(
        self, function: Callable[[Task], Result], tasks: Sequence[Task]
    ) -> Iterator[tuple[int, Result | Exception]]:
        """See the protocol."""
        if self.workers > 1:
            yield from self._in_processes(function, tasks)
            return
        with _threads(self.threads):
            for place, task in enumerate(tasks):
                yield place, _outcome(function, task)

    def _in_processes(
        self, function: Callable[[Task], Result], tasks: Sequence[Task]
    ) -> Iterator[tuple[int, Result | Exception]]:
        left = dict(enumerate(tasks))
        suspected, deaths = dict.fromkeys(left, 0), dict.fromkeys(left, 0)
        while left:
            # A pool whose worker dies is broken as a whole, and nobody knows at which task it was. Whoever was at work
            # in too many of them goes on alone, so that none is given up for what another one did.
            alone = [place for place in left if suspected[place] == SUSPICIONS][:1]
            for place, outcome in self._in_pool(function, {place: left[place] for place in alone or left}):
                if isinstance(outcome, BrokenProcessPool):
                    counted = deaths if alone else suspected
                    counted[place] += 1
                    if deaths[place] < TRIES:
                        continue
                    outcome = RuntimeError(
                        f"a worker died {TRIES} times while this was at work; it may need more memory than there is: "
                        "take fewer workers."
                    )
                del left[place]
                yield place, outcome

    def _in_pool(
        self, function: Callable[[Task], Result], tasks: dict[int, Task]
    ) -> Iterator[tuple[int, Result | Exception]]:
        """Yield results; of tasks that a broken pool was at work on its error, and of those that waited nothing."""
        # Not fork: CUDA does not survive it.
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(
            min(self.workers, len(tasks)), context, initializer=_prepare_worker, initargs=(self.threads or 1,)
        )
        pending: dict[Future[Any], int] = {}
        waiting = list(tasks)
        try:
            while waiting or pending:
                # No more than there are workers: then all that are pending are at work.
                while waiting and len(pending) < self.workers:
                    place = waiting.pop(0)
                    pending[pool.submit(_outcome, function, tasks[place])] = place
                for future in wait(pending, return_when=FIRST_COMPLETED).done:
                    place = pending.pop(future)
                    error = future.exception()
                    if isinstance(error, BrokenProcessPool):
                        yield place, error
                        for other in pending.values():
                            yield other, error
                        return
                    yield place, error if isinstance(error, Exception) else future.result()
        except BrokenProcessPool:
            return
        finally:
            # Not after Ctrl-C either: workers have had it themselves, and write their checkpoints.
            pool.shutdown(wait=not pending, cancel_futures=True)


@dataclass(frozen=True)
class Ray:
    """A Ray cluster: one on this machine that ends with the grid, or one that runs already.

    Attributes:
        workers: tasks at once on a cluster of this machine; all of its cores by default.
        address: of a cluster that runs already, such as ``auto`` or ``ray://head:10001``.
        gpus: GPUs that a task takes, as a fraction where several share one.
    """

    workers: int | None = None
    address: str | None = None
    gpus: float = 0.0

    def run(
        self, function: Callable[[Task], Result], tasks: Sequence[Task]
    ) -> Iterator[tuple[int, Result | Exception]]:
        """See the protocol."""
        ray = require_package("ray", EXTRA)
        mine = not ray.is_initialized()
        if mine:
            own = {"num_cpus": self.workers, "include_dashboard": False} if self.address is None else {}
            ray.init(address=self.address, logging_level="error", log_to_driver=False, **own)
        try:
            remote = ray.remote(num_cpus=1, num_gpus=self.gpus, max_retries=TRIES - 1)(_alone)
            pending = {remote.remote(function, task): place for place, task in enumerate(tasks)}
            while pending:
                for reference in ray.wait(list(pending), num_returns=1)[0]:
                    place = pending.pop(reference)
                    try:
                        yield place, ray.get(reference)
                    except ray.exceptions.RayError as error:
                        yield place, RuntimeError(f"its worker on the cluster died or could not start: {error}")
        finally:
            if mine:
                ray.shutdown()


def make_engine(name: str, *, workers: int | None, device: str | None, address: str | None = None) -> Local | Ray:
    """Return the engine of a grid whose results must not depend on the engine: every task has one thread.

    Args:
        name: ``local`` or ``ray``.
        workers: tasks at once; by default one for each core, or a single one on a GPU.
        device: where tasks compute.
        address: of a Ray cluster that runs already.
    """
    if name not in ENGINES:
        raise InvalidInput(unknown_name("engine", name, ENGINES))
    on_gpu = device is not None and not device.startswith("cpu")
    at_once = workers or (1 if on_gpu else len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    if name == "local":
        if address is not None:
            raise InvalidInput("an address is that of a Ray cluster; add --engine ray.")
        return Local(at_once, threads=1)
    try:
        require_package("ray", EXTRA)
    except MissingPackage as error:
        raise MissingPackage(f"{error} Or take --engine local.") from error
    return Ray(None if address else at_once, address, (1.0 / at_once if address is None else 1.0) if on_gpu else 0.0)


def _outcome(function: Callable[[Task], Result], task: Task) -> Result | Exception:
    """Return what a function returns or raises; Ctrl-C stays what it is."""
    try:
        return function(task)
    except Exception as error:
        return error


def _alone(function: Callable[[Task], Result], task: Task) -> Result | Exception:
    """The same on a cluster, with one thread, as everywhere."""
    with _threads(1):
        return _outcome(function, task)


@contextlib.contextmanager
def _threads(number: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if number is not None:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _prepare_worker(threads: int) -> None:
    torch.set_num_threads(threads)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    """End with the parent, even if that is killed: a worker without one would hold its locks for nobody."""
    parent.join()
    os._exit(1)
