"""Every attack, in every norm: what it must find, what it must not do, and what an ensemble adds."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import certibayes as cb
from certibayes.attacks import (
    METHODS,
    NORMS,
    Square,
    as_attack,
    margin_loss,
)
from certibayes.errors import InvalidInput
from certibayes.regions import InputRegion

from ..strategies import law, seeds
from .cases import BUDGET, Linear, NoGradients, predictor_of, rand, worst_margins

GRADIENT_METHODS = tuple(name for name in METHODS if name != "square")


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("method", GRADIENT_METHODS)
def test_two_classes_are_broken_exactly_where_a_linear_model_can_be_broken(method, norm):
    model, x = Linear(2, 6), rand(150, 6)
    y = model(x).argmax(-1)
    eps = {"linf": 0.1, "l2": 0.3, "l1": 0.5}[norm]
    lowest = worst_margins(model, x, y, eps, norm)
    found = cb.attack(model, x, y, eps=eps, norm=norm, method=as_attack(method, steps=30, restarts=1))
    clear = lowest.abs() > 1e-4
    assert torch.equal(found.success[clear], lowest[clear] < 0)
    assert 0.05 < found.robust_accuracy < 0.95
    # Where it is unbroken, the worst input is the one known in closed form.
    unbroken = ~found.success
    reached = -margin_loss(model(found.inputs), y)
    torch.testing.assert_close(reached[unbroken], lowest[unbroken], atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("method", ["pgd", "apgd-dlr", "ensemble"])
def test_many_classes_are_broken_where_a_linear_model_can_be_broken(method, norm):
    model, x = Linear(4, 6, seed=1), rand(150, 6)
    y = model(x).argmax(-1)
    eps = {"linf": 0.1, "l2": 0.25, "l1": 0.4}[norm]
    lowest = worst_margins(model, x, y, eps, norm)
    strong = as_attack(method, steps=30, restarts=3, queries=20)
    found = cb.attack(model, x, y, eps=eps, norm=norm, method=strong)
    assert not bool(found.success[lowest > 1e-4].any())
    missed = (~found.success & (lowest < -0.02)).double().mean()
    assert float(missed) < 0.05
    assert 0.05 < found.robust_accuracy < 0.95


@pytest.mark.parametrize("norm", NORMS)
def test_square_comes_near_the_optimum_without_a_gradient(norm):
    model, x = Linear(2, 6), rand(60, 6)
    y = model(x).argmax(-1)
    eps = {"linf": 0.1, "l2": 0.3, "l1": 0.5}[norm]
    lowest = worst_margins(model, x, y, eps, norm)
    found = cb.attack(NoGradients(model), x, y, eps=eps, norm=norm, method=Square(queries=300))
    assert not bool(found.success[lowest > 1e-4].any())
    broken = lowest < 0
    assert float(found.success[broken].double().mean()) > 0.8


@law(40)
@given(
    seed=seeds,
    method=st.sampled_from(list(METHODS)),
    norm=st.sampled_from(NORMS),
    eps=st.sampled_from([0.0, 1e-6, 0.05, 0.4, 3.0]),
    domain=st.sampled_from([None, (0.0, 1.0), (0.1, 0.9)]),
)
def test_what_is_found_is_inside_and_is_what_the_predictor_says(seed, method, norm, eps, domain):
    predictor = predictor_of(seed=seed)
    x, y = rand(10, 6, seed=seed), torch.arange(10) % 3
    if domain is not None:
        x = x.clamp(*domain)
        x[:4] = x[:4].round().clamp(*domain)
        # In l-infinity the whole domain is the largest region that may be asked for.
        eps = min(eps, domain[1] - domain[0]) if norm == "linf" else eps
    quick = as_attack(method, **BUDGET)
    found = cb.attack(predictor, x, y, eps=eps, norm=norm, method=quick, domain=domain, seed=seed)
    assert bool((found.distance <= eps).all())
    assert torch.equal(found.distance, InputRegion.around(x, eps, norm, domain).distance(found.inputs))
    if domain is not None:
        assert torch.equal(found.inputs, found.inputs.clamp(*domain))
    assert torch.equal(found.predicted, predictor.predict(found.inputs))
    assert torch.equal(found.success, found.predicted != y)
    wrong = predictor.predict(x) != y
    assert bool(found.success[wrong].all()) and bool((found.broken_by[wrong] == 0).all())
    assert torch.equal(found.broken_by == -1, ~found.success)
    if eps == 0.0:
        assert torch.equal(found.inputs, x) and torch.equal(found.success, wrong)


@law(4)
@given(seed=seeds, norm=st.sampled_from(NORMS))
def test_an_ensemble_leaves_no_more_than_any_shorter_one(seed, norm):
    predictor = predictor_of(hidden=(20, 20), seed=seed)
    x = rand(40, 6, seed=seed)
    eps = {"linf": 0.1, "l2": 0.25, "l1": 0.5}[norm]
    settings = {"eps": eps, "norm": norm, "domain": (0.0, 1.0), "seed": seed}
    ensemble = as_attack("ensemble", **BUDGET)
    attacks = ensemble.attacks
    runs = [cb.attack(predictor, x, method=attacks[:k], **settings) for k in range(1, len(attacks) + 1)]
    for shorter, longer in itertools.pairwise(runs):
        assert not bool((shorter.success & ~longer.success).any())
    whole, alone = (cb.attack(predictor, x, method=method, **settings) for method in (ensemble, attacks[0]))
    assert torch.equal(whole.inputs, runs[-1].inputs)
    assert whole.robust_accuracy <= alone.robust_accuracy
    assert whole.robust_accuracy_after()["pgd"] == alone.robust_accuracy
    accuracies = list(whole.robust_accuracy_after().values())
    assert (
        accuracies == sorted(accuracies, reverse=True)
        and accuracies[0] == 1.0
        and accuracies[-1] == whole.robust_accuracy
    )


@pytest.mark.parametrize("method", ["apgd-ce", "apgd-dlr"])
@pytest.mark.parametrize("norm", NORMS)
def test_more_restarts_leave_no_more(method, norm):
    predictor = predictor_of(hidden=(20, 20), seed=4)
    x = rand(60, 6)
    eps = {"linf": 0.1, "l2": 0.25, "l1": 0.5}[norm]
    runs = [
        cb.attack(predictor, x, eps=eps, norm=norm, method=as_attack(method, steps=4, restarts=restarts)).success
        for restarts in (1, 2, 4)
    ]
    for fewer, more in itertools.pairwise(runs):
        assert not bool((fewer & ~more).any())


@pytest.mark.parametrize("method", [*METHODS, "ensemble"])
def test_the_same_seed_gives_the_same_attack(method):
    predictor = predictor_of(hidden=(20, 20))
    x = rand(30, 6)
    state = torch.get_rng_state()
    one, same = (cb.attack(predictor, x, eps=0.05, method=as_attack(method, **BUDGET), seed=5).inputs for _ in range(2))
    assert torch.equal(one, same)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("method", ["pgd", "apgd-ce", "square"])
def test_another_seed_searches_elsewhere(method):
    predictor = predictor_of(hidden=(20, 20))
    x = rand(30, 6)
    one, other = (cb.attack(predictor, x, eps=0.05, method=as_attack(method, **BUDGET), seed=s).inputs for s in (0, 1))
    assert not torch.equal(one, other)


class TestMaskedGradients:
    """A predictor that is certain: log-probabilities 0 and -1000, so that cross-entropy has no gradient in floats."""

    model, x, eps = Linear(4, 6, seed=1, scale=20_000.0), rand(100, 6), 0.1
    y = model(x).argmax(-1)

    def robust_accuracy(self, name, **settings):
        method = as_attack(name, steps=20, restarts=1, **settings)
        return cb.attack(self.model, self.x, self.y, eps=self.eps, method=method).robust_accuracy

    def test_cross_entropy_goes_nowhere_and_the_others_succeed(self):
        assert self.robust_accuracy("pgd", losses=["cross-entropy"]) > 0.95
        assert self.robust_accuracy("apgd-ce") > 0.95
        assert self.robust_accuracy("pgd", losses=["margin"]) < 0.7
        assert self.robust_accuracy("pgd", losses="dlr") < 0.7
        assert self.robust_accuracy("apgd-dlr") < 0.7
        assert self.robust_accuracy("square") < 0.7

    def test_the_ensemble_is_not_fooled(self):
        assert self.robust_accuracy("ensemble") < 0.6


class TestClasses:
    @pytest.mark.parametrize("method", [*METHODS, "ensemble"])
    @pytest.mark.parametrize("classes", [2, 3, 100])
    def test_any_number_of_classes(self, method, classes):
        model, x = Linear(classes, 6, scale=3.0), rand(30, 6)
        found = cb.attack(model, x, eps=0.2, method=as_attack(method, **BUDGET))
        assert 0.0 < float(found.success.double().mean()) <= 1.0

    @pytest.mark.parametrize("method", [*METHODS, "ensemble"])
    def test_a_single_class_is_refused(self, method):
        with pytest.raises(InvalidInput, match=r"one class.*logits are \(0, z\)"):
            cb.attack(Linear(1, 6), rand(5, 6), eps=0.5, method=method)
