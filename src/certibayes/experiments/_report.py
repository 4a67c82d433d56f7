"""Reports from templates: one self-contained HTML file, figures included, and model cards in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from certibayes._version import __version__
from certibayes.experiments.evaluate import Evaluation
from certibayes.experiments.spec import TrainSpec
from certibayes.support.files import write_atomically
from certibayes.support.png import image_source
from certibayes.support.templates import filled

PACKAGE = "certibayes.experiments"
"""Whose templates are filled in."""


def write_demo_report(
    summary: dict[str, dict[str, Any]], evaluations: dict[str, Evaluation], specs: dict[str, TrainSpec], out: Path
) -> None:
    """Write ``report.html`` beside the demo's figure."""
    certificate = evaluations["robust"].certificate
    values = {
        "summary": summary,
        "statement": certificate.statement,
        "method": certificate.method,
        "spec": specs["robust"].resolved().to_json(),
        "figure": image_source((out / "figure.png").read_bytes()),
        "version": __version__,
    }
    page = filled(PACKAGE, "demo.html.j2", values)
    write_atomically(out / "report.html", page.encode())


def write_card(path: Path, figures: dict[str, Any], recipe: str, metadata: Mapping[str, Any]) -> None:
    """Write the model card of a posterior of the zoo, in Markdown.

    Args:
        path: the file.
        figures: what was measured.
        recipe: settings of its training that are not defaults, as TOML.
        metadata: of the posterior.
    """
    values = {**figures, "recipe": recipe.strip(), "metadata": metadata, "version": __version__}
    card = filled(PACKAGE, "card.md.j2", values)
    write_atomically(path, (card.strip() + "\n").encode())
