"""The study of uncertainty: its specs, its files, and that a stopped study goes on."""

import csv
import dataclasses
import json
import math

import pytest
from typer.testing import CliRunner

from certibayes.cli import app
from certibayes.errors import InvalidInput, RunExists
from certibayes.experiments import UncertaintyEvaluator, grid, run_uncertainty_study
from certibayes.experiments.inference_study import study_specs as inference_specs
from certibayes.experiments.uncertainty_figures import calibration_figure, histogram_grid
from certibayes.experiments.uncertainty_study import PAPER, Row, claims_of, draw, flat, markdown, study_specs

pytestmark = pytest.mark.slow

EVALUATOR = UncertaintyEvaluator(0.1, samples=3, limit=20, steps=2, restarts=1, ood="inverted")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    out = tmp_path_factory.mktemp("study")
    rows, claims = run_uncertainty_study(out, EVALUATOR, dataset="digits", methods=["map", "bbb"], quick=True)
    return out, rows, claims


def test_the_paper_s_methods_standard_beside_robust_at_every_temperature():
    specs = study_specs()
    assert len(specs) == len(PAPER) * 2 * 2
    for method in PAPER:
        own = {(s.likelihood, s.temperature) for s in specs.values() if s.algorithm == method}
        assert own == {(kind, t) for kind in ("standard", "ibp") for t in (1.0, 0.001)}


def test_a_spec_is_that_of_the_study_of_inference():
    mine, theirs = study_specs(), inference_specs()
    for method in PAPER:
        assert mine[f"{method}-ibp-t0.001-s0"] == theirs[f"{method}-ibp-t0.001"]
        assert mine[f"{method}-standard-t1-s0"] == theirs[f"{method}-standard-t1"]


def test_cifar_takes_the_supplement_s_network_and_radius():
    specs = study_specs("cifar10")
    assert list(specs) == [f"swag-{kind}-t{t}-s0" for t in ("1", "0.001") for kind in ("standard", "ibp")]
    assert {(s.architecture, s.eps, s.epochs) for s in specs.values()} == {("paper-cifar-supplement", 1 / 255, 20)}


def test_more_seeds_are_more_specs_and_unknown_methods_are_refused():
    specs = study_specs(methods=["bbb"], seeds=(0, 1, 2), temperatures=(1.0,))
    assert [s.seed for s in specs.values()] == [0, 0, 1, 1, 2, 2] and len(set(specs)) == 6
    with pytest.raises(InvalidInput, match="hmc"):
        study_specs(methods=["hcm"])


def test_every_file_is_written(study):
    out, rows, claims = study
    with (out / "results.csv").open() as file:
        stored = list(csv.DictReader(file))
    assert len(stored) == len(rows) == 2 + 4
    assert [row["temperature"] for row in stored if row["method"] == "bbb"] == ["1.0", "1.0", "0.001", "0.001"]
    for row in stored:
        assert row["diverged"] == "False" and row["in_n"] == row["out_n"] == "20"
        assert float(row["in_expected_entropy"]) <= float(row["in_predictive_entropy"]) + 1e-12
        assert 0 <= float(row["expected_entropy_auroc"]) <= 1
        assert float(row["adversarial_accuracy"]) <= float(row["in_accuracy"])
    assert (out / "table.md").read_text().count("robust") == 3
    page = (out / "claims.md").read_text()
    assert all(claim.sentence in page for claim in claims) and len(claims) == 3
    for name in ("histograms.png", "calibration.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")


def test_what_is_finished_is_not_done_again(study, monkeypatch):
    out, rows, claims = study
    monkeypatch.setattr(grid, "train", None)
    again = run_uncertainty_study(out, EVALUATOR, dataset="digits", methods=["map", "bbb"], quick=True)
    assert again == (rows, claims)


def test_other_inputs_are_evaluated_anew_without_training(study, monkeypatch):
    out, rows, _ = study
    monkeypatch.setattr(grid, "train", None)
    evaluator = dataclasses.replace(EVALUATOR, ood="noise")
    found, _ = run_uncertainty_study(out, evaluator, dataset="digits", methods=["map"], quick=True)
    assert found[0].figures["in"] == rows[0].figures["in"]
    assert found[0].figures["out"] != rows[0].figures["out"]


def test_runs_with_other_settings_are_not_taken_for_these(study):
    with pytest.raises(RunExists, match="hidden"):
        run_uncertainty_study(study[0], EVALUATOR, dataset="digits", methods=["map"])


def test_missing_inputs_are_noticed_before_training(tmp_path):
    with pytest.raises(InvalidInput, match="martian"):
        run_uncertainty_study(tmp_path, dataclasses.replace(EVALUATOR, ood="martian"), dataset="digits")
    assert not list(tmp_path.iterdir())


def test_figures_of_a_run_survive_as_json(study):
    figures = study[1][0].figures
    assert json.loads(json.dumps(figures)) == figures
    drawn = figures["curves"]["histograms"]["expected_entropy"]
    assert set(drawn) == {"in", "out", "adversarial"}
    assert drawn["in"]["edges"][-1] == pytest.approx(math.log(10))


def test_a_run_that_diverged_leaves_gaps(study, tmp_path):
    rows = [*study[1][:1], Row("map", "robust", 1.0, 0, {"diverged": "too fast"})]
    assert markdown(rows).splitlines()[-1].count("diverged") == 16
    assert flat(rows[1])["diverged"] and "in_n" not in flat(rows[1])
    assert claims_of(rows, "digits", "inverted")[0].confirmed is None
    draw(rows, "digits", "inverted", tmp_path)
    assert (tmp_path / "histograms.png").exists()
    draw(rows[1:], "digits", "inverted", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_seeds_are_a_column_where_there_are_several(study):
    rows = [dataclasses.replace(study[1][0], seed=seed) for seed in (0, 1)]
    assert "| method | temperature | seed |" in markdown(rows)
    assert "seed" not in markdown(rows[:1])


def test_panels_without_a_run_stay_empty(study, tmp_path):
    curves = study[1][0].figures["curves"]
    histograms = curves["histograms"]["expected_entropy"]
    grid_of = {"a": {"left": histograms, "right": None}, "b": {"left": histograms}}
    histogram_grid(grid_of, tmp_path / "h.png", xlabel="nats", title="title")
    calibration_figure({"": {"left": {"a": curves}}, "row": {"right": {"b": curves}}}, tmp_path / "c.png")
    assert {path.name for path in tmp_path.iterdir()} == {"h.png", "c.png"}


def test_the_command(study):
    out, rows, _ = study
    arguments = ["reproduce", "uncertainty", "--dataset", "digits", "--ood", "inverted", "--method", "map", "--quick"]
    arguments += ["--limit", "20", "--out", str(out)]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "140"})
    assert result.exit_code == 0, result.output
    assert "claim" in result.output and "AUROC" in result.output
    assert "fails" in result.output or "holds" in result.output
    record = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert [row["likelihood"] for row in record["rows"]] == ["standard", "robust"]
    assert record["rows"][0]["in_accuracy"] == rows[0].figures["in"]["accuracy"]
    assert record["claims"][0]["method"] == "map"


def test_the_other_study_takes_no_out_of_distribution_inputs():
    result = CliRunner().invoke(app, ["reproduce", "inference", "--ood", "noise"])
    assert result.exit_code == 1 and "uncertainty" in result.output
