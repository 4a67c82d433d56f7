"""certibayes attack: every method, its table, its files and its errors."""

import csv
import importlib.util
import json

import pytest
from typer.testing import CliRunner

from certibayes.cli import app

BUDGET = ["--limit", 60, "--steps", 4, "--restarts", 2, "--queries", 10]


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("attack") / "run"
    train = ["train", "--hidden", 8, "--epochs", 2, "--batch-size", 500, "--algorithm", "map", "--eps", 0.02, "--json"]
    assert invoke(*train, "--out", out).exit_code == 0
    return out


@pytest.mark.parametrize("method", ["fgsm", "pgd", "apgd", "square", "ensemble", "fgsm,square"])
def test_every_method_runs_and_tells_what_stands_after_each(run, method):
    result = invoke("attack", run, "--eps", 0.05, "--method", method, *BUDGET, "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    shares = list(record["after"].values())
    assert shares == sorted(shares, reverse=True)
    assert (shares[0], shares[-1]) == (record["accuracy"], record["standing"])
    assert record["method"] == method and record["n"] == 60


@pytest.mark.parametrize(("norm", "eps"), [("l2", 0.5), ("l1", 3.0)])
def test_other_norms(run, norm, eps):
    record = json.loads(invoke("attack", run, "--eps", eps, "--norm", norm, *BUDGET, "--json").stdout)
    assert record["norm"] == norm
    assert record["standing"] < record["accuracy"]


def test_the_table_of_an_ensemble(run):
    shown = invoke("attack", run, "--eps", 0.05, "--method", "ensemble", *BUDGET)
    assert shown.exit_code == 0
    for word in ("no attack", "pgd", "apgd-ce", "apgd-dlr", "square", "still stand"):
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
    assert sum(row["stands"] == "True" for row in rows) / 60 == pytest.approx(record["standing"])
    for row in rows:
        assert (row["stands"] == "True") == (row["label"] == row["predicted"]) == (row["broken_by"] == "")
        assert float(row["distance"]) <= 0.05


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is not None, reason="pyarrow is here")
def test_parquet_without_pyarrow_is_refused_before_the_attack(run, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = invoke("attack", run, *BUDGET, "--out", tmp_path / "points.parquet")
    assert result.exit_code == 1
    assert "pip install pyarrow" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--method", "magic"], "fgsm, pgd"), (["--norm", "l7"], "linf, l2, l1"), (["--steps", 0], "at least 1")],
)
def test_mistakes_are_told_in_a_sentence(run, arguments, message):
    result = invoke("attack", run, "--limit", 5, *arguments)
    assert result.exit_code == 1
    assert message in " ".join(result.output.split())
