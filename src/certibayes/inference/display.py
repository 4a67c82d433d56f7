"""The progress bar of training."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class TrainingDisplay:
    """Shows steps, loss and validation figures on standard error; silent if ``shown`` is false."""

    def __init__(self, title: str, total: int, done: int, shown: bool):
        self.bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not shown,
        )
        self.task = self.bar.add_task(title, total=total, completed=done, figures="")
        self.validation = ""

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def show(self, step: int, loss: float) -> None:
        """Move the bar to ``step``."""
        self.bar.update(self.task, completed=step, figures=f"loss {loss:.3f}{self.validation}")

    def epoch(self, record: dict[str, float]) -> None:
        """Show an epoch's validation figures beside the loss from now on."""
        self.validation = "".join(
            f"  val {name.removeprefix('validation_')} {value:.3f}"
            for name, value in record.items()
            if name.startswith("validation_")
        )
