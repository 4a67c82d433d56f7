"""Evaluations: points that are proved need no attack."""

import pytest
import torch

import certibayes as cb
from certibayes.experiments import evaluate

EPS = 0.15


@pytest.fixture(scope="module")
def task():
    """A small predictor that proves some points and not others."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(60, 5, generator=generator)
    predictor = cb.Samples.from_modules([cb.networks.mlp(5, [8], 3, seed=seed) for seed in range(3)]).predictor(3)
    y = predictor.predict(x)
    y[::7] = (y[::7] + 1) % 3
    return predictor, x, y


def found(task, **settings):
    return evaluate(*task, eps=EPS, domain=(0.0, 1.0), steps=5, restarts=1, **settings)


def test_points_that_are_proved_are_unbroken_without_an_attack(task):
    _, x, y = task
    result = found(task, skip_proved=True)
    proved, attacked = result.certificate.certified, result.attacked
    assert 0 < int(proved.sum()) < int((result.certificate.predicted == y).sum())
    assert not bool(attacked.success[proved].any())
    assert torch.equal(attacked.inputs[proved], x[proved])
    assert torch.equal(attacked.predicted[proved], y[proved])
    assert set(attacked.broken_by[proved].tolist()) == {-1}
    assert attacked.breakers()[0] == "clean"


def test_the_others_are_attacked_as_ever(task):
    """Without random starts an attack on a point does not depend on which others are attacked."""
    some, every = found(task, skip_proved=True).attacked, found(task).attacked
    assert some.robust_accuracy == every.robust_accuracy < 1.0
    unproved = ~found(task).certificate.certified
    for name in ("inputs", "labels", "predicted", "success", "distance", "broken_by"):
        assert torch.equal(getattr(some, name)[unproved], getattr(every, name)[unproved])
        assert getattr(some, name).dtype == getattr(every, name).dtype


def test_nothing_is_left_to_attack_where_all_is_proved(task):
    predictor, x, _ = task
    result = evaluate(predictor, x, predictor.predict(x), eps=0.0, domain=(0.0, 1.0), skip_proved=True)
    assert result.certificate.certified_fraction == result.attacked.robust_accuracy == 1.0
