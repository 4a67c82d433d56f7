"""Every kind of result has a table, a figure, and a file that is read back."""

import json
from dataclasses import replace

import matplotlib.figure
import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.errors import CorruptFile, InvalidInput, MissingPackage
from certibayes.statistical.concentration import INEQUALITIES, Sums
from certibayes.statistical.files import read_robust_probability


def _results():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    params = dict(net.named_parameters())
    posterior = cb.DiagonalGaussian(net, params, {name: torch.full_like(p, 0.05) for name, p in params.items()})
    predictor, x = posterior.predictor(3, seed=0), torch.randn(9, 4)
    y = predictor.predict(x)
    certificate = cb.certify(predictor, x, y, eps=0.05)
    statistical = {"samples": 20, "seed": 1, "eps": 0.02, "joint": True}
    predictive = cb.posterior_predictive_bounds(posterior, x, y, **statistical)
    regression = cb.Samples.from_modules([nn.Sequential(nn.Linear(4, 2)) for _ in range(2)])
    regression.metadata["task"] = "regression"
    one = cb.Samples.from_modules([nn.Sequential(nn.Linear(4, 1))])
    one.metadata["task"] = "regression"
    return {
        "certificate": certificate,
        "three answers": cb.certify(predictor, x, y, eps=0.3, method=cb.Best(budget=1.0)),
        "radius": cb.certified_radius(predictor, x, y, tolerance=0.05),
        "scaled radius": cb.certified_radius(predictor, x, y, tolerance=0.05, scale=torch.ones(1, 4)),
        "regression": cb.certify_regression(regression.predictor(), x, eps=0.1),
        "regression, marked": cb.certify_regression(one.predictor(), x, torch.zeros(9), eps=0.1, tolerance=0.5),
        "abstention": cb.certify_abstention(certificate, tau=0.9),
        "robust probability": cb.robust_probability(posterior, x, y, **statistical),
        "predictive bounds": predictive,
        "fresh predictor bounds": predictive.fresh_predictor(35),
    }


RESULTS = _results()


@pytest.mark.parametrize("name", RESULTS)
def test_the_table_has_a_row_for_each_point(name):
    result = RESULTS[name]
    columns = result.columns()
    assert columns["point"] == list(range(9)) and all(len(column) == 9 for column in columns.values())
    # Numbers in it are those of the record.
    record = result.to_json()
    if name == "certificate":
        assert columns["lower_2"] == [row[2] for row in record["lower"]] and "attacked" not in columns
    if name == "three answers":
        assert columns["attacked"] == record["attacked"] and len(columns["unknown"]) == 9
    if name == "regression":
        assert columns["upper_1"] == [row[1] for row in record["upper"]] and "certified" not in columns
    if name == "regression, marked":
        assert columns["deviation"] == [row[0] for row in record["deviation"]]


@pytest.mark.parametrize("name", RESULTS)
def test_the_table_is_one_of_pandas(name):
    pandas = pytest.importorskip("pandas")
    frame = RESULTS[name].to_pandas()
    assert isinstance(frame, pandas.DataFrame) and len(frame) == 9 and frame.index.name == "point"


def test_without_pandas_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(MissingPackage, match="pip install pandas"):
        RESULTS["radius"].to_pandas()


@pytest.mark.parametrize(
    ("file", "start"), [("f.pdf", b"%PDF"), ("f.svg", b"<?xml"), ("f.PNG", b"\x89PNG"), ("f", b"\x89PNG")]
)
def test_a_figure_has_the_format_that_its_name_says(file, start, tmp_path):
    RESULTS["radius"].plot(tmp_path / file)
    assert (tmp_path / file).read_bytes().startswith(start)


def test_a_figure_of_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match=r"ends in none of \.png, \.pdf, \.svg"):
        RESULTS["radius"].plot(tmp_path / "figure.docx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", RESULTS)
def test_there_is_a_figure(name, tmp_path):
    figure = RESULTS[name].plot(tmp_path / "figure.png")
    assert isinstance(figure, matplotlib.figure.Figure)
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    axes = figure.axes[0]
    assert axes.get_xlabel() and axes.get_ylabel()
    if "radius" not in name:
        drawn = sum(len(lines.get_segments()) for lines in axes.collections)
        assert drawn == 9


def test_without_bounds_there_is_nothing_to_draw():
    nothing = cb.Certificate.from_json(RESULTS["certificate"].to_json())
    object.__setattr__(nothing, "upper", torch.full_like(nothing.upper, torch.inf))
    with pytest.raises(InvalidInput, match="nothing to draw"):
        nothing.plot()


@pytest.mark.parametrize("name", RESULTS)
def test_files_are_read_back(name, tmp_path):
    result = RESULTS[name]
    result.save(tmp_path / "result.json")
    again = cb.load_certificate(tmp_path / "result.json")
    assert type(again) is type(result) and again.to_json() == result.to_json()
    assert again.columns() == result.columns()


STATISTICAL = ("robust probability", "predictive bounds", "fresh predictor bounds")


