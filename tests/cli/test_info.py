"""``certibayes info`` on runs of Markov chains: sampler figures and convergence, and what it says without them."""

import json
import sys
from functools import partial

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import certibayes as cb
from certibayes.cli import app, info
from certibayes.evaluation import diagnose

HMC = {"acceptance": 0.8125, "accepted": 26, "proposed": 32, "divergences": 0, "step_size": 0.0125}
WEIGHTS = 70


@pytest.fixture(autouse=True)
def few_points(monkeypatch):
    """Every prediction and every weight takes a millisecond."""
    monkeypatch.setattr(info, "POINTS", 20)
    monkeypatch.setattr(info, "diagnose", partial(diagnose, weights=WEIGHTS))


def invoke(*arguments, env=None):
    return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "120", **(env or {})})


def saved_run(path, chains=4, draws=8, stuck=False, **metadata):
    """Store independent draws as if they were chains on the digits."""
    net = cb.networks.mlp(784, [2], 10)
    generator = torch.Generator().manual_seed(0)
    stacked = {
        name: torch.randn(chains * draws, *p.shape, generator=generator) / 28 for name, p in net.named_parameters()
    }
    if stuck:
        stacked = {name: tensor[::draws].repeat_interleave(draws, 0) for name, tensor in stacked.items()}
    history = [{"loss": 1.0}, {"loss": 0.5}]
    metadata = {"algorithm": "HMC", "dataset": "digits", "history": history, "chains": chains, **metadata}
    cb.Samples(net, stacked, metadata={k: v for k, v in metadata.items() if v is not None}).save(path)
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return saved_run(tmp_path_factory.mktemp("info") / "run", sampler=HMC)


def test_json_holds_sampler_and_diagnostics(run, monkeypatch):
    monkeypatch.undo()
    record = json.loads(invoke("info", run, "--json").stdout)
    assert record["sampler"] == HMC
    figures = record["diagnostics"]
    assert (figures["dataset"], figures["points"], figures["chains"], figures["draws"]) == ("digits", 200, 4, 8)
    assert figures["predictions"]["count"] == 2000 and figures["weights"]["count"] == 1000
    assert figures["predictions"]["stuck"] == 0
    assert "history" not in record and record["final epoch"] == {"loss": 0.5}


def test_json_agrees_with_the_library(run):
    figures = json.loads(invoke("info", run, "--json").stdout)["diagnostics"]
    expected = diagnose(cb.load(run), cb.data.load("digits").test.inputs[:20], weights=WEIGHTS).summary()
    assert {key: figures[key] for key in expected} == expected


def test_people_see_tables_and_a_verdict(run):
    page = invoke("info", run).output
    for words in (
        "acceptance",
        "0.8125",
        "step size",
        "0.0125",
        "4 chains, 8 draws each",
        "R-hat",
        "ESS",
        f"0 of {WEIGHTS}",
    ):
        assert words in page
    assert "too few draws to tell" in page
    assert "{" not in page


def test_divergences_are_red(tmp_path, monkeypatch):
    def page(divergences):
        out = saved_run(tmp_path / str(divergences), 2, 4, sampler={**HMC, "divergences": divergences})
        recording = Console(force_terminal=True, color_system="standard", width=120)
        monkeypatch.setattr(info, "console", recording)
        with recording.capture() as capture:
            info.info_command(out)
        return next(line for line in capture.get().splitlines() if "divergences" in line)

    assert "\x1b[1;31m7" in page(7)
    assert "31m" not in page(0)


def test_stuck_chains_are_reported_in_strict_json(tmp_path):
    run = saved_run(tmp_path, stuck=True, sampler=HMC)

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    figures = json.loads(invoke("info", run, "--json").stdout, parse_constant=refuse)["diagnostics"]
    assert figures["predictions"]["rhat_max"] == "inf" and figures["predictions"]["ess_min"] == 0
    assert figures["predictions"]["stuck"] == 200 and not figures["passed"]
    page = invoke("info", run).output
    assert "∞" in page and "chains are stuck" in page


def test_sghmc_has_one_chain_and_fewer_figures(tmp_path):
    run = saved_run(tmp_path, 1, 12, sampler={"proposed": 12, "step_size": 1e-5})
    page = invoke("info", run).output
    assert "1 chain, 12 draws each" in page and "1e-05" in page
    assert "acceptance" not in page and "divergences" not in page


def test_two_draws_are_too_few(tmp_path):
    page = invoke("info", saved_run(tmp_path, 4, 2)).output
    assert "unknown" in page and "nothing can be said" in page


