"""The domain of a certificate: the predictor's own by default, and questioned where a radius is wider than it."""

import numpy as np
import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.certification import certify_in_shards
from certibayes.errors import InvalidInput

DOMAIN = (0.0, 1.0)
X = torch.rand(6, 3, generator=torch.Generator().manual_seed(0))


def _predictor(domain=None, **settings) -> cb.Predictor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3))
    predictor = cb.Point(net, **settings).predictor()
    predictor.domain = domain
    return predictor


KNOWS, KNOWS_NOTHING = _predictor(DOMAIN), _predictor()
REGRESSION = {"metadata": {"task": "regression"}}


def _certificates(predictor, directory, **domain):
    """Every kind of certificate of a predictor, by what made it."""
    regressor = _predictor(predictor.domain, **REGRESSION)
    return {
        "certify": cb.certify(predictor, X, eps=0.3, **domain),
        "shards": certify_in_shards(predictor, X, None, directory, eps=0.3, shard=4, **domain),
        "radius": cb.certified_radius(predictor, X, tolerance=0.1, **domain),
        "regression": cb.certify_regression(regressor, X, eps=0.3, **domain),
    }


def test_the_domain_of_the_predictor_is_taken_unless_one_is_stated(tmp_path):
    own, stated = (
        _certificates(KNOWS, tmp_path / "own"),
        _certificates(KNOWS_NOTHING, tmp_path / "stated", domain=DOMAIN),
    )
    for name, found in own.items():
        assert found.domain == DOMAIN and "with values in [0, 1]" in found.statement, name
        assert found.to_json() == stated[name].to_json(), name
    for name, found in _certificates(KNOWS, tmp_path / "none", domain=None).items():
        assert found.domain is None and "with values in" not in found.statement, name


def test_the_domain_shows_in_the_bounds():
    inside, everywhere = cb.certify(KNOWS, X, eps=0.3), cb.certify(KNOWS, X, eps=0.3, domain=None)
    assert float((inside.upper - inside.lower).sum()) < float((everywhere.upper - everywhere.lower).sum())
    assert torch.equal(everywhere.lower, cb.certify(KNOWS_NOTHING, X, eps=0.3).lower)


def test_what_follows_from_a_certificate_has_its_domain():
    abstention = cb.certify_abstention(cb.certify(KNOWS, X, eps=0.3), 0.9)
    assert abstention.certificate.domain == DOMAIN and "with values in [0, 1]" in abstention.statement


def test_points_outside_the_domain_of_the_predictor_are_refused_with_the_remedy():
    with pytest.raises(InvalidInput, match="pass domain=None"):
        cb.certify(KNOWS, X + 1.0, eps=0.1)
    cb.certify(KNOWS, X + 1.0, eps=0.1, domain=None)


def test_the_checker_confirms_what_the_domain_of_the_predictor_proved():
    certificate = cb.certify(KNOWS, X, eps=0.05, method="pairwise")
    assert cb.check_certificate(certificate, KNOWS_NOTHING, X).holds_strictly


# Where no domain is known


ADVICE = "if no input can leave [0, 1], domain=(0.0, 1.0)"


def test_open_points_in_the_unit_box_come_with_the_advice_to_state_it(tmp_path):
    for certificate in (
        cb.certify(KNOWS_NOTHING, X, eps=0.9),
        certify_in_shards(KNOWS_NOTHING, X, None, tmp_path, eps=0.9, shard=4),
    ):
        assert bool(certificate.open.any())
        assert ADVICE in certificate.hint and ADVICE in repr(certificate)


def test_elsewhere_there_is_no_such_advice():
    scaled = torch.cat([X, torch.full((1, 3), 1.5)])
    assert ADVICE not in cb.certify(KNOWS_NOTHING, scaled, eps=0.9).harder
    assert ADVICE not in cb.certify(KNOWS, X, eps=0.9).harder
    assert ADVICE not in cb.certify(KNOWS_NOTHING, X, eps=0.9, domain=(-5.0, 5.0)).harder
    assert not cb.certify(KNOWS_NOTHING, X, eps=0.0).hint


# Radii wider than the domain


@pytest.mark.parametrize("eps", [8, np.float32(8), torch.full((6,), 8.0), torch.full((1, 3), 8.0)], ids=type)
def test_a_radius_in_gray_levels_is_questioned(eps):
    with pytest.raises(InvalidInput, match=r"eps=8 is wider than the domain \[0, 1\].*pass eps=8/255"):
        cb.certify(KNOWS, X, eps=eps)
    cb.certify(KNOWS, X, eps=eps, domain=None)


def test_every_kind_of_certificate_asks(tmp_path):
    regressor = _predictor(DOMAIN, **REGRESSION)
    for ask in (
        lambda: certify_in_shards(KNOWS, X, None, tmp_path / "shards", eps=2.0),
        lambda: cb.certify_regression(regressor, X, eps=2.0),
    ):
        with pytest.raises(InvalidInput, match="eps=2 is wider"):
            ask()
    with pytest.raises(InvalidInput, match="largest=2 is wider"):
        cb.certified_radius(KNOWS, X, largest=2.0)
    assert not (tmp_path / "shards").exists()


def test_all_of_the_domain_is_a_region_and_other_norms_have_larger_radii():
    assert cb.certify(KNOWS, X, eps=1.0).eps == 1.0
    for norm in ("l2", "l1"):
        assert cb.certify(KNOWS, X, eps=1.5, norm=norm).norm == norm