@pytest.mark.parametrize("name", STATISTICAL)
def test_statistical_files_that_were_changed_are_refused(name, tmp_path):
    record = RESULTS[name].to_json()
    path = tmp_path / "result.json"
    trial = record["trial"]
    changes = {
        "a key less": {k: v for k, v in record.items() if k != "labels"},
        "a key more": {**record, "extra": 1},
        "another confidence": {**record, "trial": {**trial, "confidence": 0.5}},
        "an impossible confidence": {**record, "trial": {**trial, "confidence": 1.5}},
        "an unknown inequality": {**record, "trial": {**trial, "inequality": "wishful"}},
        "fewer points": {**record, "labels": record["labels"][1:]},
        "other words": {**record, "statement": "All is well."},
        "more certified": {**record, "certified": [99] * 9 if name == STATISTICAL[0] else [1] * 9},
    }
    for what, changed in changes.items():
        path.write_text(json.dumps(changed))
        with pytest.raises(CorruptFile):
            cb.load_certificate(path)
            pytest.fail(what)


def _claims(name):
    """What a record could be made to say beyond what it proves, with everything else in it as it was."""
    record = RESULTS[name].to_json()

    def changed(key, value, at=0):
        return {**record, key: [value, *record[key][1:]] if at == 0 else value}

    if name == "robust probability":
        total = record["trial"]["provenance"]["samples"]
        return {
            "likelier": changed("lower", min(record["upper"][0], record["lower"][0] + 1e-4)),
            "less may be certified": changed("upper", record["lower"][0]),
            "more than 1": changed("upper", 1.5),
            "more certified": changed("certified", total if record["certified"][0] < total else 0),
        }
    rows = {
        "lower above upper": changed("lower", [1.005, *record["lower"][0][1:]]),
        "more than 1": changed("upper", [1.5, *record["upper"][0][1:]]),
        "less than 0": changed("lower", [-0.5, *record["lower"][0][1:]]),
        "no such class": changed("labels", 7),
        "a class less": changed("upper", [row[1:] for row in record["upper"]], at=None),
    }
    if name == "predictive bounds":
        label = record["labels"][0]
        larger = [1.5 if c != label else m for c, m in enumerate(record["margins"][0])]
        own = [0.5 if c == label else m for c, m in enumerate(record["margins"][0])]
        return {**rows, "margins above 1": changed("margins", larger), "its own rival": changed("margins", own)}
    marked = record["certified"][0]
    return {
        **rows,
        "a mark": changed("certified", not marked),
        "failure beside its mark": changed("failure", 1.0 if marked else 0.0),
        "less than no failure": changed("failure", -1.0),
        # Enough for one point, and too much for all of them jointly.
        "a mark that is one point's": {**changed("failure", 0.005), "certified": [True, *record["certified"][1:]]},
    }


@pytest.mark.parametrize("name", STATISTICAL)
def test_statistical_files_that_claim_more_than_follows_are_refused(name, tmp_path):
    path = tmp_path / "result.json"
    for what, changed in _claims(name).items():
        path.write_text(json.dumps(changed))
        with pytest.raises(CorruptFile):
            cb.load_certificate(path)
            pytest.fail(what)


@pytest.mark.parametrize("inequality", ["clopper-pearson", "hoeffding", "bernstein"])
@pytest.mark.parametrize("draws", [2, 20, 1000])
def test_bounds_that_follow_from_any_count_are_read_back(draws, inequality):
    given = RESULTS["robust probability"]
    counts = torch.arange(9) * draws // 8
    trial = replace(
        given.trial, inequality=inequality, provenance=replace(given.trial.provenance, samples=draws), joint=False
    )
    sums = Sums(draws, counts.double(), counts.double())
    lower, upper = INEQUALITIES[inequality](sums, trial.failure(2))
    result = replace(given, certified=counts, lower=lower, upper=upper, trial=trial)
    assert read_robust_probability(json.loads(json.dumps(result.to_json()))).to_json() == result.to_json()
    # The bounds of a network more, or less, claim too much.
    more, less = torch.cat([lower[1:], lower[-1:]]), torch.cat([upper[:1], upper[:-1]])
    for name, own, beside in (("lower", lower, more), ("upper", upper, less)):
        if torch.equal(own, beside):
            continue  # of so few draws nothing follows
        with pytest.raises(CorruptFile, match="how many networks"):
            read_robust_probability(json.loads(json.dumps(replace(result, **{name: beside}).to_json())))


def test_a_regression_without_targets_refers_to_its_prediction():
    record = RESULTS["regression"].to_json()
    moved = {**record, "reference": [[v + 0.01 for v in row] for row in record["reference"]]}
    reference = torch.tensor(moved["reference"], dtype=torch.float64)
    moved["deviation"] = replace(RESULTS["regression"], reference=reference).deviation.tolist()
    with pytest.raises(CorruptFile, match="reference"):
        cb.certificates.RegressionCertificate.from_json(json.loads(json.dumps(moved)))
