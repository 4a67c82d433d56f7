"""Claims of the paper, decided by rows."""

import pytest

from certibayes.errors import InvalidInput
from certibayes.experiments import figure_names, load_figure
from certibayes.experiments._paper_claims import (
    AGREES,
    CONTRADICTED,
    HIGHER,
    LOWER,
    TRIAL,
    PaperClaim,
    _claim,
    compare,
    read_claims,
    stated,
)
from certibayes.experiments.figure_spec import AXES
from certibayes.experiments.paper import COLUMNS, OF_PARTS, PARTS

CLAIMS = read_claims()
BASE = {
    "says": "so", "where": "there", "figure": "fig1", "dataset": "mnist", "measure": "ibp", "is": "about",
    "value": 0.75, "within": 0.03, "of": {"likelihood": ["ibp"]},
}  # fmt: skip


def row(method="swag", likelihood="ibp", seed=0, figure="fig1", variation="", **figures):
    axes = (figure, "mnist", method, likelihood, "paper", "mlp", variation, seed)
    return dict(zip(("figure", *AXES), axes, strict=True)) | figures


def decided(rows, trial=False, **changes):
    return [(found.axes["method"], found.verdict) for found in compare(rows, [_claim(BASE | changes)], trial)]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.figure}-{claim.says[:20]}")
def test_every_claim_is_about_posteriors_that_its_figure_has(claim):
    """A misspelled axis or column would never be decided, and nobody would see it."""
    figure = load_figure(claim.figure)
    columns = {*COLUMNS[figure.kind], *(f"{part}_{key}" for part in PARTS for key in OF_PARTS)}
    assert {claim.measure, claim.against_measure or claim.measure} <= columns
    for dataset in [claim.dataset] if isinstance(claim.dataset, str) else claim.dataset:
        axes = [cell.axes for cell in figure.cells(dataset).values()]
        for axis, values in claim.of.items():
            # CIFAR-10 has three of the methods.
            here = {own[axis] for own in axes}
            assert here & set(values) if dataset == "cifar10" else set(values) <= here
        other = (
            load_figure(claim.against.get("figure", claim.figure)).cells(claim.against.get("dataset", dataset)).values()
        )
        for axis, value in claim.against.items():
            assert axis == "figure" or value in {cell.axes[axis] for cell in other}
    assert claim.within >= 0 and (claim.is_ == "about") == bool(claim.within)


def test_claims_are_no_figure():
    assert "claims" not in figure_names()


@pytest.mark.parametrize(
    ("ours", "verdict"), [(0.78, AGREES), (0.72, AGREES), (0.7801, HIGHER), (0.71, LOWER), (0.75, AGREES)]
)
def test_a_number_agrees_within_its_margin(ours, verdict):
    assert decided([row(ibp=ours)]) == [("swag", verdict)]


@pytest.mark.parametrize(("way", "verdicts"), [("above", (AGREES, CONTRADICTED)), ("below", (CONTRADICTED, AGREES))])
def test_a_direction(way, verdicts):
    settings = {"is": way, "value": 0.0, "how": "difference", "against": {"likelihood": "standard"}}
    for step, verdict in zip((0.1, -0.1), verdicts, strict=True):
        rows = [row(ibp=0.5 + step), row(likelihood="standard", ibp=0.5)]
        assert decided(rows, **settings) == [("swag", verdict)]
    # No difference is neither.
    assert decided([row(ibp=0.5), row(likelihood="standard", ibp=0.5)], **settings) == [("swag", CONTRADICTED)]


def test_means_are_over_seeds_and_methods_one_by_one_or_together():
    rows = [row(seed=0, ibp=0.70), row(seed=1, ibp=0.80), row("bbb", ibp=0.5)]
    assert decided(rows) == [("swag", AGREES), ("bbb", LOWER)]
    assert decided(rows, methods="largest") == [("largest of methods", AGREES)]
    assert decided(rows, methods="mean", value=0.625) == [("mean of methods", AGREES)]


def test_ratios_and_other_columns():
    rows = [row(ibp=0.5, lbp=0.25), row(likelihood="standard", ibp=0.0)]
    assert decided(rows, how="ratio", against_measure="lbp", value=2.0) == [("swag", AGREES)]
    # A ratio to nothing says nothing.
    assert decided(rows, how="ratio", against={"likelihood": "standard"}, value=2.0) == []


def test_another_figure_may_be_what_it_is_against():
    rows = [row(figure="rayleigh", variation="rayleigh", ibp=0.6), row(ibp=0.7)]
    settings = {"figure": "rayleigh", "how": "difference", "against": {"figure": "fig1", "variation": ""}}
    assert decided(rows, value=-0.1, **settings) == [("swag", AGREES)]
    assert decided(rows[:1], value=-0.1, **settings) == []


def test_what_was_not_measured_is_not_decided():
    assert decided([row(ibp="")]) == [] and decided([row(pgd=0.5)]) == [] and decided([]) == []


def test_differences_have_a_reason_and_what_agrees_has_none():
    claim = _claim(BASE | {"reason": "another rule"})
    assert [found.reason for found in compare([row(ibp=0.5)], [claim])] == ["another rule"]
    assert [found.reason for found in compare([row(ibp=0.5)], [claim], trial=True)] == [TRIAL]
    assert [found.reason for found in compare([row(ibp=0.75)], [claim])] == [""]


def test_only_plain_numbers_are_stated_of_a_posterior():
    swag = ("fig1", "mnist", "swag", "ibp", "paper", "mlp", "")
    bbb = ("fig1", "mnist", "bbb", "ibp", "paper", "mlp", "")
    found = stated(CLAIMS, swag, "ibp")
    assert found is not None and found.value == 0.75
    # "Up to 75%" is about the best method, and no statement about BBB.
    assert stated(CLAIMS, bbb, "ibp") is None and stated(CLAIMS, swag, "accuracy") is None
    assert stated(CLAIMS, ("fig1", "digits", *swag[2:]), "ibp") is None


@pytest.mark.parametrize(
    "changes", [{"is": "near"}, {"how": "product"}, {"methods": "all"}, {"how": "ratio"}, {"against": {"seed": "1"}}]
)
def test_a_claim_that_makes_no_sense_is_refused(changes):
    with pytest.raises(InvalidInput):
        _claim(BASE | changes)
    assert isinstance(_claim(BASE), PaperClaim)
