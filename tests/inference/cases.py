"""The table of algorithms and likelihoods, and tiny data to run every pair of them on."""

from functools import cache

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

import certibayes as cb
from certibayes.inference import Target
from certibayes.likelihoods import CROWNIBP, Batch, Likelihood
from certibayes.networks import Network, trace

ALGORITHMS = {
    "map-adam": cb.MAP(lr=0.01),
    "map-sgd": cb.MAP(lr=0.05, optimizer="sgd"),
    "vogn": cb.VOGN(lr=0.05),
    "noisy-adam": cb.NoisyAdam(lr=0.05),
    "bbb": cb.BBB(lr=0.01),
    "ivon": cb.IVON(lr=0.05),
    "swag": cb.SWAG(lr=0.05, start=0.0, rank=3),
    "swag-diagonal": cb.SWAG(lr=0.05, start=0.0, rank=0, every=2),
    "hmc": cb.HMC(lr=0.01, leapfrog=3, burn_in=1),
    "hmc-chains": cb.HMC(lr=0.02, leapfrog=2, burn_in=1, chains=3, mass="fisher", initial="prior", chunk=10),
    "sghmc": cb.SGHMC(lr=0.01, cycles=1, samples=2, exploration=0.5),
    "laplace": cb.Laplace(lr=0.01, structure="diagonal"),
    "laplace-last-layer": cb.Laplace(lr=0.01, structure="last-layer", fisher="empirical"),
    "ensemble": cb.DeepEnsemble(lr=0.01, members=3),
    "snapshot": cb.SnapshotEnsemble(lr=0.01, members=2),
}
CLASSIFICATION = {
    "standard": cb.Categorical(),
    "ibp": cb.RobustCategorical(cb.TwoPoint(0.1)),
    "ibp-margins": cb.RobustCategorical(cb.TwoPoint(0.1), cb.IBP(margins=True)),
    "crown-ibp": cb.RobustCategorical(cb.TwoPoint(0.1), CROWNIBP()),
    "pgd": cb.RobustCategorical(cb.TwoPoint(0.1), cb.PGD(steps=2)),
    "rayleigh": cb.RobustCategorical(cb.Rayleigh(0.1, draws=3)),
    "sabr": cb.RobustCategorical(cb.TwoPoint(0.1), cb.SABR(attack=cb.PGD(steps=2), bound=cb.IBP())),
    "mtl-ibp": cb.RobustCategorical(cb.TwoPoint(0.1), cb.MTLIBP()),
}
LIKELIHOODS = {**CLASSIFICATION, "regression": cb.RobustGaussian(0.5, cb.TwoPoint(0.1), domain=(0.0, 1.0))}

SIZE, BATCH_SIZE, EPOCHS = 24, 8, 3
STEPS = SIZE // BATCH_SIZE


def inputs(size: int = SIZE, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(size, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def classes(size: int = SIZE) -> Tensor:
    """Which of the first three features is largest: learnable."""
    return inputs(size)[:, :3].argmax(-1)


def data_for(likelihood: Likelihood, dtype: torch.dtype = torch.float32) -> Batch:
    x = inputs(dtype=dtype)
    if isinstance(likelihood, cb.RobustGaussian):
        return Batch(x, x[:, :3].cumsum(-1))
    return Batch(x, classes())


def network(seed: int = 0) -> nn.Module:
    return cb.networks.mlp(4, [6], 3, seed=seed)


@cache
def traced_network(dtype: torch.dtype) -> Network:
    return trace(network().to(dtype), inputs(dtype=dtype))


def batch_norm_net(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def target_for(
    likelihood: Likelihood, dtype: torch.dtype = torch.float32, temperature: float = 1.0
) -> tuple[Target, dict[str, Tensor], Batch]:
    """A target, parameters to start from and a batch."""
    batch, traced = data_for(likelihood, dtype), traced_network(dtype)
    params = {name: p.clone() for name, p in traced.params.items()}
    precision = cb.GaussianPrior(variance_scale=10.0).precisions(traced.graph, params)
    target = Target(traced.graph, traced.buffers, likelihood, precision, SIZE, temperature, STEPS, EPOCHS * STEPS)
    return target, params, batch


def fit(likelihood: Likelihood | None = None, net: nn.Module | None = None, train: object = None, **settings):
    """``cb.fit`` on the tiny data, three steps per epoch for three epochs."""
    likelihood = cb.Categorical() if likelihood is None else likelihood
    defaults = {
        "algorithm": ALGORITHMS["map-adam"],
        "epochs": EPOCHS,
        "batch_size": BATCH_SIZE,
        "progress": False,
        # Negative: a checkpoint after every step, however fast the clock.
        "checkpoint_every": -1.0,
    }
    return cb.fit(
        network() if net is None else net,
        data_for(likelihood) if train is None else train,
        likelihood=likelihood,
        **{**defaults, **settings},
    )


def assert_same_posterior(found: cb.Posterior, expected: cb.Posterior) -> None:
    """Bit for bit, history included."""
    assert type(found) is type(expected)
    assert found.tensors().keys() == expected.tensors().keys()
    for name, tensor in expected.tensors().items():
        assert torch.equal(found.tensors()[name], tensor), name
    for name, tensor in expected.buffers.items():
        assert torch.equal(found.buffers[name], tensor), name
    assert found.statistics.keys() == expected.statistics.keys()
    for seed, kept in expected.statistics.items():
        for name, tensor in kept.items():
            assert torch.equal(found.statistics[seed][name], tensor), name
    assert found.metadata["history"] == expected.metadata["history"]


def differ(one: cb.Posterior, other: cb.Posterior) -> bool:
    return any(not torch.equal(one.tensors()[name], tensor) for name, tensor in other.tensors().items())


class Mapped(Dataset):
    def __init__(self, size=SIZE):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return inputs()[index], classes()[index]


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield inputs()[0], classes()[0]


def fixed_hmc(**settings):
    """HMC with a step size that is not adapted, and everything kept."""
    return cb.HMC(**{"burn_in": 0, "target_acceptance": None, "leapfrog": 3, **settings})
