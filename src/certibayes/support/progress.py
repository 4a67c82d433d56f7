"""Progress of long calls: a bar on standard error, nothing, or a function of the caller's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from certibayes.errors import InvalidInput

Report = Callable[[int, int], None]
"""A function that takes (done, total)."""


@contextmanager
def reporting(progress: bool | Report, title: str) -> Iterator[Report]:
    """Yield the function that a long call reports to, as ``report(done, total)``.

    Args:
        progress: True for a bar on standard error, which leaves standard output to results; False for nothing; or a
            function of (done, total), which is yielded as it is.
        title: what is being done, as the bar says it.

    Raises:
        InvalidInput: ``progress`` is none of these.
    """
    if callable(progress):
        yield progress
    elif progress is True:
        bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        with bar:
            task = bar.add_task(title, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
    elif progress is False:
        yield lambda done, total: None
    else:
        raise InvalidInput(
            f"progress must be True for a bar, False for none, or a function of (done, total); got {progress!r}."
        )
