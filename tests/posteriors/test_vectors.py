"""Parameters as vectors: every number at its place, and lengths that do not fit refused with advice."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parameters_to_vector

import certibayes as cb
from certibayes.errors import InvalidInput

from .cases import batch_norm_net, inputs, network


def vectors(nets):
    return torch.stack([parameters_to_vector(net.parameters()).detach() for net in nets])


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=0, max_size=3), st.booleans(), st.integers(0, 1000))
def test_vectors_are_cut_as_torch_joins_them(hidden, as_array, seed):
    nets = [cb.networks.mlp(4, hidden, 3, seed=seed + i) for i in range(3)]
    given = vectors(nets).numpy() if as_array else vectors(nets)
    assert (
        cb.Samples.from_vectors(nets[0], given).predictor().digest == cb.Samples.from_modules(nets).predictor().digest
    )


def test_the_rest_is_the_networks_own():
    net, other = batch_norm_net(0), batch_norm_net(1)
    last = torch.cat([p.detach().flatten() for p in other[3].parameters()])[None]
    found = cb.Samples.from_vectors(net, last, names=["3.weight", "3.bias"])
    x = inputs()
    torch.testing.assert_close(found.predictor().sample_outputs(x)[0], other[3](net[:3](x)).detach())


def test_names_are_in_the_order_of_the_vectors():
    net, other = network(0), network(1)
    weight, bias = (other.get_parameter(f"3.{name}").detach() for name in ("weight", "bias"))
    turned = torch.cat([bias, weight.flatten()])[None]
    found = cb.Samples.from_vectors(net, turned, names=["3.bias", "3.weight"])
    assert torch.equal(found[0]["3.weight"], weight) and torch.equal(found[0]["3.bias"], bias)


def test_frozen_parameters_may_be_left_out():
    nets = [network(seed) for seed in range(2)]
    for name in ("1.weight", "1.bias"):
        nets[0].get_parameter(name).requires_grad_(False)
    trained = torch.cat([p.detach().flatten() for p in (nets[1].get_parameter(f"3.{n}") for n in ("weight", "bias"))])
    found = cb.Samples.from_vectors(nets[0], trained[None])
    assert torch.equal(found[0]["3.weight"], nets[1].get_parameter("3.weight"))
    assert torch.equal(found[0]["1.weight"], nets[0].get_parameter("1.weight"))
    # All of them are still the first reading.
    assert torch.equal(
        cb.Samples.from_vectors(nets[0], vectors(nets))[1]["1.weight"], nets[1].get_parameter("1.weight")
    )


def test_a_gaussian():
    net = network()
    mean, std = vectors([net])[0], torch.linspace(0.1, 0.5, 43)
    found = cb.DiagonalGaussian.from_vectors(net, mean.double().numpy(), std.tolist(), domain=(0.0, 1.0))
    assert found.domain == (0.0, 1.0) and found.mean["1.weight"].dtype == torch.float32
    assert torch.equal(parameters_to_vector(found.mean.values()), mean)
    torch.testing.assert_close(parameters_to_vector(found.std.values()), std)
    last = cb.DiagonalGaussian.from_vectors(net, mean[-18:], std[-18:], names=["3.weight", "3.bias"])
    assert not bool(last.std["1.weight"].any()) and torch.equal(last.mean["1.weight"], net.get_parameter("1.weight"))
    torch.testing.assert_close(last.std["3.bias"], std[-3:])


@pytest.mark.parametrize(
    "given, names, message",
    [
        (torch.zeros(3, 7), None, r"7 numbers for each sample, but the network has 43\. Vectors are those of"),
        (
            torch.zeros(3, 18),
            None,
            r"43\. If they are those of the last layer, say so: names=\['3\.weight', '3\.bias'\]",
        ),
        (torch.zeros(3, 7), ["3.bias"], r"7 numbers for each sample, but 3\.bias has 3"),
        (torch.zeros(43), None, r"must be vectors \(S, P\)"),
        (torch.zeros(0, 43), None, "at least one sample"),
        (torch.zeros(3, 3), ["3.bais"], r"no parameter '3\.bais'; perhaps you mean 3\.bias"),
        (torch.zeros(3, 3), "3.bias", r"a list of parameters, such as \['3\.bias'\]"),
        (torch.zeros(3, 6), ["3.bias", "3.bias"], "each once"),
        (torch.zeros(3, 0), [], "at least one parameter"),
        (np.array(["a"]), None, "vectors"),
    ],
)
def test_what_does_not_fit_is_refused(given, names, message):
    with pytest.raises(InvalidInput, match=message):
        cb.Samples.from_vectors(network(), given, names)


def test_dropout_that_is_switched_on():
    net = nn.Sequential(nn.Linear(4, 3), nn.Dropout())
    with pytest.raises(InvalidInput, match="from_dropout"):
        cb.Samples.from_vectors(net, torch.zeros(2, 15))
