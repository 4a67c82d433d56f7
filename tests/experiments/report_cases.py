"""A grid on disk as ``reproduce`` leaves it, without any training."""

import json

from certibayes.experiments import load_figure
from certibayes.experiments.paper import flat
from certibayes.experiments.tables import rows_csv

PICTURE = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 4 1"><rect width="4" height="1" fill="green"/></svg>'

FOUND = {
    ("swag", "standard"): (0.98, 0.1, 0.0, 0.0),
    ("swag", "pgd"): (0.97, 0.82, 0.0, 0.02),
    ("swag", "ibp"): (0.95, 0.85, 0.7, 0.76),
    ("bbb", "standard"): (0.97, 0.2, 0.0, 0.0),
    ("bbb", "pgd"): (0.96, 0.81, 0.0, 0.0),
    ("bbb", "ibp"): (0.94, 0.8, 0.6, 0.65),
}
"""Accuracy, PGD, IBP and LBP of every posterior of the recipe ``paper``."""


def write_json(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values))


def write_run(folder, spec, metrics=(), state="run.json", **more):
    write_json(folder / state, {"spec": spec, "versions": {"certibayes": "0.1.0"}, **more})
    (folder / "spec.toml").write_text(f"seed = {spec.get('seed', 0)}\n")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in metrics))


def made_grid(out, quick=False, title="Figure 1", command="certibayes reproduce fig1 --dataset mnist"):
    """Figure 1 on MNIST, by SWAG and BBB, as the paper does it, with three seeds."""
    cells = load_figure("fig1").cells("mnist", method=["swag", "bbb"], recipe=["paper"])
    rows = []
    for name, cell in cells.items():
        accuracy, pgd, ibp, lbp = (value + 0.001 * cell.seed for value in FOUND[cell.method, cell.likelihood])
        figures = {"accuracy": accuracy, "pgd": pgd, "ibp": max(ibp, 0.0), "lbp": lbp, "n": 10_000, "eps": 0.1}
        rows.append({**cell.axes, "cell": name, "source": "", **figures})
        metrics = [{"epoch": epoch, "loss": 2.0 / epoch, "validation_accuracy": 0.9} for epoch in (1.0, 2.0, 3.0)]
        write_run(out / "cells" / name, cell.spec.to_json(), metrics, **{"robustness-0": figures})
    record = {"figure": "fig1", "title": title, "dataset": "mnist", "command": command, "quick": quick, "versions": {}}
    write_json(out / "fig1" / "mnist.json", {**record, "rows": rows})
    (out / "fig1" / "results.csv").write_text(rows_csv([flat(row, "robustness") for row in rows]))
    (out / "fig1" / "fig1.svg").write_text(PICTURE)
    (out / "fig1" / "fig1.png").write_bytes(b"not shown, for there is the drawing")
    return out
