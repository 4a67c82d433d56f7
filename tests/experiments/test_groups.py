"""Groups of a grid: trained together, checkpointed and resumed as one, each run stored by itself."""

import json

import pytest

from certibayes.errors import Diverged, InvalidInput, RunExists
from certibayes.experiments import Evaluator, TrainSpec, grid, load_run, train_many
from certibayes.experiments.engines import Local
from certibayes.experiments.grid import Failure, is_finished, run_cells
from certibayes.inference import BBB, checkpoint
from certibayes.support.locks import locked

pytestmark = pytest.mark.usefixtures("few_digits")

EVALUATOR = Evaluator(0.05, samples=3, limit=20, steps=2, restarts=1)


def spec(**settings):
    common = {"algorithm": "bbb", "hidden": (4,), "epochs": 3, "batch_size": 100, "eps": 0.05, "temperature": 0.01}
    return TrainSpec(**{**common, **settings})


SPECS = {f"bbb-s{seed}": spec(seed=seed) for seed in range(3)}
GROUPS = dict.fromkeys(SPECS, "bbb")


def run(out, specs=SPECS, groups=GROUPS, evaluator=EVALUATOR, **settings):
    return run_cells(specs, out, evaluator, engine=Local(threads=1), groups=groups, **settings)


def events(out, kind):
    lines = map(json.loads, (out / "journal.jsonl").read_text().splitlines())
    return [line["name"] for line in lines if line["event"] == kind]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    out = tmp_path_factory.mktemp("expected")
    with pytest.MonkeyPatch.context() as patch:
        from certibayes.data import _embedded
        from tests.conftest import _few_digits

        patch.setitem(_embedded.EMBEDDED, "digits", _few_digits)
        return run(out), out


def break_at(patch, step):
    """Let training crash in the middle of a step, once; with a checkpoint before it."""
    real, begun = BBB.update, []

    def update(self, *arguments):
        begun.append(1)
        if len(begun) == step:
            raise RuntimeError("crash")
        return real(self, *arguments)

    patch.setattr(BBB, "update", update)


def test_each_run_is_stored_by_itself(expected):
    figures, out = expected
    assert list(figures) == list(SPECS)
    for name, own in SPECS.items():
        assert {path.name for path in (out / name).iterdir()} == {
            "metrics.jsonl", "posterior.safetensors", "run.json", "spec.toml",
        }  # fmt: skip
        record = json.loads((out / name / "run.json").read_text())
        assert TrainSpec.from_json(record["spec"]) == own.resolved()
        assert record["evaluation"] == figures[name] and record["versions"]
        lines = [json.loads(line) for line in (out / name / "metrics.jsonl").read_text().splitlines()]
        assert [line["epoch"] for line in lines] == [1.0, 2.0, 3.0]
        assert load_run(out / name).metadata["seed"] == own.seed
    assert not (out / ".groups" / "bbb").exists()
    assert events(out, "trained") == list(SPECS)


def test_a_group_that_broke_off_goes_on_as_one_with_the_same_bits(expected, tmp_path, monkeypatch):
    saved = []
    real = checkpoint.write_checkpoint
    monkeypatch.setattr(
        checkpoint, "write_checkpoint", lambda directory, *rest: (saved.append(directory.name), real(directory, *rest))
    )
    with monkeypatch.context() as patch:
        break_at(patch, 17)
        broken = run(tmp_path, checkpoint_every=-1.0)
    assert all(isinstance(outcome, Failure) and "crash" in str(outcome) for outcome in broken.values())
    assert set(saved) == {"group-0"}
    again = run(tmp_path)
    assert again == expected[0]
    assert events(tmp_path, "trained") == list(SPECS) and events(tmp_path, "failed") == ["bbb"]
    assert json.loads((tmp_path / "journal.jsonl").read_text().splitlines()[3])["resumed"] is True


def test_a_group_killed_while_it_stores_loses_nothing(expected, tmp_path, monkeypatch):
    """Two posteriors are there and the third is not: it comes from the last checkpoint, and the others stay."""

    class Killed(BaseException):
        pass

    # The function hides its module.
    space, stored = train_many.__globals__, []
    real = space["store"]

    def store(out, *rest):
        if len(stored) == 2:
            raise Killed
        stored.append(out)
        real(out, *rest)

    with monkeypatch.context() as patch:
        patch.setitem(space, "store", store)
        with pytest.raises(Killed):
            run(tmp_path)
    before = {out: (out / "posterior.safetensors").stat().st_mtime_ns for out in stored}
    with monkeypatch.context() as patch:
        break_at(patch, 1)  # not a single step is made again
        assert run(tmp_path) == expected[0]
    assert before == {out: (out / "posterior.safetensors").stat().st_mtime_ns for out in stored}


