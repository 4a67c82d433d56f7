"""All weights in one vector: the same steps as with a tensor for each name."""

import pytest
import torch
from torch.utils import _pytree as pytree

import certibayes as cb
from certibayes.inference import Target
from certibayes.inference._flat import FLAT, FlatTarget, Layout, is_elementwise
from certibayes.likelihoods import Batch

ALGORITHMS = {
    "map": cb.MAP(lr=0.01),
    "map, sgd": cb.MAP(lr=0.01, optimizer="sgd"),
    "swag": cb.SWAG(),
    "noisy-adam": cb.NoisyAdam(),
    "vogn": cb.VOGN(),
    "bbb": cb.BBB(),
    "ivon": cb.IVON(),
    "sghmc": cb.SGHMC(samples=4, exploration=0.0),
    "ensemble": cb.DeepEnsemble(members=3),
    "snapshot": cb.SnapshotEnsemble(members=3, start=0.0),
}
LIKELIHOODS = {
    "standard": cb.Categorical(),
    "ibp": cb.RobustCategorical(eps=0.1),
    "margins": cb.RobustCategorical(eps=0.1, adversary=cb.IBP(margins=True)),
}


def case(likelihood):
    generator = torch.Generator().manual_seed(0)
    net = cb.networks.mlp(6, [5], 3, seed=0).double()
    x = torch.rand(8, 6, generator=generator, dtype=torch.float64)
    network = cb.networks.trace(net, x)
    precision = cb.GaussianPrior().precisions(network.graph, network.params)
    target = Target(network.graph, {}, likelihood, precision, 80, epoch_steps=10, total_steps=40)
    return target, network.params, Batch(x, torch.arange(8) % 3)


class OneStream:
    """Normal numbers that do not depend on how many are drawn at a time."""

    def __init__(self):
        self.stream = torch.randn(20_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        self.used = 0

    def __call__(self, shape, **_):
        shape = torch.Size(shape)
        self.used += shape.numel()
        return self.stream[self.used - shape.numel() : self.used].clone().view(shape)


@pytest.mark.parametrize("likelihood", LIKELIHOODS.values(), ids=LIKELIHOODS)
@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_steps_are_the_same(algorithm, likelihood, monkeypatch):
    assert is_elementwise(algorithm)
    target, params, batch = case(likelihood)
    generator = torch.Generator().manual_seed(0)
    named = algorithm.init(target, params, generator)
    flat_target = FlatTarget.of(target, algorithm.mean_params(named))
    flat = flat_target.layout.joined(named)
    noise = likelihood.draw(1.0, batch, generator)
    streams = OneStream(), OneStream()
    for other, stream in zip((target, flat_target), streams, strict=True):
        monkeypatch.setattr(torch, "randn", stream)
        state = named if other is target else flat
        for _ in range(3):
            state, info = algorithm.update(other, state, batch, noise, generator)
        if other is target:
            expected, loss = state, info["loss"]
    torch.testing.assert_close(info["loss"], loss, rtol=1e-12, atol=0)
    found = flat_target.layout.named(state)
    for one, another in zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True):
        torch.testing.assert_close(one, another, rtol=1e-10, atol=1e-14)


def test_a_layout_joins_and_splits_without_copying():
    named = {"a": torch.rand(2, 3), "b": torch.rand(()), "c": torch.rand(4)}
    layout = Layout({name: tensor.shape for name, tensor in named.items()})
    flat = layout.join(named)
    assert flat.shape == (11,)
    back = layout.split(flat)
    for name, tensor in named.items():
        assert torch.equal(back[name], tensor)
    back["a"].zero_()
    assert float(flat[:6].abs().sum()) == 0.0
    stacked = {name: torch.stack([tensor, tensor + 1]) for name, tensor in named.items()}
    assert layout.join(stacked).shape == (2, 11)
    for name, tensor in layout.split(layout.join(stacked)).items():
        assert torch.equal(tensor, stacked[name])


def test_only_dictionaries_of_all_names_are_joined():
    named = {"a": torch.rand(2), "b": torch.rand(3)}
    layout = Layout({name: tensor.shape for name, tensor in named.items()})
    state = (named, {}, torch.ones(()), {"a": torch.ones(2)})
    joined = layout.joined(state)
    assert joined[0].keys() == {FLAT} and joined[1] == {} and joined[3].keys() == {"a"}
    assert layout.named(joined)[0].keys() == named.keys()


def test_a_class_with_steps_of_its_own_must_say_it_again():
    class Renamed(cb.MAP):
        """Has the steps of MAP."""

    class ByName(cb.MAP):
        """Treats its layers in different ways."""

        def update(self, target, state, batch, noise, generator):
            state.params["1.weight"]
            return super().update(target, state, batch, noise, generator)

    assert is_elementwise(Renamed()) and is_elementwise(cb.Laplace())
    assert not is_elementwise(ByName()) and not is_elementwise(cb.HMC())
