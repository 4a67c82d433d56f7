"""Files of one's own on the command line: tables, columns by name, regression in every command."""

import csv
import json

import numpy as np
import pytest
import torch
from torch import nn

import certibayes as cb

from .cases import invoke

TRAIN = ("train", "--algorithm", "map", "--hidden", 8, "--epochs", 4, "--batch-size", 20, "--eps", 0.05, "--json")


def table(path, rows, answer, seed=0):
    draw = np.random.default_rng(seed)
    values = draw.normal(size=(rows, 3)) * [100.0, 1.0, 0.01] + [500.0, 0.0, 0.05]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["mass", "height", "share", "answer"])
        writer.writerows([*row, answer(row)] for row in values.tolist())
    return path


def kind(row):
    return "large" if row[0] > 500 else "small"


def quantity(row):
    return 3000.0 + 7.0 * row[0] + 200.0 * row[1]


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classes")
    data = table(folder / "people.csv", 200, kind)
    result = invoke(*TRAIN, "--epochs", 30, "--data", data, "--target", "answer", "--out", folder / "run")
    assert result.exit_code == 0, result.output
    return data, folder / "run"


@pytest.fixture(scope="module")
def regression(tmp_path_factory):
    folder = tmp_path_factory.mktemp("regression")
    data = table(folder / "people.csv", 200, quantity)
    result = invoke(*TRAIN, "--epochs", 30, "--data", data, "--target", "answer", "--out", folder / "run")
    assert result.exit_code == 0, result.output
    return data, folder / "run"


def asked(*arguments):
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(*arguments):
    result = invoke(*arguments)
    assert result.exit_code != 0, result.output
    return " ".join(result.output.split())


def test_a_table_is_trained_and_certified_in_units_of_its_columns(classes):
    data, run = classes
    record = asked("certify", run)
    assert record["n"] == 40 and record["accuracy"] > 0.8 and record["certified"] > 0.5
    assert record["eps"] == 0.05 and record["scaled"] and record["dataset"] == str(data)
    # Standard deviations of the training rows, as they are: a radius of 0.05 of them.
    std = cb.data.load(data, target="answer").column_statistics()[1]
    scale = cb.load(run).metadata["table"]["scale"]
    assert scale == pytest.approx(list(std)) and cb.load(run).metadata["table"]["features"][0] == "mass"
    assert f"to {0.05 * max(scale)!r}" in record["statement"]


def test_columns_change_by_name(classes, tmp_path):
    _, run = classes
    out = tmp_path / "named"
    record = asked("certify", run, "--eps", "mass=20,share=1/1000", "--out", out)
    assert record["eps"] == {"mass": 20.0, "share": 0.001}
    assert cb.load_certificate(out).eps.tolist() == [[20.0, 0.0, 0.001]]
    assert asked("check", run, out)["holds"]
    fixed = asked("certify", run, "--fixed", "height,share", "--out", tmp_path / "fixed.json")
    assert fixed["fixed"] == ["height", "share"]
    assert (cb.load_certificate(tmp_path / "fixed.json").eps > 0).tolist() == [[True, False, False]]
    assert fixed["certified"] >= asked("certify", run)["certified"]
    attacked = asked("attack", run, "--eps", "mass=20,share=1/1000")
    assert record["certified"] <= attacked["robust_accuracy"] <= attacked["accuracy"]
    shown = invoke("certify", run, "--eps", "mass=20")
    assert "mass ±20 (other columns do not change)" in shown.output


def test_a_run_knows_its_file(classes):
    data, run = classes
    record = asked("info", run)
    assert str(data) in json.dumps(record) and "mass" in json.dumps(record)
    assert invoke("info", run).exit_code == 0


def test_limits_of_columns_are_part_of_the_statement(classes, tmp_path):
    _, run = classes
    out = tmp_path / "limits.json"
    record = asked("certify", run, "--domain", "mass=0:2000,height=-9:9", "--out", out)
    low, high = cb.load_certificate(out).domain
    assert low.tolist() == [[0.0, -9.0, -torch.inf]] and high.tolist() == [[2000.0, 9.0, torch.inf]]
    assert "with values in the domain given for each feature" in record["statement"]
    assert "is no domain" in refused("certify", run, "--domain", "mass=3")
    assert "outside the domain" in refused("certify", run, "--domain", "0,1")


