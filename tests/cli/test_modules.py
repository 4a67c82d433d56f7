"""An ensemble that was trained elsewhere, on the command line."""

import json

import pytest
import torch

import certibayes as cb
from certibayes.cli.terminal import BELOW_BAR

from .cases import invoke

SOURCE = """
import torch
from torch import nn

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 10))

def dropping():
    return nn.Sequential(make(), nn.Dropout())
"""
COMMANDS = {
    "certify": ["--limit", 6, "--eps", 0.01],
    "radius": ["--limit", 3, "--tolerance", 0.05],
    "attack": ["--limit", 6, "--eps", 0.01, "--steps", 2],
    "evaluate": ["--limit", 20, "--eps", 0.01, "--steps", 1, "--restarts", 1],
}


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    """A file with a factory, and three files of weights, one of a wrapped network."""
    folder = tmp_path_factory.mktemp("members")
    (folder / "nets.py").write_text(SOURCE)
    space: dict = {}
    exec(SOURCE, space)
    for seed in range(3):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            state = space["make"]().state_dict()
        prefix = "module." if seed == 2 else ""
        torch.save({prefix + name: tensor for name, tensor in state.items()}, folder / f"{seed}.pt")
    return folder, space["make"]


def flags(folder, *numbers, factory="make"):
    return ["--modules", *(folder / f"{i}.pt" for i in numbers), "--architecture", f"{folder}/nets.py:{factory}"]


@pytest.mark.parametrize("command", COMMANDS)
def test_modules_instead_of_a_run(command, members):
    folder, make = members
    result = invoke(command, *flags(folder, 0, 1, 2), "--dataset", "digits", *COMMANDS[command], "--json")
    assert result.exit_code == 0, result.output
    paths = [folder / f"{i}.pt" for i in range(3)]
    expected = cb.Samples.from_state_dicts(make(), paths, input_shape=(1, 28, 28)).predictor()
    record = json.loads(result.stdout)
    record = record["runs"]["make"] if command == "evaluate" else record
    assert record["digest"] == expected.digest and record["samples"] == 3
    assert "without the prefix 'module.'" in result.stderr.replace("\n", " ")


def test_the_table_of_evaluate_does_without_a_temperature(members):
    folder, _ = members
    result = invoke("evaluate", *flags(folder, 0), "--dataset", "digits", "--limit", 10, "--no-adversarial")
    assert result.exit_code == 0 and "unknown" in result.stdout


def test_what_certify_prints_does_without_a_temperature(members):
    folder, _ = members
    result = invoke("certify", *flags(folder, 0), "--dataset", "digits", "--limit", 4, "--eps", 0.001)
    assert result.exit_code == 0 and "mutual information" in result.stdout and "temperature" not in result.stdout
    # All networks that there are were taken, so that none was drawn.
    assert "fixed weight" in result.stdout and "drawn with" not in result.stdout


@pytest.mark.parametrize(
    "spelled",
    [
        lambda a, b: ["--modules", a, b],
        lambda a, b: ["--modules", a, "--modules", b],
        lambda a, b: [f"--modules={a}", "--modules", b],
        lambda a, b: ["--limit", 2, "--modules", a, b, "--json"],
    ],
)
def test_ways_to_name_the_files(spelled, members):
    folder, _ = members
    files = spelled(folder / "0.pt", folder / "1.pt")
    more = ["--architecture", f"{folder}/nets.py:make", "--dataset", "digits", "--eps", 0.01, "--json", "--limit", 2]
    result = invoke("certify", *files, *more)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["samples"] == 2


