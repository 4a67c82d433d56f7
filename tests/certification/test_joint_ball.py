"""The joint bound over a ball: what rounding may have moved an input by counts, as it does for every other bound."""

import pytest
import torch

from certibayes.bounds.linear import LinearFunction
from certibayes.certification._joint import Others, height, joint_values
from certibayes.regions import Ball, Box


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_inputs_that_rounding_moved_out_of_the_ball_count(norm):
    """One network whose margin is its input: within 0.1 of 0, moved by up to 0.5 more."""
    one = torch.ones(1, 1, dtype=torch.float64)
    ball = Ball(0 * one, 0.1 * one[0], norm, one, 0.5 * one)
    function = LinearFunction(torch.ones(1, 1, 1), torch.zeros(1, 1, dtype=torch.float64))
    others = Others(0 * one, 0 * one)
    found = joint_values(function, -5.0 * one, others, Box(torch.zeros(1, 1), torch.ones(1, 1), ball))
    assert float(found) <= float(height(-0.6 * one, others)) + 1e-12
    # And it is the ball that was used, not the box alone.
    assert float(found) > float(height(-5.0 * one, others))
