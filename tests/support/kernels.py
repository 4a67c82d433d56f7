"""Kernels of ``support.fused`` without a GPU: the same memory is read and written by the same rules."""

import torch

from certibayes.bounds.rules import activation
from certibayes.likelihoods import _curvature as curvature
from certibayes.support import fused
from certibayes.support.places import INDEX, LETTERS
from certibayes.support.stacks import in_memory, map_levels


def emulate(monkeypatch):
    """Let formulas run as kernels, and return a list of the formulas that did and of their results' shapes."""
    launched = []

    def is_fused(*tensors, mapped=False):
        lying = in_memory(tensors) if mapped else tensors
        wrapped = any(torch._C._functorch.is_functorch_wrapped_tensor(tensor) for tensor in lying)
        return not wrapped and len(map_levels(tensors)) <= 1

    def compiled(device, formula, constants, places, types, targets, made, packed):
        def kernel(grid, block, arguments):
            tensors, (count, *numbers) = _split(arguments)
            places_in_turn = [*targets, *places]
            rules = [dict.fromkeys("ab", 0) | {a: numbers.pop(0) for a in LETTERS.get(k, "")} for k in places_in_turn]
            index = [_index(kind, rule, count) for kind, rule in zip(places_in_turn, rules, strict=True)]
            memory = [_memory(tensor, where) for tensor, where in zip(tensors, index, strict=True)]
            read = iter([own[where] for own, where in zip(memory, index, strict=True)][len(targets) :])
            results = formula(*(next(read) if constant is ... else constant for constant in constants))
            for own, where, result in zip(memory, index, results, strict=False):
                own[where] = result
            launched.append((formula.__name__, tuple(tensors[0].shape)))

        return kernel

    for module in (fused, activation, curvature):
        monkeypatch.setattr(module, "is_fused", is_fused)
    monkeypatch.setattr(fused, "_compiled", compiled)
    return launched


def _index(kind, rule, count):
    """Where each element is, by the text that stands in the kernel."""
    found = eval(INDEX[kind].format(**rule).replace("/", "//"), {"i": torch.arange(count)})
    return found if isinstance(found, torch.Tensor) else torch.full((count,), found)


def _split(arguments):
    tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    return tensors, arguments[len(tensors) :]


def _memory(tensor, index):
    """Return the memory that a kernel is given, from the tensor's first element to the last that it looks at."""
    return tensor.as_strided((int(index.max()) + 1,), (1,))
