"""Architectures by name, and any ``nn.Module`` traced into a graph of supported operations."""

from certibayes.networks.architectures import (
    BY_NAME,
    build,
    cnn7,
    cnn_medium,
    cnn_small,
    mlp,
    paper_cifar,
    paper_cifar_supplement,
)
from certibayes.networks.graph import INPUT, Graph, Node, Params
from certibayes.networks.lowering import Lowered, lower_function, lower_module
from certibayes.networks.normalize import Normalize
from certibayes.networks.operations import Operation
from certibayes.networks.trace import Network, infer_input_shape, supported_layers, trace
from certibayes.support.arithmetic import direct_sums

__all__ = [
    "BY_NAME",
    "INPUT",
    "Graph",
    "Lowered",
    "Network",
    "Node",
    "Normalize",
    "Operation",
    "Params",
    "build",
    "cnn7",
    "cnn_medium",
    "cnn_small",
    "direct_sums",
    "infer_input_shape",
    "lower_function",
    "lower_module",
    "mlp",
    "paper_cifar",
    "paper_cifar_supplement",
    "supported_layers",
    "trace",
]
