"""certibayes check: what it confirms, what it refuses, and its exit codes."""

import json

import pytest
import torch

import certibayes as cb

from .cases import LIMIT, certified, invoke

CERTIFIED, REFUSED, BROKEN = 0, 3, 1
"""Exit codes."""


@pytest.fixture(scope="module")
def stored(certifiable_run, tmp_path_factory):
    out = tmp_path_factory.mktemp("stored") / "out"
    assert certified(certifiable_run, out, "--method", "theorem1").exit_code == 0
    return out


@pytest.fixture
def check(certifiable_run):
    return lambda *arguments: invoke("check", certifiable_run, *arguments)


def forge(stored, tmp_path, **changes):
    record = json.loads((stored / "certificate.json").read_text())
    record |= {name: change(record) for name, change in changes.items()}
    (tmp_path / "forged.json").write_text(json.dumps(record))
    return tmp_path / "forged.json"


def test_an_honest_certificate_holds_also_strictly(check, stored):
    for file in (stored, stored / "certificate.json"):
        result = check(file, "--strict", "--json")
        assert result.exit_code == CERTIFIED, result.output
        record = json.loads(result.stdout)
        assert record["holds"] and record["holds_strictly"] and record["labels_of_dataset"]
        assert record["points"] == record["bounds_confirmed"] == LIMIT
        assert record["confirmed"] == record["certified"] > 0 and not record["contradictions"]
    shown = check(stored)
    assert shown.exit_code == CERTIFIED and "checked independently" in shown.output
    assert "all of it is confirmed" in shown.output


def test_a_forged_mark_is_refuted(check, stored, tmp_path):
    wrong = forge(stored, tmp_path, eps=lambda r: 0.4, certified=lambda r: [True] * LIMIT)
    result = check(wrong, "--json")
    assert result.exit_code == REFUSED and json.loads(result.stdout)["refuted"] > 0
    shown = check(wrong)
    assert shown.exit_code == REFUSED and "refuted" in shown.output and "does not hold" in shown.output


def test_forged_words_are_refused(check, stored, tmp_path):
    wrong = forge(stored, tmp_path, statement=lambda r: r["statement"].replace("0.02", "0.9"))
    result = check(wrong)
    assert result.exit_code == REFUSED and "the statement is not what the record says" in result.stderr
    assert '"0.9 of it' in result.stderr and '"0.02 of it' in result.stderr


def test_radii_of_zero_under_larger_words_are_refused(check, stored, tmp_path):
    wrong = forge(stored, tmp_path, eps=lambda r: [0.0] * LIMIT)
    result = check(wrong, "--json")
    assert result.exit_code == REFUSED
    assert "the statement is not what the record says" in json.loads(result.stdout)["contradictions"][0]


def test_what_is_neither_confirmed_nor_refuted_is_reported_and_refused_if_strict(check, certifiable_run, tmp_path):
    """A certificate by tighter bounds than intervals; or one that was rid of all that would be refuted."""
    command = ("certify", certifiable_run, "--eps", 0.06, "--samples", 3, "--limit", LIMIT)
    assert invoke(*command, "--method", "best", "--bounds", "crown", "--out", tmp_path / "c.json").exit_code == 0
    result = check(tmp_path / "c.json", "--json")
    record = json.loads(result.stdout)
    assert result.exit_code == CERTIFIED and record["not_confirmed"] > 0 and not record["holds_strictly"]
    left = f"{record['not_confirmed']} of {record['certified']} marked points"
    shown, strict = check(tmp_path / "c.json"), check(tmp_path / "c.json", "--strict")
    assert shown.exit_code == CERTIFIED and f"Left open: {left}" in shown.output and "crown bounds" in shown.output
    assert strict.exit_code == REFUSED and f"Not all of it is confirmed: {left}" in strict.output


def test_the_seed_is_found_in_the_certificate(check, certifiable_run, tmp_path):
    out = tmp_path / "c.json"
    assert certified(certifiable_run, out, "--seed", 5).exit_code == 0
    assert check(out).exit_code == CERTIFIED
    assert check(out, "--seed", 4).exit_code == REFUSED


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--seed", 1], "another predictor"),
        (["--samples", 4], "another predictor"),
        (["--limit", LIMIT - 1], "other points"),
    ],
)
def test_another_predictor_or_other_points_are_refused(check, stored, options, words):
    result = check(stored, *options)
    assert result.exit_code == REFUSED and words in result.stderr and "nothing was checked" in result.stderr
    assert json.loads(check(stored, *options, "--json").stdout)["problems"]


def test_labels_that_are_not_the_data_sets_are_reported(check, certifiable_run, tmp_path):
    x = cb.data.load("digits").test.inputs[:LIMIT]
    predicted = cb.certify(cb.load(certifiable_run).predictor(3, seed=0), x, eps=0.02, domain=(0.0, 1.0))
    assert not torch.equal(predicted.labels, cb.data.load("digits").test.targets[:LIMIT])
    predicted.save(tmp_path / "predicted.json")
    result = check(tmp_path / "predicted.json")
    assert result.exit_code == CERTIFIED and "not those of the data set" in result.output


def test_counterexamples_are_checked(check, certifiable_run, tmp_path):
    more = ("--method", "best", "--bounds", "crown", "--budget", 2)
    assert certified(certifiable_run, tmp_path / "out", *more).exit_code == 0
    result = check(tmp_path / "out", "--json")
    record = json.loads(result.stdout)
    assert result.exit_code == CERTIFIED and record["attacked"] > 0 == record["attacked_refuted"]
    assert "attacked" in check(tmp_path / "out").output

    def outside(r):
        number, point = next(iter(r["counterexamples"].items()))
        return {**r["counterexamples"], number: [[[1 - pixel for pixel in row] for row in image] for image in point]}

    wrong = forge(tmp_path / "out", tmp_path, counterexamples=outside)
    result = check(wrong, "--json")
    assert result.exit_code == REFUSED and json.loads(result.stdout)["attacked_refuted"] == 1


def test_what_is_not_a_certificate_is_an_error(check, stored, tmp_path):
    (tmp_path / "a.json").write_text("{}")
    assert check(tmp_path / "a.json").exit_code == BROKEN
    assert "no certificate" in check(tmp_path / "b.json").stderr
    more = forge(stored, tmp_path, approved=lambda r: True)
    result = check(more)
    assert result.exit_code == BROKEN and "unknown: approved" in result.stderr and "Traceback" not in result.output


def test_the_help_lists_the_exit_codes():
    page = " ".join(invoke("check", "--help").output.split())
    assert "--strict" in page and "Exit codes: 0" in page and "3 if not" in page
