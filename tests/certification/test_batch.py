"""Batches: how large they are where nobody says, what they change, and what they hold."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.certification._batch import batch_size_for, memory_for
from certibayes.certification.network_bounds import MEMORY
from certibayes.errors import InvalidInput
from certibayes.support.memory import POINTS_ON_CPU

from ..strategies import generator


def _predictor(networks: int = 3, hidden: int = 16, classes: int = 4):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(12, hidden), nn.ReLU(), nn.Linear(hidden, classes))
    params = dict(net.named_parameters())
    std = {name: torch.full_like(value, 0.05) for name, value in params.items()}
    return cb.DiagonalGaussian(net, params, std, input_shape=(12,)).predictor(networks, seed=1)


def test_the_more_networks_and_the_wider_the_fewer_points():
    assert batch_size_for(_predictor(), None) == POINTS_ON_CPU
    many, wide = batch_size_for(_predictor(2_000), None), batch_size_for(_predictor(1, hidden=200_000), None)
    assert 1 <= many < POINTS_ON_CPU and 1 <= wide < POINTS_ON_CPU
    assert batch_size_for(_predictor(4_000), None) < many


def test_what_is_asked_for_is_taken():
    predictor = _predictor()
    assert batch_size_for(predictor, 7) == 7 and memory_for(predictor, 11) == 11
    assert memory_for(predictor, None) == MEMORY


@pytest.mark.parametrize("name", ["batch_size", "memory"])
def test_what_is_no_count_is_refused(name):
    with pytest.raises(InvalidInput, match=f"{name} must be at least 1"):
        cb.certify(_predictor(), torch.zeros(1, 12), eps=0.1, **{name: 0})


@pytest.mark.parametrize("method", ["theorem1", "auto"])
@pytest.mark.parametrize("given", [True, False])
def test_batches_change_the_last_bits_of_a_bound_at_most(method, given):
    predictor, x = _predictor(), torch.rand(23, 12, generator=generator(3))
    y = predictor.predict(x) if given else None
    eps = {"theorem1": 0.1, "auto": 0.2}[method]
    whole = cb.certify(predictor, x, y, eps=eps, method=method)
    parts = cb.certify(predictor, x, y, eps=eps, method=method, batch_size=5)
    assert torch.equal(whole.certified, parts.certified) and torch.equal(whole.predicted, parts.predicted)
    for end in ("lower", "upper"):
        torch.testing.assert_close(getattr(whole, end), getattr(parts, end), atol=1e-6, rtol=1e-5)
    assert 0 < int(whole.certified.sum()) < len(x)


# Predictions


@pytest.fixture
def asked(monkeypatch):
    """How many points the predictor was asked about, each time."""
    counts: list[int] = []
    predict = cb.Predictor.predict

    def count(self, x, *args, **settings):
        counts.append(len(x))
        return predict(self, x, *args, **settings)

    monkeypatch.setattr(cb.Predictor, "predict", count)
    return counts


@pytest.mark.parametrize("method", ["theorem1", "auto"])
@pytest.mark.parametrize("batch_size", [None, 7])
def test_points_that_are_proved_are_not_predicted_and_their_classes_are_right(method, batch_size, asked):
    predictor, x = _predictor(), torch.rand(40, 12, generator=generator(4))
    own = predictor.predict(x)
    # Some of the labels are wrong.
    y = torch.where(torch.arange(40) % 5 == 0, (own + 1) % 4, own)
    asked.clear()
    result = cb.certify(predictor, x, y, eps=0.02, method=method, batch_size=batch_size)
    assert torch.equal(result.predicted, own)
    assert not result.certified[own != y].any() and result.certified.any()
    assert sum(asked) < len(x)


def test_in_ideal_arithmetic_every_point_is_predicted(asked):
    predictor, x = _predictor(), torch.rand(9, 12, generator=generator(5))
    own = predictor.predict(x)
    asked.clear()
    result = cb.certify(predictor, x, own, eps=1e-4, method="theorem1", rounding="ideal")
    assert result.certified.any() and sum(asked) == len(x)


# Memory

MEASURED = """
import resource
import torch
import certibayes as cb

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

net = cb.networks.mlp(16, [8], 10, seed=0)
params = dict(net.named_parameters())
std = {name: torch.full_like(value, 0.01) for name, value in params.items()}
predictor = cb.DiagonalGaussian(net, params, std).predictor(1_000, seed=0)
x = torch.rand(2_000, 16, generator=torch.Generator().manual_seed(0))
cb.certify(predictor, x[:2], eps=0.01, method=METHOD)
before = peak()
cb.certify(predictor, x, eps=0.01, method=METHOD)
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["theorem1", "auto"])
def test_many_networks_and_points_are_certified_in_bounded_memory(method):
    """All at once, each of a dozen tensors of bounds would take 160 MB."""
    script = MEASURED.replace("METHOD", repr(method))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    # In kilobytes, as Linux counts them.
    assert int(done.stdout) < 700_000
