"""Opening a run: the predictor it gives, whatever the command."""

import json

import pytest
from typer.testing import CliRunner

from certibayes.cli import app

COMMANDS = {
    "certify": ["--limit", 20],
    "radius": ["--limit", 5, "--tolerance", 0.01],
    "attack": ["--limit", 5],
    "evaluate": ["--limit", 20, "--steps", 2],
}


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """An ensemble of two."""
    out = tmp_path_factory.mktemp("runs") / "ensemble"
    small = ["--hidden", 8, "--epochs", 1, "--batch-size", 500, "--members", 2]
    result = invoke("train", "--algorithm", "ensemble", *small, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    return out


@pytest.mark.parametrize("command", COMMANDS)
def test_more_samples_than_are_held_are_all_that_are_held(command, run):
    result = invoke(command, run, *COMMANDS[command], "--samples", 35, "--json")
    assert result.exit_code == 0, result.output
    assert f"{run} holds 2 of the 35 samples asked for; all of them are taken" in result.stderr
    assert '"samples": 2' in json.dumps(json.loads(result.stdout))


@pytest.mark.parametrize("samples", [[], ["--samples", 2], ["--samples", 1]], ids=str)
def test_as_many_as_are_held_are_taken_in_silence(samples, run):
    result = invoke("certify", run, "--limit", 20, "--json", *samples)
    assert result.exit_code == 0, result.output
    assert "holds" not in result.stderr
    assert json.loads(result.stdout)["samples"] == (samples[1] if samples else 2)
