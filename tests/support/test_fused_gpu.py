"""Formulas as kernels on a GPU."""

import pytest
import torch

from certibayes.support.fused import fused
from tests.support.formulas import FORMULAS, arguments_of, every_function, name_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("formula", [*FORMULAS, every_function], ids=name_of)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_gpu_agrees_with_the_formula(formula, dtype):
    arguments = [a.to(dtype) if isinstance(a, torch.Tensor) else a for a in arguments_of(formula)]
    on_gpu = [a.cuda() if isinstance(a, torch.Tensor) else a for a in arguments]
    for result, value in zip(formula(*on_gpu), formula(*arguments), strict=True):
        torch.testing.assert_close(result.cpu(), value, rtol=1e-5 if dtype is torch.float32 else 1e-12, atol=1e-7)


def test_a_gpu_broadcasts():
    @fused
    def product(a, b, c, d, e):
        return (a * b * c * d * e,)

    generator = torch.Generator().manual_seed(0)
    shapes = [(3, 5, 2), (5, 2), (3, 1, 1), (), (3, 1, 2)]
    tensors = [torch.rand(shape, generator=generator) for shape in shapes]
    (found,) = product(*(tensor.cuda() for tensor in tensors))
    torch.testing.assert_close(found.cpu(), product(*tensors)[0])


def test_a_gpu_keeps_the_order_in_memory():
    x = torch.rand(2, 3, 4, 5, device="cuda").to(memory_format=torch.channels_last)
    both = torch.empty(4, 3, 4, 5, device="cuda").to(memory_format=torch.channels_last)
    scale = torch.rand(1, 3, 1, 1, device="cuda")

    @fused
    def scaled(x, scale):
        return x * scale, x + scale

    (found, _) = scaled(x, scale)
    assert found.stride() == x.stride()
    assert torch.equal(found, x * scale)
    scaled(x, scale, out=(both[:2], both[2:]))
    assert torch.equal(both, torch.cat([x * scale, x + scale]))


def test_gradients_and_vmap_go_through_the_formula_itself():
    @fused
    def square(a):
        return (a * a,)

    x = torch.rand(4, device="cuda")
    assert torch.equal(torch.func.grad(lambda a: square(a)[0].sum())(x), 2 * x)
    assert torch.equal(torch.vmap(lambda a: square(a)[0])(x), x * x)


def test_rows_with_gaps_inside_vmap():
    @fused
    def combined(a, b, c):
        return a * b + c, a - b * c

    for width in (40, 42):
        weights, b, c = torch.rand(5, width), torch.rand(5, 4, 6), torch.rand(5, 6)
        a = weights[:, 4:28].unflatten(1, (4, 6))

        def own(a, b, c):
            both = a.new_empty(2, *a.shape)
            combined(a, b, c, out=both.unbind())
            return both, *combined(a, b, c)

        found = torch.vmap(own)(weights.cuda()[:, 4:28].unflatten(1, (4, 6)), b.cuda(), c.cuda())
        expected = torch.vmap(own)(a, b, c)
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine.cpu(), theirs)


def test_nothing_is_made_of_nothing():
    @fused
    def square(a, b):
        return (a * a * b,)

    assert square(torch.rand(0, 3, device="cuda"), torch.rand(3, device="cuda"))[0].shape == (0, 3)
