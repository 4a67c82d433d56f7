"""An entry of the zoo from a run: compact, certified as stored, described."""

import json
from dataclasses import replace

import pytest
import torch

import certibayes as cb
from certibayes.data import _embedded as embedded
from certibayes.errors import InvalidInput, RunExists
from certibayes.experiments import TrainSpec, add_to_zoo, load_run, train, zoo_entry
from certibayes.experiments.evaluate import log_probabilities
from certibayes.zoo import catalog

SPEC = TrainSpec(
    architecture="cnn5", channels=2, algorithm="swag", lr=0.003, epochs=2, batch_size=25, eps=0.02, margins=True,
    settings={"optimizer": "adam", "every": 1, "rank": 3},
)  # fmt: skip
TEST = 60
"""Test images, so that certificates take no time."""


@pytest.fixture(scope="module", autouse=True)
def few_images():
    """The digits, but few of them."""
    digits = embedded.digits()
    few = replace(digits, train=_first(digits.train, 100), test=_first(digits.test, TEST))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(embedded.EMBEDDED, "digits", lambda: few)
        yield few


def _first(split, number):
    return type(split)(split.inputs[:number], split.targets[:number])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    train(SPEC, out, progress=False)
    return out


@pytest.fixture(scope="module")
def entry(run, tmp_path_factory):
    return add_to_zoo(run, "tiny-swag", samples=5, out=tmp_path_factory.mktemp("zoo"), progress=False)


def figures_of(entry):
    return json.loads((entry / "run.json").read_text())["zoo"]


class TestEntry:
    def test_it_holds_the_compact_posterior_of_the_run(self, run, entry, few_images):
        stored = cb.load(entry)
        expected = load_run(run).compact(few_images.train.inputs)
        assert stored.metadata["deviations"] == "float16"
        assert stored.predictor(5).digest == expected.predictor(5).digest == figures_of(entry)["digest"]
        assert stored.predictor().size == 35

    def test_its_figures_are_those_of_what_is_stored(self, entry, few_images):
        figures, predictor = figures_of(entry), cb.load(entry).predictor(5)
        x, y = few_images.test
        result = cb.certify(predictor, x, y, eps=0.02, method=cb.Elided(bounds="ibp"))
        assert figures["n"] == TEST and figures["eps"] == 0.02 and figures["samples"] == 5
        assert figures["certified"] == result.certified_fraction
        assert figures["accuracy"] == result.accuracy
        expected = -float(log_probabilities(predictor, x).gather(-1, y[:, None]).mean())
        assert figures["nll"] == pytest.approx(expected, rel=1e-6)
        found = cb.uncertainty(predictor, x)
        assert figures["mutual_information"] == pytest.approx(float(found.mutual_information.mean()), rel=1e-6)
        assert figures["parameters"] == sum(p.numel() for p in SPEC.network(few_images).parameters())
        assert "seed 0" not in figures["statement"] or figures["seed"] == 0

    def test_the_package_reads_it(self, entry, monkeypatch):
        monkeypatch.setattr(catalog, "DIRECTORY", entry.parent)
        (only,) = cb.zoo.list()
        assert only.name == "tiny-swag" and only.description == "SWAG on cnn5 of 2 channels"
        assert cb.zoo.load("tiny-swag").predictor(5).digest == only.digest
        card = cb.zoo.card("tiny-swag")
        assert card.startswith("# tiny-swag\n") and card.endswith(".\n")
        # Settings that are not defaults, and no others.
        assert "channels = 2" in card and 'optimizer = "adam"' in card and "balance" not in card

    def test_it_is_a_run_like_any_other(self, entry):
        from certibayes.experiments import read_record, trained_radius

        assert TrainSpec.from_json(read_record(entry)["spec"]).resolved() == SPEC.resolved()
        assert trained_radius(entry, load_run(entry)) == 0.02

    def test_it_can_be_made_from_an_entry(self, entry, tmp_path):
        again = add_to_zoo(entry, "tiny-swag", samples=5, out=tmp_path, progress=False)
        assert figures_of(again)["digest"] == figures_of(entry)["digest"]


