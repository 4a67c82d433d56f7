"""What users give is converted or refused once, before any work, and what comes back can be written."""

import json
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.attacks import PGD, as_attack
from certibayes.certification import METHODS, certify_in_shards
from certibayes.errors import InvalidInput
from certibayes.evaluation import assess
from certibayes.regions import NORMS, InputRegion

from ..strategies import few_of, generator, in_turn

X = torch.rand(6, 3, generator=torch.Generator().manual_seed(0))
LOW = torch.tensor([[0.0, -1.0, 0.0]])
HIGH = torch.tensor([[1.0, 2.0, torch.inf]])


def _net(outputs: int = 3) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, outputs))


PREDICTOR = cb.Point(_net()).predictor()
Y = PREDICTOR.predict(X)
REGRESSOR = cb.Point(_net(), metadata={"task": "regression"}).predictor()


def _same(found, expected) -> None:
    assert torch.equal(found.certified, expected.certified)
    assert torch.equal(found.lower, expected.lower) and torch.equal(found.upper, expected.upper)


# Numbers and pairs


NUMBERS = [np.float32(0.25), np.float64(0.25), np.array(0.25), torch.tensor(0.25)]
PAIRS = [(0, 1), [0.0, 1.0], np.array([0.0, 1.0]), torch.tensor([0.0, 1.0])]


@pytest.mark.parametrize(("eps", "domain"), in_turn(NUMBERS, PAIRS), ids=type)
def test_any_number_and_any_pair_make_a_certificate_that_can_be_written(eps, domain, tmp_path):
    expected = cb.certify(PREDICTOR, X, Y, eps=0.25, domain=(0.0, 1.0))
    found = cb.certify(PREDICTOR, X, Y, eps=eps, domain=domain)
    _same(found, expected)
    assert json.dumps(found.to_json()) == json.dumps(expected.to_json())
    sharded = certify_in_shards(PREDICTOR, X, Y, tmp_path, eps=eps, domain=domain, shard=4)
    _same(sharded, expected)
    regression = cb.certify_regression(REGRESSOR, X, eps=eps, domain=domain, tolerance=np.float32(0.5))
    json.dumps(regression.to_json())
    radius = cb.certified_radius(PREDICTOR, X, Y, domain=domain, tolerance=0.1)
    assert radius.domain == (0.0, 1.0) and "[0, 1]" in radius.statement
    attacked = cb.attack(PREDICTOR, X, Y, eps=eps, domain=domain, method=PGD(steps=2))
    assert torch.equal(
        attacked.inputs, cb.attack(PREDICTOR, X, Y, eps=0.25, domain=(0.0, 1.0), method=PGD(steps=2)).inputs
    )
    json.dumps(cb.certify_abstention(found, np.float32(0.9)).to_json())


# Points and labels


@pytest.mark.parametrize(("method", "dtype"), in_turn(METHODS, [torch.uint8, torch.int8, torch.uint16, torch.int32]))
def test_labels_of_every_integer_type_for_every_method(method, dtype):
    found = cb.certify(PREDICTOR, X, Y.to(dtype), eps=0.05, method=method)
    _same(found, cb.certify(PREDICTOR, X, Y, eps=0.05, method=method))
    assert found.labels.dtype == torch.int64


@pytest.mark.parametrize("form", [lambda t: t.numpy(), lambda t: t.tolist(), list], ids=["array", "lists", "tensors"])
def test_arrays_and_lists_are_points_and_labels(form, tmp_path):
    x, y = form(X), form(Y)
    _same(cb.certify(PREDICTOR, x, y, eps=0.05), cb.certify(PREDICTOR, X, Y, eps=0.05))
    _same(
        certify_in_shards(PREDICTOR, x, y, tmp_path, eps=0.05, shard=4),
        cb.certify(PREDICTOR, X, Y, eps=0.05),
    )
    radius, expected = (cb.certified_radius(PREDICTOR, a, b, tolerance=0.1) for a, b in ((x, y), (X, Y)))
    assert torch.equal(radius.radius, expected.radius) and radius.inputs_digest == expected.inputs_digest
    regression = cb.certify_regression(REGRESSOR, x, form(torch.zeros(6, 3)), eps=0.05)
    assert torch.equal(regression.lower, cb.certify_regression(REGRESSOR, X, eps=0.05).lower)
    attacked = cb.attack(PREDICTOR, x, y, eps=0.5, method=PGD(steps=2))
    assert torch.equal(attacked.inputs, cb.attack(PREDICTOR, X, Y, eps=0.5, method=PGD(steps=2)).inputs)


