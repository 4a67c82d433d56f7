"""Elementwise formulas as one kernel on a GPU.

A step of an optimizer is one formula for every weight. Made by torch, each operation in it is a kernel and a pass over
memory of its own, and for a small network these passes are most of a step. Here a formula is run once on symbols, which
write down what is done to them, and compiled into one kernel, in a tenth of a second:

    @fused
    def descend(w, g, lr):
        return (torch.addcmul(w, lr, g, value=-1),)

On a CPU, and wherever no kernel can be compiled, it runs on tensors as it is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, wraps
from typing import Any

import torch
from torch import Tensor

THREADS = 256
"""Threads in a block."""

PACKED = 4
"""Elements that a thread reads at once and computes one after the other, where they lie side by side."""

TYPES = {torch.float32: "float", torch.float64: "double", torch.bfloat16: "unsigned short"}
"""How numbers are stored. Those in bfloat16 are computed with in float32, whose upper half they are."""

FROM_HALF = """__device__ float loaded(unsigned short x) { return __uint_as_float((unsigned int)x << 16); }
__device__ unsigned short rounded(float x) {
  const unsigned int bits = __float_as_uint(x);
  return x != x ? 0x7fc0 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}
"""
"""To float32 and back, to the nearest, of two equally near to the even one."""

PACK = f"""template <class S> struct alignas({PACKED} * sizeof(S)) Pack {{
  S values[{PACKED}];
  __device__ S& operator[](int j) {{ return values[j]; }}
}};
template <class S> struct Same {{
  S value;
  __device__ S operator[](int) const {{ return value; }}
}};
"""
"""Neighbors that are read or written at once, and one value that neighbors share."""

FUNCTIONS = {
    "add": "{0} + {alpha} * {1}",
    "sub": "{0} - {alpha} * {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "square": "{0} * {0}",
    "abs": "fabs({0})",
    "neg": "-{0}",
    # Written so that NaN stays what it is.
    "relu": "{0} < T(0) ? T(0) : {0}",
    "where": "{0} != T(0) ? {1} : {2}",
    "exp": "exp({0})",
    "sqrt": "sqrt({0})",
    "rsqrt": "rsqrt({0})",
    "sigmoid": "T(1) / (T(1) + exp(-{0}))",
    # Beyond 20 it is x itself in float32, and torch's own function switches there as well.
    "softplus": "{0} > T(20) ? {0} : log1p(exp({0}))",
    "lerp": "{0} + {2} * ({1} - {0})",
    "addcmul": "{0} + {value} * {1} * {2}",
    "addcdiv": "{0} + {value} * {1} / {2}",
}
"""What a formula may use of torch, as functions or, with an underscore, as methods that work in place."""

PRECISIONS = ({torch.float64}, {torch.float32}, {torch.bfloat16}, {torch.float32, torch.bfloat16})
"""How the tensors of one formula may be stored."""

Formula = Callable[..., tuple[Any, ...]]
"""Takes tensors, numbers and None; returns what becomes of each element."""


class Symbol:
    """A value in a kernel: the name that it has there, and all lines that have been written so far."""

    def __init__(self, name: str, lines: list[str]):
        self.name, self.lines = name, lines

    def write(self, expression: str) -> Symbol:
        """Give the value of an expression a name."""
        name = f"t{len(self.lines)}"
        self.lines.append(f"const T {name} = {expression};")
        return Symbol(name, self.lines)

    def apply(self, function: str, *others: Any, alpha: float = 1.0, value: float = 1.0) -> Symbol:
        """Write down a function of this value and others."""
        operands = [_text(operand) for operand in (self, *others)]
        return self.write(FUNCTIONS[function].format(*operands, alpha=_text(alpha), value=_text(value)))

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Symbol:
        lines = next(argument.lines for argument in args if isinstance(argument, Symbol))
        first = args[0] if isinstance(args[0], Symbol) else Symbol(_text(args[0]), lines)
        return first.apply(function.__name__, *args[1:], **(kwargs or {}))

    def __getattr__(self, name: str) -> Callable[..., Symbol]:
        if not name.endswith("_") or name[:-1] not in FUNCTIONS:
            raise AttributeError(f"a fused formula cannot use {name!r}")

        def in_place(*others: Any, **settings: float) -> Symbol:
            self.name = self.apply(name[:-1], *others, **settings).name
            return self

        return in_place

    def __add__(self, other: Any) -> Symbol:
        return self.write(f"{self.name} + {_text(other)}")

    def __sub__(self, other: Any) -> Symbol:
        return self.write(f"{self.name} - {_text(other)}")

    def __rsub__(self, other: Any) -> Symbol:
        return self.write(f"{_text(other)} - {self.name}")

    def __mul__(self, other: Any) -> Symbol:
        return self.write(f"{self.name} * {_text(other)}")

    def __truediv__(self, other: Any) -> Symbol:
        return self.write(f"{self.name} / {_text(other)}")

    def __rtruediv__(self, other: Any) -> Symbol:
        return self.write(f"{_text(other)} / {self.name}")

    def __gt__(self, other: Any) -> Symbol:
        return self.write(f"T({self.name} > {_text(other)})")

    def __neg__(self) -> Symbol:
        return self.apply("neg")

    def __rpow__(self, base: float) -> Symbol:
        return self.write(f"pow({_text(base)}, {self.name})")

    __radd__, __rmul__ = __add__, __mul__


def fused(formula: Formula) -> Callable[..., tuple[Tensor, ...]]:
    """Make a formula run as one kernel where its tensors are on a GPU.

    Its arguments are tensors that broadcast to one shape, which is that of its results, numbers, which are compiled
    into the kernel, and None. Results are stored as the tensor of that shape is. A formula may use the operators
    + - * / >, a number to the power of a tensor, and ``FUNCTIONS``. What it makes is called with these arguments, and
    may be given ``out``: tensors for the results.
    """

    @wraps(formula)
    def call(*arguments: Tensor | float | None, out: Sequence[Tensor] | None = None) -> tuple[Tensor, ...]:
        tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
        if not is_fused(*tensors):
            found = formula(*arguments)
            return found if out is None else tuple(place.copy_(f) for place, f in zip(out, found, strict=True))
        like = _largest(tensors) if out is None else out[0]
        tensors = [_laid_out(tensor, like) for tensor in tensors]
        places = [_place(tensor, like) for tensor in tensors]
        constants = tuple(... if isinstance(argument, Tensor) else argument for argument in arguments)
        kinds = tuple(place if isinstance(place, str) else "%" if place[0] == 1 else "/" for place in places)
        types = tuple(tensor.dtype for tensor in tensors)
        packed = _side_by_side(tensors, places, [like] if out is None else out)
        kernel, results = _compiled(formula, constants, kinds, types, like.dtype, packed, like.device.index)
        written = [torch.empty_like(like) for _ in range(results)] if out is None else [_require(o, like) for o in out]
        periods = [number for place in places if not isinstance(place, str) for number in place if number > 1]
        blocks = -(-like.numel() // (THREADS * (PACKED if packed else 1)))
        # Without boxes their radii are empty, and a GPU refuses a launch of no blocks.
        if blocks:
            kernel((blocks, 1, 1), (THREADS, 1, 1), [*written, *tensors, like.numel(), *periods])
        return tuple(written)

    return call


def is_fused(*tensors: Tensor) -> bool:
    """Tell whether a formula on these tensors runs as one kernel: on a GPU, in one precision, nothing to record.

    Some may be stored in bfloat16 where it is float32.
    """
    return (
        all(tensor.is_cuda for tensor in tensors)
        and {tensor.dtype for tensor in tensors} in PRECISIONS
        and math.prod(torch.broadcast_shapes(*(tensor.shape for tensor in tensors))) < 2**31 - THREADS
        and not any(torch._C._functorch.is_functorch_wrapped_tensor(tensor) for tensor in tensors)
        and not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))
        and _can_compile()
    )


@lru_cache
def _can_compile() -> bool:
    """Tell whether torch can compile CUDA source here: its version has the function, and NVRTC is there."""
    try:
        torch.cuda._compile_kernel('extern "C" __global__ void nothing() {}', "nothing")
    except (AttributeError, RuntimeError, OSError):
        return False
    return True


def _largest(tensors: Sequence[Tensor]) -> Tensor:
    """Return the tensor whose shape, and whose order in memory, is that of the results."""
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
    like = next((tensor for tensor in tensors if tensor.shape == shape), tensors[0].expand(shape))
    return like if is_dense(like) else like.contiguous()


def is_dense(tensor: Tensor) -> bool:
    """Tell whether a tensor fills its memory without gaps, in whatever order of its dimensions."""
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()


def _laid_out(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a tensor in a form for which there is a rule where to find its elements."""
    if tensor.shape == like.shape:
        return tensor if tensor.stride() == like.stride() else _copied(tensor, like)
    tensor = tensor.contiguous()
    return tensor if _place(tensor, like) else _copied(tensor.expand(like.shape), like)


