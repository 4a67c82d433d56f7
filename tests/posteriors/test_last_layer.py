"""A Gaussian over the last layer: its samples, its file, and what it refuses."""

import json

import pytest
import torch

import certibayes as cb
from certibayes.errors import CorruptFile, InvalidInput
from certibayes.support.files import read_tensors, write_tensors

from .cases import generator, inputs, network

# Of network(): five inputs and three outputs.
NAMES = ("3.weight", "3.bias")
SIZE = 18


def factor(dtype=torch.float32):
    made = torch.randn(SIZE, SIZE, generator=generator(), dtype=torch.float64)
    return (0.1 * made).to(dtype)


def posterior(dtype=torch.float32, **settings):
    net = network().to(dtype)
    return cb.LastLayerGaussian(net, dict(net.named_parameters()), factor(dtype), NAMES, **settings)


def test_the_names_are_those_of_the_last_layer():
    shapes = {name: p.numel() for name, p in network().named_parameters()}
    assert tuple(shapes)[-2:] == NAMES
    assert sum(shapes[name] for name in NAMES) == SIZE


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_samples_have_the_mean_and_covariance_that_are_stated(dtype):
    made, count = posterior(dtype), 40_000
    drawn = made.sample(count, generator(1))
    assert all(tensor.dtype == dtype for tensor in drawn.values())
    flat = torch.cat([drawn[name].flatten(1) for name in NAMES], 1).double()
    mean = torch.cat([made.mean[name].flatten() for name in NAMES]).double()
    covariance = made.factor.double() @ made.factor.double().T
    std = covariance.diagonal().sqrt()
    assert ((flat.mean(0) - mean).abs() < 5 * std / count**0.5).all()
    error = torch.sqrt((torch.outer(std, std).square() + covariance.square()) / count)
    assert ((flat.T.cov() - covariance).abs() < 5 * error).all()


def test_all_other_parameters_are_the_mean_itself():
    made = posterior()
    drawn = made.sample(6, generator())
    for name, mean in made.mean.items():
        assert drawn[name].shape == (6, *mean.shape)
        if name not in NAMES:
            assert (drawn[name] == mean).all()


def test_without_width_it_is_a_point():
    net = network()
    made = cb.LastLayerGaussian(net, dict(net.named_parameters()), torch.zeros(SIZE, SIZE), NAMES)
    torch.testing.assert_close(made.predictor(3)(inputs()), cb.Point(net).predictor()(inputs()))


def test_samples_depend_on_the_seed_alone():
    made, state = posterior(), torch.get_rng_state()
    one, same, other = (made.predictor(4, seed=seed) for seed in (1, 1, 2))
    assert one.digest == same.digest != other.digest
    assert torch.equal(torch.get_rng_state(), state)


def test_draws_are_independent_of_how_many_are_asked_for_after():
    """A statistical certificate relies on it."""
    assert posterior().independent


def test_changing_a_predictor_does_not_change_the_posterior():
    made, x = posterior(), inputs()
    before = made.predictor(2, seed=0)(x)
    for tensor in made.predictor(2, seed=0).samples.values():
        tensor.zero_()
    assert torch.equal(made.predictor(2, seed=0)(x), before)


def test_it_keeps_its_own_copy():
    net, cause = network(), factor()
    made = cb.LastLayerGaussian(net, dict(net.named_parameters()), cause, NAMES)
    before = made.predictor(2)(inputs())
    cause.zero_()
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
    assert torch.equal(made.predictor(2)(inputs()), before)


def test_the_order_of_names_is_the_order_of_the_factor():
    net, wide = network(), torch.zeros(SIZE, SIZE)
    wide[:3, :3] = torch.eye(3)
    made = cb.LastLayerGaussian(net, dict(net.named_parameters()), wide, NAMES[::-1])
    drawn = made.sample(5, generator())
    assert (drawn["3.weight"] == made.mean["3.weight"]).all()
    assert (drawn["3.bias"] != made.mean["3.bias"]).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_survives_the_disk(dtype, tmp_path):
    made = posterior(dtype, metadata={"algorithm": "Laplace", "temperature": 0.5})
    made.save(tmp_path)
    found = cb.load(tmp_path)
    assert type(found) is cb.LastLayerGaussian
    assert found.names == NAMES
    for name, tensor in made.tensors().items():
        assert torch.equal(found.tensors()[name], tensor)
    assert found.metadata["temperature"] == 0.5
    assert json.loads(json.dumps(found.metadata)) == found.metadata
    assert found.predictor(3, seed=2).digest == made.predictor(3, seed=2).digest


@pytest.mark.parametrize("lost", ["factor", "mean:3.bias"])
def test_a_lost_tensor_is_reported(lost, tmp_path):
    file = posterior().save(tmp_path)
    tensors, record = read_tensors(file, "posterior")
    del tensors[lost]
    write_tensors(file, "posterior", tensors, record)
    with pytest.raises(CorruptFile, match="lacks"):
        cb.load(tmp_path)


def test_lost_names_are_reported(tmp_path):
    file = posterior().save(tmp_path)
    tensors, record = read_tensors(file, "posterior")
    del record["metadata"]["names"]
    write_tensors(file, "posterior", tensors, record)
    with pytest.raises(CorruptFile, match="lacks"):
        cb.load(tmp_path)


@pytest.mark.parametrize("shape", [(SIZE,), (SIZE, SIZE + 1), (SIZE - 1, SIZE - 1), (1, SIZE, SIZE)], ids=str)
def test_a_factor_of_another_shape(shape):
    net = network()
    with pytest.raises(InvalidInput, match=r"\(18, 18\)"):
        cb.LastLayerGaussian(net, dict(net.named_parameters()), torch.zeros(shape), NAMES)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_factor_that_is_not_finite(value):
    net, bad = network(), factor()
    bad[2, 3] = value
    with pytest.raises(InvalidInput, match="not finite"):
        cb.LastLayerGaussian(net, dict(net.named_parameters()), bad, NAMES)


def test_names_the_network_does_not_have():
    net = network()
    with pytest.raises(InvalidInput, match=r"9\.weight"):
        cb.LastLayerGaussian(net, dict(net.named_parameters()), factor(), ("9.weight",))


def test_a_name_that_is_there_twice():
    net = network()
    with pytest.raises(InvalidInput, match="twice"):
        cb.LastLayerGaussian(net, dict(net.named_parameters()), torch.eye(6), ("3.bias", "3.bias"))


def test_a_mean_of_another_network():
    net = network()
    with pytest.raises(InvalidInput, match="mean"):
        cb.LastLayerGaussian(net, dict(cb.networks.mlp(4, [6], 3).named_parameters()), factor(), NAMES)


def test_samples_do_not_depend_on_how_the_factor_lies_in_memory(tmp_path):
    """Laplace solves for it column by column; a file gives it back row by row."""
    net = cb.networks.mlp(4, [5], 3)
    params = dict(net.named_parameters())
    names = ("3.weight", "3.bias")
    size = sum(params[name].numel() for name in names)
    factor = torch.randn(size, size, generator=torch.Generator().manual_seed(0))
    columns = factor.T.contiguous().T
    own, other = (cb.LastLayerGaussian(net, params, f, names) for f in (factor, columns))
    other.save(tmp_path)
    digests = {posterior.predictor(2).digest for posterior in (own, other, cb.load(tmp_path))}
    assert len(digests) == 1
