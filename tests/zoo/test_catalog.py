"""What comes with the package: every entry is small, complete, and what its card says it is."""

import json
import re
import subprocess
import sys
import tomllib
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
import torch

import certibayes as cb
from certibayes.errors import CorruptFile, InvalidInput
from certibayes.experiments.config import assemble, read_config
from certibayes.experiments.spec import TrainSpec
from certibayes.zoo import catalog

ROOT = Path(__file__).parent.parent.parent
NAMES = catalog.names()
FILES = {"card.md", "posterior.safetensors", "run.json", "spec.toml"}


def size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def test_there_are_entries():
    assert "digits-swag" in NAMES
    assert sorted(path.name for path in cb.zoo.DIRECTORY.iterdir()) == list(NAMES)


def test_all_of_them_are_small_enough():
    assert size(cb.zoo.DIRECTORY) <= catalog.LARGEST_ZOO == 40_000_000


@pytest.mark.parametrize("name", NAMES)
class TestEntry:
    def test_it_is_small_and_complete(self, name):
        directory = catalog.directory(name)
        assert size(directory) <= catalog.LARGEST_ENTRY == 8_000_000
        assert {file.name for file in directory.iterdir()} == FILES

    def test_the_digest_is_that_of_what_is_stored(self, name):
        figures, posterior = catalog.figures(name), cb.zoo.load(name)
        # Statistics are stored too, so that nothing but the file is needed.
        assert posterior.predictor(figures["samples"]).digest == figures["digest"]
        assert f"`{figures['digest']}`" in cb.zoo.card(name)
        assert figures["digest"][:16] in figures["statement"]

    def test_its_posterior_is_compact_and_knows_its_data(self, name):
        posterior, figures = cb.zoo.load(name), catalog.figures(name)
        if isinstance(posterior, cb.DiagonalGaussian):
            assert posterior.metadata["deviations"] == "float16"
        assert posterior.metadata["dataset"] == figures["dataset"]
        assert posterior.domain == (0.0, 1.0)
        assert posterior.metadata["temperature"] == figures["temperature"]

    def test_the_card_has_every_figure(self, name):
        card, figures = cb.zoo.card(name), catalog.figures(name)
        for heading in ("Data and network", "Figures", "Recipe", "Limits of use"):
            assert f"\n## {heading}\n" in card
        for text in (
            f"certified at eps {figures['eps']:.6g} | {100 * figures['certified']:.2f}%",
            f"accuracy | {100 * figures['accuracy']:.2f}%",
            f"parameters | {figures['parameters']:,}",
            f"weight samples | {figures['samples']}, seed 0",
            f"temperature | {figures['temperature']:g}",
            f"mutual information | {figures['mutual_information']:.5f}",
            f"negative log-likelihood | {figures['nll']:.4f}",
            f"method | {figures['method']}, {figures['bounds']} bounds, outward rounding",
            f"size | {figures['bytes'] / 1e6:.2f} MB",
            f"certibayes train --config zoo:{name} ",
            figures["statement"],
            figures["network"],
        ):
            assert text in card, text
        assert figures["bytes"] == (catalog.directory(name) / "posterior.safetensors").stat().st_size

    def test_figures_are_possible(self, name):
        figures = catalog.figures(name)
        assert figures["method"] == "elided" and figures["rounding"] == "outward" and figures["norm"] == "linf"
        assert 0.0 < figures["certified"] <= figures["accuracy"] <= 1.0
        assert figures["nll"] > 0.0 and figures["mutual_information"] >= 0.0

    def test_the_recipe_in_the_card_is_that_of_the_run(self, name):
        directory = catalog.directory(name)
        stored = TrainSpec.from_json(json.loads((directory / "run.json").read_text())["spec"]).resolved()
        assert assemble({}, read_config(directory / "spec.toml")).resolved() == stored
        block = re.search(r"```toml\n(.*?)```", cb.zoo.card(name), re.DOTALL)
        assert assemble({}, tomllib.loads(block[1])).resolved() == stored

    def test_its_repr_says_what_was_proved(self, name):
        entry = next(entry for entry in cb.zoo.list() if entry.name == name)
        text = repr(entry)
        assert "\n" not in text
        for part in (name, entry.description, entry.dataset, f"{entry.certified:.2%}", entry.digest[:12]):
            assert part in text
        with pytest.raises(FrozenInstanceError):
            entry.certified = 1.0


