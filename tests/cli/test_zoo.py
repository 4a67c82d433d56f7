"""The zoo from the command line: the list, a card, and zoo:NAME wherever a run is asked for."""

import json
from dataclasses import replace

import pytest

import certibayes as cb
from certibayes.errors import InvalidInput
from certibayes.experiments import TrainSpec
from certibayes.zoo import catalog

from .cases import certified, invoke

NAME, LIMIT = "digits-swag", 10
COMMANDS = {
    "certify": ["--method", "elided", "--bounds", "ibp", "--limit", LIMIT],
    "radius": ["--limit", 2, "--tolerance", 0.05],
    "attack": ["--limit", 2],
    "evaluate": ["--limit", LIMIT, "--no-adversarial"],
}


def test_the_list_has_every_entry():
    result = invoke("zoo")
    assert result.exit_code == 0, result.output
    for entry in cb.zoo.list():
        for part in (entry.name, entry.description, entry.dataset, f"{entry.certified:.2%}", entry.digest[:12]):
            assert part in result.stdout
    listed = json.loads(invoke("zoo", "--json").stdout)["entries"]
    assert listed == [catalog.figures(name) for name in catalog.names()]


def test_a_name_shows_its_card():
    result = invoke("zoo", NAME)
    assert result.exit_code == 0, result.output
    for part in ("Limits of use", "Recipe", catalog.figures(NAME)["digest"]):
        assert part in result.stdout
    assert json.loads(invoke("zoo", NAME, "--json").stdout) == catalog.figures(NAME)


@pytest.mark.parametrize("command", COMMANDS)
def test_an_entry_is_a_run(command):
    result = invoke(command, f"zoo:{NAME}", *COMMANDS[command], "--samples", 2, "--json")
    assert result.exit_code == 0, result.output
    assert cb.zoo.load(NAME).predictor(2).digest in result.stdout


def test_certify_finds_the_predictor_of_the_card_and_its_own_radius():
    figures = catalog.figures(NAME)
    result = invoke("certify", f"zoo:{NAME}", *COMMANDS["certify"], "--samples", figures["samples"], "--json")
    found = json.loads(result.stdout)
    assert found["digest"] == figures["digest"]
    assert found["eps"] == figures["eps"] and found["eps_source"] == "run"


def test_its_certificate_can_be_checked(tmp_path):
    result = certified(f"zoo:{NAME}", tmp_path, "--method", "pairwise", "--bounds", "ibp", "--limit", 5)
    assert result.exit_code == 0, result.output
    assert invoke("check", f"zoo:{NAME}", tmp_path).exit_code == 0


def test_info_describes_it():
    result = invoke("info", f"zoo:{NAME}", "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["deviations"] == "float16" and record["dataset"] == "digits"


def test_it_is_evaluated_beside_another_run(certifiable_run):
    result = invoke(
        "evaluate", certifiable_run, f"zoo:{NAME}", "--samples", 2, "--limit", LIMIT, "--no-adversarial", "--json"
    )
    assert result.exit_code == 0, result.output
    assert NAME in json.loads(result.stdout)["runs"]


def test_its_settings_can_be_trained_again(tmp_path, monkeypatch):
    asked = []

    def stop(spec, *_, **__):
        asked.append(spec.resolved())
        raise InvalidInput("that was all")

    monkeypatch.setattr("certibayes.cli.train.train", stop)
    stored = TrainSpec.from_json(json.loads((catalog.directory(NAME) / "run.json").read_text())["spec"])
    for more, expected in (([], stored), (["--epochs", 3], replace(stored, epochs=3))):
        assert "that was all" in invoke("train", "--config", f"zoo:{NAME}", *more, "--out", tmp_path / "run").output
        assert asked.pop() == expected.resolved()


@pytest.mark.parametrize(
    "arguments",
    [
        *([command, "zoo:digit-swag"] for command in (*COMMANDS, "info")),
        ["check", "zoo:digit-swag", "certificate.json"],
        ["train", "--config", "zoo:digit-swag", "--out", "runs/never"],
        ["zoo", "digit-swag"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_an_unknown_name_is_answered_with_the_nearest(arguments):
    result = invoke(*arguments)
    assert result.exit_code in (1, 2)
    assert "perhaps you mean digits-swag" in " ".join(result.output.split())


def test_a_run_becomes_an_entry(certifiable_run, tmp_path):
    arguments = ["--add", certifiable_run, "--samples", 2, "--eps", "1/255", "--out", tmp_path]
    result = invoke("zoo", "tiny-vogn", *arguments, "--description", "a trial")
    assert result.exit_code == 0, result.output
    assert "tiny-vogn is in" in result.stdout
    figures = json.loads((tmp_path / "tiny-vogn" / "run.json").read_text())["zoo"]
    assert figures["samples"] == 2 and figures["description"] == "a trial" and figures["eps"] == 1 / 255
    assert cb.load(tmp_path / "tiny-vogn").predictor(2).digest == figures["digest"]
    again = invoke("zoo", "tiny-vogn", *arguments)
    assert again.exit_code == 1 and "--overwrite" in again.output
    replaced = invoke("zoo", "tiny-vogn", *arguments, "--overwrite", "--json")
    assert json.loads(replaced.stdout) == {"path": str(tmp_path / "tiny-vogn")}


def test_an_entry_needs_a_name(certifiable_run):
    result = invoke("zoo", "--add", certifiable_run)
    assert result.exit_code == 1 and "certibayes zoo NAME --add" in result.output


@pytest.mark.parametrize("option", [["--eps", 0.1], ["--samples", 3], ["--device", "cpu"], ["--overwrite"]], ids=str)
def test_options_of_a_new_entry_are_refused_where_none_is_made(option):
    for name in ([], [NAME]):
        result = invoke("zoo", *name, *option)
        assert result.exit_code == 1 and "--add RUN" in result.output
