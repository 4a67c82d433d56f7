"""The arithmetic that certificates speak of: IEEE floats, every sum a direct sum.

A rounding bound for a dot product of n terms holds for any order of summation, with or without fused
multiply-add, hence for any batch size and number of threads. It does not hold for TF32 or bfloat16 products, nor
for convolution algorithms that transform their inputs first (Winograd, FFT). Predictors and bounds therefore
run inside ``direct_sums``, which switches those off and restores the caller's settings afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import torch

# Since torch 2.9 each backend has a precision of its own, which the global setting does not always reach.
_BACKENDS = tuple(
    backend
    for backend in (
        getattr(torch.backends.mkldnn, "matmul", None),
        getattr(torch.backends.mkldnn, "conv", None),
        torch.backends.cuda.matmul,
    )
    if backend is not None and hasattr(backend, "fp32_precision")
)


@contextmanager
def direct_sums() -> Iterator[None]:
    """Run the block without TF32, reduced-precision products, autocast, NNPACK or cuDNN convolutions."""
    with ExitStack() as stack:
        stack.enter_context(torch.autocast("cpu", enabled=False))
        if torch.cuda.is_available():
            stack.enter_context(torch.autocast("cuda", enabled=False))
            # cuDNN may pick Winograd or FFT; without it torch multiplies patches by the kernel directly.
            stack.enter_context(torch.backends.cudnn.flags(enabled=False, allow_tf32=False))
        stack.enter_context(torch.backends.nnpack.flags(enabled=False))
        # Undone in reverse order: the global setting first, since it overwrites those of the backends.
        for backend in _BACKENDS:
            stack.callback(setattr, backend, "fp32_precision", backend.fp32_precision)
        # torch refuses to tell the global setting once the caller has set a backend's own; those decide then.
        with suppress(RuntimeError):
            stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            torch.set_float32_matmul_precision("highest")
        for backend in _BACKENDS:
            backend.fp32_precision = "ieee"
        yield
