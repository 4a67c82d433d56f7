"""Forged certificates of networks that normalize each example, with a radius for each feature."""

import copy
from dataclasses import replace

import pytest
import torch

from certibayes.checker import check_certificate
from certibayes.prediction import Predictor

from .cases import points_for, provenance, record_of, restated, small_predictor

NORMS = ("layer norm", "group norm", "ends in rms norm")


def with_eps(predictor: Predictor, eps: float) -> Predictor:
    """The same weights in a network whose norms have another eps."""
    nodes = tuple(
        replace(node, operation=replace(node.operation, eps=eps)) if hasattr(node.operation, "eps") else node
        for node in predictor.graph.nodes
    )
    return Predictor(replace(predictor.graph, nodes=nodes), predictor.samples)


@pytest.fixture(scope="module", params=NORMS)
def case(request):
    """A predictor, points, radii of which every other one is 0, and the record of an honest certificate."""
    predictor, x = small_predictor(request.param), points_for(request.param, 20)
    radii = torch.full_like(x[:1], 0.003, dtype=torch.float64)
    radii.view(-1)[::2] = 0.0
    record = record_of(predictor, x, eps=radii, method="pairwise")
    honest = check_certificate(record, predictor, x)
    assert honest.holds and honest.confirmed.sum() >= 10 and honest.bounds_confirmed.all()
    return predictor, x, radii, record, honest


def radius_of(radii):
    return {"eps": radii.tolist()}


FORGERIES = {
    "larger radii": lambda radii: radius_of(200 * radii),
    "one radius for all": lambda radii: {"eps": 0.6},
    "radii of other features": lambda radii: radius_of(200 * radii.flatten().roll(1).view(radii.shape)),
    "what was fixed changes": lambda radii: radius_of(torch.where(radii > 0, radii, 0.6)),
    "larger for one point": lambda radii: radius_of(
        torch.cat([radii.expand(19, *radii.shape[1:]), 200 * radii.clamp(min=0.003)])
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_radii_that_were_never_proved(case, name):
    predictor, x, radii, record, honest = case
    forged = check_certificate(restated(record, **FORGERIES[name](radii)), predictor, x)
    assert not forged.contradictions and not forged.holds_strictly
    assert not forged.bounds_confirmed[-1] and bool((forged.confirmed <= honest.confirmed).all())
    assert not forged.holds, "nothing at all is refuted"


def test_radii_of_features_in_another_norm_or_shape(case):
    predictor, x, radii, record, _ = case
    assert any("only the norm linf" in found for found in check_certificate(
        restated(record, norm="l2"), predictor, x).contradictions)  # fmt: skip
    fewer = restated(record, eps=radii.flatten(1)[:, 1:].tolist())
    assert "do not fit the points" in check_certificate(fewer, predictor, x).problems[0]


def test_tightened_bounds(case):
    predictor, x, _, record, _ = case
    own = predictor.probabilities(x).double()
    ends = {key: torch.tensor(record[key], dtype=torch.float64) for key in ("lower", "upper")}
    for fraction in (0.99, 1e-3):
        forged = restated(record, **{key: (own + fraction * (end - own)).tolist() for key, end in ends.items()})
        result = check_certificate(forged, predictor, x)
        assert not result.bounds_confirmed.any()
    assert result.bounds_refuted.any() and not result.holds


def test_the_certificate_of_another_eps(case):
    """Of the network in which the norms add 10 to each variance: nearly the same words, and far too narrow bounds."""
    predictor, x, radii, record, _ = case
    other = with_eps(predictor, 10.0)
    assert "another predictor" in check_certificate(record, other, x).problems[0]
    found = record_of(other, x, eps=radii, method="pairwise")
    forged = restated(found, provenance=provenance(found, digest=predictor.digest))
    result = check_certificate(forged, predictor, x)
    assert not result.problems and not result.bounds_confirmed.any() and result.bounds_refuted.all()


def test_a_counterexample_that_moves_what_is_fixed(case):
    predictor, x, _, record, _ = case
    points = [index for index, mark in enumerate(record["certified"]) if not mark] or [0]
    index, example = points[0], x[points[0]].double().clone()
    example.view(-1)[0] += 1e-3
    forged = copy.deepcopy(record)
    forged["certified"][index], forged["attacked"] = False, [number == index for number in range(len(x))]
    forged["counterexamples"] = {str(index): example.tolist()}
    result = check_certificate(restated(forged), predictor, x)
    assert bool(result.attacked_refuted[index]) and not result.holds