def test_radii_are_multiples_of_the_scale(classes, tmp_path):
    _, run = classes
    record = asked("radius", run, "--limit", 10, "--largest", 1, "--out", tmp_path / "radii")
    assert record["scaled"] and record["mean_radius"] > 0
    stored = cb.load_certificate(tmp_path / "radii")
    assert stored.scale.tolist() == [cb.load(run).metadata["table"]["scale"]]
    assert "radius times the scale given for each input value" in stored.statement
    fixed = asked("radius", run, "--limit", 10, "--largest", 1, "--fixed", "mass")
    assert fixed["mean_radius"] >= record["mean_radius"]


def test_points_that_training_saw_are_left_out(classes, tmp_path):
    data, run = classes
    result = invoke("certify", run, "--data", data, "--json")
    assert json.loads(result.stdout)["n"] == 40 and "40 points that training left out are taken" in result.stderr
    other = table(tmp_path / "others.csv", 15, kind, seed=1)
    assert asked("certify", run, "--data", other)["n"] == 15


def test_a_file_that_has_changed_is_noticed(tmp_path):
    data, run = table(tmp_path / "people.csv", 60, kind), tmp_path / "run"
    assert invoke(*TRAIN, "--data", data, "--target", "answer", "--out", run).exit_code == 0
    table(data, 60, kind, seed=5)
    assert "is not the file any more" in refused("certify", run)
    assert asked("certify", run, "--data", data)["n"] == 60
    data.unlink()
    assert "which is not there. Say where it is: --data FILE" in refused("certify", run)


def test_a_regression_in_every_command(regression, tmp_path):
    _, run = regression
    out = tmp_path / "out"
    record = asked("certify", run, "--out", out)
    assert record["task"] == "regression" and record["n"] == 40 and record["certified"] is None
    # In the target's own units, of which the standard deviation is about 730.
    assert record["rmse"] < 400 and 0 < record["mean_width"] < 1000
    rows = list(csv.DictReader((out / "points.csv").read_text().splitlines()))
    assert all(float(row["lower"]) <= float(row["predicted"]) <= float(row["upper"]) for row in rows)
    assert isinstance(cb.load_certificate(out), cb.certificates.RegressionCertificate)
    assert json.loads((out / "summary.json").read_text()) == record
    near = asked("certify", run, "--tolerance", 1e9)
    assert near["certified"] == 1.0
    attacked = asked("attack", run, "--steps", 5, "--restarts", 1, "--out", tmp_path / "attacked.csv")
    assert attacked["mean_width"] <= record["mean_width"] and attacked["attacked_rmse"] >= attacked["rmse"]
    evaluated = asked("evaluate", run, "--out", tmp_path / "evaluated")
    figures = next(iter(evaluated["runs"].values()))
    assert figures["rmse"] == pytest.approx(record["rmse"]) and figures["attacked_rmse"] > figures["rmse"]
    assert 0 <= figures["coverage_95"] <= 1 and (tmp_path / "evaluated" / "points.csv").exists()
    for command in (("certify", run), ("attack", run), ("evaluate", run), ("certify", run, "--tolerance", 100)):
        assert invoke(*command).exit_code == 0
    assert "a regression has no classes" in refused("radius", run)
    assert "checks certificates of classes" in refused("check", run, out)
    assert "--ood is for classes" in refused("evaluate", run, "--ood", "noise")
    assert "square is for classes" in refused("attack", run, "--method", "square")
    assert "--tolerance tells apart; pass both" in refused("certify", run, "--at-least", 0.5)
    assert invoke("certify", run, "--tolerance", 1e-9, "--at-least", 0.5).exit_code == 3


@pytest.mark.parametrize("algorithm", ["laplace", "vogn"])
def test_other_algorithms_take_targets_in_units_of_their_own(algorithm, tmp_path):
    data = table(tmp_path / "people.csv", 100, quantity)
    arguments = ["--algorithm", algorithm, "--data", data, "--target", "answer", "--out", tmp_path / "run"]
    result = invoke(*TRAIN, *arguments)
    assert result.exit_code == 0, result.output
    assert asked("certify", tmp_path / "run", "--samples", 2)["n"] == 20


