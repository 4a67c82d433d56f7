"""Chains whose R-hat and effective sample size are known, by a network that outputs its own biases."""

import math
import sys

import numpy as np
import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.errors import MissingPackage
from certibayes.evaluation import Convergence, Diagnostics, diagnose
from certibayes.evaluation.diagnostics import _log_odds

X = torch.zeros(1, 2)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def autoregressive(rho, *shape, seed=0):
    """AR(1) chains of standard normals, (chains, draws, quantities)."""
    noise = normal(*shape, seed=seed)
    draws = [noise[:, 0]]
    for t in range(1, shape[1]):
        draws.append(rho * draws[-1] + math.sqrt(1 - rho**2) * noise[:, t])
    return torch.stack(draws, 1)


def posterior(outputs, task="regression", **metadata):
    """Chains of networks whose outputs, whatever the input, are the given ones: (chains, draws, outputs)."""
    chains, _, count = outputs.shape
    bias = outputs.reshape(-1, count)
    weight = normal(*bias.shape, 2, seed=99)
    metadata = {"task": task, "chains": chains, **metadata}
    return cb.Samples(nn.Linear(2, count, dtype=torch.float64), {"weight": weight, "bias": bias}, metadata=metadata)


def diagnosed(outputs, task="regression", **settings):
    return diagnose(posterior(outputs, task), X.double(), **settings)


def test_independent_draws_have_rhat_one_and_count_fully():
    found = diagnosed(normal(4, 1000, 20))
    assert (found.chains, found.draws) == (4, 1000)
    assert found.predictions.rhat.shape == (1, 20)
    assert found.weights.rhat.shape == (60,)
    for part in (found.predictions, found.weights):
        assert float(part.rhat.min()) > 0.999 and float(part.rhat.max()) < 1.01
        assert float(part.ess.median()) == pytest.approx(4000, rel=0.05)
        assert not part.stuck.any()
    assert found.passed and "no sign of trouble" in found.verdict


def test_chains_at_different_places_have_a_large_rhat():
    shift = 10.0 * torch.arange(4.0)[:, None, None]
    found = diagnosed(normal(4, 200, 5) + shift)
    assert float(found.predictions.rhat.min()) > 2.5
    assert float(found.predictions.ess.max()) < 10
    assert not found.passed
    assert found.verdict.startswith("chains have not mixed: R-hat of predictions reaches")
    # Of the weights, only the biases are apart.
    assert int((found.weights.rhat > 2.5).sum()) == 5


def test_chains_of_different_variance_are_found_by_the_folded_rhat():
    std = torch.tensor([1.0, 1.0, 1.0, 20.0])[:, None, None]
    assert float(diagnosed(normal(4, 200, 5) * std).predictions.rhat.min()) > 1.2


@pytest.mark.parametrize("rho", [-0.3, 0.5, 0.9])
def test_autoregressive_chains_have_the_effective_sample_size_of_theory(rho):
    draws = 4000
    found = diagnosed(autoregressive(rho, 4, draws, 10), weights=1)
    assert float(found.predictions.ess.mean()) == pytest.approx(4 * draws * (1 - rho) / (1 + rho), rel=0.15)


def test_samples_are_read_chain_by_chain():
    shift = 10.0 * torch.arange(4.0)[:, None, None]
    apart = normal(4, 200, 5) + shift
    shuffled = apart.reshape(800, 5)[torch.randperm(800, generator=torch.Generator().manual_seed(0))].reshape(4, 200, 5)
    draw_by_draw = apart.transpose(0, 1).reshape(4, 200, 5)
    assert float(diagnosed(apart).predictions.rhat.min()) > 2.5
    assert float(diagnosed(shuffled).predictions.rhat.max()) < 1.05
    assert float(diagnosed(draw_by_draw).predictions.rhat.max()) < 1.05


def test_figures_agree_with_the_formulas_of_the_paper():
    """Split, rank-normalize, and take the larger of the bulk and folded R-hat, by hand."""
    from scipy.stats import norm, rankdata

    series = autoregressive(0.8, 3, 100, 1)

    def rhat(sequences):
        z = norm.ppf((rankdata(sequences).reshape(sequences.shape) - 3 / 8) / (sequences.size + 1 / 4))
        n = z.shape[1]
        within, between = z.var(1, ddof=1).mean(), n * z.mean(1).var(ddof=1)
        return math.sqrt(((n - 1) / n * within + between / n) / within)

    halves = series[..., 0].numpy().reshape(6, 50)
    expected = max(rhat(halves), rhat(np.abs(halves - np.median(halves))))
    assert float(diagnosed(series).predictions.rhat[0, 0]) == pytest.approx(expected, rel=1e-12)