@pytest.mark.parametrize(
    "arguments, message",
    [
        (lambda f: [f / "0.pt", "--dataset", "digits"], "--architecture package.module:factory"),
        (lambda f: flags(f, 0), "pass --dataset NAME"),
        (lambda f: [*flags(f, 0), "--dataset", "digits"], "was not trained for a radius"),
        (lambda f: [*flags(f, 9), "--dataset", "digits"], "there is no file"),
        (lambda f: [*flags(f, 0, factory="mkae"), "--dataset", "digits"], "perhaps you mean make"),
        (lambda f: [*flags(f, 0, factory="dropping"), "--dataset", "digits"], "does not fit Sequential"),
        (
            lambda f: ["--modules", f / "0.pt", "--architecture", "mlp", "--dataset", "digits"],
            "does not fit Sequential",
        ),
        (lambda f: ["--modules", f / "0.pt", "--architecture", "mpl", "--dataset", "digits"], "perhaps you mean mlp"),
    ],
)
def test_mistakes_are_explained(arguments, message, members):
    result = invoke("certify", *arguments(members[0]))
    assert result.exit_code == 1 and message in result.stderr.replace("\n", " "), result.output


@pytest.mark.parametrize(
    "arguments, message",
    [
        (lambda f: [], "pass the directory of a run; or --modules FILE... --architecture"),
        (lambda f: ["--modules", f / "0.pt"], "pass --architecture package.module:factory"),
        (lambda f: ["runs/a", *flags(f, 0)], "runs/a and --modules are two different predictors"),
        (lambda f: ["runs/a", "--architecture", "mlp"], "a run knows its own network"),
        (lambda f: ["--modules", "--dataset", "digits"], "--modules needs at least one file"),
        (lambda f: ["--dataset", "digits", "--modules"], "--modules needs at least one file"),
    ],
)
@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_usage(command, arguments, message, members):
    result = invoke(command, *arguments(members[0]))
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())


def test_a_certificate_of_modules_is_checked_with_them(members, tmp_path):
    folder, _ = members
    data = ["--dataset", "digits"]
    made = invoke("certify", *flags(folder, 0, 1), *data, "--limit", 4, "--eps", 0.001, "--out", tmp_path / "own")
    assert made.exit_code == 0, made.output
    result = invoke("check", tmp_path / "own", *flags(folder, 0, 1), *data, "--json")
    assert result.exit_code == 0 and json.loads(result.stdout)["confirmed"] > 0, result.output
    other = invoke("check", tmp_path / "own", *flags(folder, 0, 2), *data)
    assert other.exit_code == BELOW_BAR and "nothing was checked" in other.stderr


@pytest.mark.parametrize(
    "arguments, message",
    [
        (lambda f: ["own.json"], "pass the directory of a run; or --modules FILE... --architecture"),
        (lambda f: ["runs/a", "own.json", *flags(f, 0)], "runs/a and --modules are two different predictors"),
        (lambda f: ["runs/a", "runs/b", "own.json"], "takes one run and one certificate, got runs/a runs/b own.json"),
        (lambda f: ["own.json", "--modules"], "--modules needs at least one file"),
    ],
)
def test_what_check_needs_is_explained(arguments, message, members):
    result = invoke("check", *arguments(members[0]))
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())


def test_training_with_a_network_of_ones_own(members, tmp_path):
    folder, make = members
    own = ["--architecture", f"{folder}/nets.py:make", "--epochs", 1, "--batch-size", 500]
    result = invoke(
        "train", *own, "--algorithm", "map", "--likelihood", "standard", "--out", tmp_path / "run", "--json"
    )
    assert result.exit_code == 0, result.output
    assert cb.load(tmp_path / "run").graph == cb.Point(make(), input_shape=(1, 28, 28)).graph
    # The run knows its network: its settings name the factory, and nobody has to import it again.
    assert "nets.py:make" in (tmp_path / "run" / "spec.toml").read_text()
    result = invoke("certify", tmp_path / "run", "--eps", 0.01, "--limit", 3, "--json")
    assert result.exit_code == 0, result.output


def test_the_version():
    result = invoke("--version")
    assert result.exit_code == 0 and result.stdout.strip() == f"certibayes {cb.__version__}"
