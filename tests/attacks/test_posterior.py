"""Attacks on a posterior: gradients of drawn weights, and a fixed predictor that decides."""

import pytest
import torch

import certibayes as cb
from certibayes.attacks import (
    PGD,
    Square,
)
from certibayes.attacks._resampled import Resampled
from certibayes.errors import InvalidInput

from .cases import posterior_of, rand


class TestPosterior:
    """Weights drawn anew at every call."""

    posterior = posterior_of()
    x = rand(60, 6)

    def test_the_fixed_predictor_decides(self):
        fixed = self.posterior.predictor(20, seed=3)
        found = cb.attack(self.posterior, self.x, eps=0.15, draws=4, decided_by=fixed, method=PGD(steps=10, restarts=2))
        assert torch.equal(found.labels, fixed.predict(self.x))
        assert torch.equal(found.predicted, fixed.predict(found.inputs))
        assert 0.0 < found.robust_accuracy < 1.0

    def test_without_one_it_is_the_posteriors_own_predictor(self):
        found = cb.attack(self.posterior, self.x, eps=0.15, draws=4, method=PGD(steps=5, restarts=1), seed=7)
        fixed = self.posterior.predictor(seed=7)
        assert torch.equal(found.predicted, fixed.predict(found.inputs))
        again = cb.attack(self.posterior, self.x, eps=0.15, draws=4, method=PGD(steps=5, restarts=1), seed=7)
        assert torch.equal(found.inputs, again.inputs)

    def test_weights_are_new_at_every_call(self):
        model = Resampled(self.posterior, 2, seed=0)
        one, other = model(self.x), model(self.x)
        assert not torch.equal(one, other)
        assert torch.equal(Resampled(self.posterior, 2, seed=0)(self.x), one)
        many = Resampled(self.posterior, 4000, seed=0)(self.x[:3]).exp()
        torch.testing.assert_close(
            many, self.posterior.predictor(4000, seed=9).probabilities(self.x[:3]), atol=0.02, rtol=0
        )

    def test_more_draws_come_nearer_to_attacking_the_predictor_itself(self):
        """One draw has noisy gradients; many have those of the predictive."""
        fixed = self.posterior.predictor(200, seed=3)
        settings = {"eps": 0.1, "method": PGD(steps=10, restarts=1)}
        direct = cb.attack(fixed, self.x, **settings).robust_accuracy
        many = cb.attack(self.posterior, self.x, draws=50, decided_by=fixed, **settings).robust_accuracy
        assert abs(many - direct) <= 0.1

    def test_square_asks_the_predictor_alone(self):
        fixed = self.posterior.predictor(5, seed=3)
        found = cb.attack(self.posterior, self.x, eps=0.15, method=Square(queries=10), decided_by=fixed)
        direct = cb.attack(fixed, self.x, eps=0.15, method=Square(queries=10))
        assert torch.equal(found.inputs, direct.inputs)

    def test_what_cannot_be_attacked(self):
        with pytest.raises(InvalidInput, match="decides for itself"):
            cb.attack(self.posterior.predictor(2), self.x, eps=0.1, decided_by=self.posterior.predictor(2))
        with pytest.raises(InvalidInput, match="module or a posterior"):
            cb.attack(lambda x: x, self.x, eps=0.1)
