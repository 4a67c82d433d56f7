"""Domains of likelihoods: numbers, or ends for each feature."""

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.errors import InvalidInput

X = torch.rand(6, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(6) % 3
LOW = torch.tensor([[0.0, -1.0, 0.0]])
HIGH = torch.tensor([[1.0, 2.0, torch.inf]])


def _net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize("domain", [torch.tensor([0.0, 1.0]), (LOW, HIGH)], ids=["pair", "features"])
def test_a_posterior_can_be_written_whatever_the_domain_of_its_likelihood_was(domain, tmp_path):
    likelihood = cb.RobustCategorical(cb.TwoPoint(0.05), domain=domain)
    posterior = cb.fit(_net(), (X, Y), algorithm=cb.MAP(), likelihood=likelihood, epochs=1, progress=False)
    posterior.save(tmp_path / "posterior")
    record = cb.load(tmp_path / "posterior").metadata["likelihood"]
    assert len(record["domain"]) == 2


@pytest.mark.parametrize("adversary", [cb.IBP(), cb.CROWNIBP(), cb.PGD(steps=2)], ids=lambda a: type(a).__name__)
def test_training_knows_the_domain_of_each_feature(adversary):
    trained = [
        cb.fit(
            _net(), (X, Y), algorithm=cb.MAP(), epochs=2, progress=False,
            likelihood=cb.RobustCategorical(cb.TwoPoint(0.2), adversary, domain=domain, ramp=None),
        )
        for domain in ((0.0, 1.0), (torch.zeros(1, 3), torch.ones(1, 3)), (LOW, HIGH))
    ]  # fmt: skip
    numbers, same, other = ([*posterior.tensors().values()] for posterior in trained)
    assert all(torch.equal(a, b) for a, b in zip(numbers, same, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(numbers, other, strict=True))


def test_training_points_outside_are_refused():
    likelihood = cb.RobustCategorical(cb.TwoPoint(0.1), domain=(LOW, torch.tensor([[1.0, 0.1, 1.0]])))
    with pytest.raises(InvalidInput, match="outside the domain of their feature"):
        cb.fit(_net(), (X, Y), algorithm=cb.MAP(), likelihood=likelihood, epochs=1, progress=False)
