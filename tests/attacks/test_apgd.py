"""Auto-PGD: its checkpoints and its step size."""

import pytest
import torch

import certibayes as cb
from certibayes.attacks import (
    AutoPGD,
    as_attack,
    margin_loss,
)
from certibayes.attacks.apgd import checkpoints
from certibayes.attacks.search import Search
from certibayes.regions import InputRegion

from .cases import predictor_of, rand


class TestAutoPGD:
    def test_checkpoints_are_those_of_the_paper(self):
        """p = 0, 0.22, 0.41, 0.57, 0.70, 0.80, 0.87, 0.93, 0.99."""
        assert checkpoints(100) == [0, 22, 41, 57, 70, 80, 87, 93, 99]

    @pytest.mark.parametrize("steps", [1, 2, 3, 10])
    def test_few_steps_are_enough_to_run(self, steps):
        found = cb.attack(predictor_of(), rand(5, 6), eps=0.1, method=as_attack("apgd", steps=steps, restarts=2))
        assert len(found.success) == 5

    def test_the_step_size_adapts_to_a_narrow_valley(self):
        """A curved loss whose maximum lies inside: fixed steps of 2 eps jump to and fro, halved ones come near."""

        def log_probabilities(x):
            low = -(((x - 0.13) * torch.linspace(1.0, 5.0, x.shape[-1])) ** 2).sum(-1)
            return torch.stack([torch.zeros_like(low), low - 1e-6], -1)

        x, y = torch.zeros(1, 4), torch.zeros(1, dtype=torch.long)
        region = InputRegion.around(x, 0.5)
        search = Search(log_probabilities, region, y)
        AutoPGD("margin", steps=100, restarts=1).run(search, torch.Generator())
        assert float(margin_loss(log_probabilities(x), y)) < -0.5
        assert float(search.margin) > -0.005
