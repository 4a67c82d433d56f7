"""The command that attacks at the largest certified radii: what it counts, and that it sees what is false."""

from dataclasses import replace

import pytest
import torch

import certibayes as cb

from . import largest_radii
from .largest_radii import SEEDS, Case, convolutional, trials_at_largest_radii
from .strategies import generator


@pytest.fixture(scope="module")
def case():
    torch.manual_seed(0)
    nets = [convolutional(), convolutional()]
    for net in nets:
        net.input_shape = (1, 7, 7)
    predictor = cb.Samples.from_modules(nets).predictor(2)
    x = torch.rand(3, 1, 7, 7, generator=generator(0))
    return Case("random", predictor, x, predictor.predict(x))


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(largest_radii, "TOLERANCE", 0.02)
    monkeypatch.setattr(largest_radii, "ATTACKS", cb.attacks.as_attack("ensemble", steps=5, restarts=1, queries=5))


def test_every_attack_on_a_point_counts_and_none_succeeds(case):
    radii, trials, succeeded = trials_at_largest_radii(case, cb.Elided("crown", "crown"))
    assert len(radii) == 3 and (radii > 0).all()
    assert (trials, succeeded) == (3 * 4 * SEEDS, 0)


def test_radii_that_are_too_large_are_seen(case, monkeypatch):
    found = cb.certified_radius

    def too_large(*args, **settings):
        radius = found(*args, **settings)
        return replace(radius, radius=(8 * radius.radius).clamp(max=0.9))

    monkeypatch.setattr(cb, "certified_radius", too_large)
    _, _, succeeded = trials_at_largest_radii(case, cb.Elided("crown", "crown"))
    assert succeeded > 0
