"""The demo: the same network with the standard and with the robust likelihood, side by side, on embedded digits."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from certibayes import data
from certibayes.certification import Elided
from certibayes.errors import Interrupted, RunExists
from certibayes.experiments._report import write_demo_report
from certibayes.experiments.evaluate import Evaluation, evaluate
from certibayes.experiments.figures import demo_figure, require_matplotlib
from certibayes.experiments.run import train
from certibayes.experiments.spec import TrainSpec
from certibayes.support.files import write_atomically
from certibayes.support.templates import require_jinja

EPS = 0.1
SAMPLES = 35
TEMPERATURE = 1.0
"""Bayes' rule, neither cooled nor heated."""

METHOD = Elided(bounds="ibp")
"""Intervals, with the last layer folded into the class margins, as in training."""

SPEC = TrainSpec(
    dataset="digits",
    architecture="cnn5",
    channels=4,
    normalize=True,
    init="interval",
    likelihood="ibp",
    eps=EPS,
    multiplier=1.1,
    lam=0.25,
    margins=True,
    ramp=0.35,
    ramp_shape="smooth",
    lam_ramp=0.15,
    variance_scale=300.0,
    algorithm="swag",
    lr=0.005,
    schedule="constant",
    warmup=0.05,
    clip=10.0,
    epochs=12,
    batch_size=128,
    batch_norm="batch",
    temperature=TEMPERATURE,
    settings={"momentum": 0.9, "start": 0.5, "rank": 20, "every": 15, "optimizer": "adam"},
)
"""Spelled out, so that a change of defaults leaves the demo as it is. Chosen on held-out training digits."""


@dataclass(frozen=True)
class DemoResult:
    """What the demo found.

    Attributes:
        evaluations: by "standard" and "robust".
        specs: likewise.
        out: where everything was written.
    """

    evaluations: dict[str, Evaluation]
    specs: dict[str, TrainSpec]
    out: Path

    def summary(self) -> dict[str, dict[str, Any]]:
        """Return the figures of both, as in ``results.json``."""
        return {
            name: {**evaluation.summary(), "temperature": self.specs[name].temperature, "eps": EPS}
            for name, evaluation in self.evaluations.items()
        }


def run_demo(
    out: Path,
    *,
    quick: bool = False,
    overwrite: bool = False,
    progress: bool = True,
    stage: Callable[[str], Any] = lambda _: None,
) -> DemoResult:
    """Train both networks, certify and attack them, and write ``results.json``, ``figure.png`` and ``report.html``.

    Args:
        out: directory to write to.
        quick: a smaller network, a few epochs and few images, to see that everything works; the figures mean little.
        overwrite: replace an earlier demo.
        progress: show progress bars.
        stage: called with what comes next.
    """
    if (out / "results.json").exists() and not overwrite:
        raise RunExists(
            f"{out} already holds a demo. Choose another directory (--out), or let it be replaced (overwrite=True; "
            "leave out --keep)."
        )
    # Before minutes of training, whose results could not be drawn.
    require_matplotlib()
    require_jinja()
    digits = data.load("digits")
    x, y = digits.test
    robust = dataclasses.replace(SPEC, channels=2, epochs=2) if quick else SPEC
    if quick:
        x, y = x[:200], y[:200]
    specs = {"standard": dataclasses.replace(robust, likelihood="standard"), "robust": robust}
    evaluations = {}
    for name, spec in specs.items():
        stage(f"{name}: training")
        try:
            posterior = train(spec, out / name, overwrite=True, progress=progress)
        except Interrupted:
            raise Interrupted("the demo was stopped; the next one starts afresh.") from None
        predictor = posterior.predictor(SAMPLES)

        def step(what: str, name: str = name) -> None:
            stage(f"{name}: {what}")

        evaluations[name] = evaluate(
            predictor, x, y, eps=EPS, domain=digits.domain, method=METHOD, steps=10, skip_proved=True, stage=step
        )
    stage("drawing")
    result = DemoResult(evaluations, specs, out)
    write_atomically(out / "results.json", (json.dumps(result.summary(), indent=2) + "\n").encode())
    demo_figure(evaluations, x, EPS, TEMPERATURE, out / "figure.png")
    write_demo_report(result.summary(), evaluations, specs, out)
    return result
