"""Predictors: log mean softmax of fixed samples, as an ordinary module."""

import copy

import pytest
import torch
from hypothesis import given
from torch import nn

import certibayes as cb
from certibayes.errors import InvalidInput
from certibayes.networks import trace
from certibayes.prediction import Predictor
from certibayes.support.stacks import stack

from ..strategies import (
    CLASSES,
    ZOO,
    Functional,
    generator,
    graph_and_params,
    inputs,
    law,
    make,
    seeds,
    threads,
    traced,
)


def _predictor(name: str = "relu", samples: int = 4, dtype: torch.dtype = torch.float32) -> Predictor:
    graph, _ = traced(name)
    return Predictor(graph, stack([traced(name, seed, dtype)[1] for seed in range(samples)]))


@pytest.mark.parametrize("name", ZOO)
def test_it_is_the_log_of_the_mean_softmax(name):
    predictor = _predictor(name)
    x = inputs(name, 6, 0)
    with torch.no_grad():
        logits = torch.stack([make(name, seed)(x) for seed in range(4)]).double()
        expected = logits.softmax(-1).mean(0)
        log_mean = logits.log_softmax(-1).logsumexp(0) - torch.tensor(4.0, dtype=torch.float64).log()
        torch.testing.assert_close(predictor(x).double(), log_mean, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(predictor.probabilities(x).double(), expected, atol=1e-6, rtol=1e-4)
        torch.testing.assert_close(predictor.sample_outputs(x).double(), logits, atol=1e-5, rtol=1e-4)


@law(10)
@given(seed=seeds)
def test_outputs_are_distributions(seed):
    predictor = _predictor()
    x = inputs("relu", 10, seed, scale=100.0)
    for p in (predictor.probabilities(x), predictor(x).exp()):
        assert bool((p >= 0).all())
        torch.testing.assert_close(p.sum(-1), torch.ones(10))
    assert torch.equal(predictor.predict(x, batch_size=3), predictor(x).argmax(-1))


@pytest.mark.parametrize("convert", [lambda t: t.numpy(), lambda t: t.tolist()], ids=["numpy", "lists"])
def test_arrays_and_lists_are_as_good_as_tensors(convert):
    predictor, x = _predictor(), inputs("relu", 5, 0)
    for call in (predictor, predictor.probabilities, predictor.predict, predictor.sample_outputs):
        assert torch.equal(call(convert(x)), call(x))
    with pytest.raises(InvalidInput, match="x cannot be read"):
        predictor(None)


@pytest.mark.parametrize("samples", [1, 3])
def test_the_digest_of_a_single_number(samples):
    """A stack of one number may have any stride, which must not matter to its bytes."""
    net = Functional(lambda self, x: self.layer(x) * self.scale, layer=nn.Linear(4, 3), scale=torch.tensor(2.0))
    graph, params = graph_and_params(trace(net, torch.rand(1, 4)))
    expanded = {name: p.expand(samples, *p.shape) for name, p in params.items()}
    copied = {name: p.contiguous().clone() for name, p in expanded.items()}
    assert Predictor(graph, expanded).digest == Predictor(graph, copied).digest


def test_extreme_logits_stay_finite():
    net = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[0.0], [1e6]]))
    predictor = cb.Point(net).predictor()
    out = predictor(torch.tensor([[1.0], [-1.0]]))
    assert torch.equal(out, torch.tensor([[-1e6, 0.0], [0.0, -1e6]]))


def test_samples_stay_what_they_were():
    samples = stack([traced("relu", seed)[1] for seed in range(2)])
    predictor = Predictor(traced("relu")[0], samples)
    x = inputs("relu", 3, 0)
    before = predictor(x)
    for tensor in samples.values():
        tensor.zero_()
    assert torch.equal(predictor(x), before)
    assert torch.equal(predictor(x), before)  # and no call draws new ones
    assert predictor.size == 2 and predictor.classes == CLASSES
    assert not list(predictor.parameters())  # nothing an optimizer could move


def test_digest_depends_on_every_bit():
    _, params = traced("relu")
    graph, _ = traced("relu")
    samples = stack([params, params])
    digest = Predictor(graph, samples).digest
    assert Predictor(graph, samples).digest == digest and len(digest) == 64
    for name, tensor in samples.items():
        changed = tensor.clone()
        flat = changed.view(-1)
        flat[-1] = torch.nextafter(flat[-1], torch.tensor(torch.inf))
        assert Predictor(graph, {**samples, name: changed}).digest != digest
    signed = {**samples, "0.bias": torch.zeros_like(samples["0.bias"])}
    minus = {**samples, "0.bias": -torch.zeros_like(samples["0.bias"])}
    assert Predictor(graph, signed).digest != Predictor(graph, minus).digest


def test_digest_depends_on_the_network():
    leaky = [cb.Point(nn.Sequential(nn.Linear(2, 2), nn.LeakyReLU(slope))) for slope in (0.1, 0.2)]
    leaky[1].params = leaky[0].params
    assert leaky[0].predictor().digest != leaky[1].predictor().digest


def test_digest_does_not_depend_on_order_or_layout():
    graph, _ = traced("batch norm on images")
    samples = stack([traced("batch norm on images", seed)[1] for seed in range(2)])
    digest = Predictor(graph, samples).digest
    backwards = dict(reversed(samples.items()))
    assert Predictor(graph, backwards).digest == digest
    strange = {name: torch.stack([t, t], -1)[..., 0] for name, t in samples.items()}
    assert Predictor(graph, strange).digest == digest


