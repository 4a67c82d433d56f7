"""Opening a run: the predictor it gives, whatever the command."""

import json

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import certibayes as cb
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


def test_another_seed_of_a_network_with_batch_norm_takes_the_runs_own_training_data(tmp_path):
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 10))
    mean = dict(net.named_parameters())
    std = {name: torch.full_like(p, 0.01) for name, p in mean.items()}
    posterior = cb.DiagonalGaussian(net, mean, std, (1, 28, 28), {"dataset": "digits"}, (0.0, 1.0))
    posterior.save(tmp_path)
    result = invoke("certify", tmp_path, "--eps", 0.01, "--limit", 5, "--samples", 3, "--seed", 4, "--json")
    assert result.exit_code == 0, result.output
    expected = posterior.predictor(3, seed=4, data=cb.data.load("digits")).digest
    assert json.loads(result.stdout)["digest"] == expected


def test_a_network_without_batch_norm_has_no_mode_of_it(tmp_path):
    result = invoke("train", "--hidden", 8, "--epochs", 1, "--batch-norm", "batch", "--out", tmp_path / "run")
    assert result.exit_code != 0 and "Leave it out" in result.output
    assert not (tmp_path / "run").exists()
    result = invoke("train", "--hidden", 8, "--epochs", 1, "--batch-norm", "eval", "--out", tmp_path / "run")
    assert result.exit_code != 0 and "batch, constant" in result.output.replace("\n", " ")