def _copied(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a copy in the order in memory that another tensor has."""
    return torch.empty_like(like, dtype=tensor.dtype).copy_(tensor)


def _place(tensor: Tensor, like: Tensor) -> str | tuple[int, int]:
    """Return where element i of the results finds its value: at i, at 0, or at (i / a) % b as (a, b); "" if nowhere.

    The last is for one dimension, or several that lie next to each other in memory, over which the tensor varies.
    """
    if tensor.shape == like.shape:
        return "i"
    if tensor.numel() == 1:
        return "0"
    sizes = (1,) * (like.dim() - tensor.dim()) + tensor.shape
    varying = [d for d, size in enumerate(sizes) if size > 1]
    strides = [like.stride(d) for d in varying]
    if strides != sorted(strides, reverse=True) or strides[0] * sizes[varying[0]] != strides[-1] * tensor.numel():
        return ""
    return strides[-1], tensor.numel()


def _side_by_side(tensors: Sequence[Tensor], places: Sequence[str | tuple[int, int]], out: Sequence[Tensor]) -> bool:
    """Tell whether ``PACKED`` neighbors of the results find their values side by side, or all in one place."""
    whole = all(tensor.numel() % PACKED == 0 for tensor in out)
    starts = [tensor for tensor, place in zip(tensors, places, strict=True) if place != "0"]
    aligned = all(tensor.data_ptr() % (PACKED * tensor.element_size()) == 0 for tensor in [*starts, *out])
    return whole and aligned and all(isinstance(place, str) or _in_step(*place) for place in places)


def _in_step(each: int, period: int) -> bool:
    """Tell whether (i / each) % period is one number for ``PACKED`` neighbors, or as many that follow each other."""
    return each % PACKED == 0 or (each == 1 and period % PACKED == 0)


def _require(out: Tensor, like: Tensor) -> Tensor:
    if out.shape != like.shape or out.stride() != like.stride() or out.dtype != like.dtype:
        raise ValueError(f"a result of shape {tuple(like.shape)} cannot be written to one of {tuple(out.shape)}")
    return out


def _text(value: Any) -> str:
    return value.name if isinstance(value, Symbol) else f"T({float(value)!r})"


@cache
def _compiled(
    formula: Formula,
    constants: tuple[Any, ...],
    places: tuple[str, ...],
    types: tuple[torch.dtype, ...],
    made: torch.dtype,
    packed: bool,
    device: int,
) -> tuple[Any, int]:
    """Compile a formula for tensors in these places, and return the kernel and how many results it has."""
    source, name, results = kernel_source(formula, constants, places, types, made, packed)
    return torch.cuda._compile_kernel(source, name), results


def kernel_source(
    formula: Formula,
    constants: Sequence[Any],
    places: Sequence[str],
    types: Sequence[torch.dtype],
    made: torch.dtype,
    packed: bool = False,
) -> tuple[str, str, int]:
    """Return the kernel's source and name, and how many results it has.

    Args:
        formula: what it computes for each element i.
        constants: the formula's arguments, ``...`` in the place of tensors.
        places: of each tensor: ``"i"``, ``"0"``, ``"%"`` for i % b or ``"/"`` for (i / a) % b, with a and b given in
            the call.
        types: of each tensor.
        made: type of the results.
        packed: whether a thread computes ``PACKED`` elements that lie side by side.
    """
    lines: list[str] = []
    index = [{"%": f"i % b{k}", "/": f"(i / a{k}) % b{k}"}.get(place, place) for k, place in enumerate(places)]
    read = [f"x{k}[{'j' if packed else index[k]}]" for k in range(len(places))]
    read = [f"loaded({x})" if kind == torch.bfloat16 else x for x, kind in zip(read, types, strict=True)]
    tensors = iter([Symbol("", lines).write(x) for x in read])
    results = formula(*(next(tensors) if constant is ... else constant for constant in constants))
    texts = [_text(result) for result in results]
    texts = [f"rounded({text})" if made == torch.bfloat16 else text for text in texts]
    lines += [f"y{k}[{'j' if packed else 'i'}] = {text};" for k, text in enumerate(texts)]
    stored, prefix = TYPES[made], "p" if packed else ""
    pointers = [f"{stored}* {prefix}y{k}" for k in range(len(results))]
    pointers += [f"const {TYPES[kind]}* {prefix}x{k}" for k, kind in enumerate(types)]
    letters = {"%": "b", "/": "ab"}
    periods = [f"int {letter}{k}" for k, place in enumerate(places) for letter in letters.get(place, "")]
    name = formula.__name__.strip("_")
    if packed:
        shapes = [
            f"{'Pack' if place in ('i', '%') else 'Same'}<{TYPES[kind]}>"
            for place, kind in zip(places, types, strict=True)
        ]
        fetched = [f"{shape} x{k} = *({shape}*)(px{k} + {index[k]});" for k, shape in enumerate(shapes)]
        room = [f"Pack<{stored}> y{k};" for k in range(len(results))]
        loop = f"#pragma unroll\n  for (int j = 0; j < {PACKED}; ++j) {{"
        kept = [f"*(Pack<{stored}>*)(py{k} + i) = y{k};" for k in range(len(results))]
        lines = [*fetched, *room, loop, *lines, "}", *kept]
    helpers = [FROM_HALF] * (torch.bfloat16 in (*types, made)) + [PACK] * packed
    source = f"""typedef {"double" if made == torch.float64 else "float"} T;
{"".join(helpers)}extern "C" __global__ void {name}({", ".join([*pointers, "int count", *periods])}) {{
  const int i = {f"{PACKED} * " if packed else ""}(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  {chr(10).join(lines)}
}}
"""
    return source, name, len(results)