def test_arrays_that_run_backwards_or_may_not_be_written_to():
    x = X.numpy()[:, ::-1]
    x.flags.writeable = False
    _same(cb.certify(PREDICTOR, x, eps=0.05), cb.certify(PREDICTOR, X.flip(1), eps=0.05))


@pytest.mark.parametrize("y", [Y.float(), Y.bool(), Y.numpy().astype(bool), [0.5] * 6, ["cat"] * 6, Y[:, None]])
def test_what_are_no_labels_is_refused(y, tmp_path):
    for call in (
        lambda: cb.certify(PREDICTOR, X, y, eps=0.05),
        lambda: cb.certified_radius(PREDICTOR, X, y),
        lambda: certify_in_shards(PREDICTOR, X, y, tmp_path, eps=0.05),
        lambda: cb.attack(PREDICTOR, X, y, eps=0.05),
    ):
        with pytest.raises(InvalidInput, match=r"labels (must be|cannot be read)"):
            call()


def test_nothing_is_done_before_everything_is_checked():
    class Asked(Exception):
        pass

    class Unwilling(nn.Module):
        def forward(self, x):
            raise Asked

    for wrong in ({"eps": torch.ones(4)}, {"eps": 0.1, "domain": (1.0, 0.0)}, {"eps": "0.1"}):
        with pytest.raises(InvalidInput):
            cb.attack(Unwilling(), X, **wrong)


# Radii


@pytest.mark.parametrize("count", [2, 3, 6])
def test_the_same_points_in_other_batches_get_the_same_answer_or_none(count):
    """A radius of shape (3,) used to be per point for three points and per value for any other number."""
    eps, x = torch.tensor([0.0, 0.05, 0.1]), X[:count]
    ask = (
        lambda: cb.certify(PREDICTOR, x, eps=eps),
        lambda: cb.certify_regression(REGRESSOR, x, eps=eps),
        lambda: cb.attack(PREDICTOR, x, eps=eps, method=PGD(steps=1)),
    )
    for call in ask:
        if count == 3:
            call()
        else:
            with pytest.raises(InvalidInput, match=rf"per point has shape \({count},\); one per input value"):
                call()
    whole = cb.certify(PREDICTOR, X, eps=eps[None])
    part = cb.certify(PREDICTOR, x, eps=eps[None])
    assert torch.equal(whole.certified[:count], part.certified)
    assert torch.equal(whole.lower[:count], part.lower)


# Domains that differ from feature to feature


WAYS = list(product(NORMS, ["pairwise", "best"]))


@pytest.mark.parametrize("way", few_of(WAYS, fast=[(norm, "pairwise") for norm in NORMS] + [("linf", "best")]), ids=str)
def test_no_input_of_the_domain_leaves_its_bounds(way):
    norm, method = way
    eps = {"linf": 0.3, "l2": 0.4, "l1": 0.6}[norm]
    result = cb.certify(PREDICTOR, X, Y, eps=eps, norm=norm, domain=(LOW, HIGH), method=method, batch_size=4)
    region = InputRegion.around(X, eps, norm, (LOW, HIGH))
    attacked = cb.attack(
        PREDICTOR, X, Y, eps=eps, norm=norm, domain=(LOW, HIGH), method=as_attack("ensemble", steps=10, queries=50)
    )
    points = [attacked.inputs, *(region.sample(generator(seed)) for seed in range(50))]
    for z in points:
        assert torch.equal(region.project(z), z)
        probabilities = PREDICTOR.probabilities(z).double()
        assert bool((result.lower <= probabilities).all() and (probabilities <= result.upper).all())
        assert torch.equal(PREDICTOR.predict(z)[result.certified], Y[result.certified])


