"""Which intermediates the methods auto and best take by themselves, and that certificates say so."""

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.bounds.registry import Rules, rules_for
from certibayes.certification import _intermediates, certify_in_shards, methods
from certibayes.certification._intermediates import worth_tightening
from certibayes.networks.operations import ReLU
from certibayes.regions import InputRegion

SHAPE = (2, 8, 8)


def convolutional(gain: float = 1.0, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Conv2d(2, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(32, 12),
            nn.ReLU(), nn.Linear(12, 3),
        )  # fmt: skip
    net.input_shape = SHAPE
    with torch.no_grad():
        # Weights as training without intervals makes them: large ones that cancel.
        for layer in (net[2], net[5]):
            layer.weight.mul_(gain)
    return net


def points(count: int = 20) -> torch.Tensor:
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(1))


def predictor_of(*nets: nn.Module) -> cb.Predictor:
    return cb.Samples.from_modules(list(nets)).predictor(len(nets))


EXPLODES = {"eps": 0.04, "domain": (0.0, 1.0)}


def test_intervals_that_explode_are_seen_and_others_are_left_alone():
    predictor, x = predictor_of(convolutional(3.0)), points()
    assert worth_tightening(predictor, InputRegion.around(x, 0.04))
    # Next to nothing is unstable in a small ball, everything is in a large one, where CROWN has nothing to go by.
    assert not worth_tightening(predictor, InputRegion.around(x, 1e-4))
    assert not worth_tightening(predictor, InputRegion.around(x, 3.0))
    assert not worth_tightening(predictor, InputRegion.around(x[:0], 0.04))


@pytest.mark.parametrize("hidden", [[], [30]])
def test_networks_whose_intervals_are_exact_have_no_use_for_others(hidden):
    predictor = cb.Point(cb.networks.mlp(6, hidden, 3)).predictor()
    x = torch.rand(5, 6)
    assert not any(worth_tightening(predictor, InputRegion.around(x, eps)) for eps in (0.01, 0.1, 0.5))


def test_work_without_end_is_not_begun_unasked(monkeypatch):
    predictor, region = predictor_of(convolutional(3.0)), InputRegion.around(points(), 0.04)
    monkeypatch.setattr(_intermediates, "WORK", 1000)
    assert not worth_tightening(predictor, region)


def test_layers_with_interval_rules_only_leave_no_choice(monkeypatch):
    def no_linear_rule(operation):
        rules = rules_for(operation)
        return Rules(rules.interval) if isinstance(operation, ReLU) else rules

    monkeypatch.setattr(_intermediates, "rules_for", no_linear_rule)
    assert not worth_tightening(predictor_of(convolutional(3.0)), InputRegion.around(points(), 0.04))


@pytest.mark.parametrize("method", [cb.Auto(), cb.Best("crown"), cb.Best()], ids=repr)
def test_the_choice_is_in_the_certificate_and_proves_more(method, monkeypatch):
    predictor, x = predictor_of(convolutional(3.0), convolutional(3.0)), points()
    chosen = cb.certify(predictor, x, method=method, **EXPLODES)
    assert chosen.intermediates == "crown"
    assert f"{method.bounds} bounds with crown intermediates" in chosen.statement
    monkeypatch.setattr(methods, "worth_tightening", lambda *_: False)
    plain = cb.certify(predictor, x, method=method, **EXPLODES)
    assert plain.intermediates == "ibp" and "intermediates" not in plain.statement
    assert (chosen.certified | ~plain.certified).all()
    assert int(chosen.certified.sum()) > int(plain.certified.sum())
    robust = cb.attack(predictor, x[chosen.certified], **EXPLODES)
    assert robust.robust_accuracy == 1.0


def test_what_is_asked_for_is_taken():
    predictor, x = predictor_of(convolutional(3.0)), points(4)
    for asked in ("ibp", "crown"):
        assert cb.certify(predictor, x, method=cb.Auto(intermediates=asked), **EXPLODES).intermediates == asked
    assert cb.certify(predictor, x, method=cb.Auto("ibp"), **EXPLODES).intermediates == "ibp"
    assert cb.certify(predictor, x, method=cb.Elided("crown", "auto"), **EXPLODES).intermediates == "crown"


def test_one_choice_for_all_shards_and_batches(tmp_path, monkeypatch):
    """It is made by the first points; those of the last shard would choose otherwise by themselves."""
    predictor, x = predictor_of(convolutional(3.0)), points()
    x[16:] = 0.0
    monkeypatch.setattr(methods, "worth_tightening", lambda predictor, region: bool(region.center[0].any()))
    assert cb.certify(predictor, x[16:], **EXPLODES).intermediates == "ibp"
    whole = cb.certify(predictor, x, **EXPLODES)
    in_batches = cb.certify(predictor, x, batch_size=4, **EXPLODES)
    in_shards = certify_in_shards(predictor, x, None, tmp_path, shard=8, **EXPLODES)
    for one in (in_batches, in_shards):
        assert one.intermediates == whole.intermediates == "crown"
        assert torch.equal(one.certified, whole.certified)


def test_radii_name_the_tightest_that_was_taken():
    predictor, x = predictor_of(convolutional(3.0)), points(6)
    found = cb.certified_radius(predictor, x, largest=0.1, tolerance=0.01, domain=(0.0, 1.0))
    assert found.intermediates == "crown" and "with crown intermediates" in found.statement
    small = cb.certified_radius(predictor, x, largest=1e-4, tolerance=1e-5, domain=(0.0, 1.0))
    assert small.intermediates == "ibp"


def test_statistical_certificates_choose_once():
    net = convolutional(3.0)
    mean = {name: p.detach() for name, p in net.named_parameters()}
    posterior = cb.DiagonalGaussian(net, mean, {name: p.abs() * 1e-4 for name, p in mean.items()})
    x = points(3)
    y = posterior.predictor(1).predict(x)
    found = cb.robust_probability(posterior, x, y, samples=3, method="auto", **EXPLODES)
    assert found.trial.provenance.settings["intermediates"] == "crown"
