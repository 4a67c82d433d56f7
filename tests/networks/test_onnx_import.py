"""Networks from ONNX files: every operator computes what onnx's reference does, and others are refused by name."""

import gzip

import numpy as np
import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.errors import CorruptFile, InvalidInput, MissingPackage, UnsupportedLayer
from certibayes.networks import from_onnx, onnx_reference, trace
from certibayes.networks import onnx_import as importing
from certibayes.networks._onnx_operators import OPERATORS

pytest.importorskip("onnx", reason='ONNX files need the extra: pip install "certibayes[onnx]"')

from .onnx_files import integers, node, write

VECTOR, IMAGE = (1, 6), (1, 2, 7, 7)
FLAT = node("Flatten", "h", "y")
POSITIVE = np.array([0.3, 1.7])

CASES = {
    "Gemm": (VECTOR, [node("Gemm", "x w b", "y", transB=1)], {"w": (3, 6), "b": (3,)}),
    "Gemm, all settings": (
        VECTOR, [node("Gemm", "x w b", "y", alpha=0.5, beta=-2.0)], {"w": (6, 3), "b": (1, 3)},
    ),
    "Gemm, one bias for all": (VECTOR, [node("Gemm", "x w b", "y")], {"w": (6, 3), "b": (1,)}),
    "Gemm, no bias": (VECTOR, [node("Gemm", "x w", "y")], {"w": (6, 3)}),
    "MatMul and Add": (
        VECTOR, [node("MatMul", "x w", "h"), node("Add", "b h", "y")], {"w": (6, 3), "b": (1, 3)},
    ),
    "MatMul, read twice": (
        VECTOR,
        [node("MatMul", "x w", "h"), node("Add", "h b", "k"), node("Add", "h k", "y")],
        {"w": (6, 3), "b": (3,)},
    ),
    "MatMul of a row": ((1, 1, 6), [node("MatMul", "x w", "y")], {"w": (6, 3)}),
    "MatMul of a column": (
        (1, 6, 1), [node("MatMul", "w x", "h"), node("Add", "h b", "y")], {"w": (3, 6), "b": (3, 1)},
    ),
    "Conv": (
        IMAGE,
        [node("Conv", "x w b", "h", pads=[1, 2, 1, 2], strides=[2, 1], dilations=[1, 2]), FLAT],
        {"w": (3, 2, 3, 2), "b": (3,)},
    ),
    "Conv, groups": (IMAGE, [node("Conv", "x w", "h", group=2, kernel_shape=[3, 3]), FLAT], {"w": (4, 1, 3, 3)}),
    "Conv, one-sided padding": (
        IMAGE, [node("Conv", "x w b", "h", pads=[0, 2, 1, 0], strides=[2, 2]), FLAT], {"w": (3, 2, 3, 3), "b": (3,)},
    ),
    "Conv, SAME_UPPER": (
        IMAGE, [node("Conv", "x w", "h", auto_pad="SAME_UPPER", strides=[2, 3]), FLAT], {"w": (3, 2, 4, 2)},
    ),
    "Conv, SAME_LOWER": (IMAGE, [node("Conv", "x w", "h", auto_pad="SAME_LOWER"), FLAT], {"w": (3, 2, 2, 4)}),
    "Conv, VALID": (IMAGE, [node("Conv", "x w", "h", auto_pad="VALID"), FLAT], {"w": (3, 2, 2, 4)}),
    "Relu": (VECTOR, [node("Relu", "x", "y")], {}),
    "LeakyRelu": (VECTOR, [node("LeakyRelu", "x", "h", alpha=0.2), node("LeakyRelu", "h", "y")], {}),
    "Sigmoid": (VECTOR, [node("Sigmoid", "x", "y")], {}),
    "Tanh": (VECTOR, [node("Tanh", "x", "y")], {}),
    "BatchNormalization": (
        IMAGE,
        [node("BatchNormalization", "x s b m v", "h", epsilon=0.1), FLAT],
        {"s": (2,), "b": (2,), "m": (2,), "v": POSITIVE},
    ),
    "BatchNormalization of vectors": (
        (1, 2), [node("BatchNormalization", "x s b m v", "y")], {"s": (2,), "b": (2,), "m": (2,), "v": POSITIVE},
    ),
    "LayerNormalization": (
        (1, 3, 4),
        [node("LayerNormalization", "x s b", "k", epsilon=0.01), node("LayerNormalization", "k t", "h", axis=1), FLAT],
        {"s": (4,), "b": (4,), "t": (3, 4)},
    ),
    "InstanceNormalization": (
        IMAGE, [node("InstanceNormalization", "x s b", "h", epsilon=0.1), FLAT], {"s": (2,), "b": (2,)},
    ),
    "MaxPool": (IMAGE, [node("MaxPool", "x", "h", kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 0]), FLAT], {}),
    "MaxPool, default strides": (IMAGE, [node("MaxPool", "x", "h", kernel_shape=[2, 2]), FLAT], {}),
    "AveragePool": (
        IMAGE, [node("AveragePool", "x", "h", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]), FLAT], {},
    ),
    "AveragePool, with the padding": (
        IMAGE,
        [node("AveragePool", "x", "h", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1), FLAT],
        {},
    ),
    "GlobalAveragePool": (IMAGE, [node("GlobalAveragePool", "x", "y")], {}),
    "Flatten, from behind": (IMAGE, [node("Flatten", "x", "h", axis=-3), node("Relu", "h", "y")], {}),
    "Reshape": (
        IMAGE, [node("Reshape", "x s", "h"), node("Tanh", "h", "y")], {"s": integers(0, 14, -1)},
    ),
    "Reshape by its own shape": (
        ("batch", 2, 7, 7),
        [
            node("Shape", "x", "a"), node("Gather", "a zero", "b", axis=0), node("Unsqueeze", "b axes", "c"),
            node("Constant", "", "d", value_ints=[-1]), node("Concat", "c d", "e", axis=0),
            node("Reshape", "x e", "y"),
        ],
        {"zero": np.array(0), "axes": integers(0)},
    ),
    "Squeeze and Unsqueeze": (
        (1, 1, 6),
        [node("Squeeze", "x one", "h"), node("Unsqueeze", "h last", "k"), node("Relu", "k", "y")],
        {"one": integers(1), "last": integers(-1)},
    ),
    "Transpose of one channel": (
        (1, 5, 5, 1), [node("Transpose", "x", "h", perm=[0, 3, 1, 2]), node("Conv", "h w", "y")], {"w": (2, 1, 3, 3)},
    ),
    "Add of activations": (IMAGE, [node("Relu", "x", "k"), node("Add", "x k", "h"), FLAT], {}),
    "Sub of activations": (VECTOR, [node("Relu", "x", "k"), node("Sub", "k x", "y")], {}),
    "arithmetic with constants": (
        IMAGE,
        [
            node("Sub", "x m", "a"), node("Div", "a s", "b"), node("Mul", "two b", "c"), node("Sub", "m c", "d"),
            node("Neg", "d", "e"), node("Add", "e two", "f"), node("Div", "f two", "h"), FLAT,
        ],
        {"m": (1, 2, 1, 1), "s": np.array([0.5, 2.0]).reshape(2, 1, 1), "two": np.array(2.0)},
    ),
    "a constant that broadcasts": ((1, 6, 1), [node("Mul", "x w", "y")], {"w": (1, 4)}),
    "Identity and Dropout": (
        VECTOR, [node("Dropout", "x", "h"), node("Relu", "h", "k"), node("Identity", "k", "y")], {},
    ),
    "Pad that adds nothing": (IMAGE, [node("Pad", "x none", "h"), FLAT], {"none": integers(*[0] * 8)}),
    "Pad": (
        IMAGE, [node("Pad", "x p v", "h"), FLAT], {"p": integers(0, 0, 1, 0, 0, 1, 0, 2), "v": np.array(0.3)},
    ),
    "Pad by copies": (
        IMAGE, [node("Pad", "x p", "k", mode="reflect"), node("Pad", "k p", "h", mode="edge"), FLAT],
        {"p": integers(0, 0, 1, 2, 0, 0, 0, 1)},
    ),
    "Transpose of channels": ((1, 4, 4, 3), [node("Transpose", "x", "h", perm=[0, 3, 1, 2]), FLAT], {}),
    "several vectors": ((1, 4, 6), [node("MatMul", "x w", "h"), FLAT], {"w": (6, 3)}),
    "Slice": (
        IMAGE, [node("Slice", "x a b c d", "h"), FLAT],
        {"a": integers(-3, 0), "b": integers(100, -1), "c": integers(3, -2), "d": integers(1, 2)},
    ),
    "Concat": (VECTOR, [node("Relu", "x", "k"), node("Concat", "x k x", "y", axis=-1)], {}),
    "Resize": (
        IMAGE,
        [
            node("Resize", "x none s", "h", mode="nearest", coordinate_transformation_mode="asymmetric",
                 nearest_mode="floor"),
            FLAT,
        ],
        {"none": np.zeros(0, np.float32), "s": np.array([1, 1, 2, 3], np.float32)},
    ),
    "Conv of one dimension": (
        (1, 2, 7), [node("Conv", "x w b", "h", strides=[2], pads=[1, 1]), FLAT], {"w": (3, 2, 3), "b": (3,)},
    ),
    "ConvTranspose": (
        IMAGE,
        [node("ConvTranspose", "x w b", "h", strides=[2, 1], pads=[1, 0, 1, 0], output_padding=[1, 0]), FLAT],
        {"w": (2, 3, 3, 2), "b": (3,)},
    ),
    "ReduceMean and ReduceSum": (
        IMAGE, [node("ReduceMean", "x", "k", axes=[-1]), node("ReduceSum", "k one", "y", keepdims=0)],
        {"one": integers(2, 3)},
    ),
    "Clip": (
        VECTOR, [node("Clip", "x a b", "h"), node("Clip", "h  b", "k"), node("Clip", "k a", "y")],
        {"a": np.array(-0.5), "b": np.array(0.25)},
    ),
    "PRelu": (IMAGE, [node("PRelu", "x w", "k"), node("PRelu", "k v", "h"), FLAT], {"w": (2, 1, 1), "v": (1,)}),
    "Elu, Celu, Selu, Softplus and HardSwish": (
        VECTOR,
        [
            node("Elu", "x", "a", alpha=0.5), node("Celu", "a", "b", alpha=2.0), node("Selu", "b", "c"),
            node("Softplus", "c", "d"), node("HardSwish", "d", "y"),
        ],
        {},
    ),
    "constants of constants": (
        VECTOR, [node("Transpose", "w", "v"), node("Mul", "v v", "u"), node("Gemm", "x u", "y")], {"w": (3, 6)},
    ),
    "a branch that leads nowhere": (VECTOR, [node("Relu", "x", "y"), node("Tanh", "x", "h")], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_operator_computes_what_the_reference_computes(name, tmp_path):
    shape, nodes, constants = CASES[name]
    path = write(tmp_path / "net.onnx", nodes, shape, **constants)
    net = from_onnx(path)
    x = torch.randn(7, *shape[1:], generator=torch.Generator().manual_seed(1))
    expected = onnx_reference(path)(x)
    with torch.no_grad():
        torch.testing.assert_close(net(x), expected, rtol=1e-5, atol=1e-5)
    assert net.input_shape == shape[1:]
    # And it can be bounded: the tracer needs no example.
    assert cb.supports(net)
    network = trace(net)
    torch.testing.assert_close(
        network.graph.evaluate({**network.params, **network.buffers}, x), expected, rtol=1e-5, atol=1e-5
    )


def test_every_entry_has_a_case():
    used = {part.op_type for _, nodes, _ in CASES.values() for part in nodes}
    assert set(OPERATORS) <= used


def test_a_sum_after_a_product_becomes_its_bias_where_nothing_else_reads_the_product(tmp_path):
    shape, nodes, constants = CASES["MatMul and Add"]
    (layer,) = from_onnx(write(tmp_path / "net.onnx", nodes, shape, **constants)).layers
    assert isinstance(layer, nn.Linear) and layer.bias is not None
    shape, nodes, constants = CASES["MatMul, read twice"]
    first, *_ = from_onnx(write(tmp_path / "other.onnx", nodes, shape, **constants)).layers
    assert first.bias is None


def test_a_network_from_a_file_is_certified_like_any_other(tmp_path):
    net = cb.networks.mlp(6, [8], 3)
    torch.manual_seed(0)
    x = torch.rand(20, 6)
    path = cb.networks.to_onnx(net, tmp_path / "net.onnx")
    ours = cb.certify(cb.Point(net).predictor(), x, eps=0.05, method="best")
    read = cb.certify(cb.Point(from_onnx(path)).predictor(), x, eps=0.05, method="best")
    assert torch.equal(ours.certified, read.certified) and int(ours.certified.sum()) > 0


def test_compressed_files_and_older_ones_are_read(tmp_path):
    shape, nodes, constants = CASES["Conv"]
    path = write(tmp_path / "net.onnx", nodes, shape, opset=9, **constants)
    packed = tmp_path / "net.onnx.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    for one, other in zip(from_onnx(path).parameters(), from_onnx(packed).parameters(), strict=True):
        assert torch.equal(one, other)
    older = [node("Squeeze", "x", "h", axes=[1]), node("Unsqueeze", "h", "k", axes=[1]), node("Relu", "k", "y")]
    assert from_onnx(write(tmp_path / "old.onnx", older, (1, 1, 6), opset=9)).input_shape == (1, 6)


# What is refused


REFUSED = {
    "Softmax": [node("Gemm", "x w", "h"), node("Softmax", "h", "y")],
    "Round": [node("Round", "x", "y")],
    "Exp": [node("Exp", "x", "h"), node("Relu", "h", "y")],
}


@pytest.mark.parametrize("kind", REFUSED)
def test_an_operator_without_rules_is_named_with_those_that_have(kind, tmp_path):
    path = write(tmp_path / "net.onnx", REFUSED[kind], VECTOR, w=(6, 3))
    with pytest.raises(UnsupportedLayer, match=rf"net\.onnx.*{kind} \(node '") as caught:
        from_onnx(path)
    assert all(name in str(caught.value) for name in ("Gemm", "Conv", "MaxPool", "LeakyRelu"))
    assert ("softmax" in str(caught.value)) == (kind == "Softmax")


def test_all_operators_without_rules_are_named_at_once(tmp_path):
    nodes = [node("Exp", "x", "h"), node("Relu", "h", "k"), node("Sin", "k", "y")]
    with pytest.raises(UnsupportedLayer, match=r"Exp \(node 'h'\), Sin \(node 'y'\)"):
        from_onnx(write(tmp_path / "net.onnx", nodes, VECTOR))


WAYS = {
    "transA": (VECTOR, [node("Gemm", "x w", "y", transA=1)], {"w": (1, 3)}, "not transposed"),
    "activation as weight": (VECTOR, [node("Relu", "x", "k"), node("Gemm", "x k", "y", transB=1)], {}, "constant"),
    "several columns": ((1, 6, 4), [node("MatMul", "w x", "y")], {"w": (3, 6)}, "one vector"),
    "Conv of three dimensions": ((1, 2, 7, 7, 7), [node("Conv", "x w", "y")], {"w": (3, 2, 3, 3, 3)}, "only images"),
    "Conv of one dimension, one-sided": (
        (1, 2, 7), [node("Conv", "x w", "h", pads=[0, 1]), FLAT], {"w": (3, 2, 3)}, "equal numbers",
    ),
    "ConvTranspose, one-sided": (
        IMAGE, [node("ConvTranspose", "x w", "h", pads=[0, 0, 1, 1]), FLAT], {"w": (2, 3, 3, 3)}, "equal numbers",
    ),
    "ConvTranspose in groups": (
        IMAGE, [node("ConvTranspose", "x w", "h", group=2), FLAT], {"w": (2, 3, 3, 3)}, "in groups",
    ),
    "PRelu by pixel": (IMAGE, [node("PRelu", "x w", "h"), FLAT], {"w": (7,)}, "one for each channel"),
    "Selu of one's own": (VECTOR, [node("Selu", "x", "y", alpha=2.0)], {}, "not those of SELU"),
    "LayerNormalization of the batch": (
        VECTOR, [node("LayerNormalization", "x s", "y", axis=0)], {"s": (1, 6)}, "over the batch",
    ),
    "LayerNormalization whose mean is used": (
        VECTOR, [node("LayerNormalization", "x s", "k m"), node("Add", "k m", "y")], {"s": (6,)}, "is used",
    ),
    "ReduceMean of the batch": (VECTOR, [node("ReduceMean", "x", "y", axes=[0])], {}, "over the batch"),
    "one-sided, dilated": (
        IMAGE, [node("Conv", "x w", "h", pads=[0, 0, 1, 1], dilations=[2, 2]), FLAT], {"w": (3, 2, 2, 2)}, "dilated",
    ),
    "one-sided pool": (
        IMAGE, [node("MaxPool", "x", "h", kernel_shape=[2, 2], pads=[0, 0, 1, 1]), FLAT], {}, "not symmetric",
    ),
    "Transpose of the batch": ((1, 4, 3), [node("Transpose", "x", "h", perm=[2, 1, 0]), FLAT], {}, "moves the batch"),
    "Pad by wrapping": (
        IMAGE, [node("Pad", "x p", "h", mode="wrap"), FLAT], {"p": integers(0, 0, 1, 1, 0, 0, 1, 1)}, "pads by 'wrap'",
    ),
    "Pad that crops": (IMAGE, [node("Pad", "x p", "h"), FLAT], {"p": integers(0, 0, -1, 0, 0, 0, 0, 0)}, "crops"),
    "Slice of the batch": (
        VECTOR, [node("Slice", "x a b", "y")], {"a": integers(1), "b": integers(2)}, "slices the batch",
    ),
    "Concat with a constant": (VECTOR, [node("Concat", "x w", "y", axis=1)], {"w": (1, 2)}, "is a constant"),
    "Resize between pixels": (
        IMAGE, [node("Resize", "x none s", "h", mode="linear"), FLAT],
        {"none": np.zeros(0, np.float32), "s": np.array([1, 1, 2, 2], np.float32)}, "it resizes by 'linear'",
    ),
    "product of activations": (VECTOR, [node("Mul", "x x", "y")], {}, "two activations"),
    "division by an activation": (VECTOR, [node("Div", "two x", "y")], {"two": np.array(2.0)}, "divisor"),
    "a constant in the place of images": (
        IMAGE, [node("Conv", "w x", "h"), FLAT], {"w": (1, 2, 3, 3)}, "activation must come first",
    ),
    "AveragePool, dilated": (
        IMAGE, [node("AveragePool", "x", "h", kernel_shape=[2, 2], dilations=[2, 2]), FLAT], {"opset": 19},
        "windows are dilated",
    ),
    "Pad of the batch": (
        IMAGE, [node("Pad", "x p", "h"), FLAT], {"p": integers(1, 0, 0, 0, 0, 0, 0, 0)}, "pads the batch",
    ),
    "Pad of channels by reflection": (
        IMAGE, [node("Pad", "x p", "h", mode="reflect"), FLAT], {"p": integers(0, 1, 0, 0, 0, 1, 0, 0)},
        "pads channels by 'reflect'",
    ),
    "Slice, backward": (
        VECTOR, [node("Slice", "x a b c d", "y")],
        {"a": integers(3), "b": integers(0), "c": integers(1), "d": integers(-1)}, "steps backward",
    ),
    "Concat of the batch": (VECTOR, [node("Concat", "x x", "y", axis=0)], {}, "along the batch"),
    "activations of unequal dimensions": (
        VECTOR, [node("Unsqueeze", "x a", "k"), node("Add", "x k", "y")], {"a": integers(1)},
        "different numbers of dimensions",
    ),
    "a batch of several": (VECTOR, [node("Add", "x b", "y")], {"b": (2, 6)}, "batch"),
    "a shape without batch": (VECTOR, [node("Reshape", "x s", "y")], {"s": integers(3, 2)}, "begin with the batch"),
}  # fmt: skip


@pytest.mark.parametrize("name", WAYS)
def test_an_operator_used_in_a_way_without_rules_is_named(name, tmp_path):
    shape, nodes, constants, words = WAYS[name]
    with pytest.raises(UnsupportedLayer, match=words) as caught:
        from_onnx(write(tmp_path / "net.onnx", nodes, shape, **constants))
    assert "node '" in str(caught.value)


def test_shapes_and_precisions_that_cannot_be_used_are_refused(tmp_path):
    from onnx import TensorProto

    relu = [node("Relu", "x", "y")]
    with pytest.raises(InvalidInput, match=r"shape \(4, 6\).*batch"):
        from_onnx(write(tmp_path / "batch.onnx", relu, (4, 6)))
    with pytest.raises(InvalidInput, match=r"shape \(1, \?\).*fixed"):
        from_onnx(write(tmp_path / "free.onnx", relu, (1, "n")))
    with pytest.raises(InvalidInput, match="FLOAT16"):
        from_onnx(write(tmp_path / "half.onnx", relu, VECTOR, kind=TensorProto.FLOAT16))
    with pytest.raises(InvalidInput, match="does not depend"):
        from_onnx(write(tmp_path / "constant.onnx", [node("Identity", "c", "y")], VECTOR, c=(1, 3)))


def test_networks_of_two_inputs_are_refused(tmp_path):
    import onnx

    path = write(tmp_path / "two.onnx", [node("Relu", "x", "y")], VECTOR)
    model = onnx.load(path)
    model.graph.input.append(onnx.helper.make_tensor_value_info("other", onnx.TensorProto.FLOAT, VECTOR))
    onnx.save(model, path)
    with pytest.raises(InvalidInput, match="has 2 inputs and 1 outputs"):
        from_onnx(path)


def test_what_is_no_network_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="there is no file"):
        from_onnx(tmp_path / "missing.onnx")
    text = tmp_path / "text.onnx"
    text.write_text("not a network")
    with pytest.raises(CorruptFile, match=r"text\.onnx is not a usable ONNX"):
        from_onnx(text)


def test_a_reading_that_is_wrong_is_noticed(tmp_path, monkeypatch):
    """Were an entry to forget a setting, the comparison with the reference would say so."""
    monkeypatch.setitem(OPERATORS, "LeakyRelu", lambda call: nn.LeakyReLU(0.5))
    path = write(tmp_path / "net.onnx", [node("LeakyRelu", "x", "y", alpha=0.2)], VECTOR)
    with pytest.raises(UnsupportedLayer, match="does not compute what onnx's reference"):
        from_onnx(path)


def test_without_onnx_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(MissingPackage, match=r"certibayes\[onnx\]"):
        importing.read_model(tmp_path / "net.onnx")
