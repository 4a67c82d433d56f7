"""For every key of a stored certificate: a forged value is noticed.

The forgeries are a table by key. A new key without a forgery fails the first test, and a forgery that gets past the
checker fails the second.
"""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

import certibayes as cb
from certibayes.checker import check_certificate
from certibayes.errors import CorruptFile

from .cases import points_for, record_of, small_predictor

EPS = 0.12


@pytest.fixture(scope="module")
def case():
    """A certificate with certified, attacked and unknown points, and one that nothing could be concluded about."""
    torch.manual_seed(0)
    predictor, x = small_predictor(), points_for(count=30)
    labels = predictor.predict(x)
    labels[3] = (labels[3] + 1) % 3
    record = record_of(predictor, x, labels, eps=EPS, method=cb.Best("crown", budget=1.0))
    return predictor, x, record


def first(record: dict, mark: str, value: bool = True) -> int:
    return record[mark].index(value)


def at(values: list, index: int, value: Any) -> list:
    return [*values[:index], value, *values[index + 1 :]]


def moved(record: dict, by: float) -> dict:
    """Move the first counterexample that is not the point itself further away."""
    examples = copy.deepcopy(record["counterexamples"])
    number = str(first(record, "attacked"))
    examples[number] = [value + by for value in examples[number]]
    return examples


def flipped(record: dict, key: str) -> list:
    index = first(record, "certified")
    return at(record[key], index, (record[key][index] + 1) % 3)


Forgery = Callable[[dict], Any]

FORGERIES: dict[str, dict[str, Forgery]] = {
    "kind": {"another": lambda r: "radius", "unknown": lambda r: "proof"},
    "statement": {
        "larger radius": lambda r: r["statement"].replace(str(EPS), "0.9"),
        "no reservation": lambda r: r["statement"].split("Nothing is said")[0],
        "one more sentence": lambda r: r["statement"] + " Approved.",
        "another method": lambda r: r["statement"].replace("the method best", "the method theorem1"),
        "exact arithmetic": lambda r: r["statement"].replace("float32", "float64"),
        "not words": lambda r: 7,
        "nothing": lambda r: "",
    },
    "eps": {
        "larger": lambda r: 0.9,
        "zero": lambda r: 0.0,
        "zero for each point": lambda r: [0.0] * len(r["labels"]),
        "the same for each point": lambda r: [EPS] * len(r["labels"]),
        "too few": lambda r: [EPS] * 4,
        "of another shape": lambda r: [[[EPS]]],
        "words": lambda r: "0.12",
        "true": lambda r: True,
    },
    "norm": {"l2": lambda r: "l2", "unknown": lambda r: "l3"},
    "domain": {
        "none": lambda r: None,
        "wider": lambda r: [-5.0, 5.0],
        "a little wider": lambda r: [0.0, 1.0 + 1e-12],
        "narrower": lambda r: [0.4, 0.6],
        "by value": lambda r: [[[0.0] * 5], [[1.0] * 5]],
        "three ends": lambda r: [0.0, 0.5, 1.0],
        "half of one": lambda r: [0.0, None],
    },
    "rounding": {"ideal": lambda r: "ideal", "unknown": lambda r: "magic"},
    "labels": {
        "another for a marked point": lambda r: flipped(r, "labels"),
        "another for an attacked point": lambda r: at(r["labels"], 3, r["predicted"][3]),
        "no such class": lambda r: at(r["labels"], first(r, "certified", False), 7),
        "too few": lambda r: r["labels"][1:],
        "fractions": lambda r: [label + 0.5 for label in r["labels"]],
    },
    "predicted": {
        "another for a marked point": lambda r: flipped(r, "predicted"),
        "another for any point": lambda r: [(label + 1) % 3 for label in r["predicted"]],
        "as if it were right": lambda r: at(r["predicted"], 3, r["labels"][3]),
        "no such class": lambda r: at(r["predicted"], 3, -1),
    },
    "certified": {
        "one more": lambda r: at(r["certified"], first(r, "attacked"), True),
        "one less": lambda r: at(r["certified"], first(r, "certified"), False),
        "all": lambda r: [True] * len(r["certified"]),
        "numbers": lambda r: [int(mark) for mark in r["certified"]],
    },
    "lower": {
        "raised": lambda r: [[(a + 9 * b) / 10 for a, b in zip(low, high, strict=True)] for low, high in both(r)],
        "negative": lambda r: [[-1.0] * 3 for _ in r["lower"]],
        "not a number": lambda r: at(r["lower"], 0, [float("nan")] * 3),
        "other classes": lambda r: [row[:2] for row in r["lower"]],
    },
    "upper": {
        "lowered": lambda r: [[(9 * a + b) / 10 for a, b in zip(low, high, strict=True)] for low, high in both(r)],
        "beyond 1": lambda r: [[2.0] * 3 for _ in r["upper"]],
    },
    "attacked": {
        "one more": lambda r: at(r["attacked"], first(r, "certified"), True),
        "one less": lambda r: at(r["attacked"], first(r, "attacked"), False),
        "not looked for": lambda r: None,
        "words": lambda r: ["yes"] * len(r["attacked"]),
    },
    "counterexamples": {
        "none": lambda r: None,
        "not any more": lambda r: {},
        "outside the ball": lambda r: moved(r, 0.5),
        "a little outside": lambda r: beyond(r),
        "of another shape": lambda r: {number: [0.5] for number in r["counterexamples"]},
        "of another point": lambda r: {str(int(n) + 1000): e for n, e in r["counterexamples"].items()},
        "a list": lambda r: list(r["counterexamples"].values()),
    },
    "reasons": {
        "for a point": lambda r: {"0": "it is certainly robust"},
        "for a marked point": lambda r: {str(first(r, "certified")): "overflow"},
        "for no point": lambda r: {"999": "overflow"},
        "empty": lambda r: {"0": ""},
        "a list": lambda r: [],
    },
    "provenance": {"nothing": lambda r: {}, "a list": lambda r: []},
    "provenance.version": {
        "newer": lambda r: "9.9.9",
        "older": lambda r: "0.0.1",
        "malformed": lambda r: "0.1",
        "a number": lambda r: 0.1,
    },
    "provenance.digest": {"another": lambda r: "0" * 64, "short": lambda r: "0" * 16},
    "provenance.inputs_digest": {"another": lambda r: "0" * 64, "upper case": lambda r: "A" * 64},
    "provenance.samples": {"more": lambda r: 35, "none": lambda r: 0, "a fraction": lambda r: 3.0},
    "provenance.seed": {"some": lambda r: 7, "a word": lambda r: "seven", "true": lambda r: True},
    "provenance.device": {"another": lambda r: "cuda", "unknown": lambda r: "abacus"},
    "provenance.dtype": {"double": lambda r: "float64", "half": lambda r: "bfloat16"},
    "provenance.settings": {
        "none": lambda r: {},
        "one more": lambda r: {**r["provenance"]["settings"], "luck": "good"},
    },
    "provenance.settings.bounds": {"plainer": lambda r: "ibp", "tighter": lambda r: "hull", "unknown": lambda r: "sdp"},
    "provenance.settings.method": {
        "plainer": lambda r: "theorem1",
        "joint": lambda r: "joint",
        "new": lambda r: "auto2",
    },
    "provenance.settings.intermediates": {"crown": lambda r: "crown", "unknown": lambda r: "lp"},
}


