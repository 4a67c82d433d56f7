"""Results as tables and figures: a row for each point, and one picture that says how much was proved."""

from __future__ import annotations

import importlib
import io
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from certibayes.errors import InvalidInput, MissingPackage
from certibayes.support.files import write_atomically
from certibayes.support.optional import require_package

PROVED, LEFT = "#1b7f4b", "#9aa0a6"
"""Colors of what is certified, and of all else."""

FORMATS = ("png", "pdf", "svg")
"""In which figures are written."""


class Intervals(NamedTuple):
    """What a figure shows of every point.

    Attributes:
        lower: (B,).
        upper: (B,).
        words: what lies between the two.
        marked: which points are certified, (B,); None where nothing is marked.
        middle: a value in between, (B,); None for none.
    """

    lower: Tensor
    upper: Tensor
    words: str
    marked: Tensor | None = None
    middle: Tensor | None = None


class Shown:
    """Something with a row for each point."""

    table: ClassVar[dict[str, str]] = {}
    """Columns of the table, and the attributes that hold them: (B,), or (B, C) for C columns with numbers."""

    def columns(self) -> dict[str, list[Any]]:
        """Return a table with a row for each point: columns of plain values, by name."""
        found: dict[str, list[Any]] = {}
        for name, attribute in self.table.items():
            values = getattr(self, attribute)
            if values is None:
                continue
            if values.dim() == 1:
                found[name] = values.tolist()
                continue
            for k, column in enumerate(values.T.tolist()):
                found[name if values.shape[1] == 1 else f"{name}_{k}"] = column
        count = len(next(iter(found.values()), []))
        return {"point": list(range(count)), **found}

    def to_pandas(self) -> Any:
        """Return that table as a ``pandas.DataFrame``, with the number of the point as its index.

        Raises:
            MissingPackage: pandas is not installed.
        """
        try:
            pandas = importlib.import_module("pandas")
        except ImportError as error:
            raise MissingPackage(f"this needs pandas: pip install pandas. ({error})") from error
        return pandas.DataFrame(self.columns()).set_index("point")

    def plot(self, path: Path | str | None = None) -> Any:
        """Draw what was proved: an interval for each point, sorted; those of certified points stand out.

        Args:
            path: where to write it, as its suffix says: PNG, PDF or SVG, and PNG without one; None to return it alone.

        Returns:
            A ``matplotlib.figure.Figure``.

        Raises:
            MissingPackage: matplotlib is not installed.
            InvalidInput: there is nothing to draw, or the suffix names another format.
        """
        kind = "png" if path is None else Path(path).suffix[1:].lower() or "png"
        if kind not in FORMATS:
            raise InvalidInput(f"{path} ends in none of {', '.join(f'.{known}' for known in FORMATS)}.")
        figure = require_package("matplotlib.figure", "figures").Figure(figsize=(7.0, 3.6), layout="constrained")
        self._draw(figure.add_subplot())
        if path is not None:
            require_package("matplotlib.backends.backend_agg", "figures").FigureCanvasAgg(figure)
            write_atomically(Path(path), _drawn(figure, kind))
        return figure

    def _intervals(self) -> Intervals:
        raise NotImplementedError

    def _draw(self, axes: Any) -> None:
        shown = self._intervals()
        lower, upper = (end.detach().cpu().double() for end in shown[:2])
        known = torch.isfinite(lower) & torch.isfinite(upper)
        if not bool(known.any()):
            raise InvalidInput("there is nothing to draw: no point has finite bounds.")
        order = [k for k in torch.argsort(lower, descending=True).tolist() if bool(known[k])]
        marked = torch.ones_like(known) if shown.marked is None else shown.marked.cpu()
        for color, words, chosen in ((PROVED, "certified", True), (LEFT, "not certified", False)):
            places = [place for place, k in enumerate(order) if bool(marked[k]) == chosen]
            rows = [order[place] for place in places]
            if rows:
                label = words if shown.marked is not None else None
                axes.vlines(places, lower[rows], upper[rows], colors=color, linewidth=2.0, label=label)
                # Where an interval is too short to be seen, its ends are not.
                for end in (lower, upper):
                    axes.plot(places, end[rows], ".", color=color, markersize=4)
        if shown.middle is not None:
            axes.plot(range(len(order)), shown.middle.detach().cpu().double()[order], "k.", markersize=3)
        axes.set_xlabel("points, sorted by the lower bound")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_ylabel(shown.words)
        if shown.marked is not None:
            axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)


def of_label(lower: Tensor, upper: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return both bounds (B, C) for the class of the label, (B,)."""
    chosen = labels.to(lower.device)[:, None]
    return lower.gather(1, chosen)[:, 0], upper.gather(1, chosen)[:, 0]


def _drawn(figure: Any, kind: str) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, dpi=150, format=kind)
    return content.getvalue()
