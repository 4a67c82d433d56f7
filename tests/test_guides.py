"""The code of guides must run as it stands."""

import re
from pathlib import Path

import pytest
import torch

from certibayes import check_certificate, load_certificate
from certibayes.networks._onnx_operators import OPERATORS
from certibayes.vnnlib import parse_vnnlib

GUIDES = Path(__file__).parent.parent / "docs" / "guides"


def run(name: str) -> dict:
    blocks = re.findall(r"^```python\n(.*?)^```", (GUIDES / name).read_text(), re.DOTALL | re.MULTILINE)
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
    assert space["point"].held == 1 and len(space["ensemble"]) == 3 and len(space["mc"]) == 10
    assert len(space["samples"]) == 20 and space["certificate"].digest == space["ensemble"].predictor().digest
    # Something is proved of a network that nobody trained for it, or the guide would show nothing.
    assert space["certificate"].certified_fraction > 0.2
    assert check_certificate(load_certificate("certificate.json"), space["ensemble"].predictor(), space["x"]).holds


def test_posteriors_of_the_zoo_are_what_their_cards_say(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space = run("zoo.md")
    assert space["certificate"].digest == space["entry"].digest
    assert space["small"].metadata["deviations"] == "float16"
