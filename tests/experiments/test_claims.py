"""The paper's claim: what confirms it, what refutes it, and that the words agree with the verdict."""

import pytest

from certibayes.experiments.claims import claims_markdown, decide_claim


def figures(out, inside=0.1, confidence=0.95, auroc=0.9, error=0.01, out_mean=None):
    means = {"expected_entropy_se": error, "predictive_entropy_se": error}
    return {
        "in": {"expected_entropy": inside, "max_probability": confidence},
        "out": {"expected_entropy": out, "predictive_entropy": out if out_mean is None else out_mean, **means},
        "detection": {"expected_entropy": {"auroc": auroc}},
    }


def decide(standard, robust, dataset="mnist"):
    return decide_claim("swag", 1.0, 0, standard, robust, dataset, "fashion-mnist")


@pytest.mark.parametrize(
    ("rise", "confidence", "confirmed"),
    [
        (0.5, 0.95, True),
        (-0.5, 0.95, False),
        (0.0, 0.95, False),
        (0.028, 0.95, False),  # 2 sqrt(0.01² + 0.01²) = 0.02828
        (0.029, 0.95, True),
        (0.5, 0.9, True),
        (0.5, 0.89, False),
    ],
)
def test_more_uncertainty_outside_and_confidence_inside(rise, confidence, confirmed):
    claim = decide(figures(0.5, confidence=0.99), figures(0.5 + rise, confidence=confidence))
    assert claim.confirmed is confirmed
    assert ("not confirmed" in claim.sentence) is not confirmed
    assert "from 0.500 to" in claim.sentence


def test_the_two_entropies_are_decided_separately():
    claim = decide(figures(0.5, out_mean=0.9), figures(0.8, out_mean=0.7))
    assert (claim.confirmed, claim.confirmed_predictive) == (True, False)


def test_detection_is_another_question():
    assert decide(figures(0.5, auroc=0.9), figures(0.8, auroc=0.8)).confirmed
    assert decide(figures(0.5, auroc=0.9), figures(0.8, auroc=0.8)).separates is False
    assert decide(figures(0.5, auroc=0.8), figures(0.8, auroc=0.9)).separates is True


def test_confidence_on_cifar_is_not_claimed():
    pair = figures(0.5), figures(0.8, confidence=0.5)
    assert not decide(*pair).confirmed
    claim = decide(*pair, dataset="cifar10")
    assert claim.confirmed and "wanted" not in claim.sentence
    assert "(2)" not in claims_markdown([claim], "cifar10", "svhn")


def test_a_run_that_diverged_is_not_decided():
    claim = decide(figures(0.5), {"diverged": "too fast"})
    assert claim.confirmed is None and "robust run diverged" in claim.sentence
    assert "| swag | 1 | 0 | diverged | diverged | diverged |" in claims_markdown([claim], "mnist", "fashion-mnist")


def test_the_page_states_criterion_verdicts_and_sentences():
    page = claims_markdown([decide(figures(0.5), figures(0.9))], "mnist", "fashion-mnist")
    assert "more than 2 standard errors" in page and "at least 0.9" in page
    assert "| swag | 1 | 0 | confirmed | confirmed | no |" in page
    assert "- swag, temperature 1: confirmed." in page
