"""The difference of logits ratio."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from certibayes.attacks import (
    dlr_loss,
    margin_loss,
)

from ..strategies import law, seeds
from .cases import rand


class TestLosses:
    def test_the_ratio_is_the_margin_over_best_less_third(self):
        scores = torch.tensor([[3.0, 1.0, 0.5, 0.0], [0.0, 4.0, 2.0, 1.0]])
        found = dlr_loss(scores, torch.tensor([0, 2]))
        assert found.tolist() == pytest.approx([-2.0 / 2.5, 2.0 / 3.0])

    @law(20)
    @given(seed=seeds, shift=st.floats(-5, 5), scale=st.floats(0.1, 50))
    def test_the_ratio_minds_neither_shift_nor_scale(self, seed, shift, scale):
        scores, y = rand(6, 5, seed=seed).double(), torch.arange(6) % 5
        torch.testing.assert_close(dlr_loss(scale * scores + shift, y), dlr_loss(scores, y))

    def test_with_two_classes_it_is_the_margin(self):
        scores, y = rand(6, 2), torch.arange(6) % 2
        assert torch.equal(dlr_loss(scores, y), margin_loss(scores, y))

    def test_equal_scores_have_finite_gradients(self):
        scores = torch.zeros(2, 4, requires_grad=True)
        dlr_loss(scores, torch.tensor([0, 1])).sum().backward()
        assert bool(torch.isfinite(scores.grad).all())
