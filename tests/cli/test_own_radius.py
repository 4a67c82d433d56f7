"""The radius of a question: the one that was asked for, else the one that the run was trained for."""

import json
from types import SimpleNamespace

import pytest

import certibayes as cb
from certibayes.cli.opening import _domain

from .cases import invoke

TINY = ("--hidden", 8, "--epochs", 1, "--batch-size", 500, "--algorithm", "map", "--json")
FEW = ("--limit", 10, "--samples", 1)
QUICK = {"certify": (), "attack": ("--steps", 2), "evaluate": ("--steps", 2)}


def trained(out, *more):
    result = invoke("train", *TINY, "--out", out, *more)
    assert result.exit_code == 0, result.output
    return out


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One trained for 8/255 and one with the standard likelihood."""
    folder = tmp_path_factory.mktemp("radius")
    return trained(folder / "robust", "--eps", "8/255"), trained(folder / "standard", "--likelihood", "standard")


def test_training_takes_a_quotient(runs):
    assert json.loads((runs[0] / "run.json").read_text())["spec"]["eps"] == 8 / 255


@pytest.mark.parametrize("command", QUICK)
def test_the_run_s_own_radius_is_the_default_and_is_stated(command, runs):
    arguments = (command, runs[0], *FEW, *QUICK[command])
    record = json.loads(invoke(*arguments, "--json").stdout)
    assert (record["eps"], record["eps_source"]) == (8 / 255, "run")
    assert "eps 0.0313725, the run's own" in invoke(*arguments).stdout


@pytest.mark.parametrize("command", QUICK)
def test_another_radius_may_be_a_quotient(command, runs):
    arguments = (command, runs[0], *FEW, *QUICK[command], "--eps", "2/255")
    record = json.loads(invoke(*arguments, "--json").stdout)
    assert (record["eps"], record["eps_source"]) == (2 / 255, "option")
    assert "the run's own" not in invoke(*arguments).stdout


def test_radius_takes_quotients(runs):
    result = invoke("radius", runs[0], *FEW, "--largest", "16/255", "--tolerance", "4/255", "--json")
    record = json.loads(result.stdout)
    assert (record["largest"], record["tolerance"], record["own_radius"]) == (16 / 255, 4 / 255, 8 / 255)
    assert "0.0313725" in record["certified"]


@pytest.mark.parametrize("command", ["certify", "attack"])
def test_a_run_without_a_radius_asks_for_one(command, runs):
    result = invoke(command, runs[1], *FEW)
    assert result.exit_code == 1 and "was not trained for a radius" in result.stderr and "--eps 0.1" in result.stderr
    assert invoke(command, runs[1], *FEW, *QUICK[command], "--eps", "0.01").exit_code == 0


def test_the_next_command_says_whether_it_needs_a_radius(tmp_path):
    shown = [
        invoke("train", *TINY[:-1], "--likelihood", likelihood, "--out", tmp_path / likelihood).stdout.replace("\n", "")
        for likelihood in ("ibp", "standard")
    ]
    assert shown[0].endswith(f"certify {tmp_path / 'ibp'}")
    assert shown[1].endswith(f"certify {tmp_path / 'standard'} --eps 0.1")


@pytest.mark.parametrize("command", QUICK)
def test_the_run_s_own_radius_is_for_its_own_norm(command, runs):
    result = invoke(command, runs[0], *FEW, "--norm", "l2")
    assert result.exit_code == 1 and "0.0313725 in linf" in result.stderr and "--eps" in result.stderr


@pytest.mark.parametrize("text", ["wide", "1/0", "1/2/3", ""])
def test_what_is_no_radius_is_wrong_usage(text, runs, tmp_path):
    for arguments in (("certify", runs[0]), ("radius", runs[0], "--largest"), ("train", "--out", tmp_path / "run")):
        flags = () if "--largest" in arguments else ("--eps",)
        result = invoke(*arguments, *flags, text)
        assert result.exit_code == 2, result.output


class TestEvaluate:
    def test_two_runs_take_the_radius_that_one_of_them_has(self, runs):
        record = json.loads(invoke("evaluate", *reversed(runs), *FEW, "--steps", 2, "--json").stdout)
        assert record["eps"] == 8 / 255
        assert all("adversarial" in figures for figures in record["runs"].values())

    def test_two_radii_are_a_question(self, runs, tmp_path):
        other = trained(tmp_path / "other", "--eps", 0.02)
        result = invoke("evaluate", runs[0], other, *FEW)
        assert result.exit_code == 1 and "0.0313725, the other for 0.02" in result.stderr and "--eps" in result.stderr
        assert invoke("evaluate", runs[0], other, *FEW, "--steps", 2, "--eps", 0.02).exit_code == 0

    def test_without_a_radius_there_are_no_adversarial_examples(self, runs):
        record = json.loads(invoke("evaluate", runs[1], *FEW, "--json").stdout)
        assert record["eps"] is None and "adversarial" not in record["runs"]["standard"]
        assert "--eps adds them" in invoke("evaluate", runs[1], *FEW).stdout

    def test_they_can_be_left_out(self, runs):
        record = json.loads(invoke("evaluate", runs[0], *FEW, "--no-adversarial", "--json").stdout)
        assert record["eps"] is None and "adversarial" not in record["runs"]["robust"]

    def test_other_norms(self, runs):
        arguments = ("evaluate", runs[0], *FEW, "--steps", 2, "--norm", "l2", "--eps", 1)
        record = json.loads(invoke(*arguments, "--json").stdout)
        assert (record["norm"], record["eps"]) == ("l2", 1.0)
        weaker = json.loads(invoke(*arguments[:-1], 0.001, "--json").stdout)
        accuracies = [each["runs"]["robust"]["adversarial"]["accuracy"] for each in (record, weaker)]
        assert accuracies[0] <= accuracies[1]
        assert "PGD l2 1" in invoke(*arguments).stdout


class TestDomain:
    DIGITS = SimpleNamespace(name="digits", domain=(0.0, 1.0))

    @pytest.mark.parametrize(
        ("own", "named", "expected"),
        [
            (None, True, (0.0, 1.0)),
            ((0.0, 1.0), True, (0.0, 1.0)),
            ((0.0, 2.0), True, (0.0, 1.0)),
            ((0.0, 2.0), False, (0.0, 2.0)),
            (None, False, (0.0, 1.0)),
        ],
    )
    def test_a_data_set_that_is_named_wins_and_a_difference_is_noted(self, own, named, expected, capsys):
        assert _domain(SimpleNamespace(domain=own), self.DIGITS, named) == expected
        noted = capsys.readouterr().err.replace("\n", " ")
        assert ("[0.0, 1.0]" in noted and "[0.0, 2.0]" in noted) == (named and own == (0.0, 2.0))


def test_a_posterior_without_a_record_knows_its_radius_by_its_likelihood(tmp_path, runs):
    """As ``posterior.save`` in a script leaves it."""
    posterior = cb.load(runs[0])
    posterior.metadata["likelihood"] = {**posterior.metadata["likelihood"], "eps": 0.05}
    posterior.save(tmp_path / "saved")
    record = json.loads(invoke("certify", tmp_path / "saved", *FEW, "--json").stdout)
    assert (record["eps"], record["eps_source"]) == (0.05, "run")
