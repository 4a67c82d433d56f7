"""However a grid ends, it goes on with the same bits."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest

import certibayes as cb
from certibayes.errors import CorruptFile, Interrupted, RunExists
from certibayes.inference.checkpoint import FILE_NAME
from certibayes.support.files import read_tensors

from ..strategies import few_of
from .cases import BATCH_SIZE, LIKELIHOODS, assert_same_posterior, batch_norm_net, data_for, network
from .many_cases import image_net, images

EPOCHS, STEPS = 3, 3
ALGORITHMS = {
    "map": cb.MAP(lr=0.01),
    "swag": cb.SWAG(lr=0.05, start=0.0, rank=3),
    "vogn": cb.VOGN(lr=0.05, initial_std=0.3),
    "sghmc": cb.SGHMC(lr=0.01, cycles=1, samples=2, exploration=0.5),
}


def fitted(name="vogn", runs=None, make=network, likelihood="rayleigh", **settings):
    """Two groups and a run that is alone."""
    if runs is None:
        alone = {"net": make(3), "algorithm": cb.HMC(lr=0.01, leapfrog=2, burn_in=1), "validation": None}
        other = {"batch_size": 6}
        runs = [{"net": make(0)}, alone, *({"net": make(s), "seed": s} for s in (1, 2)), *(
            {"net": make(s), "seed": s, **other} for s in (3, 4)
        )]  # fmt: skip
    common = {"algorithm": ALGORITHMS[name], "epochs": EPOCHS, "batch_size": BATCH_SIZE, "progress": False}
    likelihood = LIKELIHOODS[likelihood]
    return cb.fit_many(
        None, data_for(likelihood), runs, **{**common, "likelihood": likelihood, "checkpoint_every": -1.0, **settings}
    )


def breaking(monkeypatch, kind, step, action):
    """Let ``action`` happen in the given step of a group or of one model; returns how many were begun."""
    real, begun = kind.update, []

    def update(self, *arguments):
        begun.append(1)
        if len(begun) == step:
            action()
        return real(self, *arguments)

    monkeypatch.setattr(kind, "update", update)
    return begun


def crash():
    raise RuntimeError("crash")


@cache
def unbroken(name):
    return fitted(name)


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert_same_posterior(one, other)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_same_call_gives_the_same_bits(name):
    assert_same(fitted(name), unbroken(name))


BROKEN_OFF = [*(("vogn", step) for step in (1, 5, 9, 10, 14)), ("map", 5), ("swag", 5), ("sghmc", 14)]


@pytest.mark.parametrize("broken_off", few_of(BROKEN_OFF, fast=[("vogn", 1), ("vogn", 10), *BROKEN_OFF[5:]]), ids=str)
def test_after_ctrl_c(broken_off, tmp_path, monkeypatch):
    name, step = broken_off
    with monkeypatch.context() as patch:
        breaking(patch, type(ALGORITHMS[name]), step, lambda: signal.raise_signal(signal.SIGINT))
        with contextlib.suppress(Interrupted):
            fitted(name, checkpoint=tmp_path)
    assert_same(fitted(name, checkpoint=tmp_path, resume=True), unbroken(name))


@pytest.mark.parametrize("step", few_of([2, 4, 13], fast=[4]))
def test_after_a_crash(step, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        breaking(patch, cb.VOGN, step, crash)
        with pytest.raises(RuntimeError, match="crash"):
            fitted(checkpoint=tmp_path)
    assert_same(fitted(checkpoint=tmp_path, resume=True), unbroken("vogn"))


def test_statistics_of_batch_norm_are_part_of_the_checkpoint(tmp_path, monkeypatch):
    runs = [{"net": batch_norm_net(seed), "seed": seed} for seed in range(3)]
    with monkeypatch.context() as patch:
        breaking(patch, cb.MAP, 5, crash)
        with pytest.raises(RuntimeError, match="crash"):
            fitted("map", runs, checkpoint=tmp_path)
    assert_same(fitted("map", runs, checkpoint=tmp_path, resume=True), fitted("map", runs))


def test_augmented_images_are_the_same_again(tmp_path, monkeypatch):
    runs = [{"net": image_net(seed), "train": images(), "seed": seed} for seed in range(3)]
    settings = {"runs": runs, "likelihood": "ibp", "augment": "flip,crop:1"}
    with monkeypatch.context() as patch:
        breaking(patch, cb.MAP, 5, crash)
        with pytest.raises(RuntimeError, match="crash"):
            fitted("map", checkpoint=tmp_path, **settings)
    assert_same(fitted("map", checkpoint=tmp_path, resume=True, **settings), fitted("map", **settings))


def test_a_search_for_a_temperature(tmp_path, monkeypatch):
    runs = [{"net": network(seed), "seed": seed} for seed in range(2)]
    settings = {"temperature": (1.0, 0.1), "validation": 0.25, "batch_size": 6}
    with monkeypatch.context() as patch:
        breaking(patch, cb.VOGN, 5, crash)
        with pytest.raises(RuntimeError, match="crash"):
            fitted("vogn", runs, checkpoint=tmp_path, **settings)
    found, expected = (
        fitted("vogn", runs, checkpoint=tmp_path, resume=True, **settings),
        fitted("vogn", runs, **settings),
    )
    assert_same(found, expected)
    for one, other in zip(found, expected, strict=True):
        assert one.metadata["temperature_curve"] == other.metadata["temperature_curve"]


def test_what_is_finished_is_not_run_again(tmp_path, monkeypatch):
    expected = fitted(checkpoint=tmp_path)
    begun = breaking(monkeypatch, cb.VOGN, 0, None)
    assert_same(fitted(checkpoint=tmp_path, resume=True), expected)
    assert begun == []


def test_checkpoints_do_not_change_the_result(tmp_path):
    assert_same(fitted(checkpoint=tmp_path), unbroken("vogn"))
    assert {path.name for path in tmp_path.iterdir()} == {"group-0", "group-1", "run-1"}


def test_the_message_says_how_to_resume(tmp_path, monkeypatch):
    breaking(monkeypatch, cb.VOGN, 4, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(Interrupted, match=r"after 4 of 9 steps.*resume=True"):
        fitted(checkpoint=tmp_path)


class TestAnotherGrid:
    runs = ({"net": network(0), "seed": 0}, {"net": network(1), "seed": 1})

    @pytest.fixture
    def directory(self, tmp_path):
        fitted(runs=self.runs, checkpoint=tmp_path)
        return tmp_path

    def test_it_is_not_overwritten(self, directory, monkeypatch):
        """And nothing is trained before that is known, though another group comes first."""
        begun = breaking(monkeypatch, cb.MAP, 0, None)
        runs = [{"net": network(2), "algorithm": "map"}, *self.runs]
        with pytest.raises(RunExists, match="resume=True"):
            fitted(runs=runs, checkpoint=directory)
        assert begun == []

    @pytest.mark.parametrize(
        ("own", "words"),
        [
            ({"seed": 5}, r"run 1\.seed \(1 there, 5 here\)"),
            ({"algorithm": cb.VOGN(lr=0.1, initial_std=0.3)}, r"run 1\.algorithm\.lr \(0.05 there, 0.1 here\)"),
            ({"temperature": 0.5}, r"run 1\.temperature"),
        ],
    )
    def test_the_message_names_what_differs(self, own, words, directory):
        runs = [self.runs[0], {**self.runs[1], **own}]
        with pytest.raises(RunExists, match=words):
            fitted(runs=runs, checkpoint=directory, resume=True)

    def test_one_more_run(self, directory):
        with pytest.raises(RunExists, match="run 2"):
            fitted(runs=[*self.runs, {"net": network(2), "seed": 2}], checkpoint=directory, resume=True)


KILLED = """
import sys, time
import torch
torch.set_num_threads(1)
sys.path.insert(0, {root!r})
from tests.inference.test_fit_many_resume import digits_runs
digits_runs(checkpoint={directory!r}, checkpoint_every=0.05, callbacks=[lambda record: time.sleep(0.01)])
"""


def digits_runs(**settings):
    digits = cb.data.load("digits")
    x, y = digits.train.inputs[:400], digits.train.targets[:400]
    runs = [{"net": cb.networks.mlp(784, [8], 10, seed=seed), "seed": seed} for seed in range(3)]
    common = {"algorithm": cb.VOGN(lr=0.01), "likelihood": cb.RobustCategorical(eps=0.02), "epochs": 25}
    return cb.fit_many(None, (x, y), runs, batch_size=50, progress=False, **common, **settings)


def written_step(directory):
    return read_tensors(directory / "group-0" / FILE_NAME, "checkpoint")[1]["step"]


@pytest.mark.slow
def test_after_kill_minus_nine(tmp_path):
    """A real process, killed without warning once it has written a few checkpoints."""
    script = KILLED.format(root=str(Path(__file__).parents[2]), directory=str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 100
        step = 0
        while step < 40:
            # A read that falls into a replacement may see two files at once; the next one will not.
            with contextlib.suppress(FileNotFoundError, CorruptFile, RuntimeError):
                step = written_step(tmp_path)
            assert process.poll() is None, process.stderr.read().decode()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    finally:
        process.kill()
        process.stderr.close()
    assert 40 <= written_step(tmp_path) < 200
    assert_same(digits_runs(checkpoint=tmp_path, resume=True), digits_runs())
