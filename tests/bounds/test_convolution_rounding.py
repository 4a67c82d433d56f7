"""The rounding error of a convolution covers its own sums and those of its backward pass, and not many more."""

import pytest
import torch

from certibayes.bounds import outward
from certibayes.bounds._backward import Step
from certibayes.bounds.rules.affine import conv2d_backward
from certibayes.networks.operations import Conv2d
from certibayes.regions import Box

UNIT = outward(torch.float32).unit


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 1), (3, 4)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (3, 2), (4, 6)])
@pytest.mark.parametrize("kernel", [(1, 1), (4, 4), (3, 5)])
def test_as_many_terms_as_meet_at_an_input(kernel, stride, dilation, groups):
    operation = Conv2d(stride, (2, 1), dilation, groups)
    weight, x = torch.ones(6, 4 // groups, *kernel), torch.ones(1, 4, 53, 61)
    y = operation.convolve(x, weight, None)
    # Of ones alone the transpose is the number of products that meet at each input.
    meet = float(operation.transpose(torch.ones_like(y), weight, (53, 61)).max())
    rounding = outward(torch.float32)
    step = Step(torch.ones(1, *y.shape), (Box(x, torch.zeros_like(x)),), Box(y, torch.zeros_like(y)), rounding)
    error = conv2d_backward(operation, {"weight": weight}, step).output_error()
    relative = (error / y.clamp(min=1e-30))[y > 0]
    terms = weight[0].numel()
    assert float(relative.min()) >= (meet + terms) * UNIT
    assert float(relative.max()) <= (meet + terms + 40) * UNIT * 1.1
