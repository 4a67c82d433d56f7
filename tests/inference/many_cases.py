"""Runs for ``fit_many``, and what ``fit`` makes of them one by one."""

import torch
from torch import nn

import certibayes as cb

from ..strategies import in_turn
from .cases import BATCH_SIZE, LIKELIHOODS, SIZE
from .cases import network as make_network

EPOCHS, STEPS = 7, 3
TEMPERATURES = (1.0, 0.5, 0.1)
# Wide enough to start with that a step moves the weights by more than their rounding.
ALGORITHMS = {
    "map": cb.MAP(lr=0.01),
    "map, sgd": cb.MAP(lr=0.05, optimizer="sgd"),
    "swag": cb.SWAG(lr=0.05, start=0.0, rank=3),
    "swag, diagonal": cb.SWAG(lr=0.05, start=0.0, rank=0, every=2),
    "noisy-adam": cb.NoisyAdam(lr=0.05, initial_std=0.3),
    "vogn": cb.VOGN(lr=0.05, initial_std=0.3),
    "bbb": cb.BBB(lr=0.01, initial_std=0.1),
    "ivon": cb.IVON(lr=0.05, initial_std=0.3),
    "sghmc": cb.SGHMC(lr=0.05, cycles=1, samples=4, exploration=0.5),
    "laplace": cb.Laplace(lr=0.01, structure="diagonal"),
    "snapshot": cb.SnapshotEnsemble(lr=0.01, members=3),
}
PAIRS = [
    *(("ibp", name) for name in ALGORITHMS),
    ("ibp-margins", "noisy-adam"),
    ("ibp-margins", "vogn"),
    *in_turn((likelihood for likelihood in LIKELIHOODS if likelihood != "ibp"), ("map", "vogn")),
]
COMMON = {"epochs": EPOCHS, "batch_size": BATCH_SIZE, "progress": False}


def network(seed=0, dtype=torch.float32):
    return make_network(seed).to(dtype)


def apart(train, runs, **common):
    """What ``fit`` makes of each run."""
    return [cb.fit(own.pop("net"), train, **{**COMMON, **common, **own}) for own in map(dict, runs)]


def together(train, runs, **common):
    return cb.fit_many(None, train, runs, **{**COMMON, **common})


def image_net(seed=0, dtype=torch.float32):
    """A convolution with batch norm, which takes a bias off again: its gradient would be rounding and nothing else."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = nn.Conv2d(1, 2, 2, bias=False), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3)
    return nn.Sequential(*layers).to(dtype)


def images(dtype=torch.float32):
    x = torch.rand(SIZE, 1, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x.to(dtype), torch.arange(SIZE) % 3


def assert_close(found, expected, tolerance, only=""):
    """Every tensor up to ``tolerance`` times its largest element."""
    assert type(found) is type(expected)
    assert found.tensors().keys() == expected.tensors().keys()
    for name, tensor in expected.tensors().items():
        if name.startswith(only):
            difference = float((found.tensors()[name] - tensor).abs().max())
            assert difference <= tolerance * float(tensor.abs().max()), name


def seeded(count=3, dtype=torch.float32, **settings):
    return [{"net": network(seed, dtype), "seed": seed, **settings} for seed in range(count)]
