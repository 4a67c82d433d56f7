"""Data that come batch by batch are checked batch by batch."""

import math

import pytest
import torch
from torch.utils.data import DataLoader

from certibayes.errors import InvalidInput

from .cases import LIKELIHOODS, classes, data_for, fit, inputs


class Late(torch.utils.data.Dataset):
    """Good examples first, a bad one at the end."""

    def __init__(self, inputs, targets):
        self.inputs, self.targets = inputs, targets

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]


@pytest.mark.parametrize("what", ["label", "nan", "domain"])
def test_every_batch_of_a_loader_is_checked(what):
    x, y = inputs(), classes()
    if what == "label":
        y[-1] = 7
    else:
        x[-1] = math.nan if what == "nan" else 5.0
    loader = DataLoader(Late(x, y), batch_size=8)
    with pytest.raises(InvalidInput, match={"label": "7", "nan": "NaN", "domain": "domain"}[what]):
        fit(LIKELIHOODS["ibp"], train=loader)


def test_validation_targets_are_checked():
    likelihood = LIKELIHOODS["regression"]
    x, y = data_for(likelihood)
    with pytest.raises(InvalidInput, match="validation targets"):
        fit(likelihood, validation=(x, torch.full_like(y, math.nan)))
