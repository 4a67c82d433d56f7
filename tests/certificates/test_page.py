"""A page says what the record says, escapes what it is given, and shows no input that nothing was proved of."""

import hashlib
import json
import re
from dataclasses import replace
from decimal import Decimal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import certibayes as cb
from certibayes.certificates import _names as names
from certibayes.certificates import _page_words as words
from certibayes.certificates._page import page_values
from certibayes.certificates._page_points import _allowed, outward, shortly
from certibayes.errors import InvalidInput

from ..pages import HOSTILE, Page
from .test_files import RESULTS


def written(result, folder, *arguments, **settings):
    result.page(folder / "page.html", *arguments, **settings)
    return Page((folder / "page.html").read_text())


@pytest.mark.parametrize("what", RESULTS)
def test_every_kind_of_result_has_a_page_with_its_statement_and_its_digest(what, tmp_path):
    result = RESULTS[what]()
    result.save(tmp_path / "certificate.json")
    page = written(result, tmp_path)
    assert result.statement in page.text
    assert hashlib.sha256((tmp_path / "certificate.json").read_bytes()).hexdigest() in page.text
    provenance = (result.certificate if hasattr(result, "certificate") else result).provenance
    assert provenance.digest in page.text and provenance.inputs_digest in page.text
    assert "What is not proved" in page.text and "How to check it" in page.text
    # A record that was read back has the same page: it comes from the record alone.
    first = (tmp_path / "page.html").read_bytes()
    cb.load_certificate(tmp_path).page(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_bytes() == first


@pytest.mark.parametrize("what", RESULTS)
def test_a_page_needs_no_other_file_and_runs_nothing(what, tmp_path):
    page = written(RESULTS[what](), tmp_path)
    assert "script" not in page.tags and "link" not in page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("href", "srcset")]
    policy = dict(page.attributes)
    assert ("http-equiv", "Content-Security-Policy") in page.attributes and policy["name"]
    assert "http" not in (tmp_path / "page.html").read_text().replace("http-equiv", "")


def certified(count=4, **settings):
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Flatten(), nn.Linear(3 * 5 * 4, 4)) for _ in range(3)]
    predictor = cb.Samples.from_modules(nets, input_shape=(3, 5, 4)).predictor()
    x = torch.rand(count, 3, 5, 4)
    return cb.certify(predictor, x, **{"eps": 0.001, "domain": (0.0, 1.0), **settings}), x


def test_whatever_it_is_given_is_escaped(tmp_path):
    result, x = certified()
    result = replace(result, reasons={0: HOSTILE})
    page = written(result, tmp_path, x, names=[HOSTILE] * 4, title=HOSTILE)
    assert "script" not in page.tags and not [name for name, _ in page.attributes if name.startswith("on")]
    assert page.text.count(HOSTILE) > 8
    assert page.tags.count("img") == 4 and "49" not in page.text.replace(result.digest, "")[:60]


def test_names_of_features_are_escaped(tmp_path):
    torch.manual_seed(0)
    x = torch.rand(2, 3)
    result = cb.certify(cb.Point(nn.Linear(3, 2)).predictor(), x, eps=torch.tensor([[0.1, 0.0, 0.25]]))
    page = written(result, tmp_path, x, features=[HOSTILE, "b", "c"])
    assert "script" not in page.tags and page.text.count(HOSTILE) == 2
    assert "A value whose radius is 0 does not change." in page.text and "0.25" in page.text


def test_images_are_pictures_of_the_points(tmp_path):
    pytest.importorskip("matplotlib")
    import base64
    import io

    from matplotlib.image import imread

    result, x = certified()
    page = written(result, tmp_path, x, show=[3, 1])
    sources = [value for name, value in page.attributes if name == "src"]
    for source, point in zip(sources, (3, 1), strict=True):
        pixels = torch.from_numpy(imread(io.BytesIO(base64.b64decode(source.partition(",")[2]))))[..., :3]
        assert (pixels.permute(2, 0, 1) - x[point]).abs().max() <= 0.5 / 255 + 1e-6


def test_counterexamples_of_points_that_are_classified_right_are_shown(tmp_path):
    result, x = certified(20, eps=0.2, method=cb.Best(budget=1))
    assert bool(result.attacked.any())
    page = written(result, tmp_path, x, show=20)
    assert page.tags.count("img") == 20 + int(result.attacked.sum())
    assert "An allowed change was found that changes the class" in page.text


def test_points_that_were_not_certified_are_not_shown(tmp_path):
    result, x = certified()
    for other in (x[:3], x.flip(0), x + 1e-7, x.double()):
        with pytest.raises(InvalidInput, match="not what this certificate is about"):
            result.page(tmp_path / "page.html", other)
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"names": ["a"]}, "4 classes or outputs, but 1 names"),
        ({"show": [0, 4]}, "there is no point 4"),
        ({"show": -1}, "a number of points"),
        ({"features": ["a"]}, "60 values, but 1 features"),
    ],
)
def test_what_does_not_fit_is_refused(settings, message, tmp_path):
    result, x = certified()
    with pytest.raises(InvalidInput, match=message):
        result.page(tmp_path / "page.html", x, **settings)


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


@given(NUMBERS, st.booleans())
def test_digits_are_rounded_outward(value, upper):
    for text in (outward(value, upper), shortly(value, upper)):
        written, exact = Decimal(text), Decimal(value)
        assert written >= exact if upper else written <= exact
    assert abs(Decimal(outward(value, upper)) - Decimal(value)) <= Decimal("0.0001")
    assert abs(Decimal(shortly(value, upper)) - Decimal(value)) <= abs(Decimal(value)) * Decimal("0.0001")


