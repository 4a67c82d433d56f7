"""What uncertainty is worth: rows join figures of other functions, and the order of what must be in order holds."""

import math

import pytest
import torch

import certibayes as cb
from certibayes.certification import abstains, max_confidence
from certibayes.errors import InvalidInput
from certibayes.experiments import worth_markdown, worth_of_uncertainty
from certibayes.experiments.out_of_distribution import load_out_of_distribution
from certibayes.experiments.tables import rows_csv

EPS, LIMIT = 0.02, 60


@pytest.fixture(scope="module")
def case():
    dataset = cb.data.load("digits")
    runs = [{"net": cb.networks.mlp(784, [8], 10, seed=seed), "seed": seed} for seed in range(2)]
    parts = cb.fit_many(
        None,
        dataset,
        runs,
        algorithm=cb.NoisyAdam(lr=0.02),
        likelihood=cb.RobustCategorical(eps=EPS),
        prior=cb.LearnedPrior(),
        epochs=2,
        batch_size=500,
        temperature=1.0,
        progress=False,
    )
    posteriors = {
        "one": parts[0],
        "mixture": cb.GaussianMixture.of(*parts),
        "point": parts[0].center(),
    }
    outside = load_out_of_distribution("inverted", dataset, limit=LIMIT)
    rows = worth_of_uncertainty(
        posteriors, dataset, outside, eps=EPS, samples=4, limit=LIMIT, tau=0.9, evidence_samples=4
    )
    return dataset, posteriors, outside, rows


def test_a_row_joins_the_figures_of_others(case):
    dataset, posteriors, outside, rows = case
    row, predictor = rows[1], posteriors["mixture"].predictor(4)
    x, y = (part[:LIMIT] for part in dataset.test)
    found = cb.assess(predictor, x, y, outside)
    certificate = cb.certify(predictor, x, y, eps=EPS, domain=dataset.domain, method="theorem1")
    worst = cb.certified_scores(certificate).summary()
    beyond = cb.certify(predictor, outside, eps=EPS, domain=dataset.domain, method="theorem1")
    bound = cb.elbo(posteriors["mixture"], dataset, samples=4)
    expected = {
        "posterior": "mixture",
        "samples": 4,
        "n": LIMIT,
        "nll": found.summary()["in"]["nll"],
        "ece": found.reliability.error,
        "selective_accuracy": found.risk_coverage.accuracy_at(0.9),
        "mutual_information": float(found.inside.mutual_information.mean()),
        "auroc": found.summary()["detection"]["predictive_entropy"]["auroc"],
        "certified": certificate.certified_fraction,
        "certified_nll": worst["nll"],
        "certified_brier": worst["brier"],
        "certified_entropy_lower": worst["entropy_lower"],
        "certified_abstention": float(abstains(beyond, 0.9).double().mean()),
        "elbo": bound.elbo,
        "elbo_error": bound.standard_error,
        "models": 2,
        "elbo_standard": cb.elbo(posteriors["mixture"], dataset, samples=4, likelihood="standard").elbo,
        "elbo_missing": None,
        "temperature": 1.0,
        "digest": predictor.digest,
    }
    assert {key: row[key] for key in expected} == pytest.approx(expected, nan_ok=True)


def test_what_is_proved_is_no_better_than_what_is_seen(case):
    *_, rows = case
    for row in rows:
        assert row["certified"] <= row["accuracy"] and row["guaranteed_auroc"] <= row["auroc_confidence"] + 1e-9
        assert row["nll"] <= row["certified_nll"] and row["brier"] <= row["certified_brier"]
        assert row["certified_entropy_lower"] <= row["entropy"] <= row["certified_entropy_upper"]
        assert row["out_entropy_lower"] <= row["out_entropy"]
    assert [row["posterior"] for row in rows] == ["one", "mixture", "point"]


def test_no_change_of_an_outside_input_beats_the_guaranteed_auroc(case):
    """Whatever out-of-distribution inputs are changed to within the radius, confidence tells as many apart."""
    dataset, posteriors, outside, rows = case
    predictor = posteriors["one"].predictor(4)
    inside = 1 - cb.uncertainty(predictor, dataset.test.inputs[:LIMIT]).max_probability
    certificate = cb.certify(predictor, outside, eps=EPS, domain=dataset.domain, method="theorem1")
    generator, point = torch.Generator().manual_seed(0), outside
    for step in range(10):
        if step % 2:
            noise = torch.randn(outside.shape, generator=generator).sign()
            point = (outside + EPS * noise).clamp(0.0, 1.0)
        else:
            point = point.clone().requires_grad_(True)
            (gradient,) = torch.autograd.grad(predictor(point).amax(-1).sum(), point)
            point = torch.maximum(torch.minimum(point.detach() + EPS * gradient.sign(), outside + EPS), outside - EPS)
            point = point.clamp(0.0, 1.0)
        moved = cb.uncertainty(predictor, point).max_probability
        assert bool((moved <= max_confidence(certificate) + 1e-6).all())
        assert cb.evaluation.auroc(inside, 1 - moved) >= rows[0]["guaranteed_auroc"] - 1e-9


def test_an_elbo_that_is_missing_says_why(case):
    dataset, posteriors, outside, rows = case
    assert rows[2]["elbo"] is None and rows[2]["elbo_missing"] == "a Point has no density"
    few = tuple(part[:100] for part in dataset.train)
    (row,) = worth_of_uncertainty(
        {"one": posteriors["one"]}, dataset, outside, eps=EPS, samples=2, limit=5, train=few, evidence_samples=2
    )
    assert "inferred from" in row["elbo_missing"]
    (row,) = worth_of_uncertainty(
        {"one": posteriors["one"]}, dataset, outside, eps=EPS, samples=2, limit=5, evidence_samples=0
    )
    assert row["elbo"] is None and row["elbo_missing"] == "not asked for" and math.isfinite(row["nll"])


def test_tables(case):
    *_, rows = case
    text = worth_markdown(rows)
    assert text.count("\n") == 5 and "| mixture | 1 |" in text and "guaranteed AUROC" in text
    assert len({line.count("|") for line in text.splitlines()}) == 1
    assert rows_csv(rows).startswith("posterior,temperature,samples,n,eps,accuracy,nll")


def test_batch_norm_finds_its_statistics_and_nothing_is_refused():
    generator = torch.Generator().manual_seed(0)
    dataset = cb.data.load("digits")
    net = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(784, 6), torch.nn.BatchNorm1d(6), torch.nn.ReLU(), torch.nn.Linear(6, 10)
    )
    posterior = cb.fit(net, dataset, algorithm=cb.BBB(), epochs=1, batch_size=1000, progress=False)
    posterior.statistics.clear()
    outside = torch.rand(5, 1, 28, 28, generator=generator)
    (row,) = worth_of_uncertainty({"bn": posterior}, dataset, outside, eps=0.01, samples=2, limit=5, evidence_samples=0)
    assert row["samples"] == 2
    with pytest.raises(InvalidInput, match="no posteriors"):
        worth_of_uncertainty({}, dataset, outside, eps=0.01)
