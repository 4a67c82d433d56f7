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


class _GlobalSettings:
    """Torch's process-wide settings: put in place by the first block that needs them, restored by the last to leave.

    Blocks may nest and may run in several threads at once.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.depth = 0
        self.undo = ExitStack()

    def enter(self) -> None:
        with self.lock:
            if self.depth == 0:
                self.undo = self._apply()
            self.depth += 1

    def leave(self) -> None:
        with self.lock:
            self.depth -= 1
            if self.depth == 0:
                self.undo.close()

    @staticmethod
    def _apply() -> ExitStack:
        stack = ExitStack()
        if torch.cuda.is_available():
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
        return stack


_settings = _GlobalSettings()

PRECISIONS = ("highest", "high", "medium")
"""Of products in training on a GPU, in torch's words: float32, TF32, and TF32 with convolutions in bfloat16."""

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
    if not torch.cuda.is_available():
        yield
        return
    # Read when cuBLAS is first used; without it, kernels that run at the same time may share their workspace.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    tf32 = precision != "highest"
    with ExitStack() as stack:
        stack.callback(_half_convolutions.reset, _half_convolutions.set(precision == "medium"))
        stack.enter_context(
            torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=tf32)
        )
        # torch refuses to tell the global setting once the caller has set a backend's own; those decide then.
        with suppress(RuntimeError):
            stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            torch.set_float32_matmul_precision("high" if tf32 else "highest")
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
        _settings.enter()
        stack.callback(_settings.leave)
        yield
