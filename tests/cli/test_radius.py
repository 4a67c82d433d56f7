"""certibayes radius."""

import csv
import json

import pytest
from typer.testing import CliRunner

import certibayes as cb
from certibayes.certification import certified_radius
from certibayes.cli import app


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("cli") / "run"
    arguments = ["--hidden", 8, "--epochs", 2, "--batch-size", 500, "--eps", 0.02, "--algorithm", "map"]
    result = invoke("train", *arguments, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    return out


def test_radii_agree_with_the_library(run, tmp_path):
    result = invoke("radius", run, "--limit", 40, "--tolerance", 0.01, "--out", tmp_path / "r.csv", "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    x, y = (part[:40] for part in cb.data.load("digits").test)
    expected = certified_radius(cb.load(run).predictor(), x, y, domain=(0.0, 1.0), tolerance=0.01)
    assert record["mean_radius"] == expected.mean > 0 and record["median_radius"] == expected.median
    assert record["n"] == 40 and record["statement"] == expected.statement
    fractions = list(record["certified"].values())
    assert list(record["certified"]) == ["0.01", "0.02", "0.05", "0.1", "0.2", "0.5"] and record["own_radius"] == 0.02
    assert fractions == sorted(fractions, reverse=True) and fractions[0] <= record["accuracy"]
    with (tmp_path / "r.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["radius"]) for row in rows] == expected.radius.tolist()
    assert [row["correct"] == "True" for row in rows] == expected.correct.tolist()


def test_for_people(run, tmp_path):
    result = invoke(
        "radius", run, "--limit", 20, "--tolerance", 0.05, "--method", "pairwise", "--out", tmp_path / "r.csv"
    )
    assert result.exit_code == 0
    for word in ("mean radius", "median", "pairwise", "l-infinity", "0.02, the run's own", "r.csv"):
        assert word in result.output


@pytest.mark.parametrize(
    ("options", "words"),
    [(["--method", "magic"], "magic"), (["--bounds", "magic"], "magic"), (["--largest", 0], "0.0")],
)
def test_wrong_settings_are_explained_in_a_sentence(run, options, words):
    result = invoke("radius", run, "--limit", 5, *options)
    assert result.exit_code == 1 and words in result.stderr and "Traceback" not in result.output
