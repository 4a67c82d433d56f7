"""Grids: every spec in a directory of its own, finished ones kept, unfinished ones continued."""

import copy
import json

import pytest

from certibayes.errors import Diverged, Interrupted, InvalidInput
from certibayes.experiments import Evaluator, TrainSpec, grid, run_grid, train
from certibayes.experiments.grid import _failure, run_one
from certibayes.support import memory

EVALUATOR = Evaluator(0.05, samples=3, limit=20, steps=2, restarts=1)


def spec(**settings):
    return TrainSpec(**{"algorithm": "map", "hidden": (4,), "epochs": 1, "batch_size": 1000, "eps": 0.05, **settings})


SPECS = {"one": spec(), "two": spec(algorithm="bbb", seed=1, temperature=0.01)}


@pytest.fixture
def counted(monkeypatch):
    calls, real = [], grid.train

    def train(spec, out, **settings):
        calls.append((out.name, settings["resume"]))
        return real(spec, out, **settings)

    monkeypatch.setattr(grid, "train", train)
    return calls


def test_figures_of_every_run_are_returned_and_kept(tmp_path):
    figures = run_grid(SPECS, tmp_path, EVALUATOR)
    assert list(figures) == ["one", "two"]
    for name, found in figures.items():
        assert found["n"] == 20
        assert 0 <= found["certified"] <= found["pgd"] <= found["accuracy"] <= 1
        assert found["temperature"] == SPECS[name].resolved().temperature
        assert json.loads((tmp_path / name / "run.json").read_text())["evaluation"] == found


def test_runs_of_a_grid_take_a_smaller_part_of_a_gpu_however_many_there_are(tmp_path, monkeypatch):
    taken = []

    def evaluate(self, posterior, spec):
        taken.append(memory._calls.get())
        return {"certified": 0.0}

    monkeypatch.setattr(Evaluator, "evaluate", evaluate)
    run_grid({"one": SPECS["one"]}, tmp_path, EVALUATOR)
    assert taken == [memory.CALLS_IN_GRIDS] and memory._calls.get() == memory.CALLS_ALONE


def test_what_is_finished_is_not_done_again(tmp_path, counted):
    first = run_grid(SPECS, tmp_path, EVALUATOR)
    assert run_grid(SPECS, tmp_path, EVALUATOR) == first
    assert counted == [("one", False), ("two", False)]


def test_a_stopped_run_goes_on_and_a_trained_one_is_only_evaluated(tmp_path, counted, monkeypatch):
    expected = run_one(SPECS["one"], tmp_path / "expected", EVALUATOR)

    def stop(*arguments):
        raise Interrupted("stop")

    with monkeypatch.context() as patched:
        patched.setattr(Evaluator, "evaluate", stop)
        with pytest.raises(Interrupted):
            run_one(SPECS["one"], tmp_path / "one", EVALUATOR)
    assert run_one(SPECS["one"], tmp_path / "one", EVALUATOR) == expected
    assert [name for name, _ in counted] == ["expected", "one"]


def test_an_unfinished_run_of_the_same_spec_is_resumed(tmp_path, counted):
    def stop(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(SPECS["one"], tmp_path / "one", progress=False, callbacks=(stop,), checkpoint_every=-1.0)
    run_one(SPECS["one"], tmp_path / "one", EVALUATOR)
    assert counted == [("one", True)]


def test_divergence_is_a_finding(tmp_path, monkeypatch):
    def diverge(*arguments, **settings):
        raise Diverged("too fast")

    monkeypatch.setattr(grid, "train", diverge)
    assert run_grid({"one": SPECS["one"]}, tmp_path, EVALUATOR) == {"one": {"diverged": "too fast"}}


@pytest.mark.slow
def test_several_processes_give_the_same_figures(tmp_path):
    calls = []
    alone = run_grid(SPECS, tmp_path / "alone", EVALUATOR)
    in_parallel = run_grid(
        SPECS,
        tmp_path / "parallel",
        EVALUATOR,
        workers=2,
        on_progress=lambda done, total, name: calls.append((done, total)),
    )
    assert in_parallel == alone
    assert calls == [(1, 2), (2, 2)]


@pytest.mark.slow
def test_an_error_in_a_process_is_the_error_here(tmp_path):
    with pytest.raises(InvalidInput, match=r"eps|radius"):
        run_grid(SPECS, tmp_path, Evaluator(-1.0), workers=2)


@pytest.mark.slow
def test_chains_are_diagnosed(tmp_path):
    chains = spec(algorithm="hmc", epochs=4, start_epochs=0, settings={"burn_in": 2, "leapfrog": 2, "chains": 2})
    found = run_one(chains, tmp_path / "chains", EVALUATOR)
    assert found["sampler"]["proposed"] == 8
    assert found["diagnostics"]["chains"] == 2


def test_no_workers(tmp_path):
    with pytest.raises(InvalidInput, match="workers"):
        run_grid(SPECS, tmp_path, EVALUATOR, workers=0)


class Stranger(Exception):
    """Of a package that another process need not have."""


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (InvalidInput("no"), InvalidInput),
        (FileNotFoundError(2, "gone"), FileNotFoundError),
        (Stranger("odd"), RuntimeError),
        (ValueError(lambda: 0), RuntimeError),
    ],
)
def test_failures_come_back_from_any_process(raised, kind):
    failure = _failure(raised)
    assert type(failure.error) is kind and str(raised) in str(failure)
    assert str(copy.deepcopy(failure.error)) == str(failure.error)
