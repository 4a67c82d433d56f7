"""``fit(precision=...)`` on a CPU: what is rounded, what is not, and that bits repeat."""

import pytest
import torch

import certibayes as cb
from certibayes.support.arithmetic import multiplies_bfloat16

from .cases import assert_same_posterior, differ

# Large enough that a product is worth rounding to those who decide that.
INPUTS, UNITS, CLASSES, SIZE = 64, 64, 10, 256

needs_bfloat16 = pytest.mark.skipif(not multiplies_bfloat16(), reason="this CPU does not multiply bfloat16")


def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(SIZE, INPUTS, generator=generator)
    return x, (x @ torch.randn(INPUTS, CLASSES, generator=generator)).argmax(-1)


def fit(precision, algorithm="map", **settings):
    likelihood = cb.RobustCategorical(p_eps=cb.TwoPoint(0.02))
    return cb.fit(
        cb.networks.mlp(INPUTS, [UNITS], CLASSES, seed=0), data(), algorithm=algorithm, likelihood=likelihood,
        precision=precision, progress=False, seed=0, **{"epochs": 3, "batch_size": 64, **settings},
    )  # fmt: skip


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
@pytest.mark.parametrize("algorithm", ["map", "vogn"])
def test_the_same_bits_again(algorithm, precision):
    assert_same_posterior(fit(precision, algorithm), fit(precision, algorithm))


@needs_bfloat16
def test_medium_rounds_a_little():
    exact, rounded = fit("highest"), fit("medium")
    assert differ(exact, rounded)
    losses = [posterior.metadata["history"][-1]["loss"] for posterior in (exact, rounded)]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


def test_what_the_caller_rounds_changes_nothing():
    expected = fit("highest")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        found = fit("highest")
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert_same_posterior(found, expected)


def test_the_ends_of_trajectories_are_not_rounded(monkeypatch):
    """The gradient at the start of all, and the last one of every trajectory."""
    precisions = []
    potential = cb.inference.Target.potential_and_gradient

    def noted(self, *arguments):
        precisions.append(torch.backends.mkldnn.matmul.fp32_precision)
        return potential(self, *arguments)

    monkeypatch.setattr(cb.inference.Target, "potential_and_gradient", noted)
    algorithm = cb.HMC(lr=1e-4, leapfrog=4, chains=1, burn_in=0, target_acceptance=None)
    fit("medium", algorithm, epochs=2)
    rough = "bf16" if multiplies_bfloat16() else "ieee"
    assert precisions == ["ieee", *[rough, rough, rough, "ieee"] * 2]
