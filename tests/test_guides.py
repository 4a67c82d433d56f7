"""The code of guides must run as it stands."""

import re
from pathlib import Path

import pytest
import torch

import certibayes as cb
from certibayes import check_certificate, load_certificate
from certibayes.experiments import figure_names, load_figure
from certibayes.experiments._figure_evaluators import make_evaluator
from certibayes.networks._onnx_operators import OPERATORS
from certibayes.vnnlib import parse_vnnlib

GUIDES = Path(__file__).parent.parent / "docs" / "guides"


def run(name: str, until: str = "\0") -> dict:
    """Run the blocks of a guide, up to some words in it, and return their names."""
    page = (GUIDES / name).read_text().partition(until)[0]
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    space: dict = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for block in blocks:
            exec(block, space)
    return space


def test_a_binary_classifier_with_one_logit_gets_two_outputs_and_stays_the_same():
    space = run("inputs.md")
    x = space["people"]
    expected = torch.sigmoid(space["one_logit"](x)).squeeze(-1)
    torch.testing.assert_close(space["binary"].probabilities(x)[:, 1], expected)
    assert len(space["result"]) == 2 and not bool(space["result"].certified.isnan().any())
    assert tuple(space["region"].center.shape) == (2, 3)


def test_predictors_of_a_network_with_batch_norm_find_their_statistics():
    space = run("batch-norm.md")
    posterior, x = space["posterior"], space["x"]
    assert posterior.metadata["batch_norm"] == "batch"
    assert posterior.predictor(10, seed=1).digest == posterior.predictor(10, seed=1, data=x).digest
    assert posterior.statistics.keys() == {0, 1}


def test_grids_return_a_posterior_for_each_run():
    space = run("grids.md")
    assert len(space["points"]) == 4 and len(space["ensemble"]) == 4
    settings = [(p.metadata["likelihood"]["p_eps"]["eta"], p.metadata["temperature"]) for p in space["posteriors"]]
    assert settings == [(eta, t) for eta in (0.05, 0.1) for _ in range(2) for t in (1.0, 0.1)]


def test_exported_samples_are_verified(tmp_path, monkeypatch):
    pytest.importorskip("onnx", reason='ONNX files need the extra: pip install "certibayes[onnx]"')
    monkeypatch.chdir(tmp_path)
    space = run("verify.md")
    assert space["answers"] == [["unsat"] * 3] * 2 and bool(space["certificate"].certified.all())


def test_the_specification_of_the_guide_is_read():
    (text,) = re.findall(r"^```lisp\n(.*?)^```", (GUIDES / "verify.md").read_text(), re.DOTALL | re.MULTILINE)
    (case,) = parse_vnnlib(text).cases
    assert [len(conjunction) for conjunction in case.unsafe] == [1, 2]


def test_the_guide_names_every_operator():
    page = (GUIDES / "verify.md").read_text()
    assert all(f"`{name}`" in page for name in OPERATORS)


def test_a_model_you_already_have_is_certified(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space = run("your-model.md")
    assert space["point"].held == 1 and len(space["ensemble"]) == 5 and len(space["mc"]) == 10
    assert len(space["samples"]) == 20 and space["certificate"].digest == space["ensemble"].predictor().digest
    # Something is proved of a network that nobody trained for it, or the guide would show nothing.
    assert space["certificate"].certified_fraction > 0.2
    assert space["proved"].certified_fraction <= space["attacked"].robust_accuracy
    assert check_certificate(load_certificate("certificate.json"), space["ensemble"].predictor(), space["x"]).holds
    assert (tmp_path / "certificate.html").exists()


def test_posteriors_of_the_zoo_are_what_their_cards_say(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space = run("zoo.md")
    assert space["certificate"].digest == space["entry"].digest
    assert space["small"].metadata["deviations"] == "float16"


BREAST_CANCER = "## Breast cancer"


def test_predictions_of_a_table_have_certified_intervals():
    space = run("tabular.md", until=BREAST_CANCER)
    certificate, x = space["certificate"], space["x"]
    assert 0 < certificate.certified_fraction <= 1 and space["lower"] < space["upper"]
    # What may not change does not matter: a proof with radius 0 there is at least as tight as one without.
    everywhere = cb.certify_regression(space["predictor"], x, eps=0.1)
    assert bool((certificate.upper - certificate.lower <= everywhere.upper - everywhere.lower).all())
    # The page says what the radius in the likelihood is worth.
    plain = cb.fit(
        space["net"], space["patients"], algorithm="swag", likelihood=cb.RobustGaussian(noise_std=0.7), epochs=40,
        progress=False,
    ).predictor(samples=20)  # fmt: skip
    without = cb.certify_regression(plain, x, eps=0.1)
    assert (without.upper - without.lower).mean() > 2 * (everywhere.upper - everywhere.lower).mean()


def test_a_table_of_classes_has_radii_for_each_feature(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space = run("tabular.md")
    assert space["certificate"].certified_fraction > 0.8 and (tmp_path / "tumors.html").exists()


def test_certified_answers_have_certified_confidence():
    space = run("certainty.md")
    assert bool((space["lowest"] <= space["highest"]).all()) and float(space["surely"].max()) > 0.9
    assert int(space["abstention"].certified.sum()) > 10


def test_a_certificate_that_was_sent_is_checked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space = run("certificates.md")
    assert space["check"].holds and space["received"].statement == space["certificate"].statement


def test_words_that_the_guide_explains_are_those_of_statements(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    statement = run("certificates.md", until="## What it says")["certificate"].statement
    for words in (
        "every input with values in [0, 1] within l-infinity distance 0.1",
        "crown bounds and the method auto",
    ):
        assert words in statement and words in (GUIDES / "certificates.md").read_text()


def test_records_of_epochs_have_the_keys_that_the_guide_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space, page = run("logging.md"), (GUIDES / "logging.md").read_text()
    assert len(space["records"]) == 3 and all(isinstance(value, float) for value in space["records"][0].values())
    assert all(f"`{name}`" in page for name in space["records"][0])
    assert len((tmp_path / "training.jsonl").read_text().splitlines()) == 2


def test_costs_are_measured_in_a_loop():
    assert run("cost.md")["certificate"].method == "auto"


def test_the_figure_of_the_guide_is_read(tmp_path):
    (text,) = re.findall(r"^```toml\n(.*?)^```", (GUIDES / "reproduce.md").read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "mine.toml").write_text(text)
    figure = load_figure(str(tmp_path / "mine.toml"))
    cells = figure.cells("mnist", method=["swag", "vogn"])
    assert len(cells) == 2 * 2 * 5 and make_evaluator(figure, "mnist").samples == 35
    page = (GUIDES / "reproduce.md").read_text()
    assert all(f"`{name}`" in page for name in figure_names())
