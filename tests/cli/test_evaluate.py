"""``certibayes evaluate``: what it prints, what it stores, how it fails."""

import csv
import json
import sys

import pytest
import torch
from typer.testing import CliRunner

import certibayes as cb
from certibayes.cli import app
from certibayes.evaluation import assess
from certibayes.experiments.out_of_distribution import load_out_of_distribution


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "120"})


def saved_run(path, seed, **metadata):
    """Store a narrow posterior around an untrained network as if it came from the digits."""
    net = cb.networks.mlp(784, [4], 10, seed=seed)
    mean = {name: p.detach() for name, p in net.named_parameters()}
    std = {name: torch.full_like(p, 0.1) for name, p in mean.items()}
    cb.DiagonalGaussian(net, mean, std, metadata={"dataset": "digits", "temperature": 1.0, **metadata}).save(path)
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluate")
    return (
        saved_run(folder / "a", 0, likelihood={"name": "Categorical"}),
        saved_run(folder / "b", 1, likelihood={"name": "RobustCategorical"}),
    )


def test_json_agrees_with_the_library(runs):
    record = json.loads(invoke("evaluate", runs[0], "--ood", "noise", "--limit", 40, "--samples", 5, "--json").stdout)
    digits, predictor = cb.data.load("digits"), cb.load(runs[0]).predictor(5, seed=0)
    x, y = digits.test
    expected = assess(predictor, x[:40], y[:40], load_out_of_distribution("noise", digits, limit=40)).summary()
    found = record["runs"]["standard"]
    assert (record["dataset"], record["ood"], record["eps"]) == ("digits", "noise", None)
    assert {key: found[key] for key in expected} == expected
    assert (found["samples"], found["temperature"], found["digest"]) == (5, 1.0, predictor.digest)


def test_two_runs_stand_side_by_side_with_figures_and_points(runs, tmp_path):
    out = tmp_path / "evaluated"
    arguments = ["evaluate", *runs, "--limit", 30, "--samples", 3, "--eps", 0.05, "--steps", 2, "--out", out]
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    for word in ("standard", "robust", "AUROC", "FPR95", "likelihood ratio", "PGD ±0.05", "shuffled", "Brier"):
        assert word in result.output
    assert {p.name for p in out.iterdir()} == {"points.csv", "summary.json", "histograms.png", "calibration.png"}
    with (out / "points.csv").open() as file:
        points = list(csv.DictReader(file))
    assert len(points) == 2 * 3 * 30
    assert [p["label"] for p in points if p["set"] == "out"] == [""] * 60
    summary = json.loads((out / "summary.json").read_text())["runs"]
    for name in ("standard", "robust"):
        own = [p for p in points if p["run"] == name and p["set"] == "in"]
        right = sum(p["label"] == p["predicted"] for p in own)
        assert right / 30 == pytest.approx(summary[name]["in"]["accuracy"])
        mean = sum(float(p["expected_entropy"]) for p in own) / 30
        assert mean == pytest.approx(summary[name]["in"]["expected_entropy"])


def test_runs_of_the_same_kind_go_by_their_directories(runs, tmp_path):
    other = saved_run(tmp_path / "other", 2, likelihood={"name": "Categorical"})
    record = json.loads(invoke("evaluate", runs[0], other, "--limit", 5, "--samples", 2, "--json").stdout)
    assert list(record["runs"]) == ["a", "other"]


def test_what_fails_says_what_to_do(runs, tmp_path, monkeypatch):
    for arguments, words in (
        ((tmp_path / "nothing",), "nothing"),
        ((runs[0], "--ood", "martian"), "shuffled"),
        ((runs[0], "--ood", "digits"), "itself"),
        ((runs[0], "--ood", "svhn", "--data-dir", tmp_path), "certibayes data get svhn"),
        ((runs[0], "--format", "xml"), "csv or parquet"),
        ((runs[0], "--limit", 0), "--limit"),
        ((runs[0], runs[0], "--limit", 5), "twice"),
        ((saved_run(tmp_path / "bare", 0, dataset=None),), "--dataset"),
        ((runs[0], "--ood", "shufled"), "perhaps you mean shuffled"),
    ):
        result = invoke("evaluate", *arguments)
        assert result.exit_code == 1 and words in result.stderr, result.output


def test_parquet_without_a_writer_is_refused_before_anything_is_measured(runs, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = invoke("evaluate", runs[0], "--format", "parquet", "--limit", 5)
    assert result.exit_code == 1 and "pyarrow" in result.stderr
