"""However a run ends, it goes on with the same bits."""

import contextlib
import errno
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from functools import cache
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import certibayes as cb
from certibayes.errors import CorruptFile, Interrupted, RunExists
from certibayes.inference._interrupt import StopRequest
from certibayes.inference.checkpoint import FILE_NAME
from certibayes.support import files
from certibayes.support.files import read_tensors

from ..strategies import in_turn
from .cases import (
    ALGORITHMS,
    EPOCHS,
    LIKELIHOODS,
    STEPS,
    assert_same_posterior,
    batch_norm_net,
    classes,
    fit,
    inputs,
    network,
)

TOTAL = EPOCHS * STEPS


def at_step(monkeypatch, algorithm, step, action):
    """Let ``action`` happen in the middle of a step; returns how many steps were begun."""
    real, begun = type(algorithm).update, []

    def update(self, *arguments):
        begun.append(1)
        if len(begun) == step:
            action()
        return real(self, *arguments)

    monkeypatch.setattr(type(algorithm), "update", update)
    return begun


def ctrl_c():
    signal.raise_signal(signal.SIGINT)


def crash():
    raise RuntimeError("crash")


def written_step(directory):
    return read_tensors(directory / FILE_NAME, "checkpoint")[1]["step"]


@cache
def unbroken(algorithm, likelihood):
    """The run that every broken one must end like."""
    return fit(likelihood, algorithm=algorithm)


BROKEN_OFF = list(itertools.product(["ibp", "pgd", "rayleigh"], [1, STEPS, STEPS + 2, TOTAL - 1]))


@pytest.mark.parametrize(("algorithm", "broken_off"), in_turn(ALGORITHMS, BROKEN_OFF), ids=str)
def test_after_ctrl_c_at_any_step(algorithm, broken_off, tmp_path, monkeypatch):
    """Every algorithm, likelihood and step in ``make test``, all that they make together in ``make test-all``."""
    algorithm, (name, step) = ALGORITHMS[algorithm], broken_off
    likelihood = LIKELIHOODS[name]
    # With all data in one batch an epoch is one step.
    step = min(step, EPOCHS - 1) if algorithm.full_batch else step
    expected = unbroken(algorithm, likelihood)
    with monkeypatch.context() as patch:
        at_step(patch, algorithm, step, ctrl_c)
        with pytest.raises(Interrupted):
            fit(likelihood, algorithm=algorithm, checkpoint=tmp_path, checkpoint_every=1e9)
    assert written_step(tmp_path) == step
    assert_same_posterior(fit(likelihood, algorithm=algorithm, checkpoint=tmp_path, resume=True), expected)


CRASHED = {"validation": 0.25, "batch_size": 6, "schedule": cb.Schedule("cosine")}


@pytest.fixture(scope="module")
def uncrashed():
    return fit(LIKELIHOODS["pgd"], algorithm=ALGORITHMS["vogn"], **CRASHED)


@pytest.mark.parametrize("step", range(2, TOTAL + 1))
def test_after_a_crash_at_any_step(step, uncrashed, tmp_path, monkeypatch):
    """With a validation set and a schedule, whose figures must come out the same, too."""
    algorithm, likelihood = ALGORITHMS["vogn"], LIKELIHOODS["pgd"]
    settings = {"algorithm": algorithm, **CRASHED}
    with monkeypatch.context() as patch:
        at_step(patch, algorithm, step, crash)
        with pytest.raises(RuntimeError, match="crash"):
            fit(likelihood, checkpoint=tmp_path, **settings)
    assert_same_posterior(fit(likelihood, checkpoint=tmp_path, resume=True, **settings), uncrashed)


def test_after_being_interrupted_again_and_again(tmp_path, monkeypatch):
    algorithm = ALGORITHMS["vogn"]
    expected = fit(LIKELIHOODS["rayleigh"], algorithm=algorithm)
    found = None
    while found is None:
        with monkeypatch.context() as patch, contextlib.suppress(Interrupted):
            at_step(patch, algorithm, 1, ctrl_c)
            found = fit(LIKELIHOODS["rayleigh"], algorithm=algorithm, checkpoint=tmp_path, resume=True)
    assert_same_posterior(found, expected)


