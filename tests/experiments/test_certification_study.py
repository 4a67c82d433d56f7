"""The study of certification: its ladder of rules, its attacks at the certified radii, and its files."""

import csv

import pytest
from typer.testing import CliRunner

from certibayes.cli import app
from certibayes.experiments import RuleEvaluator, UncertaintyEvaluator, run_certification_study, run_uncertainty_study
from certibayes.experiments.certification_study import LADDER, attacks_markdown, flat, rules_markdown
from certibayes.experiments.figures import rules_figure

pytestmark = pytest.mark.slow

EVALUATOR = RuleEvaluator(0.05, samples=2, limit=8, budget=1.0)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    out = tmp_path_factory.mktemp("study")
    rows = run_certification_study(out, EVALUATOR, dataset="digits", methods=["map"], quick=True)
    return out, rows


def test_every_rule_is_at_least_as_strong_as_the_one_before(study):
    _, rows = study
    (robust,) = [row for row in rows if row.likelihood == "robust"]
    fractions = [robust.figures["rules"][step.name]["certified"] for step in LADDER]
    assert fractions == sorted(fractions)
    assert fractions[-1] > 0


def test_standard_networks_are_spared_the_costly_rules(study):
    _, rows = study
    (standard,) = [row for row in rows if row.likelihood == "standard"]
    assert list(standard.figures["rules"]) == [step.name for step in LADDER[:4]]


def test_attacks_come_in_order_of_strength_and_no_proof_falls(study):
    _, rows = study
    for row in rows:
        attacks, trials = row.figures["attacks"], row.figures["trials"]
        unbroken = [found["robust_accuracy"] for found in attacks.values()]
        assert unbroken == sorted(unbroken, reverse=True)
        assert all(found["certified points broken"] == 0 for found in attacks.values())
        assert all(found["broken"] == 0 for found in trials.values())
        assert trials["single networks"]["trials"] >= trials["predictor"]["trials"] > 0


def test_every_file_is_written(study):
    out, rows = study
    with (out / "results.csv").open() as file:
        stored = list(csv.DictReader(file))
    assert len(stored) == len(rows) == 2
    assert float(stored[0]["accuracy"]) == rows[0].figures["accuracy"]
    assert (out / "table.md").read_text() == rules_markdown(rows)
    assert "best, hull, splitting" in (out / "table.md").read_text()
    assert (out / "attacks.md").read_text() == attacks_markdown(rows)
    assert (out / "rules.png").stat().st_size > 10_000
    assert flat(rows[0])["ensemble: robust_accuracy"] == rows[0].figures["attacks"]["ensemble"]["robust_accuracy"]


def test_runs_are_shared_with_the_study_of_uncertainty(study, monkeypatch):
    out, _ = study
    monkeypatch.setattr("certibayes.experiments.grid.train", lambda *a, **k: pytest.fail("trained again"))
    evaluator = UncertaintyEvaluator(0.1, samples=2, limit=8, steps=2, restarts=1, ood="inverted")
    rows, _ = run_uncertainty_study(out, evaluator, dataset="digits", methods=["map"], quick=True)
    assert len(rows) == 2


def test_the_figure_takes_posteriors_of_which_nothing_is_proved(tmp_path):
    nothing = {"rules": {"theorem1, ibp": {"certified": 0.0}}, "attacks": {"ensemble": {"robust_accuracy": 0.0}}}
    rules_figure({"none": nothing}, tmp_path / "rules.png")
    assert (tmp_path / "rules.png").exists()


def test_the_command_shows_what_fits(tmp_path):
    arguments = ["reproduce", "certification", "--dataset", "digits", "--quick", "--limit", "4", "--method", "map"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "theorem1" in result.output and "hull" in result.output and "unbroken" in result.output
