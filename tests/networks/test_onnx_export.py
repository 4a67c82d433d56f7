"""Networks to ONNX files and back: the same outputs, by our program and by onnx's reference."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import certibayes as cb
from certibayes.errors import UnsupportedLayer
from certibayes.networks import from_onnx, onnx_reference, operations, to_onnx, trace
from certibayes.networks._onnx_entries import ENTRIES

from ..strategies import ZOO, few_of, inputs, law, make, seeds

pytest.importorskip("onnx", reason='ONNX files need the extra: pip install "certibayes[onnx]"')

WITHOUT_OPERATOR = {
    "adaptive average pool": "AdaptiveAvgPool2d cannot be written as ONNX",  # windows that overlap unevenly
    "circular padding": "Pad cannot be written as ONNX: padding by 'circular'",
    "gelu": "GELU cannot be written as ONNX: opset 17",
    "gelu by tanh, wide": "GELU cannot",
    "ends in gelu": "GELU cannot",
    "silu": "SiLU cannot be written as ONNX: opset 17",
    "silu, wide": "SiLU cannot",
    "ends in silu": "SiLU cannot",
}
"""What is refused, and the words."""

NOT_EVALUATED = ["transposed convolution", "selu and celu"]
"""Groups of transposed convolutions, and Celu in float64, which onnx's reference does not evaluate."""


WRITTEN_ALONE = [
    "layer norm",
    "layer norm of sequences",
    "group norm",
    "instance norm",
    "ends in rms norm",
    "ends in layer norm",
]
"""Written by squares and roots, which are not read back."""


def test_every_operation_can_be_written():
    shipped = {kind for kind in operations.Operation.known.values() if kind.__module__.startswith(operations.__name__)}
    assert shipped == set(ENTRIES)


@pytest.mark.parametrize("dtype", few_of([torch.float32, torch.float64], [torch.float32]), ids=str)
@pytest.mark.parametrize(
    "name", [name for name in ZOO if name not in (*WITHOUT_OPERATOR, *NOT_EVALUATED, *WRITTEN_ALONE)]
)
def test_a_network_comes_back_as_it_was(name, dtype, tmp_path):
    net, x = make(name, 3, dtype), inputs(name, 5, 3, dtype)
    path = to_onnx(net, tmp_path / "net.onnx")
    back = from_onnx(path)
    with torch.no_grad():
        expected = net(x)
        largest = float(expected.abs().max())
        torch.testing.assert_close(back(x), expected, rtol=0.0, atol=1e-6 * largest)
    torch.testing.assert_close(onnx_reference(path)(x), expected, rtol=0.0, atol=1e-6 * largest)
    assert cb.supports(back)


@pytest.mark.parametrize("name", WRITTEN_ALONE)
def test_norms_are_written_by_their_parts(name, tmp_path):
    net, x = make(name, 3), inputs(name, 5, 3)
    path = to_onnx(net, tmp_path / "net.onnx")
    torch.testing.assert_close(onnx_reference(path)(x), net(x).detach(), rtol=1e-5, atol=1e-5)
    with pytest.raises(UnsupportedLayer, match="ONNX operators without rules: Sqrt"):
        from_onnx(path)


@law(20)
@given(
    widths=st.lists(st.integers(1, 9), min_size=2, max_size=5), seed=seeds, activation=st.sampled_from(["relu", "tanh"])
)
def test_random_networks_come_back_bit_for_bit(tmp_path_factory, widths, seed, activation):
    torch.manual_seed(seed)
    first, *hidden, last = widths
    net = cb.networks.mlp(first, hidden, last, activation=activation)
    path = to_onnx(net, tmp_path_factory.mktemp("net") / "net.onnx")
    x = torch.randn(4, first)
    ours, read = trace(net), trace(from_onnx(path))
    assert torch.equal(
        ours.graph.evaluate({**ours.params, **ours.buffers}, x), read.graph.evaluate({**read.params, **read.buffers}, x)
    )


@pytest.mark.parametrize("name", WITHOUT_OPERATOR)
def test_what_onnx_has_no_operator_for_is_refused(name, tmp_path):
    with pytest.raises(UnsupportedLayer, match=WITHOUT_OPERATOR[name]):
        to_onnx(make(name), tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())


def test_celu_is_written_in_float32_alone(tmp_path):
    name = "selu and celu"
    net, x = make(name), inputs(name, 5, 3)
    back = from_onnx(to_onnx(net, tmp_path / "net.onnx"))
    torch.testing.assert_close(back(x), net(x))
    with pytest.raises(UnsupportedLayer, match="ELU cannot be written as ONNX: Celu has float32 alone"):
        to_onnx(make(name, dtype=torch.float64), tmp_path / "double.onnx")