def test_what_is_finished_is_not_done_again(expected):
    figures, out = expected
    before = (out / "journal.jsonl").read_text()
    assert run(out) == figures and (out / "journal.jsonl").read_text() == before
    assert all(is_finished(out / name, EVALUATOR) for name in SPECS)


def test_a_finished_run_with_other_settings_is_refused(expected):
    _, out = expected
    other = {**SPECS, "bbb-s0": spec(seed=0, epochs=2)}
    failed = run(out, other)
    assert all(isinstance(outcome, Failure) and isinstance(outcome.error, RunExists) for outcome in failed.values())


def test_a_cell_that_fails_does_not_stop_the_others(tmp_path):
    class Fails(Evaluator):
        def evaluate(self, posterior, spec):
            if spec.seed == 1:
                raise InvalidInput("no such luck")
            return {"seed": spec.seed}

    found = run(tmp_path, evaluator=Fails(0.05))
    assert found["bbb-s0"] == {"seed": 0} and found["bbb-s2"] == {"seed": 2}
    assert isinstance(found["bbb-s1"], Failure) and "no such luck" in str(found["bbb-s1"])
    assert "no such luck" in found["bbb-s1"].trace
    # It was trained, and is evaluated alone by the next grid.
    assert isinstance(run(tmp_path)["bbb-s1"], dict) and events(tmp_path, "trained") == list(SPECS)


def test_a_model_that_diverges_is_kept_as_a_finding(tmp_path):
    specs = {**SPECS, "bbb-s1": spec(seed=1, lr=1e30)}
    found = run(tmp_path, specs)
    assert "finite" in found["bbb-s1"]["diverged"] and "certified" in found["bbb-s0"]
    before = (tmp_path / "journal.jsonl").read_text()
    assert run(tmp_path, specs) == found and (tmp_path / "journal.jsonl").read_text() == before


def test_divergence_alone_is_kept_too(tmp_path, monkeypatch):
    tries = []

    def diverge(*arguments, **settings):
        tries.append(1)
        raise Diverged("too fast")

    monkeypatch.setattr(grid, "train", diverge)
    alone = {"one": SPECS["bbb-s0"]}
    first = run(tmp_path, alone, None)
    assert run(tmp_path, alone, None) == first == {"one": {"diverged": "too fast"}} and len(tries) == 1


def test_a_group_that_another_process_works_on_comes_last(tmp_path):
    """The lock is held while the first pass asks for it, and given back for the second."""
    specs = {**SPECS, "alone": spec(seed=9)}
    order = []
    held = locked(tmp_path / ".groups" / "bbb.lock")
    held.__enter__()

    class Releasing(Local):
        def run(self, function, tasks):
            if tasks and tasks[0].wait:
                held.__exit__(None, None, None)
            yield from super().run(function, tasks)

    found = run_cells(
        specs, tmp_path, EVALUATOR, engine=Releasing(), groups={**GROUPS, "alone": "alone"},
        on_progress=lambda done, total, name: order.append((done, total, name)),
    )  # fmt: skip
    assert [name for _, _, name in order] == ["alone", *SPECS] and order[-1][:2] == (4, 4)
    assert list(found) == list(specs)


def test_what_starts_elsewhere_is_trained_alone(tmp_path):
    specs = {name: spec(seed=own.seed, start_epochs=1) for name, own in SPECS.items()}
    assert "cannot be trained with others" in str(run(tmp_path, specs)["bbb-s0"])


def test_the_same_group_with_other_seeds_leaves_a_half_trained_one_alone(expected, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        break_at(patch, 17)
        run(tmp_path, checkpoint_every=-1.0)
    more = {f"bbb-s{seed}": spec(seed=seed) for seed in range(5, 7)}
    assert all("certified" in found for found in run(tmp_path, more, dict.fromkeys(more, "bbb")).values())
    assert run(tmp_path) == expected[0]
    lines = (tmp_path / "journal.jsonl").read_text().splitlines()
    resumed = [json.loads(line).get("resumed") for line in lines]
    assert [value for value in resumed if value is not None] == [False, False, True, True, True]
