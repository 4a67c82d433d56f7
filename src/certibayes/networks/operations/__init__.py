"""The vocabulary of our graphs: what one node of a network computes.

An operation is a frozen dataclass of plain settings with one method, ``evaluate``. It holds no tensors: its
weights are given by *role* ("weight", "bias", "running_mean", ...), so the same operation serves every posterior
sample. Bounds are not here; ``certibayes.bounds`` maps each operation type to its rules.
"""

from certibayes.networks.operations.activations import LeakyReLU, ReLU, Sigmoid, Tanh
from certibayes.networks.operations.affine import Conv2d, Linear
from certibayes.networks.operations.arithmetic import Add, BatchNorm, Divide, Multiply, Normalize, Shift, Subtract
from certibayes.networks.operations.base import Operation, Pair, Weights
from certibayes.networks.operations.pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from certibayes.networks.operations.shapes import Concatenate, Pad, Permute, Reshape, Slice, Upsample

__all__ = [
    "AdaptiveAvgPool2d",
    "Add",
    "AvgPool2d",
    "BatchNorm",
    "Concatenate",
    "Conv2d",
    "Divide",
    "LeakyReLU",
    "Linear",
    "MaxPool2d",
    "Multiply",
    "Normalize",
    "Operation",
    "Pad",
    "Pair",
    "Permute",
    "ReLU",
    "Reshape",
    "Shift",
    "Sigmoid",
    "Slice",
    "Subtract",
    "Tanh",
    "Upsample",
    "Weights",
]
