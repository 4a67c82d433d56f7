"""Formulas as kernels: what is written down computes the same as the formula on tensors."""

import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from certibayes.bounds.rules import affine
from certibayes.likelihoods import _curvature as curvature
from certibayes.support import adam
from certibayes.support import fused as module
from certibayes.support.fused import FUNCTIONS, _number_of_results, fused, kernel_source
from certibayes.support.places import PACKED, Place, dense, laid_out, place_of
from tests.support.formulas import FORMULAS, arguments_of, every_function, name_of, names_of


def interpreted(formula, arguments, packed=False):
    """Run the kernel's source line by line in Python, for each element."""
    constants = [... if isinstance(argument, torch.Tensor) else argument for argument in arguments]
    tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    results = _number_of_results(formula.__wrapped__, tuple(constants))
    places, types, targets = ["i"] * len(tensors), [torch.float64] * len(tensors), ["i"] * results
    source, name = kernel_source(formula.__wrapped__, constants, places, types, targets, torch.float64, packed)
    assert f"void {name}(" in source
    assert ("Pack" in source) == packed
    found = torch.zeros(results, 7, dtype=torch.float64)
    for i in range(7):
        scope = {f"x{k}": tensor.tolist() for k, tensor in enumerate(tensors)} | {
            f"y{k}": found[k] for k in range(results)
        }
        scope |= {
            "i": i,
            "j": i,
            "T": float,
            "pow": math.pow,
            "sqrt": math.sqrt,
            "exp": math.exp,
            "log1p": math.log1p,
            "fabs": abs,
        }
        scope["rsqrt"] = lambda x: 1 / math.sqrt(x)
        for line in re.findall(r"(?:const T )?((?:t\d+|y\d+\[[ij]\]) = .*);", source):
            exec(re.sub(r"= (.*) \? (.*) : (.*)", r"= \2 if \1 else \3", line), scope)
    return tuple(found)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("formula", [*FORMULAS, every_function], ids=name_of)
def test_the_kernel_computes_the_formula(formula, packed):
    expected = formula(*[a.clone() if isinstance(a, torch.Tensor) else a for a in arguments_of(formula)])
    for result, value in zip(interpreted(formula, arguments_of(formula), packed), expected, strict=True):
        torch.testing.assert_close(result, value, rtol=1e-13, atol=0.0)


def test_adam_without_decay_is_a_kernel_of_its_own():
    arguments = arguments_of(adam._step, without=("decay",))
    for result, value in zip(interpreted(adam._step, arguments), adam._step(*arguments), strict=True):
        torch.testing.assert_close(result, value, rtol=1e-13, atol=0.0)


def test_every_function_is_tried():
    code = every_function.__wrapped__.__code__.co_names
    assert {name.removesuffix("_") for name in code} >= FUNCTIONS.keys()


def test_what_a_kernel_cannot_do_is_named():
    with pytest.raises(AttributeError, match="'clamp_'"):
        kernel_source(lambda a: (a.clamp_(0.0),), [...], ["i"], [torch.float32], ["i"], torch.float32)


def test_the_update_of_a_formula_leaves_what_it_was_given():
    for formula in FORMULAS:
        arguments = arguments_of(formula)
        before = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
        formula(*arguments)
        for name, a, b in zip(names_of(formula), arguments, before, strict=True):
            # Random numbers are drawn, and sums made, for one use, and their memory is used again.
            used = name == "normal" or formula in (affine._with_radii, curvature._combined)
            if isinstance(a, torch.Tensor) and not used:
                assert torch.equal(a, b), (formula.__module__, name)


