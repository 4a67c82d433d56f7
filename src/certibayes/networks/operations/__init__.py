"""The vocabulary of our graphs: what one node of a network computes.

An operation is a frozen dataclass of plain settings with one method, ``evaluate``. It holds no tensors: its
weights are given by *role* ("weight", "bias", "running_mean", ...), so the same operation serves every posterior
sample. Bounds are not here; ``certibayes.bounds`` maps each operation type to its rules.
"""

from certibayes.networks.operations.activations import (
    ELU,
    GELU,
    Clamp,
    Hardswish,
    LeakyReLU,
    PReLU,
    ReLU,
    Sigmoid,
    SiLU,
    Softplus,
    Tanh,
)
from certibayes.networks.operations.affine import AFFINE, Conv1d, Conv2d, ConvTranspose2d, Linear, MatMul
from certibayes.networks.operations.arithmetic import Add, BatchNorm, Divide, Multiply, Normalize, Shift, Subtract
from certibayes.networks.operations.base import Operation, Pair, Weights
from certibayes.networks.operations.norms import Center, RootMeanSquareNorm
from certibayes.networks.operations.pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d, Mean, Sum
from certibayes.networks.operations.shapes import Concatenate, Pad, Permute, Reshape, Slice, Upsample

__all__ = [
    "AFFINE",
    "ELU",
    "GELU",
    "AdaptiveAvgPool2d",
    "Add",
    "AvgPool2d",
    "BatchNorm",
    "Center",
    "Clamp",
    "Concatenate",
    "Conv1d",
    "Conv2d",
    "ConvTranspose2d",
    "Divide",
    "Hardswish",
    "LeakyReLU",
    "Linear",
    "MatMul",
    "MaxPool2d",
    "Mean",
    "Multiply",
    "Normalize",
    "Operation",
    "PReLU",
    "Pad",
    "Pair",
    "Permute",
    "ReLU",
    "Reshape",
    "RootMeanSquareNorm",
    "Shift",
    "SiLU",
    "Sigmoid",
    "Slice",
    "Softplus",
    "Subtract",
    "Sum",
    "Tanh",
    "Upsample",
    "Weights",
]
