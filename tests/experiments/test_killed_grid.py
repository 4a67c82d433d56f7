"""A grid that is killed, for real: nothing is lost, nothing is run twice, and the results are the same to the byte."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time

import pytest

# Both recipes of SWAG, three seeds each: two groups of three, long enough to be caught in the middle.
FIGURE = """
posteriors = "fig1"
title = "A grid to be killed"
kind = "robustness"
likelihoods = ["ibp"]
twin = false
datasets.digits.methods = ["swag"]

[evaluation]
samples = 3
limit = 20
attack = { steps = 2, restarts = 1 }
rules.ibp = { method = "theorem1", bounds = "ibp" }
"""
CELLS = [f"digits/swag-ibp-{recipe}-s{seed}" for recipe in ("paper", "now") for seed in range(3)]
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason='Ray is not installed: pip install "certibayes[cluster]"'
)
# Ray's workers stand back behind everything else, and would starve beside tests that fill all cores.
ENVIRONMENT = {**os.environ, "RAY_worker_niceness": "0"}
LOCAL, RAY = ("--engine", "local", "--workers", "1"), ("--engine", "ray", "--workers", "2")


def command(folder, out, *more):
    (folder / "grid.toml").write_text(FIGURE)
    arguments = ["reproduce", str(folder / "grid.toml"), "--dataset", "digits", "--quick", "--checkpoint-every", "0.2"]
    return [sys.executable, "-m", "certibayes", *arguments, "--out", str(out), *more]


def run(folder, out, *more):
    done = subprocess.run(command(folder, out, *more), capture_output=True, text=True, timeout=500, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return done


def journal(out):
    path = out / "cells" / "journal.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def names(out, event):
    return [entry["name"] for entry in journal(out) if entry["event"] == event]


def until(condition, process):
    """Wait until something is so, while the process runs."""
    for _ in range(6000):
        if condition():
            return
        assert process.poll() is None, "the grid ended before it could be killed"
        time.sleep(0.02)
    raise AssertionError("it never happened")


def half_trained(out):
    """One group is evaluated, and the other has a checkpoint."""
    return len(names(out, "evaluated")) >= 3 and any((out / "cells").glob(".groups/**/checkpoint.safetensors"))


def results(out):
    return (out / "grid" / "results.csv").read_bytes()


def check_nothing_was_lost_or_run_twice(out, expected):
    assert results(out) == results(expected)
    assert sorted(names(out, "evaluated")) == sorted(names(out, "trained")) == sorted(CELLS)
    for cell in CELLS:
        posteriors = [(folder / "cells" / cell / "posterior.safetensors").read_bytes() for folder in (out, expected)]
        # The header holds times of epochs; the weights are at the end.
        assert posteriors[0][-50_000:] == posteriors[1][-50_000:]
        lines = (out / "cells" / cell / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["epoch"] for line in lines] == [1.0, 2.0, 3.0, 4.0]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """A grid that nothing happened to."""
    folder = tmp_path_factory.mktemp("expected")
    run(folder, folder / "out", *LOCAL)
    assert len(results(folder / "out").splitlines()) == 1 + len(CELLS)
    return folder / "out"


@pytest.mark.slow
def test_kill_minus_9_and_start_again(expected, tmp_path):
    process = subprocess.Popen(
        command(tmp_path, tmp_path / "out", *LOCAL), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    until(lambda: half_trained(tmp_path / "out"), process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = journal(tmp_path / "out")
    assert not (tmp_path / "out" / "grid" / "results.csv").exists()
    run(tmp_path, tmp_path / "out", *LOCAL)
    check_nothing_was_lost_or_run_twice(tmp_path / "out", expected)
    assert journal(tmp_path / "out")[: len(before)] == before
    assert [entry["resumed"] for entry in journal(tmp_path / "out") if entry["event"] == "trained"] == 3 * [
        False
    ] + 3 * [True]


@pytest.mark.slow
def test_workers_end_with_the_grid_that_is_killed(expected, tmp_path):
    """Two processes work on it; without their parent they would hold their locks for nobody."""
    process = subprocess.Popen(
        command(tmp_path, tmp_path / "out", "--workers", "2"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    until(lambda: len(names(tmp_path / "out", "training")) == 2, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    run(tmp_path, tmp_path / "out", *LOCAL)
    check_nothing_was_lost_or_run_twice(tmp_path / "out", expected)


@pytest.mark.slow
@needs_ray
def test_both_engines_give_the_same_results(expected, tmp_path):
    run(tmp_path, tmp_path / "out", *RAY)
    check_nothing_was_lost_or_run_twice(tmp_path / "out", expected)


@pytest.mark.slow
@needs_ray
def test_a_worker_of_a_cluster_that_is_killed_costs_little(expected, tmp_path):
    out = tmp_path / "out"
    process = subprocess.Popen(
        command(tmp_path, out, *RAY), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=ENVIRONMENT
    )
    until(lambda: any((out / "cells").glob(".groups/**/checkpoint.safetensors")), process)
    # The journal names the process that is at work.
    os.kill(journal(out)[0]["process"], signal.SIGKILL)
    _, error = process.communicate(timeout=500)
    assert process.returncode == 0, error.decode()
    check_nothing_was_lost_or_run_twice(out, expected)
    assert len(names(out, "training")) >= 3
