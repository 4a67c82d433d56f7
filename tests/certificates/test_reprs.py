"""What is shown of a result is a line or two, with what matters in it, however many points there are."""

import pytest
import torch

import certibayes as cb

from ..linear_cases import BALL, POSTERIOR, PREDICTOR, REGRESSOR

X = torch.rand(200, 3, generator=torch.Generator().manual_seed(0))
Y = PREDICTOR.predict(X)
CERTIFICATE = cb.certify(PREDICTOR, X, **BALL)
COUNT = int(CERTIFICATE.certified.sum())
ROBUST = cb.robust_probability(POSTERIOR, X, Y, samples=3, norm="l2", **BALL)
PREDICTIVE = cb.posterior_predictive_bounds(POSTERIOR, X, Y, samples=5, joint=True, **BALL)

SHOWN = {
    "Certificate": (CERTIFICATE, [f"{COUNT} of 200 points certified at eps=0.1", "crown", "auto", "outward"]),
    "Radius": (cb.certified_radius(PREDICTOR, X, tolerance=0.1, norm="l1"), ["mean", "median", "in l1", "200 points"]),
    "RegressionCertificate": (
        cb.certify_regression(REGRESSOR, X, tolerance=9.0, **BALL),
        ["200 of 200 points certified up to 9 at eps=0.1", "crown", "outward"],
    ),
    "Abstention": (
        cb.certify_abstention(CERTIFICATE, 1.0),
        ["200 of 200 points abstain", "confidence 1", "eps=0.1"],
    ),
    "Provenance": (CERTIFICATE.provenance, [CERTIFICATE.digest[:12], "1 samples", "float32", "method=auto"]),
    "RobustProbability": (ROBUST, ["200 points", "at least", "3 draws", "confidence 0.99 for each point", "0.1 in l2"]),
    "PredictiveBounds": (PREDICTIVE, ["of 200 points certified", "5 draws", "for all points jointly", "bernstein"]),
    "FreshPredictorBounds": (PREDICTIVE.fresh_predictor(35), ["for 35 fresh samples with confidence 0.99", "5 draws"]),
    "Trial": (ROBUST.trial, ["DiagonalGaussian posterior", "200 points", "3 draws", "clopper-pearson"]),
    "Check": (
        cb.check_certificate(CERTIFICATE, PREDICTOR, X),
        ["holds", f"of {COUNT} certified points", "0 claims refuted", "0 contradictions"],
    ),
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_result_is_shown_in_a_few_words(name):
    result, words = SHOWN[name]
    shown = repr(result)
    assert shown.startswith(f"{name}(") and len(shown) < 250 and "tensor(" not in shown
    assert all(word in shown for word in words), shown


def test_methods_show_their_settings():
    assert repr(cb.Best(bounds="crown", budget=60)) == "Best(bounds='crown', intermediates='auto', budget=60)"


def test_a_check_that_could_not_be_made_says_why():
    shown = repr(cb.check_certificate(CERTIFICATE, PREDICTOR, X + 1.0))
    assert "not checked" in shown and "other points" in shown


def test_radii_that_differ_are_not_listed():
    certificate = cb.certify(PREDICTOR, X, eps=torch.full((200,), 0.1))
    assert "certified at radii given" in repr(certificate) and "tensor" not in repr(certificate)
