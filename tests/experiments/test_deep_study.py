"""The study of deep networks: tasks, rows, tables and figures, on tiny networks."""

import csv
import json

import pytest

from certibayes.errors import InvalidInput, RunExists
from certibayes.experiments import deep_study
from certibayes.experiments.deep_study import (
    DeepEvaluator,
    Row,
    choose,
    compared,
    markdown,
    run_deep_study,
    run_paths,
)
from certibayes.experiments.deep_tasks import HELD_OUT, TASKS, chosen_tasks

EVALUATOR = DeepEvaluator(0.1, limit=6, steps=1)
DIGITS = {"digits": TASKS["digits"]}


@pytest.fixture(scope="module")
def study(tmp_path_factory, few_digits_in_module):
    out = tmp_path_factory.mktemp("deep")
    return out, run_deep_study(out, EVALUATOR, DIGITS, seeds=2, quick=True)


def test_rows_are_a_posterior_the_members_and_all_together(study, monkeypatch):
    out, rows = study
    assert [(row.posterior, row.figures["samples"]) for row in rows] == [("SWAG", 10), ("2 members", 2), ("2 SWAG", 10)]
    for row in rows:
        f = row.figures
        assert f["n"] == 6
        assert 0 <= f["certified"] <= f["unbroken"] <= f["accuracy"] <= 1
        assert f["mutual_information"] >= 0
    assert compared(rows, rows[1]) == 1.0
    with (out / "results.csv").open() as file:
        assert [row["posterior"] for row in csv.DictReader(file)] == ["SWAG", "2 members", "2 SWAG"]
    assert (out / "table.md").read_text() == markdown(rows)
    assert (out / "deep.png").stat().st_size > 10_000
    # What is finished is read again.
    monkeypatch.setattr(DeepEvaluator, "measure", None)
    assert run_deep_study(out, EVALUATOR, DIGITS, seeds=2, quick=True) == rows


@pytest.mark.slow
def test_candidates_are_compared_on_images_that_training_held_out(tmp_path, few_digits, monkeypatch):
    seen = []

    def measure(self, predictor, x, y, dataset):
        seen.append(x)
        return {"certified": 0.5}

    monkeypatch.setattr(DeepEvaluator, "measure", measure)
    candidates = {
        "lam 0.05": {"lam": 0.05},
        "snapshots": {"algorithm": "snapshot", "settings": {"members": 2}, "multiplier": 1.0},
    }
    monkeypatch.setitem(TASKS, "digits", deep_study.replace(TASKS["digits"], candidates=candidates))
    rows = choose(tmp_path, DeepEvaluator(0.1), {"digits": TASKS["digits"]}, quick=True)
    assert [row.posterior for row in rows] == ["recipe", "lam 0.05", "snapshots"]
    with (tmp_path / "choice.csv").open() as file:
        stated = [(float(row["lam"]), pytest.approx(float(row["eta"]))) for row in csv.DictReader(file)]
    assert stated == [(0.25, 0.11), (0.05, 0.11), (0.25, 0.1)]
    train = deep_study.data.load("digits").train.inputs
    assert all(len(x) == round(HELD_OUT * len(train)) for x in seen)
    assert all((x[0] == train).flatten(1).all(-1).any() for x in seen)


@pytest.mark.slow
def test_two_ways_to_one_likelihood(tmp_path, few_digits, monkeypatch):
    monkeypatch.setitem(TASKS, "fashion-mnist", TASKS["digits"])
    found = run_paths(tmp_path, EVALUATOR, channels=3, quick=True)
    assert list(found) == ["lam ramped", "lam from the start"]
    assert all(len(figures["history"]) == 2 for figures in found.values())
    assert (tmp_path / "paths.png").stat().st_size > 10_000
    assert (tmp_path / "paths.md").read_text().count("\n") == 4
    specs = [
        json.loads((tmp_path / "runs" / name.replace(" ", "-") / "run.json").read_text())["spec"] for name in found
    ]
    assert [spec["lam_ramp"] > 0 for spec in specs] == [True, False]
    assert [spec["channels"] for spec in specs] == [3, 3]


def test_tasks_by_data_set_and_by_name():
    assert list(chosen_tasks("cifar10")) == ["cifar10-1", "cifar10-paper", "cifar10-2", "cifar10-8"]
    assert list(chosen_tasks("cifar10", ["mnist", "cifar10-2"])) == ["mnist", "cifar10-2"]
    with pytest.raises(InvalidInput, match="studied on digits, mnist"):
        chosen_tasks("svhn")
    with pytest.raises(InvalidInput, match="mnist-paper"):
        chosen_tasks("mnist", ["mnist-papr"])


def test_rows_of_another_recipe_are_not_taken_for_these(study):
    out, _ = study
    other = deep_study.replace(TASKS["digits"], settings={**TASKS["digits"].settings, "lam": 0.1})
    with pytest.raises(RunExists, match="rows of digits with other settings"):
        run_deep_study(out, EVALUATOR, {"digits": other}, seeds=2, quick=True)


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_every_recipe_and_candidate_can_be_trained(task):
    for changed in ({}, *task.candidates.values()):
        spec = task.spec(**changed).resolved()
        assert spec.temperature == 1.0
        # What is collected belongs to the likelihood that was asked for.
        assert spec.ramp + spec.lam_ramp <= spec.make_algorithm().collects_after


def test_a_row_without_members_is_compared_with_nothing():
    row = Row("cifar10-2", "snapshot ensemble", {"mutual_information": 0.1})
    assert compared([row], row) is None
