"""Reports: one self-contained HTML file, figures included."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from certibayes._version import __version__
from certibayes.experiments.evaluate import Evaluation
from certibayes.experiments.spec import TrainSpec
from certibayes.support.files import write_atomically


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("certibayes.experiments"),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
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
            spec=specs["robust"].resolved().to_json(),
            figure=image_source(out / "figure.png"),
            version=__version__,
        )
    )
    write_atomically(out / "report.html", page.encode())
