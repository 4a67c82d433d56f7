"""The command line as a user meets it: what it prints, what it writes, how it fails."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import certibayes as cb
from certibayes.cli import app
from certibayes.experiments import TrainSpec

TRAIN = ["train", "--hidden", "8", "--epochs", "1", "--batch-size", "500", "--algorithm", "map", "--json"]


def invoke(*arguments, env=None):
    return CliRunner().invoke(app, [str(a) for a in arguments], env=env)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("cli") / "run"
    result = invoke(*TRAIN, "--eps", 0.02, "--epochs", 3, "--out", out)
    assert result.exit_code == 0, result.output
    return out


def test_help_names_every_command_and_the_exit_codes():
    page = invoke("--help").output
    for word in ("demo", "train", "certify", "attack", "evaluate", "verify", "data", "info", "130"):
        assert word in page


@pytest.mark.parametrize("command", ["demo", "train", "certify", "attack", "evaluate", "verify", "data", "info"])
def test_every_command_explains_itself(command):
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert "--json" in result.output


@pytest.mark.parametrize("command", ["certify", "attack", "evaluate", "demo"])
def test_paragraphs_of_help_fill_their_lines(command):
    """No line ends early because the source does."""
    page = invoke(command, "--help", env={"COLUMNS": "80"}).output.split("╭")[0].splitlines()
    for line, following in itertools.pairwise(page):
        word = following.split()[0] if following.strip() else ""
        assert not line.strip() or not word or len(line.rstrip()) + 1 + len(word) > 78, line


def test_train_writes_a_posterior_and_a_record(run):
    record = json.loads((run / "run.json").read_text())
    assert record["spec"]["algorithm"] == "map"
    assert record["versions"]["certibayes"] == cb.__version__
    posterior = cb.load(run)
    assert posterior.metadata["dataset"] == "digits"
    assert not (run / "checkpoint.safetensors").exists()


def test_certify_prints_fractions_of_all_points(run):
    result = invoke("certify", run, "--eps", 0.02, "--limit", 300, "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["n"] == 300
    assert 0 < record["certified"] <= record["accuracy"] <= 1
    assert "0.02" in record["statement"]
    assert record["temperature"] == 1.0


def test_certify_agrees_with_the_library(run):
    record = json.loads(invoke("certify", run, "--eps", 0.01, "--limit", 200, "--json").stdout)
    x, y = cb.data.load("digits").test
    expected = cb.certify(cb.load(run).predictor(35, seed=0), x[:200], y[:200], eps=0.01, domain=(0.0, 1.0))
    assert record["certified"] == expected.certified_fraction
    assert record["digest"] == expected.digest


def test_certify_for_people_states_what_was_proved(run):
    result = invoke("certify", run, "--eps", 0.02, "--limit", 100)
    assert "certified" in result.output
    assert "l-infinity" in " ".join(result.output.split())


def test_certificate_is_written_whole(run, tmp_path):
    out = tmp_path / "certificate.json"
    assert invoke("certify", run, "--limit", 50, "--out", out, "--json").exit_code == 0
    certificate = json.loads(out.read_text())
    assert len(certificate["certified"]) == 50
    assert certificate["statement"]


def test_missing_a_bar_is_exit_code_3(run):
    assert invoke("certify", run, "--eps", 0.3, "--limit", 50, "--at-least", 0.99, "--json").exit_code == 3
    assert invoke("certify", run, "--eps", 0.0, "--limit", 50, "--at-least", 0.1, "--json").exit_code == 0


def test_robust_accuracy_is_no_less_than_what_is_certified(run):
    attacked = json.loads(invoke("attack", run, "--eps", 0.02, "--limit", 200, "--steps", 5, "--json").stdout)
    certified = json.loads(invoke("certify", run, "--eps", 0.02, "--limit", 200, "--json").stdout)
    assert certified["certified"] <= attacked["robust_accuracy"] <= attacked["accuracy"] == certified["accuracy"]


def test_info_describes_a_run_and_the_installation(run):
    described = json.loads(invoke("info", run, "--json").stdout)
    assert described["algorithm"]["name"] == "MAP"
    assert described["parameters"] == 784 * 8 + 8 + 80 + 10
    here = json.loads(invoke("info", "--json").stdout)
    assert "digits" in here["data"] and "vogn" in here["algorithms"]
    assert invoke("info", run).exit_code == 0


def test_data_lists_what_is_here(tmp_path):
    record = json.loads(invoke("data", "--data-dir", tmp_path, "--json").stdout)
    assert record["available"]["digits"] and not record["available"]["mnist"]
    assert "certibayes data get mnist" in invoke("data", "--data-dir", tmp_path).output


def test_missing_data_names_the_command_that_gets_it(tmp_path):
    result = invoke(*TRAIN, "--dataset", "mnist", "--data-dir", tmp_path, "--out", tmp_path / "run")
    assert result.exit_code == 1
    assert "certibayes data get mnist" in result.stderr


def test_a_finished_run_is_not_overwritten(run):
    before = (run / "posterior.safetensors").read_bytes()
    result = invoke(*TRAIN, "--out", run)
    assert result.exit_code == 1
    assert "already holds" in result.stderr
    assert (run / "posterior.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--algorithm", "magic"], "there is no algorithm 'magic'. Known are map, swag"),
        (["--algorithm", "vong"], "perhaps you mean vogn"),
        (["--algorithm", "NoisyAdam"], "perhaps you mean noisy-adam"),
        (["--likelihood", "magic"], "magic"),
        (["--likelihood", "crown_ipb"], "perhaps you mean crown-ibp"),
        (["--eps", "8"], "8/255"),
        (["--dataset", "mnits"], "mnist"),
        (["--alpha", "0.5"], "ibp has no alpha"),
        (["--likelihood", "sabr", "--box-fraction", "2"], "box_fraction"),
        (["--augment", "flipp"], "perhaps you mean flip"),
        (["--augment", "flip", "--dataset", "diabetes"], "augmentation is for images"),
        (["--architecture", "magic"], "magic"),
        (["--epochs", "0"], "epochs"),
        (["--temperature", "-1"], "temperature"),
        (["--eps", "-0.1"], "radius"),
    ],
)
def test_wrong_settings_are_explained_in_a_sentence(arguments, words, tmp_path):
    result = invoke(*TRAIN, "--out", tmp_path / "run", *arguments)
    assert result.exit_code == 1, result.output
    assert words in result.stderr
    assert "Traceback" not in result.output


def test_wrong_usage_is_exit_code_2(tmp_path):
    assert invoke("certify").exit_code == 2
    assert invoke(*TRAIN, "--hidden", "wide", "--out", tmp_path / "run").exit_code == 2


def test_a_directory_without_a_run_is_an_error(tmp_path):
    result = invoke("certify", tmp_path)
    assert result.exit_code == 1
    assert str(tmp_path) in result.stderr.replace("\n", "")


def test_paths_with_brackets_are_printed_as_they_are(tmp_path):
    result = invoke("info", tmp_path / "[/b]")
    assert result.exit_code == 1
    assert "[/b]" in result.stderr.replace("\n", "")


def test_options_before_a_subcommand_count(tmp_path):
    result = invoke("data", "--json", "--data-dir", tmp_path, "get", "digits")
    assert json.loads(result.stdout)["name"] == "digits"


def test_there_must_be_something_to_resume(tmp_path, run):
    assert "no unfinished run" in invoke("train", "--out", tmp_path / "nothing", "--resume").stderr
    assert "finished" in invoke("train", "--out", run, "--resume").stderr


def test_a_run_that_has_just_started_is_not_overwritten(tmp_path):
    spec = TrainSpec(hidden=(8,), algorithm="map", epochs=1, batch_size=500, seed=5)
    (tmp_path / "started.json").write_text(json.dumps({"spec": spec.to_json()}))
    refused = invoke(*TRAIN, "--out", tmp_path)
    assert refused.exit_code == 1 and "--resume" in refused.stderr
    assert invoke("train", "--out", tmp_path, "--resume", "--json").exit_code == 0
    assert json.loads((tmp_path / "run.json").read_text())["spec"]["seed"] == 5
    assert not (tmp_path / "started.json").exists()


def test_an_interrupted_replacement_leaves_the_old_run_and_can_be_resumed(tmp_path):
    assert invoke(*TRAIN, "--out", tmp_path, "--seed", 1).exit_code == 0
    old = cb.load(tmp_path).params
    new = TrainSpec(hidden=(8,), algorithm="map", epochs=1, batch_size=500, seed=2)
    (tmp_path / "started.json").write_text(json.dumps({"spec": new.to_json()}))  # as --overwrite leaves it
    assert cb.load(tmp_path).params["1.weight"].equal(old["1.weight"])
    assert json.loads((tmp_path / "run.json").read_text())["spec"]["seed"] == 1
    assert invoke("train", "--out", tmp_path, "--resume", "--json").exit_code == 0
    assert not cb.load(tmp_path).params["1.weight"].equal(old["1.weight"])


def start_training(out: Path, *more: str) -> subprocess.Popen:
    arguments = ["train", "--hidden", "16", "--epochs", "8", "--checkpoint-every", "0.02", "--out", str(out), *more]
    return subprocess.Popen([sys.executable, "-m", "certibayes", *arguments], stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen) -> None:
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors


def wait_for(path: Path) -> None:
    for _ in range(600):
        if path.exists():
            return
        time.sleep(0.1)
    raise AssertionError(f"{path} did not appear")


def stop_in_the_middle(out: Path, how: signal.Signals) -> tuple[int, str]:
    process = start_training(out)
    wait_for(out / "checkpoint.safetensors")
    os.kill(process.pid, how)
    _, errors = process.communicate(timeout=60)
    assert not (out / "posterior.safetensors").exists(), "training ended before it could be stopped"
    return process.returncode, errors


@pytest.mark.slow
def test_killed_and_resumed_training_ends_with_the_same_bits(tmp_path):
    whole = tmp_path / "whole"
    finish(start_training(whole))
    broken = tmp_path / "broken"
    code, _ = stop_in_the_middle(broken, signal.SIGKILL)
    assert code == -signal.SIGKILL
    refused = invoke("train", "--out", broken)
    assert refused.exit_code == 1 and "--resume" in refused.stderr
    finish(start_training(broken, "--resume"))
    expected, found = cb.load(whole), cb.load(broken)
    for name in expected.mean:
        assert expected.mean[name].equal(found.mean[name])
        assert expected.std[name].equal(found.std[name])
    assert expected.metadata["history"] == found.metadata["history"]


@pytest.mark.slow
def test_ctrl_c_keeps_a_checkpoint_and_says_how_to_go_on(tmp_path):
    code, errors = stop_in_the_middle(tmp_path / "run", signal.SIGINT)
    assert code == 130
    assert "--resume" in errors
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()
    finish(start_training(tmp_path / "run", "--resume"))