def test_batch_norm_statistics_are_part_of_the_checkpoint(tmp_path, monkeypatch):
    expected = fit(net=batch_norm_net())
    with monkeypatch.context() as patch:
        at_step(patch, ALGORITHMS["map-adam"], STEPS + 2, ctrl_c)
        with pytest.raises(Interrupted):
            fit(net=batch_norm_net(), checkpoint=tmp_path)
    assert_same_posterior(fit(net=batch_norm_net(), checkpoint=tmp_path, resume=True), expected)


class Augmented(Dataset):
    """A map-style data set with random augmentation from torch's global generator."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return (inputs()[index] + 0.1 * torch.rand(4)).clamp(0, 1), classes()[index]


LOADERS = {
    "in order": lambda: DataLoader(TensorDataset(inputs(), classes()), batch_size=8),
    "shuffled": lambda: DataLoader(TensorDataset(inputs(), classes()), batch_size=8, shuffle=True),
    "with a generator": lambda: DataLoader(
        TensorDataset(inputs(), classes()), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(7)
    ),
    "incomplete last batch": lambda: DataLoader(TensorDataset(inputs(), classes()), batch_size=7, shuffle=True),
    "augmented": lambda: DataLoader(Augmented(), batch_size=8, shuffle=True),
    "data set": Augmented,
}


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_a_loader_is_resumed_in_the_middle_of_an_epoch(make, tmp_path, monkeypatch):
    expected = fit(train=make())
    with monkeypatch.context() as patch:
        at_step(patch, ALGORITHMS["map-adam"], STEPS + 2, ctrl_c)
        with pytest.raises(Interrupted):
            fit(train=make(), checkpoint=tmp_path)
    assert_same_posterior(fit(train=make(), checkpoint=tmp_path, resume=True), expected)


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_one_loader_serves_two_runs_with_the_same_bits(make):
    loader = make()
    assert_same_posterior(fit(train=loader), fit(train=loader))


KILLED = """
import sys, time
import torch
torch.set_num_threads(1)
sys.path.insert(0, {root!r})
from tests.inference.test_resume import digits_run
digits_run(checkpoint={directory!r}, checkpoint_every=0.05, callbacks=[lambda record: time.sleep(0.02)])
"""


def digits_run(**settings):
    """Robust VOGN on 400 real digits: 8 steps per epoch for 50 epochs."""
    data = cb.data.load("digits").train
    return cb.fit(
        cb.networks.mlp(784, [16], 10),
        (data.inputs[:400], data.targets[:400]),
        algorithm=cb.VOGN(lr=0.02),
        likelihood=LIKELIHOODS["ibp"],
        epochs=50,
        batch_size=50,
        seed=3,
        progress=False,
        **settings,
    )


@pytest.mark.slow
def test_after_kill_minus_nine(tmp_path):
    """A real process, killed without warning once it has written a few checkpoints."""
    root = str(Path(__file__).parents[2])
    script = KILLED.format(root=root, directory=str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 100
        step = 0
        while step < 100:
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
    stopped_at = written_step(tmp_path)
    assert 100 <= stopped_at < 400
    resumed = digits_run(checkpoint=tmp_path, resume=True)
    assert_same_posterior(resumed, digits_run())


def test_a_finished_run_is_not_run_again(tmp_path, monkeypatch):
    expected = fit(checkpoint=tmp_path)
    begun = at_step(monkeypatch, ALGORITHMS["map-adam"], 0, crash)
    assert_same_posterior(fit(checkpoint=tmp_path, resume=True), expected)
    assert begun == []


def test_resume_without_a_checkpoint_starts_afresh(tmp_path):
    assert_same_posterior(fit(checkpoint=tmp_path / "new", resume=True), fit())


def test_checkpoints_do_not_change_the_result(tmp_path):
    assert_same_posterior(fit(LIKELIHOODS["pgd"], checkpoint=tmp_path), fit(LIKELIHOODS["pgd"]))


def test_callbacks_see_the_remaining_epochs_after_a_resume(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        at_step(patch, ALGORITHMS["map-adam"], STEPS + 1, ctrl_c)
        with pytest.raises(Interrupted):
            fit(checkpoint=tmp_path)
    seen = []
    fit(checkpoint=tmp_path, resume=True, callbacks=[seen.append])
    assert [record["epoch"] for record in seen] == [2.0, 3.0]


class TestCtrlC:
    def test_the_message_says_how_to_resume(self, tmp_path, monkeypatch):
        at_step(monkeypatch, ALGORITHMS["map-adam"], 2, ctrl_c)
        with pytest.raises(Interrupted, match=r"2 of 9 steps.*resume=True") as caught:
            fit(checkpoint=tmp_path)
        assert str(tmp_path) in str(caught.value)

    def test_without_a_directory_the_message_says_that_nothing_was_kept(self, monkeypatch):
        at_step(monkeypatch, ALGORITHMS["map-adam"], 2, ctrl_c)
        with pytest.raises(Interrupted, match="nothing was kept"):
            fit()

    def test_it_is_a_keyboard_interrupt_and_no_error(self, monkeypatch):
        """A study that notes down failed runs and goes on must stop all the same."""
        at_step(monkeypatch, ALGORITHMS["map-adam"], 2, ctrl_c)
        with pytest.raises(KeyboardInterrupt) as caught:
            fit()
        assert not isinstance(caught.value, Exception)

    def test_the_callers_handler_is_given_back(self, monkeypatch):
        before = signal.getsignal(signal.SIGINT)
        fit()
        assert signal.getsignal(signal.SIGINT) is before
        at_step(monkeypatch, ALGORITHMS["map-adam"], 2, ctrl_c)
        with pytest.raises(Interrupted):
            fit()
        assert signal.getsignal(signal.SIGINT) is before

    def test_in_the_last_step_there_is_nothing_left_to_interrupt(self, tmp_path, monkeypatch):
        expected = fit()
        at_step(monkeypatch, ALGORITHMS["map-adam"], TOTAL, ctrl_c)
        assert_same_posterior(fit(checkpoint=tmp_path), expected)

    def test_the_second_one_interrupts_at_once(self):
        with pytest.raises(KeyboardInterrupt), StopRequest() as stop:
            ctrl_c()
            assert stop.asked
            ctrl_c()

    def test_fit_runs_outside_the_main_thread(self):
        found = []
        thread = threading.Thread(target=lambda: found.append(fit()))
        thread.start()
        thread.join()
        assert_same_posterior(found[0], fit())


class TestAnotherRun:
    @pytest.fixture
    def directory(self, tmp_path):
        fit(LIKELIHOODS["ibp"], checkpoint=tmp_path)
        return tmp_path

    def test_it_is_not_overwritten(self, directory):
        before = (directory / FILE_NAME).read_bytes()
        with pytest.raises(RunExists, match="resume=True"):
            fit(LIKELIHOODS["ibp"], checkpoint=directory)
        assert (directory / FILE_NAME).read_bytes() == before

    @pytest.mark.parametrize(
        ("name", "settings"),
        [
            ("seed", {"seed": 1}),
            ("algorithm.lr (0.01 there, 0.5 here)", {"algorithm": cb.MAP(lr=0.5)}),
            ("algorithm.betas", {"algorithm": cb.MAP(lr=0.01, betas=(0.5, 0.5))}),
            ("algorithm (MAP there, VOGN here)", {"algorithm": cb.VOGN(lr=0.01)}),
            ("epochs", {"epochs": 4}),
            ("batch_size", {"batch_size": 6}),
            ("temperature", {"temperature": 0.1}),
            ("prior.variance_scale (300.0 there, 2.0 here)", {"prior": cb.GaussianPrior(variance_scale=2.0)}),
            ("schedule.kind", {"schedule": cb.Schedule("cosine")}),
            ("likelihood.p_eps.eta (0.1 there, 0.2 here)", {"likelihood": cb.RobustCategorical(cb.TwoPoint(0.2))}),
            ("likelihood.adversary (IBP there, PGD here)", {"likelihood": LIKELIHOODS["pgd"]}),
            ("likelihood.adversary.margins", {"likelihood": LIKELIHOODS["ibp-margins"]}),
            ("likelihood (RobustCategorical there, Categorical here)", {"likelihood": LIKELIHOODS["standard"]}),
            ("graph.nodes", {"net": cb.networks.mlp(4, [7], 3)}),
            ("data.sha256", {"train": (inputs() / 2, classes())}),
            ("data.size (24 there, 16 here)", {"train": (inputs(16), classes(16))}),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_the_message_names_what_differs(self, directory, name, settings):
        settings = {"likelihood": LIKELIHOODS["ibp"], **settings}
        with pytest.raises(RunExists, match=rf"differs in (.*, )?{re.escape(name)}"):
            fit(checkpoint=directory, resume=True, **settings)

    def test_only_what_differs_is_named(self, directory):
        with pytest.raises(RunExists) as caught:
            fit(LIKELIHOODS["ibp"], algorithm=cb.MAP(lr=0.5), checkpoint=directory, resume=True)
        assert "it differs in algorithm.lr (0.01 there, 0.5 here). Resume" in str(caught.value)

    def test_permuted_labels_are_other_data(self, directory):
        with pytest.raises(RunExists, match="data"):
            fit(LIKELIHOODS["ibp"], train=(inputs(), classes().flip(0)), checkpoint=directory, resume=True)

    def test_another_precision_is_another_run(self, tmp_path, monkeypatch):
        with monkeypatch.context() as patch:
            at_step(patch, ALGORITHMS["map-adam"], 2, ctrl_c)
            with pytest.raises(Interrupted):
                fit(checkpoint=tmp_path)
        with pytest.raises(RunExists):
            fit(net=network().double(), train=(inputs().double(), classes()), checkpoint=tmp_path, resume=True)


def test_a_damaged_checkpoint_is_refused(tmp_path):
    fit(checkpoint=tmp_path)
    content = bytearray((tmp_path / FILE_NAME).read_bytes())
    content[-1] ^= 1
    (tmp_path / FILE_NAME).write_bytes(bytes(content))
    with pytest.raises(CorruptFile, match="changed after it was written"):
        fit(checkpoint=tmp_path, resume=True)


def test_a_checkpoint_of_an_earlier_version_is_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(files, "FORMAT", 1)
        fit(checkpoint=tmp_path)
    with pytest.raises(CorruptFile, match="earlier version of certibayes, whose checkpoints this one does not read"):
        fit(checkpoint=tmp_path, resume=True)


def test_a_posterior_is_not_a_checkpoint(tmp_path):
    fit().save(tmp_path).rename(tmp_path / FILE_NAME)
    with pytest.raises(CorruptFile, match="not a checkpoint"):
        fit(checkpoint=tmp_path, resume=True)


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    expected = fit(LIKELIHOODS["pgd"])
    real, calls = os.fsync, []

    def sync(descriptor):
        calls.append(1)
        if len(calls) > 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", sync)
        with pytest.raises(OSError, match="unchanged"):
            fit(LIKELIHOODS["pgd"], checkpoint=tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [FILE_NAME]
    assert written_step(tmp_path) == 4
    assert_same_posterior(fit(LIKELIHOODS["pgd"], checkpoint=tmp_path, resume=True), expected)


def test_the_record_in_a_checkpoint_is_plain_json(tmp_path):
    fit(checkpoint=tmp_path)
    _, record = read_tensors(tmp_path / FILE_NAME, "checkpoint")
    assert json.loads(json.dumps(record)) == record
    assert record["step"] == TOTAL
    assert len(record["history"]) == EPOCHS