def test_a_chain_that_stands_still_among_others_is_infinitely_bad():
    outputs = normal(4, 100, 5)
    outputs[2] = outputs[2, 0]
    found = diagnosed(outputs)
    assert found.predictions.rhat.eq(math.inf).all()
    assert found.predictions.ess.eq(0).all()
    assert found.predictions.stuck.all()
    assert int(found.weights.stuck.sum()) == 5
    assert not found.passed and "5 of 5 predictions never change along some chain" in found.verdict
    assert found.summary()["predictions"]["rhat_max"] == math.inf


def test_chains_that_all_stand_still_at_different_places():
    found = diagnosed(normal(4, 1, 5).expand(4, 100, 5))
    assert found.predictions.rhat.eq(math.inf).all() and found.predictions.ess.eq(0).all()


@pytest.mark.parametrize("chains", [1, 4])
def test_of_draws_that_are_all_the_same_nothing_can_be_said(chains):
    found = diagnosed(torch.ones(chains, 100, 5, dtype=torch.float64))
    assert found.predictions.rhat.isnan().all() and found.predictions.ess.isnan().all()
    assert found.predictions.stuck.all()
    assert not found.passed and "stuck" in found.verdict
    figures = found.summary()["predictions"]
    assert figures["rhat_max"] is None and figures["ess_min"] is None and figures["stuck"] == 5


def test_a_frozen_weight_is_counted_and_does_not_hide_the_others():
    outputs = normal(4, 500, 5)
    outputs[..., 3] = 0.25
    figures = diagnosed(outputs).summary()["weights"]
    assert figures["stuck"] == 1
    assert figures["count"] == 15
    assert 1.0 < figures["rhat_max"] < 1.02


@pytest.mark.parametrize(("chains", "draws", "moves"), [(2, 17, [8]), (1, 17, [8]), (1, 10, [2, 7])])
def test_a_move_in_the_middle_of_a_sequence_is_not_overlooked(chains, draws, moves):
    """ArviZ leaves out the middle one of an odd number of draws, and then counts the identical rest as independent."""
    outputs = torch.zeros(chains, draws, 2, dtype=torch.float64)
    outputs[:, moves] = 1.0
    found = diagnosed(outputs)
    assert not found.predictions.stuck.any()
    assert found.predictions.rhat.isfinite().all()


def test_draws_that_change_once_have_an_infinite_rhat():
    outputs = torch.zeros(2, 20, 2, dtype=torch.float64)
    outputs[:, 10:] = 1.0
    found = diagnosed(outputs)
    assert found.predictions.rhat.eq(math.inf).all()
    assert float(found.predictions.ess.max()) < 10
    assert not found.passed


def test_one_chain_is_compared_with_itself():
    settled = diagnosed(normal(1, 2000, 5))
    assert float(settled.predictions.rhat.max()) < 1.01
    assert settled.passed and "one chain cannot show" in settled.verdict
    drifting = diagnosed(normal(1, 2000, 5) + torch.linspace(0, 10, 2000)[:, None])
    assert float(drifting.predictions.rhat.min()) > 1.5
    assert drifting.verdict.startswith("the chain has not mixed")


@pytest.mark.parametrize(("chains", "draws"), [(4, 1), (4, 2), (4, 3), (1, 1), (1, 3), (1, 7)])
def test_too_few_draws_tell_nothing(chains, draws):
    found = diagnosed(normal(chains, draws, 5))
    assert found.predictions.rhat.isnan().all()
    assert not found.predictions.stuck.any()
    assert not found.passed and "nothing can be said" in found.verdict and f"there are {draws}" in found.verdict
    assert found.summary()["predictions"]["rhat_max"] is None


@pytest.mark.parametrize(("chains", "draws"), [(2, 4), (4, 5), (1, 8), (1, 9)])
def test_the_fewest_draws_that_tell_something(chains, draws):
    found = diagnosed(normal(chains, draws, 5))
    assert found.predictions.rhat.isfinite().all() and found.predictions.ess.isfinite().all()


@pytest.mark.parametrize(("chains", "draws"), [(4, 20), (4, 100), (1, 100)])
def test_the_verdict_does_not_mistake_chance_for_bad_mixing(chains, draws):
    """The largest of a hundred R-hats exceeds 1.01 even if all draws are independent, if they are few."""
    found = [diagnosed(normal(chains, draws, 100, seed=seed), weights=10) for seed in range(3)]
    assert all(float(each.predictions.rhat.max()) > 1.01 for each in found)
    assert all("too few draws to tell" in each.verdict for each in found)


def test_chance_is_what_independent_draws_reach():
    """In about 99 of 100 experiments no R-hat exceeds it."""
    experiments = diagnosed(normal(4, 60, 100 * 10), weights=1).predictions.rhat.reshape(100, 10).amax(1)
    chance = diagnosed(normal(4, 60, 10)).chance
    assert float((experiments <= chance).double().mean()) >= 0.96
    assert float((experiments <= 1 + (chance - 1) / 2).double().mean()) < 0.8


