"""certibayes attack: every method, its table, its files and its errors."""

import csv
import importlib.util
import json

import pytest
from typer.testing import CliRunner

from certibayes.cli import app

BUDGET = ["--limit", 60, "--steps", 4, "--restarts", 2]
SQUARE = ["--limit", 60, "--queries", 10]
BUDGETS = {
    "fgsm": ["--limit", 60],
    "square": SQUARE,
    "fgsm,square": SQUARE,
    "pgd": BUDGET,
    "apgd": BUDGET,
    "ensemble": [*BUDGET, "--queries", 10],
}


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("attack") / "run"
    train = ["train", "--hidden", 8, "--epochs", 2, "--batch-size", 500, "--algorithm", "map", "--eps", 0.02, "--json"]
    assert invoke(*train, "--out", out).exit_code == 0
    return out


@pytest.mark.parametrize("method", BUDGETS)
def test_every_method_runs_and_says_what_is_unbroken_after_each(run, method):
    result = invoke("attack", run, "--eps", 0.05, "--method", method, *BUDGETS[method], "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    fractions = list(record["after"].values())
    assert fractions == sorted(fractions, reverse=True)
    assert (fractions[0], fractions[-1]) == (record["accuracy"], record["robust_accuracy"])
    assert ["clean", *record["attacks"]] == list(record["after"])
    for settings in record["attacks"].values():
        assert settings.get("steps", 4) == 4 and settings.get("restarts", 2) == 2 and settings.get("queries", 10) == 10
    assert record["method"] == method and record["n"] == 60


@pytest.mark.parametrize(("norm", "eps"), [("l2", 0.5), ("l1", 3.0)])
def test_other_norms(run, norm, eps):
    record = json.loads(invoke("attack", run, "--eps", eps, "--norm", norm, *BUDGET, "--json").stdout)
    assert record["norm"] == norm
    assert record["robust_accuracy"] < record["accuracy"]


def test_the_table_of_an_ensemble(run):
    shown = invoke("attack", run, "--eps", 0.05, "--method", "ensemble", *BUDGETS["ensemble"])
    assert shown.exit_code == 0
    for word in (
        "no attack",
        "pgd",
        "apgd-ce",
        "apgd-dlr",
        "square",
        "are unbroken at eps 0.05 (linf",
        "robust accuracy",
    ):
        assert word in shown.output


def test_weights_drawn_afresh(tmp_path):
    out = tmp_path / "run"
    train = ["train", "--hidden", 8, "--epochs", 2, "--batch-size", 500, "--eps", 0.02, "--json"]
    assert invoke(*train, "--temperature", 0.01, "--out", out).exit_code == 0
    result = invoke("attack", out, "--eps", 0.05, "--draws", 3, "--samples", 5, *BUDGET, "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert (record["draws"], record["samples"]) == (3, 5)


def test_points_as_csv(run, tmp_path):
    file = tmp_path / "points.csv"
    record = json.loads(invoke("attack", run, "--eps", 0.05, *BUDGET, "--out", file, "--json").stdout)
    with file.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 60
    assert sum(row["broken"] == "False" for row in rows) / 60 == pytest.approx(record["robust_accuracy"])
    for row in rows:
        assert (row["broken"] == "False") == (row["label"] == row["predicted"]) == (row["broken_by"] == "")
        assert float(row["distance"]) <= 0.05


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is not None, reason="pyarrow is here")
def test_parquet_without_pyarrow_is_refused_before_the_attack(run, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = invoke("attack", run, *BUDGET, "--out", tmp_path / "points.parquet")
    assert result.exit_code == 1
    assert "pip install pyarrow" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "magic"], "fgsm, pgd"),
        (["--norm", "l7"], "linf, l2, l1"),
        (["--steps", 0], "at least 1"),
        (["--method", "square", "--steps", 3], "--steps means nothing to square; it is for pgd, apgd-ce, apgd-dlr"),
        (["--method", "fgsm,pgd", "--queries", 3], "--queries means nothing to fgsm, pgd; it is for square"),
        (["--method", "fgsm", "--restarts", 3], "--restarts means nothing to fgsm"),
    ],
)
def test_mistakes_are_explained_in_a_sentence(run, arguments, message):
    result = invoke("attack", run, "--limit", 5, *arguments)
    assert result.exit_code == 1
    assert message in " ".join(result.output.split())
