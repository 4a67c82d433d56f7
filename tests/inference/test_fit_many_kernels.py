"""Steps of several models by the kernels of a GPU, with memory that is read by the same rules on a CPU."""

import pytest
import torch

from tests.support.kernels import emulate

from .cases import LIKELIHOODS, data_for
from .many_cases import ALGORITHMS, network, together


@pytest.mark.parametrize("likelihood", ["ibp", "standard"])
@pytest.mark.parametrize("name", ["vogn", "noisy-adam", "map"])
def test_the_same_numbers_as_without_kernels(name, likelihood, monkeypatch):
    data = data_for(LIKELIHOODS[likelihood], torch.float64)
    settings = {"algorithm": ALGORITHMS[name], "likelihood": LIKELIHOODS[likelihood]}

    def weights():
        runs = [{"net": network(seed, torch.float64), "seed": seed} for seed in range(3)]
        return [posterior.sample(1, torch.Generator().manual_seed(0)) for posterior in together(data, runs, **settings)]

    expected = weights()
    launched = emulate(monkeypatch)
    found = weights()
    assert {"_relu"} <= {formula for formula, _ in launched}
    if likelihood == "ibp":
        mine = "_combined" if name == "vogn" else "_with_radii"
        # All three models at once.
        assert {shape[0] for formula, shape in launched if formula == mine} == {3}
    for mine, theirs in zip(found, expected, strict=True):
        for key, value in theirs.items():
            torch.testing.assert_close(mine[key], value, rtol=1e-9, atol=1e-12)