def test_missing_data_leaves_the_rest_and_names_the_command(tmp_path):
    run = saved_run(tmp_path / "run", dataset="mnist", sampler=HMC)
    result = invoke("info", run, "--data-dir", tmp_path)
    assert result.exit_code == 0
    assert "certibayes data get mnist" in result.output and "0.8125" in result.output
    record = json.loads(invoke("info", run, "--data-dir", tmp_path, "--json").stdout)
    assert "certibayes data get mnist" in record["diagnostics"]["missing"]
    assert record["sampler"] == HMC


def test_a_run_that_names_no_data_leaves_the_rest(tmp_path):
    result = invoke("info", saved_run(tmp_path, dataset=None, sampler=HMC))
    assert result.exit_code == 0
    assert "0.8125" in result.output and "which data" in result.output


def test_missing_arviz_leaves_the_rest_and_names_the_extra(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz_stats.base", None)
    result = invoke("info", run)
    assert result.exit_code == 0
    assert 'pip install "certibayes[diagnostics]"' in result.output and "0.8125" in result.output


def test_samples_that_are_no_chains_look_as_before(tmp_path):
    posterior = cb.Samples.from_modules([cb.networks.mlp(784, [2], 10, seed=seed) for seed in range(3)])
    posterior.metadata.update(algorithm="Ensemble", dataset="digits")
    posterior.save(tmp_path)
    record = json.loads(invoke("info", tmp_path, "--json").stdout)
    assert list(record) == ["posterior", "parameters", "network", "algorithm", "dataset", "versions", "final epoch"]
    page = invoke("info", tmp_path).output
    assert len(page.splitlines()) == len(record) + len(record["versions"])
    assert "R-hat" not in page


def test_nested_settings_are_indented_under_the_name_of_what_they_belong_to(tmp_path):
    likelihood = {
        "name": "RobustCategorical",
        "p_eps": {"name": "TwoPoint", "eta": 0.11000000000000001, "lam": 0.25},
        "domain": [0.0, 1.0],
        "ramp": None,
    }
    digest = "b1e3da426c2f4bdd02e87ee53dc846fed78494c560c38e2abfa7d175566c4b94"
    run = saved_run(tmp_path, 2, 4, likelihood=likelihood, data={"sha256": digest}, dataset=None)
    rows = [row.rstrip() for row in invoke("info", run).output.splitlines()]
    first = next(number for number, row in enumerate(rows) if row.startswith("likelihood"))
    names = [row.split() for row in rows[first : first + 6]]
    assert names == [
        ["likelihood", "RobustCategorical"],
        ["p_eps", "TwoPoint"],
        ["eta", "0.11"],
        ["lam", "0.25"],
        ["domain", "0,", "1"],
        ["ramp", "none"],
    ]
    indents = [len(row) - len(row.lstrip()) for row in rows[first : first + 6]]
    assert indents == [0, 2, 4, 4, 2, 2]
    assert ["sha256", "b1e3da426c2f4bdd…"] in [row.split() for row in rows]
    assert json.loads(invoke("info", run, "--json").stdout)["data"]["sha256"] == digest


def test_a_learned_prior_has_a_line(tmp_path):
    net, train = cb.networks.mlp(4, [3], 2), (torch.rand(20, 4), torch.arange(20) % 2)
    cb.fit(net, train, algorithm=cb.BBB(), prior=cb.LearnedPrior(), epochs=1, progress=False).save(tmp_path)
    found = invoke("info", tmp_path)
    assert found.exit_code == 0
    assert "learned: 9 variances, from" in " ".join(found.output.split())
    assert "LearnedPrior" in repr(json.loads(invoke("info", tmp_path, "--json").output)["prior"])
    assert "learned: 9 variances" in repr(cb.load(tmp_path))


def test_the_evidence_of_a_run(tmp_path):
    """Under its own likelihood and the standard one, of the digits that were not held out."""
    train = ["train", "--algorithm", "laplace", "--hidden", 4, "--epochs", 1, "--validation", 0.95, "--out", tmp_path]
    assert invoke(*train).exit_code == 0
    found = json.loads(invoke("info", tmp_path, "--evidence", "--json").stdout)["evidence"]
    posterior, digits = cb.load(tmp_path), cb.data.load("digits")
    expected = cb.elbo(posterior, cb.inference.held_out(digits.train, 0.95, 0)[0])
    assert found["own likelihood"]["elbo"] == pytest.approx(expected.elbo, abs=1e-9)
    assert found["examples"] == expected.examples == 500 and found["random weights"] == 50
    assert found["standard likelihood"]["elbo"] > found["own likelihood"]["elbo"]
    assert "standard likelihood" in invoke("info", tmp_path, "--evidence").stdout
    without = invoke("info", "--evidence")
    assert without.exit_code != 0 and "info RUN --evidence" in without.output
