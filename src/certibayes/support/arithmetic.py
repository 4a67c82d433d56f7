"""The arithmetic that certificates speak of: IEEE floats, every sum a direct sum.

A rounding bound for a dot product of n terms holds for any order of summation, with or without fused
multiply-add, hence for any batch size and number of threads. It does not hold for TF32 or bfloat16 products, nor
for convolution algorithms that transform their inputs first (Winograd, FFT). Predictors and bounds therefore
run inside ``direct_sums``, which switches those off and restores the caller's settings afterwards.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import torch

# Since torch 2.9 each backend has a precision of its own, which the global setting does not always reach.
_PRODUCTS_ON_CPU: Any = getattr(torch.backends.mkldnn, "matmul", None)
_BACKENDS = tuple(
    backend
    for backend in (_PRODUCTS_ON_CPU, getattr(torch.backends.mkldnn, "conv", None), torch.backends.cuda.matmul)
    if backend is not None and hasattr(backend, "fp32_precision")
)

DIRECT = "direct"
"""What certificates ask of the arithmetic."""


class _GlobalSettings:
    """Torch's process-wide settings: put in place for the blocks that are open, and given back by the last to leave.

    Blocks may nest and may run in several threads at once. Direct sums win: as long as any block needs them, training
    in another thread does not round its factors either. Otherwise the last block that was opened decides.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.open: list[str] = []
        self.applied: str | None = None
        self.undo = ExitStack()

    @contextmanager
    def block(self, kind: str) -> Iterator[None]:
        """Open a block: ``DIRECT``, or one of ``PRECISIONS``."""
        with self.lock:
            self.open.append(kind)
            self._apply()
        try:
            yield
        finally:
            with self.lock:
                # The last of its kind; those of one kind are all alike.
                self.open.reverse()
                self.open.remove(kind)
                self.open.reverse()
                self._apply()

    def _apply(self) -> None:
        kind = DIRECT if DIRECT in self.open else self.open[-1] if self.open else None
        if kind == self.applied:
            return
        # Back to the caller's settings first.
        self.undo.close()
        self.applied = kind
        if kind is not None:
            self.undo = _direct_settings() if kind == DIRECT else _training_settings(kind)


def _direct_settings() -> ExitStack:
    stack = ExitStack()
    if torch.cuda.is_available():
        # cuDNN may pick Winograd or FFT; without it torch multiplies patches by the kernel directly.
        stack.enter_context(torch.backends.cudnn.flags(enabled=False, allow_tf32=False))
    stack.enter_context(torch.backends.nnpack.flags(enabled=False))
    _set_products(stack, "highest")
    for backend in _BACKENDS:
        backend.fp32_precision = "ieee"
    return stack


def _training_settings(precision: str) -> ExitStack:
    stack, tf32 = ExitStack(), precision != "highest"
    if torch.cuda.is_available():
        stack.enter_context(
            torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=tf32)
        )
    # On a CPU, TF32 would gain nothing.
    _set_products(stack, "high" if tf32 and torch.cuda.is_available() else "highest")
    if precision == "medium" and multiplies_bfloat16() and _PRODUCTS_ON_CPU in _BACKENDS:
        _PRODUCTS_ON_CPU.fp32_precision = "bf16"
    return stack


def _set_products(stack: ExitStack, precision: str) -> None:
    """Set the precision of all products, and let the stack restore it and those of the backends."""
    # Undone in reverse order: the global setting first, since it overwrites those of the backends.
    for backend in _BACKENDS:
        stack.callback(setattr, backend, "fp32_precision", backend.fp32_precision)
    # torch refuses to tell the global setting once the caller has set a backend's own; those decide then.
    with suppress(RuntimeError):
        stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision(precision)


def multiplies_bfloat16() -> bool:
    """Tell whether this CPU has instructions for products in bfloat16, with which torch's take half the time.

    Where torch cannot tell, before 2.13, the answer is no.
    """
    known: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(known.get("avx512_bf16") or known.get("amx_bf16"))


_settings = _GlobalSettings()

PRECISIONS = ("highest", "high", "medium")
"""Of products in training, in torch's words. On a GPU: float32, TF32, and TF32 with convolutions in bfloat16. On a CPU
the last one rounds the factors of matrix products to bfloat16, where ``multiplies_bfloat16``."""

_half_convolutions: ContextVar[bool] = ContextVar("half_convolutions", default=False)


def half_convolutions() -> bool:
    """Tell whether convolutions of training on a GPU may round their images and filters to bfloat16."""
    return _half_convolutions.get()


@contextmanager
def repeatable_kernels(precision: str = "highest") -> Iterator[None]:
    """Run the block with kernels that give the same bits whenever they are run on the same machine.

    cuDNN then neither times its algorithms to choose among them nor takes one that adds in a random order.

    Args:
        precision: one of ``PRECISIONS``. Less is faster; certificates never round factors.
    """
    # Read when cuBLAS is first used; without it, kernels that run at the same time may share their workspace.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    with ExitStack() as stack:
        stack.callback(_half_convolutions.reset, _half_convolutions.set(precision == "medium"))
        stack.enter_context(_settings.block(precision))
        yield


@contextmanager
def direct_sums() -> Iterator[None]:
    """Run the block without TF32, reduced-precision products, autocast, NNPACK or cuDNN convolutions."""
    with ExitStack() as stack:
        # Autocast belongs to the thread, the rest to the process.
        stack.enter_context(torch.autocast("cpu", enabled=False))
        if torch.cuda.is_available():
            stack.enter_context(torch.autocast("cuda", enabled=False))
        stack.callback(_half_convolutions.reset, _half_convolutions.set(False))
        stack.enter_context(_settings.block(DIRECT))
        yield
