"""The demo: the same network with the standard and with the robust likelihood, side by side, on embedded digits."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from certibayes import data
from certibayes.errors import Interrupted, RunExists
from certibayes.experiments._report import require_jinja, write_demo_report
from certibayes.experiments.evaluate import Evaluation, evaluate
from certibayes.experiments.figures import demo_figure, require_matplotlib
from certibayes.experiments.run import train
from certibayes.experiments.spec import TrainSpec
from certibayes.support.files import write_atomically

EPS = 0.1
SAMPLES = 35
TEMPERATURE = 0.001
"""Chosen on held-out training digits. At temperature 1 so few data leave the standard deviations close to the prior's,
and every one of them widens the interval bounds; docs/how-it-works.md has the figures."""

SPEC = TrainSpec(
    dataset="digits",
    architecture="mlp",
    hidden=(512,),
    likelihood="ibp",
    eps=EPS,
    lam=0.25,
    ramp=0.5,
    ramp_shape="linear",
    lam_ramp=0.0,
    variance_scale=300.0,
    algorithm="vogn",
    lr=0.003,
    schedule="cosine",
    warmup=0.05,
    epochs=40,
    batch_size=128,
    temperature=TEMPERATURE,
    settings={"betas": (0.9, 0.99), "initial_std": 0.01},
)
"""Spelled out, so that a change of defaults leaves the demo as it is."""


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
        quick: a few epochs and few images, to see that everything works; the figures mean little.
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
    robust = dataclasses.replace(SPEC, epochs=2) if quick else SPEC
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
        predictor = posterior.predictor(SAMPLES, seed=1, data=digits)

        def step(what: str, name: str = name) -> None:
            stage(f"{name}: {what}")

        evaluations[name] = evaluate(predictor, x, y, eps=EPS, domain=digits.domain, stage=step)
    stage("drawing")
    result = DemoResult(evaluations, specs, out)
    write_atomically(out / "results.json", (json.dumps(result.summary(), indent=2) + "\n").encode())
    demo_figure(evaluations, x, EPS, TEMPERATURE, out / "figure.png")
    write_demo_report(result.summary(), evaluations, specs, out)
    return result
