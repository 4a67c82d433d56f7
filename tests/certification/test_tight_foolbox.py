"""A third party's attacks against what only the tightest bounds certify, where an unsound bound would show first."""

import warnings

import pytest
import torch

import certibayes as cb

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # foolbox and what it imports, not ours
    import foolbox

EPS = 0.06
DOMAIN = (0.0, 1.0)
ATTACKS = {
    "fgsm": lambda: foolbox.attacks.LinfFastGradientAttack(),
    "pgd": lambda: foolbox.attacks.LinfPGD(steps=20),
    "adam pgd": lambda: foolbox.attacks.LinfAdamPGD(steps=20),
    "deepfool": lambda: foolbox.attacks.LinfDeepFoolAttack(steps=20),
    "noise": lambda: foolbox.attacks.LinfRepeatedAdditiveUniformNoiseAttack(repeats=20),
}


def _points():
    test = cb.data.load("digits").test
    return test.inputs[:150], test.targets[:150]


@pytest.fixture(scope="module")
def posterior():
    """Half of its test points can be certified at the radius, many of them by linear bounds alone."""
    train = cb.data.load("digits").train
    return cb.fit(
        cb.networks.mlp(784, [24, 16], 10),
        (train.inputs[:2500], train.targets[:2500]),
        algorithm=cb.VOGN(lr=0.003),
        likelihood=cb.RobustCategorical(cb.TwoPoint.for_radius(0.03)),
        prior=cb.GaussianPrior(300.0),
        temperature=0.001,
        epochs=6,
        progress=False,
    )


@pytest.fixture(scope="module", params=[1, 5], ids=["one network", "five networks"])
def case(request, posterior):
    """A predictor, and the points that each way of proving certifies."""
    predictor = posterior.predictor(request.param, seed=1).eval()
    x, y = _points()
    methods = {"plain": cb.Theorem1(), "elided": cb.Elided("alpha-crown"), "best": cb.Best("alpha-crown")}
    return predictor, {
        name: cb.certify(predictor, x, y, eps=EPS, method=method, domain=DOMAIN).certified
        for name, method in methods.items()
    }


def test_much_is_certified_by_tight_bounds_alone(case):
    _, certified = case
    tight = certified["elided"] | certified["best"]
    assert int(tight.sum()) > int(certified["plain"].sum()) + 20
    assert 0.2 < float(tight.float().mean()) < 0.9


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_point_falls_that_tight_bounds_certify(case, attack):
    predictor, certified = case
    x, y = _points()
    tight = certified["elided"] | certified["best"]
    found = ATTACKS[attack]()(foolbox.PyTorchModel(predictor, bounds=DOMAIN), x, y, epsilons=EPS)[1]
    # Attacks overshoot the ball by a rounding error; what counts are points inside it.
    found = torch.clamp(found, x - EPS, x + EPS).clamp(*DOMAIN)
    broken = predictor.predict(found) != y
    assert not bool((broken & tight).any())
    if attack == "pgd":
        assert bool(broken[~tight].any())  # the attack can do something