def test_the_bounds_on_a_page_hold_those_of_the_record():
    result, _ = certified(eps=0.05)
    for point in page_values(result, None, (), (), 4, "")["points"]:
        for bar, low, high in zip(point.bars, result.lower[point.number], result.upper[point.number], strict=True):
            lower, upper = map(float, bar.text.split(" to "))
            assert lower <= float(low) and min(float(high), 1.0) <= upper


def test_percentages_never_say_more_than_was_proved():
    where = torch.ones(100_000, dtype=torch.bool)
    where[0] = False
    assert words.counted(where) == "99,999 (99.9%)" and words.counted(where[1:]) == "99,999 (100.0%)"


def test_of_many_classes_the_likely_ones_are_shown():
    torch.manual_seed(0)
    result = cb.certify(cb.Point(nn.Linear(3, 40)).predictor(), torch.rand(2, 3), torch.tensor([0, 39]), eps=0.01)
    for point, label in zip(page_values(result, None, (), (), 2, "")["points"], ("0", "39"), strict=True):
        assert len(point.bars) == 10 and [bar.name for bar in point.bars if bar.marked] == [label]
        shown = [int(bar.name) for bar in point.bars]
        left = max(float(result.upper[point.number, k]) for k in range(40) if k not in shown)
        assert float(re.search(r"at most ([\d.]+)\.", point.note)[1]) >= left


def test_every_name_of_a_setting_is_explained():
    assert set(words.BOUNDS) == set(names.BOUNDS) and set(words.METHODS) == set(names.METHODS)
    assert set(words.ROUNDINGS) == set(names.ROUNDINGS) and set(words.DISTANCES) == set(names.NORMS)


@pytest.mark.parametrize("norm", names.NORMS)
def test_the_norm_and_the_radius_are_explained(norm, tmp_path):
    result, _ = certified(norm=norm)
    page = written(result, tmp_path)
    assert words.DISTANCES[norm].format("0.001") in page.text and names.NORMS[norm] in page.text


@pytest.mark.parametrize(
    ("domain", "said"),
    [
        (None, "no limit on the values"),
        ((0.0, torch.inf), "stays at least 0."),
        ((-torch.inf, 2.0), "stays at most 2."),
        ((0.0, 1.0), "between 0 and 1."),
        ((torch.zeros(1, 3, 5, 4), torch.ones(1, 3, 5, 4)), "a range of its own"),
    ],
)
def test_the_domain_is_explained(domain, said, tmp_path):
    result, _ = certified(domain=domain)
    assert said in written(result, tmp_path).text


def test_what_is_not_proved_depends_on_the_record():
    proved, _ = certified()
    assert bool(proved.certified.all()) and not any("not marked" in said for said in words.not_proved(proved))
    undecided, _ = certified(eps=0.9, method="theorem1")
    assert bool(undecided.unknown.any()) and any("not marked" in said for said in words.not_proved(undecided))
    ideal, _ = certified(rounding="ideal")
    assert any("exact arithmetic" in said for said in words.not_proved(ideal))
    assert any("observations also have noise" in said for said in words.not_proved(RESULTS["regression"]()))


def test_the_record_of_a_page_is_the_file(tmp_path):
    result, _ = certified()
    result.save(tmp_path / "certificate.json")
    assert (tmp_path / "certificate.json").read_bytes() == result.content()
    assert json.loads(result.content()) == result.to_json()


@pytest.mark.parametrize(("norm", "shown"), [("linf", True), ("l2", False), ("l1", False)])
def test_a_radius_of_all_changes_is_not_shown_as_that_of_one_value(norm, shown, tmp_path):
    torch.manual_seed(0)
    x = torch.rand(3, 2)
    result = cb.certify(cb.Point(nn.Linear(2, 2)).predictor(), x, eps=torch.tensor([0.1, 0.2, 0.3]), norm=norm)
    page = written(result, tmp_path, x, show=[2])
    assert ("may change by" in page.text.replace("may change by up to", "")) is shown
    assert [radius for _, _, radius in page_values(result, x, (), (), [2], "")["points"][0].values] == (
        ["0.3"] * 2 if shown else [""] * 2
    )


def test_points_that_are_misclassified_are_not_undecided():
    torch.manual_seed(0)
    x = torch.rand(8, 3)
    predictor = cb.Point(nn.Linear(3, 2)).predictor()
    wrong = 1 - predictor.predict(x)
    rows = {row.name: row.value for row in words.figures_of(cb.certify(predictor, x, wrong, eps=0.001))}
    assert rows["Certified"] == rows["Not decided"] == rows["Classified as labeled"] == "0 (0.0%)"


@given(st.floats(min_value=0.0, max_value=1e30))
def test_a_radius_on_a_page_is_never_larger_than_what_was_proved(radius):
    assert Decimal(_allowed(radius)) <= Decimal(radius) or float(_allowed(radius)) == radius


def test_ranges_that_overlap_are_explained_where_the_class_is_proved():
    result, _ = certified(count=2)
    result = replace(result, certified=torch.tensor([True, False]))
    nothing = torch.zeros_like(result.lower), torch.ones_like(result.upper)
    apart = nothing[0].scatter(1, result.labels[:, None], 0.5), torch.full_like(result.upper, 0.4)
    for (lower, upper), explained in ((nothing, [True, False]), (apart, [False, False])):
        points = page_values(replace(result, lower=lower, upper=upper), None, (), (), 2, "")["points"]
        assert {point.number: "overlap" in point.note for point in points} == dict(enumerate(explained))
