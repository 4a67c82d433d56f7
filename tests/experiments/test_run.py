"""Runs: what they leave on disk, and that they can be repeated and resumed bit for bit."""

import json
from functools import cache

import pytest
import torch

from certibayes.errors import CorruptFile, InvalidInput
from certibayes.experiments import TrainSpec, train
from certibayes.experiments.config import assemble, read_config
from certibayes.experiments.run import MetricsFile
from certibayes.inference import MAP, SWAG
from certibayes.posteriors import DiagonalGaussian

pytestmark = pytest.mark.usefixtures("few_digits")

TINY = {"hidden": (8,), "epochs": 2, "batch_size": 50, "eps": 0.02}
FINISHED = ["metrics.jsonl", "posterior.safetensors", "run.json", "spec.toml"]
STEPS = 20
STARTED = {"algorithm": "swag", "start_epochs": 2, "settings": {"every": 5}, **TINY}


def assert_same(one, other):
    assert one.tensors().keys() == other.tensors().keys()
    for name, tensor in one.tensors().items():
        assert tensor.equal(other.tensors()[name]), name
    for key in set(one.metadata) - {"history"}:
        assert one.metadata[key] == other.metadata[key]


@cache
def started():
    """A run with a start that nothing broke off, for all that must end like it."""
    return train(TrainSpec(**STARTED), progress=False)


def break_at(monkeypatch, algorithm, step):
    """Let training crash in the middle of a step, once."""
    real, begun = algorithm.update, []

    def update(self, *arguments):
        begun.append(1)
        if len(begun) == step:
            raise RuntimeError("crash")
        return real(self, *arguments)

    monkeypatch.setattr(algorithm, "update", update)


@pytest.mark.parametrize(
    "spec",
    [
        TrainSpec(settings={"betas": (0.8, 0.9)}, **TINY),
        TrainSpec(radius="rayleigh", quadrature=2, temperature=0.1, **TINY),
        TrainSpec(**STARTED),
        TrainSpec(algorithm="map", likelihood="mtl-ibp", alpha=0.2, augment="flip,crop:1", **TINY),
    ],
    ids=["hyperparameters", "rayleigh", "start", "mixture, augmented"],
)
def test_a_run_is_repeated_from_its_toml(spec, tmp_path):
    first = train(spec, tmp_path / "a", progress=False)
    again = assemble({}, read_config(tmp_path / "a" / "spec.toml"))
    assert again == spec.resolved()
    assert_same(train(again, tmp_path / "b", progress=False), first)
    assert (tmp_path / "b" / "spec.toml").read_text() == (tmp_path / "a" / "spec.toml").read_text()


def test_settings_that_are_spelt_out_change_nothing():
    spec = TrainSpec(**TINY)
    assert_same(train(spec, progress=False), train(spec.resolved(), progress=False))


def test_the_record_holds_the_resolved_spec(tmp_path):
    train(TrainSpec(**TINY), tmp_path, progress=False)
    record = json.loads((tmp_path / "run.json").read_text())["spec"]
    assert record["lr"] == 0.003 and record["schedule"] == "cosine" and record["settings"]["initial_std"] == 0.01


def test_a_start_is_where_the_algorithm_begins():
    still = TrainSpec(lr=0.0, **{**STARTED, "algorithm": "vogn", "settings": {}})
    posterior = train(still, progress=False)
    assert isinstance(posterior, DiagonalGaussian)
    start = train(
        TrainSpec(algorithm="map", lr=0.1, settings={"optimizer": "sgd"}, **{**TINY, "epochs": 2}), progress=False
    )
    for name, mean in posterior.mean.items():
        assert torch.equal(mean, start.params[name])
    assert posterior.metadata["start"] == {"epochs": 2, "lr": 0.1}
    ramps = [each.metadata["likelihood"]["ramp"] for each in (posterior, start)]
    assert ramps[0] is None and ramps[1] is not None