@pytest.fixture(scope="module")
def opened():
    figures, digits = catalog.figures("digits-swag"), cb.data.load("digits")
    return figures, digits, cb.zoo.load("digits-swag").predictor(figures["samples"])


class TestDigits:
    """The embedded digits are at hand, so their figures can be made again."""

    def test_certificates_of_a_few_images_are_made_again(self, opened):
        """The fraction is about the card's, and no attack breaks what is certified."""
        figures, digits, predictor = opened
        x, y = digits.test.inputs[:50], digits.test.targets[:50]
        result = cb.certify(predictor, x, y, eps=figures["eps"], method=cb.Elided(bounds="ibp"))
        # Three standard deviations of a proportion of 50.
        assert abs(result.certified_fraction - figures["certified"]) < 0.17
        assert result.digest == figures["digest"]
        attacked = cb.attack(predictor, x[:10], y[:10], eps=figures["eps"], method=cb.attacks.PGD(5, 1))
        assert not bool((attacked.success & result.certified[:10]).any())

    def test_the_checker_confirms_certificates_of_its_first_samples(self, opened):
        figures, digits, _ = opened
        predictor, x, y = cb.zoo.load("digits-swag").predictor(2), digits.test.inputs[:5], digits.test.targets[:5]
        result = cb.certify(predictor, x, y, eps=figures["eps"], method=cb.Pairwise(bounds="ibp"))
        assert cb.check_certificate(result, predictor, x).holds

    @pytest.mark.slow
    def test_all_figures_are_made_again(self, opened):
        figures, digits, predictor = opened
        result = cb.certify(predictor, *digits.test, eps=figures["eps"], method=cb.Elided(bounds="ibp"))
        # Another machine may round differently where a bound is at the border.
        assert result.certified_fraction == pytest.approx(figures["certified"], abs=2e-3)
        assert result.accuracy == pytest.approx(figures["accuracy"], abs=2e-3)
        found = cb.uncertainty(predictor, digits.test.inputs)
        assert float(found.mutual_information.mean()) == pytest.approx(figures["mutual_information"], rel=1e-3)

    def test_it_is_a_posterior_and_no_point(self, opened):
        figures, _, predictor = opened
        assert figures["temperature"] == 1.0
        assert figures["mutual_information"] > 1e-4
        first, second = predictor.samples["1.weight"][:2]
        assert not torch.equal(first, second)


@pytest.mark.parametrize("function", [cb.zoo.load, cb.zoo.card], ids=["load", "card"])
def test_an_unknown_name_is_answered_with_the_nearest(function):
    with pytest.raises(InvalidInput, match=r"'digit_swag'; perhaps you mean digits-swag\. Known are .*digits-swag"):
        function("digit_swag")
    with pytest.raises(InvalidInput, match="Known are"):
        function("../catalog")


@pytest.mark.parametrize("content", ["not json", "[]", "{}", '{"zoo": 3}', '{"zoo": {"name": "a"}}'])
def test_an_entry_whose_record_is_damaged_says_so(content, tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "posterior.safetensors").touch()
    (tmp_path / "a" / "run.json").write_text(content)
    monkeypatch.setattr(catalog, "DIRECTORY", tmp_path)
    with pytest.raises(CorruptFile, match="Install certibayes anew"):
        cb.zoo.list()


def test_the_wheel_holds_every_entry():
    """As setuptools finds package data, without building anything."""
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["certibayes"]
    package = ROOT / "src" / "certibayes"
    packed = {path for pattern in patterns for path in package.glob(pattern)}
    assert {catalog.DIRECTORY / name / file for name in NAMES for file in FILES} <= packed


def test_a_card_is_read_without_the_extra_that_writes_it():
    code = "import sys; sys.modules['jinja2'] = None; import certibayes as cb; print(cb.zoo.card('digits-swag')[:13])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "# digits-swag"
