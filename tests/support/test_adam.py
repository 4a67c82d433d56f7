"""Adam: both forms make torch's steps."""

import pytest
import torch

from certibayes.support import adam
from certibayes.support.adam import Moments, adam_direction, adam_step, bias_correction, zero_moments

STEPS = 30


def slopes(step):
    """Gradients of very different magnitudes, the same in every run."""
    generator = torch.Generator().manual_seed(step)
    scale = torch.tensor([1e-4, 1.0, 30.0], dtype=torch.float64)
    return torch.randn(3, generator=generator, dtype=torch.float64) * scale


def torch_path(lr, betas, eps, decay=0.0):
    weight = torch.nn.Parameter(torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64))
    optimizer = torch.optim.Adam([weight], lr=lr, betas=betas, eps=eps, weight_decay=decay)
    for step in range(1, STEPS + 1):
        weight.grad = slopes(step)
        optimizer.step()
        yield weight.detach().clone()


@pytest.mark.parametrize("decay", [None, 0.0, 0.7])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.9), (0.0, 0.0)])
def test_the_pure_one_is_torchs(betas, decay):
    params = {"w": torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)}
    moments, lr = zero_moments(params), torch.tensor(0.03, dtype=torch.float64)
    towards_zero = None if decay is None else {"w": torch.tensor(decay, dtype=torch.float64)}
    for step, expected in enumerate(torch_path(0.03, betas, 1e-8, decay or 0.0), 1):
        number = torch.tensor(float(step), dtype=torch.float64)
        params, moments = adam_step(params, {"w": slopes(step)}, towards_zero, moments, number, lr, betas)
        torch.testing.assert_close(params["w"], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype, rtol", [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("decay", [None, 0.7])
@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_one_pass_over_memory_makes_the_same_step(step, decay, dtype, rtol, monkeypatch):
    """It takes tensors that lie in memory one after another; a decay for each weight is as good as one for all."""
    generator = torch.Generator().manual_seed(0)
    w, g, m, v = (torch.randn(5, 8, generator=generator, dtype=torch.float64).to(dtype) for _ in range(4))
    number, lr = torch.tensor(float(step), dtype=dtype), torch.tensor(0.03, dtype=dtype)
    every = None if decay is None else {"w": torch.tensor(decay, dtype=dtype)}

    def stepped(w, towards_zero):
        return adam_step({"w": w}, {"w": g}, towards_zero, Moments({"w": m}, {"w": v.abs()}), number, lr, (0.9, 0.999))

    passes, real = [], adam._in_one_pass
    monkeypatch.setattr(adam, "_in_one_pass", lambda *given: passes.append(given) or real(*given))
    found = stepped(w, every)
    assert len(passes) == 1
    params, moments = stepped(w.T.contiguous().T, every)
    assert len(passes) == 1
    for mine, theirs in zip((found[0], *found[1]), (params, *moments), strict=True):
        torch.testing.assert_close(mine["w"], theirs["w"], rtol=rtol, atol=rtol)
    if decay is not None:
        assert torch.equal(stepped(w, {"w": torch.full_like(w, decay)})[0]["w"], found[0]["w"])
        assert len(passes) == 2


def test_the_pure_one_leaves_its_arguments_alone():
    params = {"w": torch.ones(3)}
    moments = zero_moments(params)
    given = {"w": torch.full((3,), 0.5)}
    adam_step(params, given, {"w": torch.ones(())}, moments, torch.tensor(1.0), torch.tensor(0.1), (0.9, 0.999))
    assert all(bool((tensor["w"] == 0).all()) for tensor in moments)
    assert bool((params["w"] == 1).all())
    assert bool((given["w"] == 0.5).all())


def test_the_one_in_place_is_torchs():
    weight, moments = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64), None
    for step, expected in enumerate(torch_path(0.03, (0.9, 0.99), 0.0), 1):
        direction, moments = adam_direction(slopes(step), moments)
        weight = weight - 0.03 * bias_correction(step) * direction
        torch.testing.assert_close(weight, expected, rtol=1e-7, atol=1e-9)


def test_the_one_in_place_takes_no_new_memory_for_its_moments():
    _, first = adam_direction(slopes(1), None)
    _, second = adam_direction(slopes(2), first)
    assert all(one is other for one, other in zip(first, second, strict=True))


def test_a_gradient_of_nothing_moves_nothing():
    direction, _ = adam_direction(torch.zeros(2), None)
    assert bool((direction == 0).all())
