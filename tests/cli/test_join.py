"""``certibayes join``: runs become a mixture, which other commands take."""

import json

import pytest

import certibayes as cb

from .cases import invoke


@pytest.fixture(scope="module")
def mixed(certifiable_run, tmp_path_factory):
    out = tmp_path_factory.mktemp("join") / "mixture"
    result = invoke("join", certifiable_run, certifiable_run, "--weights", "3,1", "--out", out, "--json")
    assert result.exit_code == 0, result.output
    return out, json.loads(result.stdout)


def test_it_is_a_run_for_other_commands(mixed, certifiable_run):
    out, record = mixed
    assert record == {"path": str(out), "components": 2, "weights": [0.75, 0.25]}
    assert isinstance(cb.load(out), cb.GaussianMixture)
    options = ("--samples", 4, "--limit", 50, "--method", "theorem1", "--json")
    found, alone = (json.loads(invoke("certify", run, *options).stdout) for run in (out, certifiable_run))
    assert found["eps"] == alone["eps"] == 0.02
    assert found["n"] == 50 and found["samples"] == 4
    assert json.loads(invoke("info", out, "--json").stdout)["posterior"] == "GaussianMixture"


def test_errors_say_what_to_do(mixed, certifiable_run, tmp_path):
    out, _ = mixed
    for arguments, words in {
        (certifiable_run, "--out", out): "already holds a posterior",
        (certifiable_run, "--weights", "1,2", "--out", tmp_path): "one for each of 1",
        (certifiable_run, "--weights", "most", "--out", tmp_path): "such as 2,1,1",
        (out, certifiable_run, "--out", tmp_path): "a mixture already",
        (tmp_path / "none", "--out", tmp_path): "there is no posterior",
    }.items():
        result = invoke("join", *arguments)
        assert result.exit_code == 1 and words in " ".join(result.output.split()), result.output
    assert invoke("join", certifiable_run, "--out", out, "--overwrite").exit_code == 0
