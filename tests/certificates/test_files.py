"""Results go to files and come back; a file that was changed does not."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.certificates import Abstention, Provenance, RegressionCertificate, read_record
from certibayes.certificates import _names as names
from certibayes.certification import BOUNDS, INTERMEDIATES, METHODS
from certibayes.checker import check_certificate
from certibayes.errors import CorruptFile

DOMAIN = (0.0, 1.0)


def _predictor():
    torch.manual_seed(0)
    return cb.Samples.from_modules([nn.Linear(3, 4) for _ in range(3)]).predictor(3)


def _certificate(count=8, **settings):
    x = torch.rand(count, 3, generator=torch.Generator().manual_seed(1))
    return cb.certify(_predictor(), x, **{"eps": 0.125, "domain": DOMAIN, **settings})


def _regression(**settings):
    torch.manual_seed(0)
    predictor = cb.Point(nn.Linear(3, 2), metadata={"task": "regression"}).predictor()
    return cb.certify_regression(predictor, torch.rand(5, 3), **{"eps": 0.1, "tolerance": 0.2, **settings})


RESULTS = {
    "certificate": lambda: _certificate(),
    "no domain": lambda: _certificate(domain=None, rounding="ideal"),
    "no points": lambda: _certificate(0),
    "radii of points": lambda: _certificate(eps=torch.linspace(0, 0.3, 8)),
    "radii of values": lambda: _certificate(eps=torch.tensor([[0.1, 0.0, 0.2]])),
    "three answers": lambda: _certificate(eps=0.4, method=cb.Best(budget=0.5)),
    "nothing attacked": lambda: _certificate(eps=1e-6, method=cb.Best(budget=0.5)),
    "reasons": lambda: replace(
        _certificate(eps=3.0, domain=(-2.0, 3.0)), reasons={1: "its bounds overflow", 6: "its bounds overflow"}
    ),
    "seed": lambda: replace(_certificate(), provenance=replace(_certificate().provenance, seed=3)),
    "radius": lambda: cb.certified_radius(_predictor(), torch.rand(6, 3), tolerance=0.05, domain=DOMAIN),
    "radius up to the largest": lambda: cb.certified_radius(_predictor(), torch.rand(6, 3), largest=1e-3),
    "regression": lambda: _regression(),
    "regression without tolerance": lambda: _regression(tolerance=None, eps=torch.rand(5)),
    "regression to targets": lambda: _regression(y=torch.zeros(5, 2), method=cb.Theorem1("crown")),
    "abstention": lambda: cb.certify_abstention(_certificate(), 0.5),
}


@pytest.mark.parametrize("what", RESULTS)
def test_what_is_saved_comes_back(what, tmp_path):
    result = RESULTS[what]()
    result.save(tmp_path / "certificate.json")
    for path in (tmp_path, tmp_path / "certificate.json", str(tmp_path)):
        again = cb.load_certificate(path)
        assert type(again) is type(result) and again.to_json() == result.to_json()
        assert again == result and hash(again) == hash(result)
        assert again.statement == result.statement and len(again) == len(result)


def test_what_comes_back_can_be_used():
    result = _certificate(eps=0.4, method=cb.Best(budget=0.5))
    again = cb.Certificate.from_json(json.loads(json.dumps(result.to_json())))
    assert torch.equal(again.lower, result.lower) and torch.equal(again.unknown, result.unknown)
    assert again.certified_fraction == result.certified_fraction and again.accuracy == result.accuracy
    broken = result.attacked
    assert torch.equal(again.counterexamples[broken], result.counterexamples[broken].double())
    assert bool(again.counterexamples[~broken].isnan().all()) and bool(broken.any())
    assert repr(again) == repr(result) and again.provenance == result.provenance


KINDS = {"certificate": RESULTS["three answers"], **{k: RESULTS[k] for k in ("radius", "regression", "abstention")}}


def _other(value):
    """A value of the same kind that is not the same."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, list) and value:
        return [_other(value[0]), *value[1:]]
    if isinstance(value, dict):
        return {**value, "approved": True}
    return [value]


@pytest.mark.parametrize("kind", KINDS)
def test_most_changes_are_noticed_without_the_predictor(kind):
    """All but those of numbers that only the predictor or the points can tell from others."""
    record = json.loads(json.dumps(KINDS[kind]().to_json()))
    inner = {"labels", "predicted", "lower", "upper", "correct", "radius", "unproved", "counterexamples"}
    inner |= {"network_lower", "network_upper", "entropy_lower", "entropy_upper"}
    read = cb.certificates.files.KINDS[record["kind"]]
    for key in record.keys() - inner:
        with pytest.raises(CorruptFile):
            read({**record, key: _other(record[key])})
    for key in record:
        with pytest.raises(CorruptFile):
            read({name: value for name, value in record.items() if name != key})


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"kind": "thesis"}', '{"kind": ["certificate"]}', "\x00", "1"])
def test_what_is_no_certificate_is_refused(tmp_path, content):
    (tmp_path / "c.json").write_text(content)
    with pytest.raises(CorruptFile):
        cb.load_certificate(tmp_path / "c.json")


