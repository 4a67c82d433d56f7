"""Networks and posteriors that several tests share."""

import torch
from torch import Tensor, nn

import certibayes as cb

KINDS = ("point", "diagonal gaussian", "samples", "modules with batch norm")


def network(seed: int = 0) -> nn.Module:
    return cb.networks.mlp(4, [5], 3, seed=seed)


def stacked(count: int = 6) -> dict[str, Tensor]:
    nets = [dict(network(seed).named_parameters()) for seed in range(count)]
    return {name: torch.stack([net[name].detach() for net in nets]) for name in nets[0]}


def batch_norm_net(seed: int = 0) -> nn.Module:
    """With statistics of its own, so that a mix-up of samples and statistics shows."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
        net[1].running_mean.normal_()
        net[1].running_var.uniform_(0.5, 2.0)
    return net.eval()


def gaussian(std: float = 0.1) -> cb.DiagonalGaussian:
    net = network()
    mean = dict(net.named_parameters())
    return cb.DiagonalGaussian(net, mean, {name: torch.full_like(p, std) for name, p in mean.items()})


def posterior(kind: str) -> cb.Posterior:
    made = {
        "point": lambda: cb.Point(network()),
        "diagonal gaussian": gaussian,
        "samples": lambda: cb.Samples(network(), stacked()),
        "modules with batch norm": lambda: cb.Samples.from_modules([batch_norm_net(s) for s in range(4)]),
    }[kind]()
    made.metadata.update(algorithm="test", history=[{"epoch": 1.0, "loss": 0.1}], note="µ ± σ", nothing=None)
    return made


def inputs(count: int = 5) -> Tensor:
    return torch.rand(count, 4, generator=torch.Generator().manual_seed(0))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def ones_like_each(mean):
    """Standard deviations of 1, or anything else of the shapes of ``mean``."""
    return {name: torch.ones_like(p) for name, p in mean.items()}