def test_digest_follows_the_weights():
    """A certificate that carries the digest of weights that have since been replaced would be worthless."""
    predictor, other = _predictor(), cb.Point(make("relu", 9)).predictor()
    single = cb.Point(make("relu", 8)).predictor()
    before = single.digest
    single.load_state_dict(other.state_dict())
    assert single.digest == other.digest != before
    digest = predictor.digest
    assert predictor.double().digest != digest


def test_state_dict_round_trip():
    one, other = _predictor(), Predictor(traced("relu")[0], stack([traced("relu", s)[1] for s in (7, 8, 9, 10)]))
    x = inputs("relu", 3, 0)
    assert not torch.equal(one(x), other(x))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(x), other(x))


def test_gradients_reach_the_inputs():
    predictor = _predictor(dtype=torch.float64)
    x = inputs("relu", 3, 0, torch.float64).requires_grad_(True)
    assert torch.autograd.gradcheck(predictor, (x,), fast_mode=True)
    (gradient,) = torch.autograd.grad(predictor(x)[:, 0].sum(), x)
    assert bool((gradient != 0).any())


@pytest.mark.parametrize("shape", [(3, 4), (5,), (2, 3, 5)])
def test_wrong_shapes_are_refused(shape):
    with pytest.raises(InvalidInput, match="takes a batch"):
        _predictor()(torch.zeros(shape))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2.0**31])
def test_impossible_weights_are_refused(value):
    graph, params = traced("relu")
    samples = stack([params, params])
    samples["0.weight"][1, 0, 0] = value
    with pytest.raises(InvalidInput, match=r"'0\.weight'"):
        Predictor(graph, samples)


@pytest.mark.parametrize("name", ["relu", "batch norm on images", "normalize"])
def test_autocast_changes_nothing(name):
    predictor, x = _predictor(name), inputs(name, 6, 0)
    plain = predictor(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(predictor(x), plain)
        assert torch.equal(predictor.probabilities(x), predictor.probabilities(x).float())
        assert predictor.sample_outputs(x).dtype == torch.float32


def test_batches_and_threads_change_only_rounding():
    predictor, x = _predictor("batch norm on images"), inputs("batch norm on images", 30, 0)
    whole = predictor(x)
    for count in (1, 2):
        with threads(count):
            parts = torch.cat([predictor(part) for part in x.split(7)])
        torch.testing.assert_close(parts, whole)


def test_it_is_a_module_that_can_be_moved():
    predictor = _predictor()
    assert predictor.dtype == torch.float32 and predictor.device == torch.device("cpu")
    x = inputs("relu", 3, 0)
    reference = predictor(x)
    double = predictor.double()
    assert double.dtype == torch.float64 and double(x).dtype == torch.float64
    torch.testing.assert_close(double(x).float(), reference)


def test_inputs_of_other_types_are_converted():
    predictor = _predictor()
    x = torch.randint(0, 3, (4, 5), generator=generator(0))
    assert torch.equal(predictor(x), predictor(x.float()))
    assert torch.equal(predictor(x.double()), predictor(x.float()))


def test_training_mode_changes_nothing():
    predictor, x = _predictor("batch norm on images"), inputs("batch norm on images", 5, 0)
    assert torch.equal(predictor.train()(x), predictor.eval()(x))


def test_dropout_is_off():
    net = nn.Sequential(nn.Linear(5, 50), nn.Dropout(0.5), nn.Linear(50, 2)).eval()
    predictor = cb.Point(net).predictor()
    x = inputs("relu", 3, 0)
    assert torch.equal(predictor.train()(x), predictor(x))


def test_an_empty_batch():
    predictor = _predictor()
    assert predictor(torch.zeros(0, 5)).shape == (0, CLASSES)
    assert predictor.predict(torch.zeros(0, 5)).shape == (0,)


def test_regression_predicts_the_mean():
    net = make("relu")
    point = cb.Point(net, metadata={"task": "regression"}).predictor()
    x = inputs("relu", 3, 0)
    torch.testing.assert_close(point(x), net(x).detach())
    with pytest.raises(InvalidInput, match="no class probabilities"):
        point.probabilities(x)


class TestDomain:
    def test_it_is_kept_and_moves_with_the_predictor(self):
        graph, params = traced("relu")
        predictor = Predictor(graph, stack([params]), domain=[0, 1])
        assert predictor.domain == predictor.double().domain == copy.deepcopy(predictor).domain == (0.0, 1.0)

    def test_none_is_known_unless_said(self):
        assert _predictor().domain is None

    def test_it_is_no_part_of_the_digest(self):
        graph, params = traced("relu")
        digests = {Predictor(graph, stack([params]), domain).digest for domain in (None, (0.0, 1.0), (0.0, 2.0))}
        assert len(digests) == 1

    def test_it_is_the_same_for_all_points(self):
        graph, params = traced("relu")
        with pytest.raises(InvalidInput, match="same for all points"):
            Predictor(graph, stack([params]), (torch.zeros(2, 4), torch.ones(2, 4)))


def test_a_predictor_says_what_it_is():
    graph, params = traced("relu")
    predictor = Predictor(graph, stack([params, params]), domain=(0.0, 1.0))
    title, network, domain, digest = repr(predictor).splitlines()
    assert title == "Predictor of 2 weight samples"
    assert network.startswith("  network: ")
    assert "Linear, ReLU" in network
    assert domain == "  domain: [0, 1]"
    assert digest == f"  digest: {predictor.digest[:12]}..."
    assert "Predictor of 1 weight sample\n" in repr(Predictor(graph, stack([params])))
    low, high = torch.zeros(1, *graph.input_shape), torch.ones(1, *graph.input_shape)
    assert "a range for each feature" in repr(Predictor(graph, stack([params]), (low, high)))
