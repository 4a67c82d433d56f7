"""Formulas as kernels: what is written down computes the same as the formula on tensors."""

import math
import re

import pytest
import torch

from certibayes.inference import _meanfield as meanfield
from certibayes.inference import bbb, ivon, noisy_adam, sghmc, vogn
from certibayes.support import adam, descent
from certibayes.support.fused import FUNCTIONS, fused, kernel_source

NUMBERS = {
    "beta1": 0.9,
    "beta2": 0.99,
    "data_size": 100,
    "temperature": 0.5,
    "size": 32,
    "damping": 0.1,
    "entropy": 0.3,
}
NUMBERS |= {"n": 200.0, "momentum": 0.9, "friction": 0.1}
FORMULAS = [
    adam._corrections,
    adam._adam,
    descent._descend,
    meanfield._sample,
    noisy_adam._move,
    vogn._move,
    ivon._move,
    bbb._sample,
    bbb._rho_gradient,
    sghmc._move,
]


@fused
def every_function(a, b, c):
    """Use everything that a formula may use."""
    results = [
        torch.add(a, b, alpha=0.5), torch.sub(a, b, alpha=0.5), torch.mul(a, b), torch.div(a, b), torch.square(a),
        torch.sqrt(a), torch.rsqrt(a), torch.sigmoid(a), torch.nn.functional.softplus(a), torch.lerp(a, b, 0.3),
        torch.lerp(a, b, c), torch.addcmul(a, b, c, value=2.0), torch.addcdiv(a, b, c, value=-2.0),
        a + b, a - b, 1.0 - a, a * b, a / b, 2.0 / a, 2.0 + a, 2.0 * a, 0.9**a,
        (a + 0.0).add_(b, alpha=3.0).sub_(c).mul_(b).div_(c).square_().sqrt_().rsqrt_(),
        (a + 0.0).addcmul_(b, c, value=0.1).addcdiv_(b, c).lerp_(b, 0.9),
    ]  # fmt: skip
    return tuple(results)


def names_of(formula):
    return formula.__wrapped__.__code__.co_varnames[: formula.__wrapped__.__code__.co_argcount]


def arguments_of(formula, without=()):
    generator = torch.Generator().manual_seed(1)
    drawn = {name: torch.rand(7, generator=generator, dtype=torch.float64) + 0.1 for name in names_of(formula)}
    given = formula.__wrapped__.__annotations__
    numbers = {name: NUMBERS[name] for name in drawn if given.get(name) in ("float", "int")}
    return [None if name in without else numbers.get(name, drawn[name]) for name in drawn]


def interpreted(formula, arguments):
    """Run the kernel's source line by line in Python, for each element."""
    constants = [... if isinstance(argument, torch.Tensor) else argument for argument in arguments]
    tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    source, name, results = kernel_source(formula.__wrapped__, constants, ["i"] * len(tensors), torch.float64)
    assert f"void {name}(" in source
    found = torch.zeros(results, 7, dtype=torch.float64)
    for i in range(7):
        scope = {f"x{k}": tensor.tolist() for k, tensor in enumerate(tensors)} | {
            f"y{k}": found[k] for k in range(results)
        }
        scope |= {"i": i, "T": float, "pow": math.pow, "sqrt": math.sqrt, "exp": math.exp, "log1p": math.log1p}
        scope["rsqrt"] = lambda x: 1 / math.sqrt(x)
        for line in re.findall(r"(?:const T )?((?:t\d+|y\d+\[i\]) = .*);", source):
            exec(re.sub(r"= (.*) \? (.*) : (.*)", r"= \2 if \1 else \3", line), scope)
    return tuple(found)


@pytest.mark.parametrize("formula", [*FORMULAS, every_function], ids=lambda f: f"{f.__module__}.{f.__name__}")
def test_the_kernel_computes_the_formula(formula):
    expected = formula(*[a.clone() if isinstance(a, torch.Tensor) else a for a in arguments_of(formula)])
    for result, value in zip(interpreted(formula, arguments_of(formula)), expected, strict=True):
        torch.testing.assert_close(result, value, rtol=1e-13, atol=0.0)


def test_adam_without_decay_is_a_kernel_of_its_own():
    arguments = arguments_of(adam._adam, without=("decay",))
    for result, value in zip(interpreted(adam._adam, arguments), adam._adam(*arguments), strict=True):
        torch.testing.assert_close(result, value, rtol=1e-13, atol=0.0)


def test_every_function_is_tried():
    code = every_function.__wrapped__.__code__.co_names
    assert {name.removesuffix("_") for name in code} >= FUNCTIONS.keys()


def test_what_a_kernel_cannot_do_is_named():
    with pytest.raises(AttributeError, match="'clamp_'"):
        kernel_source(lambda a: (a.clamp_(0.0),), [...], ["i"], torch.float32)


def test_the_update_of_a_formula_leaves_what_it_was_given():
    for formula in FORMULAS:
        arguments = arguments_of(formula)
        before = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
        formula(*arguments)
        for name, a, b in zip(names_of(formula), arguments, before, strict=True):
            # Random numbers are drawn for one use, and their memory is used again.
            if isinstance(a, torch.Tensor) and name != "normal":
                assert torch.equal(a, b), (formula.__module__, name)


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
@pytest.mark.parametrize("formula", [*FORMULAS, every_function], ids=lambda f: f"{f.__module__}.{f.__name__}")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_gpu_agrees_with_the_formula(formula, dtype):
    arguments = [a.to(dtype) if isinstance(a, torch.Tensor) else a for a in arguments_of(formula)]
    on_gpu = [a.cuda() if isinstance(a, torch.Tensor) else a for a in arguments]
    for result, value in zip(formula(*on_gpu), formula(*arguments), strict=True):
        torch.testing.assert_close(result.cpu(), value, rtol=1e-5 if dtype is torch.float32 else 1e-12, atol=1e-7)


@needs_gpu
def test_a_gpu_broadcasts():
    @fused
    def product(a, b, c, d, e):
        return (a * b * c * d * e,)

    generator = torch.Generator().manual_seed(0)
    shapes = [(3, 5, 2), (5, 2), (3, 1, 1), (), (3, 5, 1)]
    tensors = [torch.rand(shape, generator=generator) for shape in shapes]
    (found,) = product(*(tensor.cuda() for tensor in tensors))
    torch.testing.assert_close(found.cpu(), product(*tensors)[0])


@needs_gpu
def test_gradients_and_vmap_go_through_the_formula_itself():
    @fused
    def square(a):
        return (a * a,)

    x = torch.rand(4, device="cuda")
    assert torch.equal(torch.func.grad(lambda a: square(a)[0].sum())(x), 2 * x)
    assert torch.equal(torch.vmap(lambda a: square(a)[0])(x), x * x)
