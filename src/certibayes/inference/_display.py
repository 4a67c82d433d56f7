"""The progress bar of training."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from certibayes.support.progress import Report

SHOWN = {"validation_loss": "val", "validation_accuracy": "acc", "validation_robust_accuracy": "robust"}
"""Figures of held-out data, and how they are called where there is little room."""


class TrainingDisplay:
    """Shows steps, loss and validation figures on standard error, or reports the steps to a function.

    Args:
        title: what is being trained.
        total: steps in all.
        done: steps made before.
        progress: True for a bar, False for nothing, or a function of (done, total).
    """

    def __init__(self, title: str, total: int, done: int, progress: bool | Report):
        self.total, self.report = total, progress if callable(progress) else None
        self.bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=progress is not True,
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
        """Say that ``step`` steps are made."""
        self.bar.update(self.task, completed=step, figures=f"loss {loss:.3f}{self.validation}")
        if self.report is not None:
            self.report(step, self.total)

    def epoch(self, record: dict[str, float]) -> None:
        """Show an epoch's validation figures beside the loss from now on."""
        shown = [f"{word} {record[name]:.3f}" for name, word in SHOWN.items() if name in record]
        self.validation = "".join(f"  {figure}" for figure in shown)
