"""A third party's attacks never break a certified point either."""

import warnings

import pytest
import torch

import certibayes as cb
from certibayes.attacks import PGD
from certibayes.regions import InputRegion

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # foolbox and what it imports, not ours
    import foolbox


@pytest.fixture(scope="module")
def predictor():
    """A small robust posterior, half of whose test points can be certified at the radius."""
    digits = cb.data.load("digits")
    posterior = cb.fit(
        cb.networks.mlp(784, [32], 10),
        (digits.train.inputs[:3000], digits.train.targets[:3000]),
        algorithm=cb.VOGN(lr=0.003),
        likelihood=cb.RobustCategorical(cb.TwoPoint.for_radius(0.05)),
        prior=cb.GaussianPrior(300.0),
        temperature=0.001,
        epochs=6,
        progress=False,
    )
    return posterior.predictor(10, seed=1).eval()


ATTACKS = {
    "fgsm": lambda: foolbox.attacks.LinfFastGradientAttack(),
    "pgd": lambda: foolbox.attacks.LinfPGD(steps=20),
    "deepfool": lambda: foolbox.attacks.LinfDeepFoolAttack(steps=20),
    "noise": lambda: foolbox.attacks.LinfRepeatedAdditiveUniformNoiseAttack(repeats=20),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_certified_point_falls(predictor, attack):
    x, y = cb.data.load("digits").test
    x, y, eps = x[:300], y[:300], 0.05
    certified = cb.certify(predictor, x, y, eps=eps, domain=(0.0, 1.0), method="theorem1").certified
    assert 0.2 < float(certified.float().mean()) < 0.95
    model = foolbox.PyTorchModel(predictor, bounds=(0, 1))
    found = ATTACKS[attack]()(model, x, y, epsilons=eps)[1]
    # Attacks overshoot the ball by a rounding error; what counts are points inside it.
    found = torch.clamp(found, x - eps, x + eps).clamp(0.0, 1.0)
    broken = predictor.predict(found) != y
    assert not bool((broken & certified).any())
    if attack == "pgd":
        assert bool(broken[~certified].any())  # the attack can do something


def test_a_predictor_goes_into_foolbox_as_it_is(predictor, recwarn):
    x, y = cb.data.load("digits").test
    model = foolbox.PyTorchModel(cb.Predictor(predictor.graph, predictor.samples), bounds=(0, 1))
    assert foolbox.accuracy(model, x[:50], y[:50]) == pytest.approx(
        float((predictor.predict(x[:50]) == y[:50]).double().mean())
    )
    assert not [w for w in recwarn if "training mode" in str(w.message)]


THEIRS = {
    "linf": (0.05, lambda: foolbox.attacks.LinfPGD(steps=20)),
    "l2": (0.5, lambda: foolbox.attacks.L2PGD(steps=20)),
    "l1": (2.0, lambda: foolbox.attacks.SparseL1DescentAttack(steps=20)),
}


@pytest.mark.parametrize("norm", THEIRS)
def test_our_attack_breaks_no_less_than_foolbox(predictor, norm):
    """Same steps, one start: an attack that lags behind a third party's is no upper bound to trust."""
    x, y = cb.data.load("digits").test
    x, y = x[:100], y[:100]
    eps, theirs = THEIRS[norm]
    found = theirs()(foolbox.PyTorchModel(predictor, bounds=(0, 1)), x, y, epsilons=eps)[1]
    inside = InputRegion.around(x, eps, norm, (0.0, 1.0)).project(found)
    unbroken = float((predictor.predict(inside) == y).double().mean())
    ours = cb.attack(predictor, x, y, eps=eps, norm=norm, domain=(0.0, 1.0), method=PGD(steps=20, restarts=2))
    assert 0.0 < ours.robust_accuracy <= unbroken < float((predictor.predict(x) == y).double().mean())