@pytest.mark.parametrize("norm", NORMS)
def test_a_narrower_domain_is_used(norm):
    wide, narrow = (
        cb.certify(PREDICTOR, X, Y, eps=0.3, norm=norm, domain=(X - reach, X + reach), method="pairwise")
        for reach in (1.0, torch.tensor([0.15, 0.01, 0.01]))
    )
    assert float((narrow.upper - narrow.lower).sum()) < 0.5 * float((wide.upper - wide.lower).sum())


@pytest.mark.parametrize("norm", NORMS)
def test_ends_that_are_the_same_for_all_features_are_two_numbers(norm):
    ends = torch.zeros(1, 3), torch.ones(6, 3)
    settings = {"eps": 0.1, "norm": norm, "method": "pairwise", "batch_size": 4}
    _same(
        cb.certify(PREDICTOR, X, Y, domain=ends, **settings), cb.certify(PREDICTOR, X, Y, domain=(0.0, 1.0), **settings)
    )
    one, other = (cb.certified_radius(PREDICTOR, X, Y, norm=norm, domain=d, tolerance=0.1) for d in (ends, (0.0, 1.0)))
    assert torch.equal(one.radius, other.radius) and "each feature" in one.statement
    one, other = (cb.certify_regression(REGRESSOR, X, eps=0.1, norm=norm, domain=d) for d in (ends, (0.0, 1.0)))
    assert torch.equal(one.lower, other.lower)
    assert json.loads(json.dumps(one.to_json()))["domain"] == [ends[0].tolist(), ends[1].tolist()]
    one, other = (
        cb.attack(PREDICTOR, X, Y, eps=0.5, norm=norm, domain=d, method=PGD(steps=3)) for d in (ends, (0.0, 1.0))
    )
    assert torch.equal(one.inputs, other.inputs)


def test_shards_take_each_point_its_own_domain(tmp_path):
    domain = X - 0.25 - torch.rand(6, 3), X + 0.05
    expected = cb.certify(PREDICTOR, X, Y, eps=0.3, domain=domain)
    for _ in range(2):  # made, then read again
        found = certify_in_shards(PREDICTOR, X, Y, tmp_path, eps=0.3, domain=domain, shard=4)
        _same(found, expected)
        assert torch.equal(found.domain[0], domain[0].double())


def test_shards_have_one_radius(tmp_path):
    with pytest.raises(InvalidInput, match="one radius for all points"):
        certify_in_shards(PREDICTOR, X, Y, tmp_path, eps=torch.ones(6))


# One output is one class


def test_a_network_with_one_output_is_refused_with_the_remedy(tmp_path):
    posterior = cb.Point(_net(1))
    predictor, y = posterior.predictor(), torch.zeros(6, dtype=torch.int64)
    gaussian = cb.DiagonalGaussian(_net(1), *({name: p.detach().abs() for name, p in _net(1).named_parameters()},) * 2)
    robust = cb.RobustCategorical(cb.TwoPoint(0.1))
    for call in (
        lambda: cb.certify(predictor, X, eps=0.1),
        lambda: cb.certify(predictor, X[:0], eps=0.1),
        lambda: cb.certified_radius(predictor, X, y),
        lambda: certify_in_shards(predictor, X, y, tmp_path, eps=0.1),
        lambda: cb.attack(predictor, X, y, eps=0.1),
        lambda: cb.attack(posterior, X, eps=0.1),
        lambda: cb.robust_probability(gaussian, X, y, eps=0.1, samples=2),
        lambda: cb.posterior_predictive_bounds(gaussian, X, y, eps=0.1, samples=2),
        lambda: cb.fit(_net(1), (X, y), algorithm=cb.MAP(), epochs=1, progress=False),
        lambda: cb.fit(_net(1), (X, y), algorithm=cb.MAP(), likelihood=robust, epochs=1, progress=False),
        lambda: assess(predictor, X, y, X),
    ):
        with pytest.raises(InvalidInput, match=r"one class.*two outputs.*\(0, z\).*nn\.Linear\(1, 2\)"):
            call()


def test_a_regression_may_have_one_output():
    posterior = cb.fit(
        _net(1), (X, X[:, :1]), algorithm=cb.MAP(), likelihood=cb.RobustGaussian(), epochs=1, progress=False
    )
    assert cb.certify_regression(posterior.predictor(), X, eps=0.1).lower.shape == (6, 1)
