"""Methods: objects with names as shortcuts, the same everywhere, and each says what would try harder."""

from dataclasses import FrozenInstanceError, dataclass, replace

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.bounds import Box, register, registry
from certibayes.certification import BOUNDS, METHODS, as_method, certify_in_shards
from certibayes.errors import InvalidInput, UnsupportedLayer
from certibayes.networks import Node
from certibayes.networks.operations import Operation

from ..strategies import generator

X = torch.rand(8, 4, generator=generator(0))


@pytest.fixture(scope="module")
def predictor():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        nets = [nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)) for _ in range(2)]
    return cb.Samples.from_modules(nets).predictor(2)


@pytest.mark.parametrize("name", METHODS)
def test_a_name_is_the_object_with_its_defaults(name, predictor):
    method = as_method(name)
    assert method == METHODS[name]() and method.name == name and as_method(method) is method
    by_name, by_object = (cb.certify(predictor, X, eps=0.05, method=given) for given in (name, method))
    assert by_name.to_json() == by_object.to_json() and by_name.method == name
    assert by_name.bounds == method.bounds and f"and the method {name}" in by_name.statement


def test_auto_is_the_default_everywhere(predictor, tmp_path):
    assert cb.certify(predictor, X, eps=0.05).method == "auto"
    assert certify_in_shards(predictor, X, None, tmp_path, eps=0.05).method == "auto"
    assert cb.certified_radius(predictor, X, tolerance=0.1).method == "auto"


@dataclass(frozen=True)
class Doubled(Operation):
    """An operation of a user's own."""

    def evaluate(self, weights, *inputs):
        return 2 * inputs[0]


def test_auto_takes_layers_that_have_interval_rules_only(predictor, monkeypatch):
    """The other methods say what they need; the default does with less."""
    monkeypatch.setattr(registry, "_rules", dict(registry._rules))
    first, *rest = predictor.graph.nodes
    nodes = (Node("own", Doubled(), ("input",), {}, (4,)), replace(first, inputs=("own",)), *rest)
    own = cb.Predictor(replace(predictor.graph, nodes=nodes), predictor.samples)
    register(Doubled, lambda operation, weights, boxes, rounding: Box(*(2 * part for part in boxes[0][:2])), "doubled")
    for eps in (0.05, 0.5):  # twice as far, twice the radius
        x = X.div(2)
        found = cb.certify(own, x, eps=eps / 2)
        assert torch.equal(found.certified, cb.certify(predictor, X, eps=eps, method=cb.Elided("ibp")).certified)
        assert not bool(found.certified.all()) or eps == 0.05
    with pytest.raises(UnsupportedLayer, match="Doubled has interval bounds only"):
        cb.certify(own, x, eps=0.25, method=cb.Elided("crown"))


def test_settings_by_name_and_none_for_the_default():
    assert as_method("best", bounds="crown", budget=5.0) == cb.Best("crown", budget=5.0)
    assert as_method("theorem1", bounds=None, intermediates=None, budget=None) == cb.Theorem1()
    assert as_method("elided", bounds="hull", intermediates="crown") == cb.Elided("hull", "crown")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: as_method("majority"), "method must be one of auto, theorem1, pairwise, elided, joint, best"),
        (lambda: as_method(cb.Best), r"is the class Best; give an object: method=Best\(\)"),
        (lambda: as_method(3), "method must be one of"),
        (lambda: as_method("theorem1", bounds="magic"), "bounds must be one of ibp, crown, alpha-crown, hull"),
        (lambda: cb.Elided("crown", "magic"), "intermediates must be one of ibp, crown, alpha-crown, auto"),
        (lambda: cb.Pairwise(intermediates="crown"), "for linear bounds"),
        (lambda: cb.Joint("ibp"), "joint needs linear bounds"),
        (lambda: as_method("auto", budget=1.0), "only the method best can use a budget, not auto"),
        (lambda: cb.Best(budget="long"), "budget is a positive number of seconds"),
    ],
)
def test_refused(make, words):
    with pytest.raises(InvalidInput, match=words):
        make()


def test_methods_are_values():
    assert cb.Best("crown") == cb.Best("crown") != cb.Best("hull") and cb.Theorem1() != cb.Pairwise()
    assert hash(cb.Joint()) == hash(cb.Joint())
    with pytest.raises(FrozenInstanceError):
        cb.Best().budget = 3.0
    assert cb.Best().with_seconds(3.0) == cb.Best(budget=3.0) and cb.Best(budget=3.0).seconds == 3.0
    assert cb.Elided().with_seconds(3.0) == cb.Elided() and cb.Elided().seconds is None


@pytest.mark.parametrize("name", METHODS)
def test_where_points_stay_open_it_is_said_what_would_try_harder(name, predictor):
    result = cb.certify(predictor, X, eps=1.0, domain=(-1.0, 2.0), method=as_method(name))
    count = int(result.open.sum())
    assert count > 0 and not bool((result.open & result.certified).any())
    assert result.hint == f"{count} point{'s stay' if count > 1 else ' stays'} open. To try harder: {result.harder}."
    assert result.harder == METHODS[name]().harder and result.hint in repr(result)
    assert not cb.certify(predictor, X, eps=0.0, method=name).hint


def test_trying_harder_proves_no_less(predictor):
    """Along the hints, from the paper's method to a budget."""
    assert cb.Theorem1().harder == cb.Pairwise().harder == 'method="auto"'
    assert cb.Auto().harder == cb.Elided().harder == cb.Joint().harder == 'method="best"'
    assert "budget" in cb.Best().harder and "more than 2 seconds" in cb.Best(budget=2.0).harder
    for eps in (0.05, 0.15):
        before = torch.zeros(len(X), dtype=torch.bool)
        for method in (cb.Theorem1(), cb.Pairwise(), cb.Auto(), cb.Best(), cb.Best(budget=2.0)):
            found = cb.certify(predictor, X, eps=eps, method=method).certified
            assert bool((found | ~before).all())
            before = found


@pytest.mark.parametrize("bounds", BOUNDS)
def test_auto_goes_as_far_as_the_bounds_it_is_given(bounds, predictor):
    """Between intervals with the last layer elided and that with the bounds; hull is for methods that refine."""
    most = "alpha-crown" if bounds == "hull" else bounds
    for eps in (0.2, 0.4, 0.6):
        before = torch.zeros(len(X), dtype=torch.bool)
        for method in (cb.Pairwise(), cb.Elided("ibp"), cb.Auto(bounds), cb.Elided(most)):
            found = cb.certify(predictor, X, eps=eps, method=method).certified
            assert bool((found | ~before).all())
            before = found