def both(record: dict):
    return zip(record["lower"], record["upper"], strict=True)


def beyond(record: dict) -> dict:
    """A counterexample that is still one, but for the last digit of its distance."""
    examples = copy.deepcopy(record["counterexamples"])
    number = next(n for n in examples if n != "3")
    point = points_for(count=30)[int(number)].double()
    away = (torch.tensor(examples[number], dtype=torch.float64) - point).sign()
    examples[number] = (point + away * EPS * (1 + 1e-12)).clamp(0.0, 1.0).tolist()
    return examples


def keys_of(record: dict, before: str = "") -> set[str]:
    """All keys, those of nested objects with dots; objects whose keys are numbers of points are values."""
    found = set()
    for key, value in record.items():
        found.add(before + key)
        if isinstance(value, dict) and key in ("provenance", "settings"):
            found |= keys_of(value, f"{before}{key}.")
    return found


def changed(record: dict, key: str, value: Any) -> dict:
    forged = copy.deepcopy(record)
    inner, *names = forged, *key.split(".")
    for name in names[:-1]:
        inner = inner[name]
    inner[names[-1]] = value
    return forged


def is_noticed(forged: dict, predictor: cb.Predictor, x: torch.Tensor) -> bool:
    """Whether the checker refuses a record, or it cannot even be read."""
    try:
        return not check_certificate(forged, predictor, x).holds
    except CorruptFile:
        return True


def test_the_certificate_holds_and_has_points_of_every_kind(case):
    predictor, x, record = case
    result = check_certificate(record, predictor, x)
    assert result.holds, result.contradictions
    assert any(record["certified"]) and any(record["attacked"])
    assert len(record["counterexamples"]) > 1 and record["counterexamples"].keys() >= {"3"}
    assert result.counts()["attacked"] == sum(record["attacked"])


def test_every_key_has_a_forgery(case):
    assert keys_of(case[2]) == set(FORGERIES)


@pytest.mark.parametrize(("key", "what"), [(key, what) for key, kinds in FORGERIES.items() for what in kinds])
def test_a_forged_value_is_noticed(case, key, what):
    predictor, x, record = case
    value = FORGERIES[key][what](record)
    forged = changed(record, key, value)
    assert json.dumps(forged) != json.dumps(record)
    if key in ("lower", "upper") and what in ("raised", "lowered"):
        # Bounds that are too narrow are refuted or at least not confirmed.
        assert not check_certificate(forged, predictor, x).holds_strictly
        narrow = changed(record, key, predictor.probabilities(x).double().tolist())
        assert is_noticed(narrow, predictor, x)
    else:
        assert is_noticed(forged, predictor, x)


@pytest.mark.parametrize("key", FORGERIES)
def test_a_missing_key_is_noticed(case, key):
    predictor, x, record = case
    forged = copy.deepcopy(record)
    inner, *names = forged, *key.split(".")
    for name in names[:-1]:
        inner = inner[name]
    del inner[names[-1]]
    with pytest.raises(CorruptFile, match=f"missing: {names[-1]}"):
        check_certificate(forged, predictor, x)


@pytest.mark.parametrize("where", ["", "provenance", "provenance.settings"])
def test_an_unknown_key_is_noticed(case, where):
    predictor, x, record = case
    with pytest.raises(CorruptFile, match="unknown: approved"):
        check_certificate(changed(record, f"{where}.approved".lstrip("."), True), predictor, x)


def test_a_key_that_stands_twice_is_noticed(case, tmp_path):
    file = tmp_path / "certificate.json"
    file.write_text(json.dumps(case[2])[:-1] + ', "eps": 0.9}')
    with pytest.raises(CorruptFile, match="twice"):
        cb.load_certificate(file)
