"""certibayes report and certibayes compare."""

import json

import pytest

from .cases import certified, invoke

pytest.importorskip("jinja2")


def test_a_run_with_its_certificate(certifiable_run, tmp_path):
    """Digits are found by their digest; points that are certified and others are shown, with what breaks them."""
    assert (
        certified(certifiable_run, tmp_path / "certified", "--method", "best", "--budget", 1, "--eps", 0.1).exit_code
        == 0
    )
    result = invoke("report", tmp_path / "certified", "--out", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    page = (tmp_path / "page.html").read_text()
    record = json.loads((tmp_path / "certified" / "certificate.json").read_text())
    assert "A certificate: 1 certificate." in page and page.count("<img ") >= 6
    assert page.count("Counterexample to point") == page.count("An allowed change was found") > 0
    assert record["statement"][:40] in page


def test_other_points_are_not_shown(certifiable_run, tmp_path):
    assert certified(certifiable_run, tmp_path / "a.json").exit_code == 0
    result = invoke("report", tmp_path / "a.json", "--dataset", "diabetes")
    assert result.exit_code == 0 and (tmp_path / "report.html").exists()
    assert "<img " not in (tmp_path / "report.html").read_text()
    assert invoke("report", tmp_path / "a.json", "--dataset", "digit").exit_code == 1
    assert invoke("report", tmp_path / "a.json").exit_code == 0
    assert "<img " in (tmp_path / "report.html").read_text()


def test_a_trained_run_has_curves_and_its_command(certifiable_run, tmp_path):
    result = invoke("report", certifiable_run, "--out", tmp_path / "page.html")
    assert result.exit_code == 0 and "wrote" in result.output
    page = (tmp_path / "page.html").read_text()
    assert "<polyline" in page and f"--config {certifiable_run / 'spec.toml'} --out OTHER" in page


def test_what_cannot_be_reported_is_an_error(tmp_path):
    for arguments in (("report", tmp_path), ("report", tmp_path / "nowhere"), ("compare", tmp_path, tmp_path)):
        result = invoke(*arguments)
        assert result.exit_code == 1 and "error:" in result.stderr and not (tmp_path / "report.html").exists()
    (tmp_path / "certificate.json").write_text("{}")
    assert invoke("report", tmp_path).exit_code == 1 and not (tmp_path / "report.html").exists()


def test_two_runs(certifiable_run, tmp_path):
    out = tmp_path / "page.html"
    result = invoke("compare", certifiable_run, "zoo:digits-swag", "--out", out)
    assert result.exit_code == 0, result.output
    assert "vogn" in result.output and "swag" in result.output and "Settings that differ" in out.read_text()
    found = json.loads(invoke("compare", certifiable_run, "zoo:digits-swag", "--json").stdout)
    assert found["settings"]["algorithm"] == ["vogn", "swag"] and set(found) == {"runs", "settings", "figures"}
    assert "settings that differ: none" in invoke("compare", certifiable_run, certifiable_run).output