@pytest.mark.parametrize("stage", [MAP, SWAG], ids=["start", "algorithm"])
def test_a_run_with_a_start_is_resumed_with_the_same_bits(stage, tmp_path, monkeypatch):
    spec, whole = TrainSpec(**STARTED), started()
    with monkeypatch.context() as patch:
        break_at(patch, stage, STEPS + 5)
        with pytest.raises(RuntimeError, match="crash"):
            train(spec, tmp_path, progress=False, checkpoint_every=0.0)
    assert (tmp_path / "start" / "posterior.safetensors").exists() == (stage is SWAG)
    with monkeypatch.context() as patch:
        if stage is SWAG:
            break_at(patch, MAP, 1)  # the finished start is not made again
        resumed = train(spec, tmp_path, progress=False, resume=True)
    assert_same(resumed, whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == FINISHED


def test_a_start_of_an_earlier_run_is_not_taken_over(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        break_at(patch, SWAG, 5)
        with pytest.raises(RuntimeError, match="crash"):
            train(TrainSpec(seed=1, **STARTED), tmp_path, progress=False)
    spec = TrainSpec(seed=2, **STARTED)
    assert_same(train(spec, tmp_path, progress=False, overwrite=True), train(spec, progress=False))


def test_another_posterior_in_the_place_of_the_start_is_noticed(tmp_path, monkeypatch):
    spec = TrainSpec(**STARTED)
    with monkeypatch.context() as patch:
        break_at(patch, SWAG, 5)
        with pytest.raises(RuntimeError, match="crash"):
            train(spec, tmp_path, progress=False)
    train(TrainSpec(**TINY), progress=False).save(tmp_path / "start", overwrite=True)
    with pytest.raises(CorruptFile, match="start"):
        train(spec, tmp_path, progress=False, resume=True)


def test_the_toml_of_a_finished_run_stays_until_it_is_replaced(tmp_path, monkeypatch):
    train(TrainSpec(**TINY), tmp_path, progress=False)
    before = (tmp_path / "spec.toml").read_text()
    spec = TrainSpec(algorithm="swag", settings={"every": 5}, **TINY)
    with monkeypatch.context() as patch:
        break_at(patch, SWAG, 3)
        with pytest.raises(RuntimeError, match="crash"):
            train(spec, tmp_path, progress=False, overwrite=True)
    assert (tmp_path / "spec.toml").read_text() == before
    train(spec, tmp_path, progress=False, resume=True)
    assert 'algorithm = "swag"' in (tmp_path / "spec.toml").read_text()


def test_other_files_in_the_directory_of_the_start_are_left_alone(tmp_path):
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "mine.txt").write_text("keep")
    train(TrainSpec(**STARTED), tmp_path, progress=False)
    assert [path.name for path in (tmp_path / "start").iterdir()] == ["mine.txt"]


def test_the_temperature_is_chosen_and_leaves_no_checkpoints(tmp_path):
    spec = TrainSpec(temperature="validate", **{**TINY, "epochs": 1})
    posterior = train(spec, tmp_path, progress=False, checkpoint_every=0.0)
    curve = posterior.metadata["temperature_curve"]
    assert posterior.metadata["temperature"] == min(curve, key=lambda row: row["validation_loss"])["temperature"]
    assert sorted(path.name for path in tmp_path.iterdir()) == FINISHED


def refuse_a_step(monkeypatch):
    monkeypatch.setattr(MAP, "update", lambda *_: pytest.fail("a step was made"))


@pytest.mark.parametrize(
    ("settings", "device"),
    [
        ({}, "mars"),
        # Found by ``init``, and with a start only once that would have been trained.
        ({"algorithm": "sghmc"}, None),
        ({"algorithm": "sghmc", "start_epochs": 1}, None),
        ({"algorithm": "swag", "epochs": 1}, None),
    ],
    ids=["device", "no room", "no room after a start", "one iterate"],
)
def test_a_run_that_cannot_start_leaves_nothing(settings, device, tmp_path, monkeypatch):
    refuse_a_step(monkeypatch)
    with pytest.raises(InvalidInput):
        train(TrainSpec(**{**TINY, **settings}), tmp_path / "run", device=device, progress=False)
    assert not (tmp_path / "run").exists()


def test_a_run_that_cannot_start_leaves_an_unfinished_one_as_it_was(tmp_path, monkeypatch):
    spec = TrainSpec(**STARTED)
    with monkeypatch.context() as patch:
        break_at(patch, SWAG, 5)
        with pytest.raises(RuntimeError, match="crash"):
            train(spec, tmp_path, progress=False, checkpoint_every=0.0)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(InvalidInput, match="mars"):
        train(TrainSpec(**TINY), tmp_path, device="mars", overwrite=True, progress=False)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert_same(train(spec, tmp_path, progress=False, resume=True), started())


def lines_of(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def test_figures_of_every_epoch_are_kept_from_the_first_on(tmp_path):
    seen = []
    posterior = train(
        TrainSpec(**TINY), tmp_path, progress=False, callbacks=(lambda record: seen.append(record["epoch"]),)
    )
    assert lines_of(tmp_path) == posterior.metadata["history"]
    assert [line["epoch"] for line in lines_of(tmp_path)] == seen == [1.0, 2.0]


def test_an_epoch_that_is_made_again_is_kept_once(tmp_path):
    keep = MetricsFile(tmp_path / "metrics.jsonl")
    for epoch in (1.0, 2.0, 3.0, 2.0):
        keep({"epoch": epoch, "loss": 10 * epoch, "run": 4.0})
    assert lines_of(tmp_path) == [{"epoch": 1.0, "loss": 10.0}, {"epoch": 2.0, "loss": 20.0}]