def test_relu_keeps_nan():
    (result,) = interpreted(fused(lambda a: (torch.relu(a),)), [torch.full((7,), math.nan, dtype=torch.float64)])
    assert bool(result.isnan().all())


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    varies=st.lists(st.booleans(), min_size=4, max_size=4),
    missing=st.integers(0, 3),
    order=st.permutations(range(4)),
)
def test_every_element_is_found_in_its_place(sizes, varies, missing, order):
    order = [d for d in order if d < len(sizes)]
    like = torch.zeros([sizes[d] for d in order]).permute([order.index(d) for d in range(len(sizes))])
    shape = [size if varying else 1 for size, varying in zip(sizes, varies, strict=False)]
    while missing and shape and shape[0] == 1:
        shape, missing = shape[1:], missing - 1
    tensor = torch.arange(math.prod(shape)).reshape(shape)
    like = dense([like])
    tensor = laid_out(tensor, like)
    place = place_of(tensor, like)
    # Memory order of both: as_strided with one dimension.
    memory = tensor.as_strided((tensor.numel(),), (1,))
    expected = torch.empty_like(like, dtype=torch.int64).copy_(tensor.expand(like.shape))
    for i, value in enumerate(expected.as_strided((like.numel(),), (1,)).tolist()):
        index = {"i": i, "0": 0}.get(place.kind, i // (place.a or 1) % (place.b or 1))
        assert memory[index] == value


def test_a_kernel_is_launched_with_as_many_threads_as_elements_and_not_for_none(monkeypatch):
    launched = []

    def compiled(*settings):
        return lambda grid, block, arguments: launched.append((grid[0] * block[0], arguments[-1]))

    monkeypatch.setattr(module, "is_fused", lambda *tensors, mapped: True)
    monkeypatch.setattr(module, "_compiled", compiled)
    double = fused(lambda a: (2 * a,))
    assert double(torch.rand(0, 3))[0].shape == (0, 3)
    assert not launched
    double(torch.rand(100, 3))
    double(torch.rand(301)[1:])
    # Four elements to a thread; the second tensor begins where a GPU cannot read four at once.
    assert launched == [(256, 300), (512, 300)]


def test_results_can_be_written_in_a_place():
    a, both = torch.rand(3, 2), torch.zeros(6, 2)
    fused(lambda a: (2 * a, a + 1))(a, out=(both[:3], both[3:]))
    assert torch.equal(both, torch.cat([2 * a, a + 1]))


@pytest.mark.parametrize("each, period, fits", [(1, 8, True), (1, 6, False), (8, 3, True), (6, 4, False)])
def test_neighbors_share_a_place_or_lie_side_by_side(each, period, fits):
    """Checked against where each of four neighbors finds its value."""
    places = [[(i + j) // each % period for j in range(PACKED)] for i in range(0, 48, PACKED)]
    place = Place("%", b=period) if each == 1 else Place("/", each, period)
    assert place.in_step == fits
    if fits:
        assert all(p == [p[0]] * PACKED or p == list(range(p[0], p[0] + PACKED)) for p in places)


@fused
def _itself(a):
    return (a * 1.0,)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
class TestOnAGPU:
    @pytest.mark.parametrize("stored", [torch.float32, torch.float64, torch.bfloat16])
    @pytest.mark.parametrize("shape", [(5, 8, 4, 6), (3, 7), (2, 64, 8, 8), (16,)])
    @pytest.mark.parametrize("skipped", [0, 1])
    def test_elements_side_by_side_or_not_and_in_bfloat16(self, stored, shape, skipped):
        """In bfloat16 the formula is computed in float32 and rounded once, to the nearest."""

        @fused
        def formula(x, scale, shift):
            return torch.addcmul(shift, x, scale), torch.relu(x) * 3.0

        torch.manual_seed(0)
        x = torch.randn(math.prod(shape) + skipped, device="cuda").to(stored)[skipped:].view(shape)
        x.view(-1)[:3] = torch.tensor([math.nan, math.inf, 3e38])
        order = torch.channels_last if x.dim() == 4 else torch.contiguous_format
        full = torch.float64 if stored == torch.float64 else torch.float32
        for images in (x, x.contiguous(memory_format=order)):
            wide = (-1, 1, 1) if x.dim() == 4 else (-1,)
            scale, shift = torch.rand(2, *images.shape[:2][-1:], device="cuda", dtype=full)
            found = formula(images, scale.view(wide), shift.view(wide))
            expected = formula.__wrapped__(images.to(full), scale.view(wide), shift.view(wide))
            for mine, theirs in zip(found, expected, strict=True):
                assert mine.dtype == stored and mine.stride() == images.stride()
                rtol = 2**-8 if stored == torch.bfloat16 else 1e-6
                torch.testing.assert_close(mine, theirs.to(stored), rtol=rtol, atol=1e-6, equal_nan=True)
        (same,) = _itself(x)
        assert torch.equal(same.nan_to_num(7.0), x.nan_to_num(7.0))
