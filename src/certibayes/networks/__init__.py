"""Architectures by name, and any ``nn.Module`` or ONNX file traced into a graph of supported operations."""

from certibayes.networks.architectures import (
    BY_NAME,
    INITIALIZATIONS,
    NORMED,
    build,
    cnn5,
    cnn7,
    cnn_medium,
    cnn_small,
    mlp,
    paper_cifar,
    paper_cifar_supplement,
    resnet_small,
)
from certibayes.networks.graph import INPUT, Graph, Node, Params
from certibayes.networks.initialization import init_interval_aware
from certibayes.networks.lowering import Lowered, lower_function, lower_module
from certibayes.networks.normalize import Normalize
from certibayes.networks.onnx_export import to_onnx
from certibayes.networks.onnx_import import from_onnx, onnx_reference
from certibayes.networks.operations import Operation
from certibayes.networks.trace import Network, infer_input_shape, trace
from certibayes.networks.unknown import supported_layers
from certibayes.support.arithmetic import direct_sums

__all__ = [
    "BY_NAME",
    "INITIALIZATIONS",
    "INPUT",
    "NORMED",
    "Graph",
    "Lowered",
    "Network",
    "Node",
    "Normalize",
    "Operation",
    "Params",
    "build",
    "cnn5",
    "cnn7",
    "cnn_medium",
    "cnn_small",
    "direct_sums",
    "from_onnx",
    "infer_input_shape",
    "init_interval_aware",
    "lower_function",
    "lower_module",
    "mlp",
    "onnx_reference",
    "paper_cifar",
    "paper_cifar_supplement",
    "resnet_small",
    "supported_layers",
    "to_onnx",
    "trace",
]