def test_few_effective_draws_are_reported_even_if_rhat_is_fine():
    slow = Convergence(torch.tensor([1.001, 1.005]), torch.tensor([500.0, 120.0]), torch.zeros(2, dtype=torch.bool))
    verdict = Diagnostics(4, 20000, slow, slow).verdict
    assert "too few effective draws: some prediction rests on 120, and 400 is the usual bar" in verdict


def test_classification_follows_log_odds_that_do_not_saturate():
    """Probabilities are 1 and 0 in float64, but the networks behind them are not the same."""
    outputs = normal(4, 300, 3) + torch.tensor([800.0, 0.0, 0.0])
    assert torch.softmax(outputs, -1)[..., 0].eq(1).all()
    found = diagnosed(outputs, "classification")
    assert not found.predictions.stuck.any()
    assert float(found.predictions.rhat.max()) < 1.05


def test_log_odds_are_those_of_the_softmax():
    logits = normal(7, 4)
    p = torch.softmax(logits, -1)
    torch.testing.assert_close(_log_odds(logits), torch.log(p / (1 - p)))


def test_shifting_all_logits_changes_no_prediction():
    """Chains may differ in weights and still agree in every probability."""
    shift = 10.0 * torch.arange(4.0)[:, None, None]
    found = diagnosed(normal(4, 1000, 3) + shift, "classification")
    assert float(found.predictions.rhat.max()) < 1.01
    assert float(found.weights.rhat.max()) > 2.5


def test_weights_are_picked_by_the_seed():
    chains = posterior(normal(2, 10, 20))
    first, again, other = (diagnose(chains, X, weights=30, seed=seed).weights.rhat for seed in (0, 0, 1))
    assert first.shape == (30,)
    assert first.equal(again) and not first.equal(other)
    assert diagnose(chains, X, weights=10_000).weights.rhat.shape == (60,)


def test_batches_of_inputs_are_put_together_in_order():
    x = torch.rand(501, 2, generator=torch.Generator().manual_seed(0))
    chains = posterior(normal(2, 8, 1))
    whole, last = diagnose(chains, x), diagnose(chains, x[500:])
    assert whole.predictions.rhat.shape == (501, 1)
    torch.testing.assert_close(whole.predictions.rhat[500:], last.predictions.rhat)


def test_summary_is_plain():
    import json

    figures = diagnosed(normal(2, 50, 4)).summary()
    assert json.loads(json.dumps(figures)) == figures
    predictions = figures["predictions"]
    assert predictions["rhat_median"] <= predictions["rhat_95"] <= predictions["rhat_max"]
    assert predictions["ess_min"] <= predictions["ess_median"]
    assert figures["chains"] == 2 and figures["draws"] == 50 and figures["verdict"]


def test_only_markov_chains_are_diagnosed():
    ensemble = cb.Samples.from_modules([cb.networks.mlp(2, [3], 2, seed=seed) for seed in range(4)])
    with pytest.raises(cb.CertibayesError, match="Markov chains"):
        diagnose(ensemble, X)
    with pytest.raises(cb.CertibayesError, match="Markov chains"):
        diagnose(cb.Point(cb.networks.mlp(2, [3], 2), metadata={"chains": 1}), X)


def test_what_cannot_be_used_is_refused():
    chains = posterior(normal(2, 10, 3))
    with pytest.raises(cb.CertibayesError, match="no inputs"):
        diagnose(chains, X[:0])
    with pytest.raises(cb.CertibayesError, match="NaN"):
        diagnose(chains, X * math.nan)
    with pytest.raises(cb.CertibayesError, match="weights"):
        diagnose(chains, X, weights=0)
    with pytest.raises(cb.CertibayesError, match="equal length"):
        diagnose(posterior(normal(2, 10, 3), chains=3), X)
    with pytest.raises(cb.CertibayesError, match="chains"):
        diagnose(posterior(normal(2, 10, 3), chains=0), X)


def test_without_arviz_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz_stats.base", None)
    with pytest.raises(MissingPackage, match=r'pip install "certibayes\[diagnostics\]"'):
        diagnosed(normal(2, 10, 3))


def test_reprs_are_a_few_lines():
    found = diagnosed(normal(2, 40, 3))
    figures = found.summary()["predictions"]
    part = f"3 quantities, largest R-hat {figures['rhat_max']:.3f}, smallest ESS {figures['ess_min']:.0f}, 0 stuck"
    assert repr(found).splitlines() == [
        "Diagnostics(2 chains of 40 draws)",
        f"  predictions: Convergence({part})",
        f"  weights:     {found.weights!r}",
        f"  verdict:     {found.verdict}",
    ]
    assert repr(diagnosed(torch.ones(1, 3, 2, dtype=torch.float64)).predictions) == "Convergence(2 quantities, 2 stuck)"
