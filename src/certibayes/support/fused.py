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

from certibayes.support.places import INDEX, LETTERS, PACKED, Place, dense, laid_out, place_of, side_by_side
from certibayes.support.stacks import in_memory, inside_map, map_levels

THREADS = 256
"""Threads in a block."""

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
    "sign": "T(({0} > T(0)) - ({0} < T(0)))",
    "neg": "-{0}",
    # Written so that NaN stays what it is, as the first of two.
    "relu": "{0} < T(0) ? T(0) : {0}",
    "maximum": "{0} < {1} ? {1} : {0}",
    "clamp_min": "{0} < {1} ? {1} : {0}",
    "clamp_max": "{0} > {1} ? {1} : {0}",
    "where": "{0} != T(0) ? {1} : {2}",
    "gt": "T({0} > {1})",
    "reciprocal": "T(1) / {0}",
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

    Its arguments are tensors that broadcast to one shape, which is that of its results, and numbers, settings and None,
    which are compiled into the kernel. Results are stored as the tensor of that shape is. A formula may use the
    operators + - * / >, a number to the power of a tensor, and ``FUNCTIONS``. What it makes is called with these
    arguments, and may be given ``out``: tensors for the results. Inside ``torch.vmap`` one kernel makes all samples.
    """

    @wraps(formula)
    def call(*arguments: Any, out: Sequence[Tensor] | None = None) -> tuple[Tensor, ...]:
        tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
        if not is_fused(*tensors, mapped=True):
            found = formula(*arguments)
            return found if out is None else tuple(place.copy_(f) for place, f in zip(out, found, strict=True))
        constants = tuple(... if isinstance(argument, Tensor) else argument for argument in arguments)
        levels = map_levels(tensors)
        if not levels:
            return _launched(formula, constants, tensors, out)
        every = in_memory([*tensors, *(out or ())])
        written = _launched(formula, constants, every[: len(tensors)], None if out is None else every[len(tensors) :])
        return tuple(out or (inside_map(result, *levels) for result in written))

    return call


def _launched(
    formula: Formula, constants: tuple[Any, ...], tensors: list[Tensor], out: Sequence[Tensor] | None
) -> tuple[Tensor, ...]:
    """Compute a formula by one kernel."""
    like = dense(tensors if out is None else out[:1])
    tensors = [laid_out(tensor, like) for tensor in tensors]
    places = [_place(tensor, like) for tensor in tensors]
    device, types = tensors[0].device, tuple(tensor.dtype for tensor in tensors)
    kinds = tuple(place.kind for place in places)
    if out is None:
        results = _number_of_results(formula, constants)
        written = [
            torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=device) for _ in range(results)
        ]
    else:
        written = [_require(tensor, like) for tensor in out]
    targets = [_place(tensor, like) for tensor in written]
    packed = side_by_side([*tensors, *written], [*places, *targets])
    made = tuple(place.kind for place in targets)
    kernel = _compiled(device.index, formula, constants, kinds, types, made, like.dtype, packed)
    numbers = [number for place in (*targets, *places) for number in place.numbers]
    blocks = -(-like.numel() // (THREADS * (PACKED if packed else 1)))
    # Without boxes their radii are empty, and a GPU refuses a launch of no blocks.
    if blocks:
        kernel((blocks, 1, 1), (THREADS, 1, 1), [*written, *tensors, like.numel(), *numbers])
    return tuple(written)


def is_fused(*tensors: Tensor, mapped: bool = False) -> bool:
    """Tell whether a formula on these tensors runs as one kernel: on a GPU, in one precision, nothing to record.

    Some may be stored in bfloat16 where it is float32. Inside ``torch.vmap`` a formula is still one kernel, for all
    samples; those who use this to choose among other operations do not ask for ``mapped`` ones.
    """
    if not all(tensor.is_cuda for tensor in tensors):
        return False
    lying = in_memory(tensors) if mapped else tensors
    return (
        # Of one map: where maps are nested, none of these agree on what a sample is.
        len(map_levels(tensors)) <= 1
        and {tensor.dtype for tensor in tensors} in PRECISIONS
        and not any(torch._C._functorch.is_functorch_wrapped_tensor(tensor) for tensor in lying)
        and math.prod(torch.broadcast_shapes(*(tensor.shape for tensor in lying))) < 2**31 - THREADS
        and not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in lying))
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


def _place(tensor: Tensor, like: Tensor) -> Place:
    place = place_of(tensor, like)
    assert place is not None
    return place


def _require(out: Tensor, like: Tensor) -> Tensor:
    if out.shape != like.shape or out.dtype != like.dtype or place_of(out, like) is None:
        raise ValueError(f"a result of shape {tuple(like.shape)} cannot be written to one of {tuple(out.shape)}")
    return out


def _text(value: Any) -> str:
    return value.name if isinstance(value, Symbol) else f"T({float(value)!r})"


@cache
def _number_of_results(formula: Formula, constants: tuple[Any, ...]) -> int:
    return len(_written_down(formula, constants, [Symbol("x", []) for _ in constants]))


def _written_down(formula: Formula, constants: Sequence[Any], symbols: Sequence[Symbol]) -> tuple[Any, ...]:
    """Run a formula on symbols in the place of tensors."""
    tensors = iter(symbols)
    return formula(*(next(tensors) if constant is ... else constant for constant in constants))


@cache
def _compiled(device: int, *kernel: Any) -> Any:
    """Compile the kernel whose source these arguments give."""
    return torch.cuda._compile_kernel(*kernel_source(*kernel))


def kernel_source(
    formula: Formula,
    constants: Sequence[Any],
    places: Sequence[str],
    types: Sequence[torch.dtype],
    targets: Sequence[str],
    made: torch.dtype,
    packed: bool = False,
) -> tuple[str, str]:
    """Return the kernel's source and name.

    Args:
        formula: what it computes for each element i.
        constants: the formula's arguments, ``...`` in the place of tensors.
        places: kinds of ``support.places`` where each tensor's elements are; their numbers are given in the call.
        types: of each tensor.
        targets: kinds of places of the results.
        made: type of the results.
        packed: whether a thread computes ``PACKED`` elements that lie side by side.
    """
    lines: list[str] = []
    index = [INDEX[kind].format(a=f"a{k}", b=f"b{k}") for k, kind in enumerate(places)]
    target = [INDEX[kind].format(a=f"c{k}", b=f"d{k}") for k, kind in enumerate(targets)]
    read = [f"x{k}[{'j' if packed else index[k]}]" for k in range(len(places))]
    read = [f"loaded({x})" if kind == torch.bfloat16 else x for x, kind in zip(read, types, strict=True)]
    results = _written_down(formula, constants, [Symbol("", lines).write(x) for x in read])
    texts = [_text(result) for result in results]
    texts = [f"rounded({text})" if made == torch.bfloat16 else text for text in texts]
    lines += [f"y{k}[{'j' if packed else target[k]}] = {text};" for k, text in enumerate(texts)]
    stored, prefix = TYPES[made], "p" if packed else ""
    pointers = [f"{stored}* {prefix}y{k}" for k in range(len(results))]
    pointers += [f"const {TYPES[kind]}* {prefix}x{k}" for k, kind in enumerate(types)]
    numbers = [f"int {'cd'['ab'.index(a)]}{k}" for k, kind in enumerate(targets) for a in LETTERS.get(kind, "")]
    numbers += [f"int {letter}{k}" for k, kind in enumerate(places) for letter in LETTERS.get(kind, "")]
    name = formula.__name__.strip("_")
    if packed:
        shapes = [
            f"{'Same' if place in ('0', '/') else 'Pack'}<{TYPES[kind]}>"
            for place, kind in zip(places, types, strict=True)
        ]
        fetched = [f"{shape} x{k} = *({shape}*)(px{k} + {index[k]});" for k, shape in enumerate(shapes)]
        room = [f"Pack<{stored}> y{k};" for k in range(len(results))]
        loop = f"#pragma unroll\n  for (int j = 0; j < {PACKED}; ++j) {{"
        kept = [f"*(Pack<{stored}>*)(py{k} + {target[k]}) = y{k};" for k in range(len(results))]
        lines = [*fetched, *room, loop, *lines, "}", *kept]
    helpers = [FROM_HALF] * (torch.bfloat16 in (*types, made)) + [PACK] * packed
    source = f"""typedef {"double" if made == torch.float64 else "float"} T;
{"".join(helpers)}extern "C" __global__ void {name}({", ".join([*pointers, "int count", *numbers])}) {{
  const int i = {f"{PACKED} * " if packed else ""}(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  {chr(10).join(lines)}
}}
"""
    return source, name
