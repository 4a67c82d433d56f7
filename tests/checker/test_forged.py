"""Certificates that were forged, and those that belong elsewhere, do not get past the checker."""

import pytest
import torch

import certibayes as cb
from certibayes.attacks import PGD
from certibayes.checker import check_certificate
from certibayes.errors import CorruptFile

from ..strategies import CLASSES
from .cases import DOMAIN, attackable_points, points_for, provenance, record_of, small_predictor


def test_a_mark_on_an_attackable_point_is_refuted_or_not_confirmed():
    predictor, x, record, attackable = attackable_points()
    assert not any(mark for mark, broken in zip(record["certified"], attackable.tolist(), strict=True) if broken)
    forged = {**record, "certified": [True] * len(x)}
    result = check_certificate(forged, predictor, x)
    assert not result.confirmed[attackable].any()
    assert result.refuted[attackable].any() and not result.holds
    assert not result.refuted[~attackable].any()


@pytest.mark.parametrize("eps", [0.3, 1.0])
def test_a_larger_radius_confirms_nothing_that_can_be_attacked(eps):
    predictor, x = small_predictor(), points_for(count=30)
    record = {**record_of(predictor, x, eps=1e-3), "eps": eps}
    attacked = cb.attack(predictor, x, eps=eps, domain=DOMAIN, method=PGD(steps=20, restarts=3)).success
    result = check_certificate(record, predictor, x)
    assert attacked.any() and not result.confirmed[attacked].any() and not result.holds


def test_tightened_bounds_are_refuted_or_not_confirmed():
    predictor, x = small_predictor(), points_for()
    record = record_of(predictor, x)
    own = predictor.probabilities(x).double()
    honest = check_certificate(record, predictor, x)
    assert honest.bounds_confirmed.all()
    lower, upper = (torch.tensor(record[end], dtype=torch.float64) for end in ("lower", "upper"))
    for fraction in (0.999, 0.5, 1e-3):
        forged = {
            **record,
            "lower": (own + fraction * (lower - own)).tolist(),
            "upper": (own + fraction * (upper - own)).tolist(),
        }
        result = check_certificate(forged, predictor, x)
        assert not result.bounds_confirmed.any()
        assert fraction > 0.1 or result.bounds_refuted.all()
    tight = own.tolist()
    for forged in ({"lower": tight}, {"upper": tight}):  # one side alone is enough
        assert check_certificate({**record, **forged}, predictor, x).bounds_refuted.all()
    lower, upper = lower + 1e-3 * (own - lower), upper + 1e-3 * (own - upper)
    for forged in ({"lower": lower.tolist()}, {"upper": upper.tolist()}):
        assert not check_certificate({**record, **forged}, predictor, x).bounds_confirmed.any()
    inverted = {**record, "lower": record["upper"], "upper": record["lower"]}
    assert check_certificate(inverted, predictor, x).bounds_refuted.all()


def test_a_wrong_label_is_refuted_at_the_point_itself():
    predictor, x = small_predictor(), points_for()
    record = record_of(predictor, x, eps=0.0)
    labels = [(label + 1) % CLASSES for label in record["labels"]]
    result = check_certificate({**record, "labels": labels, "predicted": labels}, predictor, x)
    assert result.refuted.all()
    honest_labels = check_certificate({**record, "predicted": labels}, predictor, x)
    assert honest_labels.refuted.all()  # marked, and by its own words not predicted as the label


def test_changed_weights_are_noticed_also_behind_torchs_back():
    predictor, x = small_predictor(), points_for()
    record = record_of(predictor, x)
    before = predictor.digest
    next(iter(predictor.samples.values())).data.view(-1)[0] += 1e-3
    assert predictor.digest == before  # such a change leaves no trace for the predictor's own cache
    result = check_certificate(record, predictor, x)
    assert not result.holds and "another predictor" in result.problems[0]
    assert not result.confirmed.any()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: torch.nextafter(x, torch.ones_like(x)), "other points"),
        (lambda x: x.flip(0), "other points"),
        (lambda x: x[:-1], "other points"),
        (lambda x: x.double(), "other points"),
    ],
)
def test_changed_points_are_noticed(change, words):
    predictor, x = small_predictor(), points_for()
    result = check_certificate(record_of(predictor, x), predictor, change(x))
    assert not result.holds and words in result.problems[0] and result.counts()["confirmed"] == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"provenance": {"digest": "0" * 64}}, "another predictor"),
        ({"provenance": {"inputs_digest": "0" * 64}}, "other points"),
        ({"provenance": {"dtype": "float64"}}, "runs in float32"),
        ({"provenance": {"samples": 4}}, "4 weight samples"),
        ({"domain": [0.45, 0.55]}, "outside the domain"),
        ({"labels": [7] * 12}, "classes that the predictor does not have"),
        ({"lower": [[0.0]] * 12, "upper": [[1.0]] * 12}, "not about 3 classes"),
    ],
)
def test_what_does_not_match_is_named(change, words):
    predictor, x = small_predictor(), points_for()
    record = record_of(predictor, x)
    change = {**change, "provenance": provenance(record, **change.get("provenance", {}))}
    result = check_certificate({**record, **change}, predictor, x)
    assert not result.holds and any(words in problem for problem in result.problems)


BROKEN = {
    "no digest": lambda r: r["provenance"].pop("digest"),
    "no points": lambda r: r["provenance"].pop("inputs_digest"),
    "NaN bound": lambda r: r["lower"][0].__setitem__(0, float("nan")),
    "NaN radius": lambda r: r.__setitem__("eps", float("nan")),
    "negative radius": lambda r: r.__setitem__("eps", -0.1),
    "infinite radius": lambda r: r.__setitem__("eps", float("inf")),
    "another norm": lambda r: r.__setitem__("norm", "l3"),
    "another rounding": lambda r: r.__setitem__("rounding", "magic"),
    "another dtype": lambda r: r["provenance"].__setitem__("dtype", "bfloat16"),
    "inverted domain": lambda r: r.__setitem__("domain", [1.0, 0.0]),
    "NaN domain": lambda r: r.__setitem__("domain", [0.0, float("nan")]),
    "too few marks": lambda r: r["certified"].pop(),
    "marks that are numbers": lambda r: r.__setitem__("certified", [2] * 12),
    "labels that are fractions": lambda r: r.__setitem__("labels", [0.5] * 12),
    "labels that are words": lambda r: r.__setitem__("labels", "abc"),
    "ragged bounds": lambda r: r["upper"][0].pop(),
    "too few bounds": lambda r: r["upper"].pop(),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_no_certificate_is_refused(what):
    predictor, x = small_predictor(), points_for()
    record = record_of(predictor, x)
    BROKEN[what](record)
    with pytest.raises(CorruptFile):
        check_certificate(record, predictor, x)
