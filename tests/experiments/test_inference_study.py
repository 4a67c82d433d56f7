"""The study of inference methods: its specs, its choice of temperature, and its files."""

import csv

import pytest
from typer.testing import CliRunner

from certibayes.cli import app
from certibayes.experiments.inference_study import (
    METHODS,
    TEMPERATURES,
    chains_markdown,
    markdown,
    study_specs,
    table_rows,
)
from certibayes.experiments.spec import ALGORITHMS


def figures(temperature, loss, certified=0.5):
    return {
        "n": 10, "certified": certified, "accuracy": 0.9, "pgd": 0.7, "nll": 0.1, "ece": 0.01, "disagreement": 0.02,
        "mutual_information": 0.001, "temperature": temperature, "held_out": {"validation_loss": loss},
    }  # fmt: skip


def test_every_method_has_every_temperature_where_it_has_any_and_the_standard_likelihood_once():
    specs = study_specs()
    # Snapshot ensembles are part of the study of deep networks instead.
    assert set(METHODS) == set(ALGORITHMS) - {"snapshot"}
    for method in METHODS:
        own = [s for s in specs.values() if s.algorithm == method]
        robust = [s.temperature for s in own if s.likelihood == "ibp"]
        assert robust == ([1.0] if ALGORITHMS[method].temperature_in == "nowhere" else list(TEMPERATURES))
        assert [s.temperature for s in own if s.likelihood == "standard"] == [1.0]
    assert {(s.dataset, s.eps, s.lam, s.hidden) for s in specs.values()} == {("mnist", 0.1, 0.25, (512,))}


def test_the_lowest_held_out_loss_is_chosen_whatever_is_certified():
    specs = study_specs()
    losses = dict(zip(TEMPERATURES, (0.4, 0.2, 0.3, 0.5), strict=True))
    found = {name: figures(s.temperature, losses[s.temperature], s.temperature) for name, s in specs.items()}
    rows = [row for row in table_rows(specs, found) if row.method == "vogn"]
    assert [(row.likelihood, row.choice, row.figures["temperature"]) for row in rows] == [
        ("ibp", "bayes", 1.0),
        ("ibp", "validated", 0.1),
        ("standard", "bayes", 1.0),
    ]


def test_a_run_that_diverged_is_left_out_of_the_table():
    specs = study_specs()
    found = {name: figures(s.temperature, s.temperature) for name, s in specs.items()}
    found["vogn-ibp-t0.001"] = {"diverged": "too fast"}
    rows = [row for row in table_rows(specs, found) if (row.method, row.choice) == ("vogn", "validated")]
    assert rows[0].figures["temperature"] == 0.01
    assert "| robust | vogn | 0.01 (validated) | 50.0% | 90.0% | 70.0% | 0.100 | 0.0100 |" in markdown(rows)


def test_chains_have_a_table_of_their_own():
    chain = {
        "sampler": {"accepted": 3, "proposed": 4, "divergences": 1, "step_size": 0.01},
        "diagnostics": {"predictions": {"rhat_median": 1.5, "rhat_max": "inf", "ess_min": None}},
    }
    assert "| a | 3 of 4 | 1 | 0.01 | 1.50 | inf | - |" in chains_markdown({"a": chain, "b": {}})
    assert chains_markdown({"b": {}}) == ""


@pytest.mark.slow
def test_the_command_writes_table_figure_and_every_run(tmp_path):
    arguments = ["reproduce", "inference", "--dataset", "digits", "--quick", "--limit", "10", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    specs = study_specs("digits", quick=True)
    with (tmp_path / "results.csv").open() as file:
        assert [row["run"] for row in csv.DictReader(file)] == list(specs)
    assert (tmp_path / "table.md").read_text().count("(validated)") == 8
    assert (tmp_path / "temperature.png").read_bytes().startswith(b"\x89PNG")
    assert {path.parent.name for path in (tmp_path / "runs").glob("*/run.json")} == set(specs)


def test_an_unknown_study_is_refused():
    result = CliRunner().invoke(app, ["reproduce", "everything"])
    assert result.exit_code == 1
    assert "inference" in result.output


def test_no_spec_leaves_to_the_algorithm_what_may_be_changed_there():
    """Stored tables say what was run; defaults that improve must not change it."""
    for spec in study_specs().values():
        assert None not in (spec.lr, spec.ramp, spec.temperature, spec.start_epochs)
        assert spec.algorithm != "laplace" or spec.settings["structure"] == "diagonal"
