"""A certificate says in words and in JSON what was proved, no more."""

import json
import math

import pytest
import torch
from torch import nn

import certibayes as cb


def _certificate(**settings):
    torch.manual_seed(0)
    nets = [nn.Linear(3, 4) for _ in range(5)]
    predictor = cb.Samples.from_modules(nets).predictor(5)
    return cb.certify(predictor, torch.rand(6, 3), **{"eps": 0.125, "domain": (0.0, 1.0), **settings}), predictor


def test_the_statement_names_everything():
    certificate, predictor = _certificate(method="theorem1")
    statement = certificate.statement
    for word in ("0.125", "[0, 1]", "5 fixed weight samples", "theorem1", "ibp", "float32", "l-infinity"):
        assert word in statement
    assert predictor.digest[:16] in statement
    assert "no TF32" in statement


def test_ideal_rounding_is_admitted():
    certificate, _ = _certificate(rounding="ideal", method="pairwise", domain=None)
    assert "exact arithmetic" in certificate.statement
    assert "not accounted for" in certificate.statement
    assert "pairwise" in certificate.statement
    assert "with values in" not in certificate.statement


@pytest.mark.parametrize("eps", [1 / 255, 8 / 255, 0.0999999999, 0.1, 1e-7])
def test_the_stated_radius_is_not_larger_than_the_proved_one(eps):
    certificate, _ = _certificate(eps=eps)
    stated = certificate.statement.split("distance ")[1].split(" of it")[0]
    assert float(stated) <= eps


def test_intermediates_are_named_where_they_are_not_intervals():
    plain, _ = _certificate(method=cb.Theorem1("crown"))
    tighter, _ = _certificate(method=cb.Theorem1("crown", "crown"))
    assert "Proved by crown bounds and the method theorem1" in plain.statement
    assert "Proved by crown bounds with crown intermediates and the method theorem1" in tighter.statement
    assert [one.to_json()["provenance"]["settings"]["intermediates"] for one in (plain, tighter)] == ["ibp", "crown"]


def test_intermediates_without_linear_bounds_are_refused():
    with pytest.raises(cb.errors.InvalidInput, match="linear bounds"):
        cb.Theorem1(intermediates="crown")


def test_json():
    certificate, predictor = _certificate()
    record = json.loads(json.dumps(certificate.to_json(), allow_nan=False))
    origin = record["provenance"]
    assert origin["digest"] == predictor.digest
    assert record["norm"] == "linf" and record["eps"] == 0.125 and record["domain"] == [0.0, 1.0]
    assert origin["samples"] == 5 and record["rounding"] == "outward" and origin["dtype"] == "float32"
    assert record["statement"] == certificate.statement
    assert len(record["certified"]) == len(record["labels"]) == len(record["predicted"]) == 6
    assert all(len(row) == 4 for row in record["lower"])
    assert origin["version"] == cb.__version__


def test_summary():
    certificate, _ = _certificate()
    assert len(certificate) == 6
    assert "6 points certified at eps=0.125" in repr(certificate)
    assert math.isclose(certificate.certified_fraction, float(certificate.certified.double().mean()))
    assert bool((certificate.lower >= 0).all() and (certificate.lower <= certificate.upper).all())
    assert certificate.lower.dtype == certificate.upper.dtype == torch.float64
