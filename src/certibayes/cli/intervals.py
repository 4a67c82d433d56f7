"""What `certibayes certify` does for a regression: certified intervals of the prediction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from certibayes.certificates import RegressionCertificate
from certibayes.certification import Method, certify_regression
from certibayes.cli.opening import OpenedRun, Radius, regression_of
from certibayes.cli.terminal import console
from certibayes.evaluation import assess_regression


def certified_intervals(
    case: OpenedRun, radius: Radius, method: Method, tolerance: float | None, settings: dict[str, Any]
) -> RegressionCertificate:
    """Bound every prediction over its ball.

    Args:
        case: run and points.
        radius: of the balls.
        method: how networks are bounded.
        tolerance: deviation from the target up to which a point is certified; None for intervals alone.
        settings: what else ``certify_regression`` takes.
    """
    # Deviations are from targets where a tolerance says how large they may be, and else from the prediction.
    targets = None if tolerance is None else case.y
    result = certify_regression(
        regression_of(case), case.x, targets, eps=radius.eps, domain=case.domain, method=method, tolerance=tolerance,
        **settings,
    )  # fmt: skip
    return replace(result, provenance=replace(result.provenance, seed=case.seed))


def noise_of(case: OpenedRun) -> float | None:
    """Return the observation noise that a run was trained with, where it is known."""
    described = case.posterior.metadata.get("likelihood")
    noise = described.get("noise_std") if isinstance(described, dict) else None
    return None if noise is None else float(noise)


def summary(case: OpenedRun, result: RegressionCertificate, radius: Radius) -> dict[str, Any]:
    """Return the figures of a certificate."""
    width, shift = result.upper - result.lower, result.network_upper - result.network_lower
    unbounded = len(result.reasons)
    figures = assess_regression(regression_of(case), case.x, case.y, noise_std=noise_of(case)).summary()
    return {
        "n": len(result),
        **{name: figures[name] for name in ("rmse", "mae", "nll")},
        "mean_width": None if unbounded else float(width.mean()),
        "median_width": None if unbounded else float(width.median()),
        "mean_network_width": None if unbounded else float(shift.mean()),
        "unbounded": unbounded,
        "tolerance": result.tolerance,
        "certified": result.certified_fraction,
        **radius.to_json(),
        "norm": result.norm,
        "bounds": result.bounds,
        "intermediates": result.intermediates,
        "rounding": result.rounding,
        "samples": result.samples,
        "dataset": case.dataset,
        "task": "regression",
        "temperature": case.posterior.metadata.get("temperature"),
        "digest": result.digest,
        "statement": result.statement,
    }


def columns(case: OpenedRun, result: RegressionCertificate) -> dict[str, Any]:
    """Return the table of points; a column for each output where there are several."""
    found: dict[str, Any] = {"point": range(len(result))}
    parts = {
        "target": case.y, "predicted": result.predicted, "lower": result.lower, "upper": result.upper,
        "network_lower": result.network_lower, "network_upper": result.network_upper, "deviation": result.deviation,
    }  # fmt: skip
    for name, values in parts.items():
        for k, column in enumerate(values.T.tolist()):
            found[name if values.shape[1] == 1 else f"{name}_{k}"] = column
    if result.certified is not None:
        found["certified"] = result.certified.tolist()
    return found


def show(result: RegressionCertificate, record: dict[str, Any], radius: Radius) -> None:
    """Print what was proved."""
    norm = "" if result.norm == "linf" else f" in {result.norm}"
    if result.certified_fraction is not None:
        console.print(
            f"[bold green]{100 * result.certified_fraction:.2f}%[/bold green] of {len(result)} predictions stay within "
            f"{result.tolerance:g} of their targets at {radius.words}{norm}",
            highlight=False,
        )
    width = (
        "unbounded for some points" if record["mean_width"] is None else f"{record['mean_width']:.4g} wide on average"
    )
    console.print(
        f"certified intervals of {len(result)} predictions at {radius.words}{norm}: [bold]{width}[/bold] "
        f"({result.bounds} bounds); root mean squared error {record['rmse']:.4g}",
        highlight=False,
    )
    console.print(f"\n{result.statement}", highlight=False)