def test_a_posterior_that_holds_fewer_samples_gives_all(tmp_path):
    spec = TrainSpec(hidden=(4,), algorithm="ensemble", epochs=1, batch_size=50, eps=0.02, settings={"members": 2})
    train(spec, tmp_path / "run", progress=False)
    entry = add_to_zoo(tmp_path / "run", "pair", description="two networks", out=tmp_path / "zoo", progress=False)
    figures = figures_of(entry)
    assert figures["samples"] == 2 and figures["description"] == "two networks"
    assert cb.load(entry).predictor(2).digest == figures["digest"]
    assert "deviations" not in cb.load(entry).metadata


class TestRefusals:
    def test_an_entry_that_is_there(self, run, entry):
        before = (entry / "card.md").read_bytes()
        with pytest.raises(RunExists, match="--overwrite"):
            add_to_zoo(run, "tiny-swag", out=entry.parent, progress=False)
        assert (entry / "card.md").read_bytes() == before

    def test_unless_it_is_to_be_replaced(self, run, entry, tmp_path):
        for samples in (2, 3):
            made = add_to_zoo(run, "a", samples=samples, out=tmp_path, overwrite=True, progress=False)
            assert figures_of(made)["samples"] == samples

    @pytest.mark.parametrize("name", ["Tiny", "a/b", "../a", "", "a b", "-a", "a--b"])
    def test_a_name_that_is_none(self, run, name, tmp_path):
        with pytest.raises(InvalidInput, match="small letters, digits and dashes"):
            add_to_zoo(run, name, out=tmp_path, progress=False)
        assert not list(tmp_path.iterdir())

    def test_a_posterior_that_is_too_large(self, run, tmp_path, monkeypatch):
        monkeypatch.setattr(zoo_entry, "LARGEST_ENTRY", 1000)
        with pytest.raises(InvalidInput, match="narrower network, or a lower rank"):
            add_to_zoo(run, "large", out=tmp_path, progress=False)
        assert not list(tmp_path.iterdir())

    def test_one_more_than_there_is_room_for(self, run, entry, monkeypatch):
        monkeypatch.setattr(zoo_entry, "LARGEST_ZOO", 1.5 * zoo_entry._size(entry))
        with pytest.raises(InvalidInput, match=r"in all.*Remove one"):
            add_to_zoo(run, "another", out=entry.parent, progress=False)
        assert [path.name for path in entry.parent.iterdir()] == [entry.name]

    def test_a_directory_that_is_no_run(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            add_to_zoo(tmp_path, "nothing", out=tmp_path / "zoo", progress=False)

    def test_a_run_that_is_trained_anew(self, run, tmp_path):
        (run / "started.json").write_text((run / "run.json").read_text())
        try:
            with pytest.raises(InvalidInput, match="trained anew"):
                add_to_zoo(run, "early", out=tmp_path, progress=False)
        finally:
            (run / "started.json").unlink()

    def test_a_run_without_a_radius(self, tmp_path):
        spec = TrainSpec(hidden=(4,), algorithm="map", likelihood="standard", epochs=1, batch_size=50)
        train(spec, tmp_path / "run", progress=False)
        with pytest.raises(InvalidInput, match=r"eps=0\.1"):
            add_to_zoo(tmp_path / "run", "plain", out=tmp_path / "zoo", progress=False)
        entry = add_to_zoo(tmp_path / "run", "plain", eps=0.001, samples=1, out=tmp_path / "zoo", progress=False)
        assert figures_of(entry)["eps"] == 0.001

    def test_a_regression(self, run, tmp_path, monkeypatch):
        monkeypatch.setattr(cb.Posterior, "task", "regression")
        with pytest.raises(InvalidInput, match="classifiers"):
            add_to_zoo(run, "numbers", out=tmp_path, progress=False)

    def test_a_device_that_is_not_there(self, run, tmp_path):
        if torch.cuda.is_available():
            pytest.skip("there is one")
        with pytest.raises(InvalidInput, match="cannot be used here"):
            add_to_zoo(run, "fast", device="cuda", out=tmp_path, progress=False)