def test_modules_are_certified_on_all_points_of_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(
        "import certibayes as cb\nfrom torch import nn\n\n\ndef make():\n"
        "    return nn.Sequential(cb.networks.Normalize([500.0, 0.0, 0.05], [100.0, 1.0, 0.01]), nn.Linear(3, 2))\n"
    )
    torch.manual_seed(0)
    net = nn.Sequential(cb.networks.Normalize([500.0, 0.0, 0.05], [100.0, 1.0, 0.01]), nn.Linear(3, 2))
    torch.save(net.state_dict(), "a.pt")
    data = table(tmp_path / "people.csv", 12, kind)
    arguments = ["--modules", "a.pt", "--architecture", "nets.py:make", "--data", data, "--target", "answer"]
    record = asked("certify", *arguments, "--eps", "mass=5")
    assert record["n"] == 12 and "scaled" not in record
    np.savez("points.npz", x=np.random.default_rng(0).normal(size=(6, 3)).astype("float32"), y=np.arange(6) % 2)
    assert asked("attack", *arguments[:4], "--data", "points.npz", "--eps", 0.1)["n"] == 6


def test_options_that_contradict_each_other_are_refused(classes, regression, tmp_path):
    data, run = classes
    other, _ = regression
    for command, words in (
        (("certify", run, "--dataset", "digits", "--data", data), "two sets of points; pass one"),
        (("certify", run, "--target", "answer"), "pass --data FILE with them"),
        (("certify", run, "--data", data, "--task", "regression"), "was trained for classification"),
        (("certify", run, "--data", other), "none of the classes large, small"),
        (("certify", run, "--dataset", "diabetes"), "was trained for classification, and diabetes is for regression"),
        (("certify", run, "--eps", "mas=3"), "no feature 'mas'; perhaps you mean mass"),
        (("certify", run, "--eps", "mass"), "is no radius; write 0.1, 8/255, or by name"),
        (("certify", run, "--eps", "mass=3", "--fixed", "share"), "leave --fixed out"),
        (("certify", run, "--fixed", "shares"), "perhaps you mean share"),
        (("certify", run, "--tolerance", 1), "--tolerance is for a regression"),
        (("certify", run, "--eps", "mass=3", "--norm", "l2"), "a radius for each input value is for the norm linf"),
        (("attack", run, "--out", tmp_path / "a.json"), "would be a certificate, and nothing is proved here"),
        (("certify", run, "--data", tmp_path / "absent.csv"), "there is no file"),
        ((*TRAIN, "--data", data, "--dataset", "digits", "--out", tmp_path / "r"), "two sets of data; pass one"),
        ((*TRAIN, "--data", tmp_path / "x.xls", "--out", tmp_path / "r"), "must end in .csv, .npz or .pt"),
        ((*TRAIN, "--data", data, "--out", tmp_path / "r"), "Name it: --target NAME"),
        ((*TRAIN, "--data", data, "--target", "answer", "--scale", "3", "--out", tmp_path / "r"), "scale is std"),
        ((*TRAIN, "--data", data, "--target", "answer", "--fixed", "a", "--out", tmp_path / "r"), "no feature 'a'"),
        ((*TRAIN, "--target", "answer", "--out", tmp_path / "r"), "digits has its own"),
    ):
        assert words in refused(*command), command


def test_another_norm_counts_in_units_of_the_inputs_and_says_so(classes):
    _, run = classes
    result = invoke("certify", run, "--eps", 0.1, "--norm", "l2")
    assert result.exit_code == 0 and "in l2 a radius is in the inputs' own units" in result.stderr
    assert "own units" not in invoke("certify", run, "--eps", 0.1).stderr


def test_training_leaves_fixed_columns_alone(tmp_path):
    data, run = table(tmp_path / "people.csv", 100, kind), tmp_path / "run"
    arguments = ["--data", data, "--target", "answer", "--scale", "mass=10,height=0.1", "--out", run]
    assert invoke(*TRAIN, *arguments, "--fixed", "height", "--eps", 1).exit_code == 0
    assert cb.load(run).metadata["likelihood"]["scale"] == [[10.0, 0.0, 0.0]]
    record = asked("certify", run, "--out", tmp_path / "c.json")
    assert record["eps"] == 1.0 and cb.load_certificate(tmp_path / "c.json").eps.tolist() == [[10.0, 0.0, 0.0]]


def test_the_embedded_tables_end_to_end(tmp_path):
    for name, more in (("breast-cancer", []), ("diabetes", [])):
        run = tmp_path / name
        assert invoke(*TRAIN, "--dataset", name, "--out", run, *more).exit_code == 0
        record = asked("certify", run, "--fixed", "age" if name == "diabetes" else "mean_area")
        assert record["n"] == (89 if name == "diabetes" else 114)
