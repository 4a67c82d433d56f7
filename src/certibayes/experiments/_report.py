"""Reports from templates: one self-contained HTML file, figures included, and model cards in Markdown."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from certibayes._version import __version__
from certibayes.experiments.evaluate import Evaluation
from certibayes.experiments.figures import EXTRA
from certibayes.experiments.spec import TrainSpec
from certibayes.support.files import write_atomically
from certibayes.support.optional import require_package


def require_jinja() -> Any:
    """Return the package that fills in templates, or raise unless it is installed."""
    return require_package("jinja2", EXTRA)


def _environment() -> Any:
    jinja = require_jinja()
    return jinja.Environment(
        loader=jinja.PackageLoader("certibayes.experiments"),
        autoescape=jinja.select_autoescape(),
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def image_source(path: Path) -> str:
    """Return a PNG as a data address, so that the page needs no other file."""
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


def write_demo_report(
    summary: dict[str, dict[str, Any]], evaluations: dict[str, Evaluation], specs: dict[str, TrainSpec], out: Path
) -> None:
    """Write ``report.html`` beside the demo's figure."""
    page = (
        _environment()
        .get_template("demo.html.j2")
        .render(
            summary=summary,
            statement=evaluations["robust"].certificate.statement,
            method=evaluations["robust"].certificate.method,
            spec=specs["robust"].resolved().to_json(),
            figure=image_source(out / "figure.png"),
            version=__version__,
        )
    )
    write_atomically(out / "report.html", page.encode())


def write_card(path: Path, figures: dict[str, Any], recipe: str, metadata: Mapping[str, Any]) -> None:
    """Write the model card of a posterior of the zoo, in Markdown.

    Args:
        path: the file.
        figures: what was measured.
        recipe: settings of its training that are not defaults, as TOML.
        metadata: of the posterior.
    """
    card = _environment().get_template("card.md.j2").render(
        figures, recipe=recipe.strip(), metadata=metadata, version=__version__
    )  # fmt: skip
    write_atomically(path, (card.strip() + "\n").encode())
