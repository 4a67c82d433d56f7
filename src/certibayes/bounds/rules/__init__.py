"""One file for each kind of layer, holding all its rules; importing it registers them."""

from certibayes.bounds.rules import (
    activation,
    affine,
    curved,
    elementwise,
    moves,
    norms,
    pooling,
    sequences,
    shape,
    transposed_convolution,
)

__all__ = [
    "activation",
    "affine",
    "curved",
    "elementwise",
    "moves",
    "norms",
    "pooling",
    "sequences",
    "shape",
    "transposed_convolution",
]
