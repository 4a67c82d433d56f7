"""Forgers who rebuild the words: the statement agrees with the record, and what is false is found all the same."""

import copy
import itertools

import pytest
import torch

import certibayes as cb
from certibayes.checker import check_certificate
from certibayes.errors import CorruptFile

from ..strategies import few_of
from .cases import DOMAIN, points_for, provenance, record_of, restated, small_predictor

SETTINGS = {"eps": 0.12, "method": cb.Best("crown", budget=1.0)}


@pytest.fixture(scope="module")
def case():
    predictor, x = small_predictor(), points_for(count=30)
    return predictor, x, record_of(predictor, x, **SETTINGS)


def at(values, index, value):
    return [*values[:index], value, *values[index + 1 :]]


def test_a_larger_radius_or_domain(case):
    predictor, x, record = case
    assert check_certificate(restated(record, eps=0.6), predictor, x).refuted.any()
    wider = check_certificate(restated(record, domain=None, eps=0.5), predictor, x)
    assert wider.refuted.any() and not wider.contradictions
    strict = check_certificate(restated(record, eps=0.13), predictor, x)
    assert not strict.holds_strictly


def test_a_class_that_is_not_predicted(case):
    predictor, x, record = case
    index = record["certified"].index(False)
    wrong = at(record["predicted"], index, (record["predicted"][index] + 1) % 3)
    result = check_certificate(restated(record, predicted=wrong), predictor, x)
    assert result.predicted_refuted.nonzero().flatten().tolist() == [index]
    assert not result.holds and result.counts()["predicted_refuted"] == 1


def test_an_attack_that_never_was(case):
    predictor, x, record = case
    # A proof withdrawn, because whether the search leaves any point open depends on how fast the machine is.
    index = record["certified"].index(True)
    forged = restated(
        record,
        certified=at(record["certified"], index, False),
        attacked=at(record["attacked"], index, True),
        counterexamples={**record["counterexamples"], str(index): x[index].tolist()},
    )
    result = check_certificate(forged, predictor, x)
    assert result.attacked_refuted.nonzero().flatten().tolist() == [index] and not result.holds


def test_an_attack_on_a_certified_point(case):
    predictor, x, record = case
    index = record["certified"].index(True)
    other = next(iter(record["counterexamples"].values()))
    examples = {**record["counterexamples"], str(index): other}
    forged = restated(record, attacked=at(record["attacked"], index, True), counterexamples=examples)
    result = check_certificate(forged, predictor, x)
    assert "points are both certified and attacked" in result.contradictions
    assert result.attacked_refuted[index]


def test_a_counterexample_that_is_a_hair_too_far(case):
    predictor, x, record = case
    number, example = next(iter(record["counterexamples"].items()))
    point, example = x[int(number)].double(), torch.tensor(example, dtype=torch.float64)
    reach = float((example - point).abs().max())
    shrunk = restated(record, eps=reach)  # at this radius it lies on the border
    assert not check_certificate(shrunk, predictor, x).attacked_refuted[int(number)]
    less = restated(record, eps=float(torch.nextafter(torch.tensor(reach).double(), torch.tensor(0.0).double())))
    assert check_certificate(less, predictor, x).attacked_refuted[int(number)]
    outside = copy.deepcopy(record["counterexamples"])
    outside[number] = (example - 10.0).tolist()
    assert check_certificate(restated(record, counterexamples=outside, eps=20.0), predictor, x).attacked_refuted[
        int(number)
    ]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "theorem1"}, "only the method best does"),
        ({"bounds": "ibp", "method": "joint"}, "the method joint does not go with ibp"),
        ({"bounds": "ibp", "intermediates": "crown"}, "crown intermediates do not go with ibp"),
    ],
)
def test_settings_that_do_not_match(case, settings, words):
    predictor, x, record = case
    result = check_certificate(restated(record, provenance=provenance(record, **settings)), predictor, x)
    assert any(words in found for found in result.contradictions) and not result.holds


def test_radii_of_values_in_another_norm(case):
    predictor, x, record = case
    result = check_certificate(restated(record, eps=[[0.01] * 5], norm="l2"), predictor, x)
    assert any("only the norm linf" in found for found in result.contradictions)


def test_a_reason_beside_a_proof(case):
    predictor, x, record = case
    index = record["certified"].index(True)
    result = check_certificate(restated(record, reasons={str(index): "its bounds overflow"}), predictor, x)
    assert any("reason" in found for found in result.contradictions) and not result.holds
    index = record["certified"].index(False)
    honest = restated(record, reasons={str(index): "its bounds overflow"})
    assert check_certificate(honest, predictor, x).holds
    assert "Nothing could be concluded about 1 point: its bounds overflow." in honest["statement"]


RADII = {"linf": 0.12, "l2": 0.25, "l1": 0.4}
PRECISIONS = list(itertools.product((torch.float32, torch.float64), repeat=2))
KINDS = [(norm, *precisions) for norm in RADII for precisions in PRECISIONS]
FAST = [("linf", *PRECISIONS[0]), ("l2", *PRECISIONS[1])]


@pytest.mark.parametrize("kind", few_of(KINDS, fast=FAST), ids=str)
def test_honest_counterexamples_stand(kind):
    """Also where the points have another precision than the predictor, whose ball is around what it reads."""
    norm, dtype, given = kind
    predictor, x = small_predictor(dtype=dtype), points_for(count=30).to(given)
    x = (x + 1e-9 * torch.rand(x.shape, generator=torch.Generator().manual_seed(0)).to(given)).clamp(0.0, 1.0)
    for domain in (DOMAIN, None):
        result = cb.certify(
            predictor, x, eps=RADII[norm], norm=norm, domain=domain, method=cb.Best("crown", budget=0.2)
        )
        assert int(result.attacked.sum()) > 0 and result.counterexamples.dtype == torch.promote_types(given, dtype)
        check = check_certificate(result, predictor, x)
        assert check.holds, (domain, check.counts(), check.contradictions)


def test_strictly_every_marked_point_is_confirmed_and_all_bounds(case):
    """The checker knows intervals only: tighter bounds and some proofs of the method best are left open."""
    predictor, x, record = case
    best = check_certificate(record, predictor, x)
    assert best.holds and not best.bounds_confirmed.all() and not best.bounds_refuted.any()
    plain = record_of(predictor, x, torch.tensor(record["labels"]), eps=SETTINGS["eps"])
    record = restated(record, lower=plain["lower"], upper=plain["upper"])
    result = check_certificate(record, predictor, x)
    assert result.holds and result.bounds_confirmed.all() and not result.holds_strictly
    assert result.counts()["not_confirmed"] > 0 and not best.holds_strictly
    open_marks = (result.claimed & ~result.confirmed).tolist()
    fewer = [mark and not is_open for mark, is_open in zip(record["certified"], open_marks, strict=True)]
    assert check_certificate(restated(record, certified=fewer), predictor, x).holds_strictly


@pytest.mark.parametrize("version", ["0.0.1", "9.9.9", "0.1", "latest", ""])
def test_a_version_that_is_not_known(case, version):
    predictor, x, record = case
    said = {**record, "statement": record["statement"].replace("certibayes 0.1.0", f"certibayes {version}")}
    with pytest.raises(CorruptFile, match="version"):
        check_certificate({**said, "provenance": provenance(record, version=version)}, predictor, x)