def test_a_missing_file_is_reported(tmp_path):
    for read in (cb.load_certificate, read_record):
        with pytest.raises(FileNotFoundError, match="no certificate"):
            read(tmp_path)


def test_an_earlier_file_survives_a_result_that_cannot_be_written(tmp_path):
    result = _certificate()
    result.save(tmp_path / "c.json")
    before = (tmp_path / "c.json").read_bytes()
    with pytest.raises(ValueError, match="JSON"):
        replace(result, lower=torch.full_like(result.lower, torch.nan)).save(tmp_path / "c.json")
    assert (tmp_path / "c.json").read_bytes() == before


def test_the_names_are_those_that_certify_knows():
    assert tuple(BOUNDS) == names.BOUNDS and tuple(METHODS) == names.METHODS
    assert tuple(INTERMEDIATES) == names.INTERMEDIATES and cb.__version__ in names.VERSIONS


def test_all_results_have_one_provenance():
    for what in ("certificate", "radius", "regression"):
        result = RESULTS[what]()
        origin = result.provenance
        assert isinstance(origin, Provenance) and origin.device == "cpu" and origin.seed is None
        for name in ("digest", "inputs_digest", "samples", "device", "dtype", "version", "seed"):
            assert getattr(result, name) == getattr(origin, name)
        assert result.bounds == origin.settings["bounds"]
    assert isinstance(RESULTS["abstention"](), Abstention) and isinstance(_regression(), RegressionCertificate)


# Domains that differ by input value


def _by_value(leading):
    low = torch.tensor([0.0, -1.0, 0.25], dtype=torch.float64).expand(leading, 3).clone()
    return low, low + torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)


@pytest.mark.parametrize("leading", [1, 8])
def test_a_domain_may_differ_by_input_value(leading):
    """One that is the same for all features is written in both ways."""
    predictor, x = _predictor(), torch.rand(8, 3, generator=torch.Generator().manual_seed(1))
    plain = _certificate(eps=0.01)
    same = tuple(torch.full((leading, 3), end, dtype=torch.float64) for end in DOMAIN)
    by_feature = replace(plain, domain=same)
    assert "values in the domain given for each feature (from 0.0 to 1.0)" in by_feature.statement
    again = cb.Certificate.from_json(json.loads(json.dumps(by_feature.to_json())))
    assert all(torch.equal(a, b) for a, b in zip(again.domain, same, strict=True))
    expected, found = (check_certificate(one, predictor, x) for one in (plain, by_feature))
    assert found.holds and torch.equal(found.confirmed, expected.confirmed) and found.confirmed.any()
    outside = replace(plain, domain=_by_value(leading))
    assert "(from -1.0 to 1.0)" in outside.statement
    assert "outside the domain" in check_certificate(outside, predictor, x).problems[0]


@pytest.mark.parametrize("domain", [(0.0, torch.inf), (-torch.inf, 1.0), "features", "points"])
def test_a_domain_may_have_no_end(domain):
    if isinstance(domain, str):
        low = torch.tensor([[0.0, -torch.inf, 0.0]], dtype=torch.float64)
        domain = low, torch.full((1 if domain == "features" else 8, 3), torch.inf, dtype=torch.float64)
    predictor, x = _predictor(), torch.rand(8, 3, generator=torch.Generator().manual_seed(1))
    certificate = cb.certify(predictor, x, eps=0.01, domain=domain)
    record = json.loads(json.dumps(certificate.to_json(), allow_nan=False))
    again = cb.Certificate.from_json(record)
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(again.domain, domain, strict=True))
    assert check_certificate(record, predictor, x).holds_strictly


@pytest.mark.parametrize(
    "domain",
    [
        [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]],
        [[[0.0] * 3] * 2, [[1.0] * 3] * 2],
        [[[0.0] * 3], [[1.0] * 2]],
        [[[0.5] * 3], [[0.0] * 3]],
        [1.0, 0.0],
        [[[0.0] * 3], 1.0],
        [[["0"] * 3], [["1"] * 3]],
    ],
)
def test_domains_that_fit_nothing_are_refused(domain):
    with pytest.raises(CorruptFile, match="domain"):
        cb.Certificate.from_json({**_certificate().to_json(), "domain": domain})


def test_records_that_say_different_things_are_not_equal():
    one = _certificate()
    assert one != _certificate(eps=0.25) and one != replace(one, certified=~one.certified)
    assert one != one.to_json() and one != _regression()
