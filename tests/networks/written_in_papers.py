"""More small modules, as papers, their repositories and tutorials have them: blocks by name, sizes, odd wrappers."""

from __future__ import annotations

import functools
import math
from collections import OrderedDict, namedtuple

import torch
from torch import nn
from torch.nn import functional as F

from .written_by_people import IMAGE, SEQUENCE, VECTOR, Calls, on_vectors


class Tutorial(nn.Module):
    """As in torch's first tutorial: the size is multiplied up in a loop."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(36, 3)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv(x)), (2, 2))
        return self.fc(x.view(-1, self.num_flat_features(x)))

    def num_flat_features(self, x):
        features = 1
        for size in x.size()[1:]:
            features *= size
        return features


class LambdaLayer(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class OptionA(nn.Module):
    """The skip of the ResNets for CIFAR: every second pixel, and channels of zeros."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.fc = nn.Conv2d(3, 6, 3, 2, 1, bias=False), nn.BatchNorm2d(6), nn.Linear(6, 3)
        self.shortcut = LambdaLayer(lambda x: F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 1, 2), "constant", 0))

    def forward(self, x):
        out = self.bn(self.conv(x))
        out += self.shortcut(x)
        out = F.relu(out)
        out = F.avg_pool2d(out, out.size()[3])
        return self.fc(out.view(out.size(0), -1))


class SamePadding(nn.Conv2d):
    """As in EfficientNet, after TensorFlow."""

    def forward(self, x):
        height, width = x.size()[-2:]
        kh, kw = self.weight.size()[-2:]
        rows = max((math.ceil(height / self.stride[0]) - 1) * self.stride[0] + kh - height, 0)
        columns = max((math.ceil(width / self.stride[1]) - 1) * self.stride[1] + kw - width, 0)
        if rows > 0 or columns > 0:
            x = F.pad(x, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class PyramidPooling(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(20, 3)

    def forward(self, x):
        x = F.relu(self.conv(x))
        n, _, h, w = x.size()
        pooled = [
            F.max_pool2d(x, (math.ceil(h / k), math.ceil(w / k)), (h // k, w // k)).view(n, -1) for k in (1, int(h / 3))
        ]
        return self.fc(torch.cat(pooled, 1))


class DropPath(nn.Module):
    def __init__(self, drop_prob):
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x):
        if self.drop_prob == 0.0 or not self.training:
            return x
        return x * x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(1 - self.drop_prob)


class DenseBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict({f"denselayer{i}": nn.Conv2d(3 + 2 * i, 2, 3, padding=1) for i in range(3)})
        self.fc = nn.Linear(9, 3)

    def forward(self, x):
        features = [x]
        for _, layer in self.layers.items():
            features.append(F.relu(layer(torch.cat(features, 1))))
        return self.fc(torch.cat(features, 1).mean((2, 3)))


class Res2Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 6, 1), nn.Linear(6, 3)
        self.convs = nn.ModuleList([nn.Conv2d(2, 2, 3, padding=1) for _ in range(2)])

    def forward(self, x):
        parts = torch.split(F.relu(self.conv(x)), 2, 1)
        for i in range(2):
            part = parts[i] if i == 0 else part + parts[i]  # noqa: F821 - as its authors write it
            part = F.relu(self.convs[i](part))
            out = part if i == 0 else torch.cat((out, part), 1)  # noqa: F821
        return self.fc(torch.cat((out, parts[2]), 1).mean((2, 3)))


class FeaturePyramid(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.ModuleDict({"c1": nn.Conv2d(3, 4, 3, 2, 1), "c2": nn.Conv2d(4, 4, 3, 2, 1)})
        self.lateral, self.fc = nn.ModuleList([nn.Conv2d(4, 2, 1) for _ in range(2)]), nn.Linear(2, 3)

    def forward(self, x):
        features = OrderedDict()
        for name, layer in self.body.items():
            features[name] = x = F.relu(layer(x))
        features = list(features.values())
        last = self.lateral[-1](features[-1])
        for i in range(len(features) - 2, -1, -1):
            lateral = self.lateral[i](features[i])
            last = lateral + F.interpolate(last, size=lateral.shape[-2:], mode="nearest")
        return self.fc(last.mean((2, 3)))


class Additive(nn.Module):
    """A small network for each feature, and their sum."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([nn.Sequential(nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 3)) for _ in range(7)])
        self.bias = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return torch.stack([part(x[:, i].unsqueeze(-1)) for i, part in enumerate(self.parts)], -1).sum(-1) + self.bias


class Recurrent(nn.Module):
    """An Elman network by hand, as long as its input."""

    def __init__(self):
        super().__init__()
        self.inputs, self.hidden, self.out = nn.Linear(12, 5), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x):
        h = torch.tanh(self.inputs(x[:, 0]))
        for t in range(1, x.size(1)):
            h = torch.tanh(self.inputs(x[:, t, :]) + self.hidden(h))
        return self.out(h)


class TabularResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)
        self.up, self.down, self.dropout, self.act = nn.Linear(5, 8), nn.Linear(8, 5), 0.1, F.relu

    def forward(self, x):
        x = self.first(x)
        z = self.act(self.up(self.norm(x)))
        if self.dropout:
            z = F.dropout(z, self.dropout, self.training)
        x = x + self.down(z)
        return self.last(x)


class Cached(nn.Module):
    """Keeps its features, and asks for a type and a device."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.features = nn.Linear(7, 5), nn.Linear(5, 3), None

    def forward(self, x, return_features=False, *, mask=None):
        if x.dtype == torch.uint8:
            x = x.float() / 255.0
        torch._assert(x.shape[1] == 7, "seven features")
        assert x.shape[1:] == (7,), f"seven features, got {tuple(x.shape)}"
        h = self.first(x.to(self.first.weight.device, self.first.weight.dtype)).relu_()
        self.features = h if mask is None else h * mask
        return (self.last(h), h) if return_features else self.last(h)


def on_images(function, width: int, **parts) -> nn.Module:
    return Calls(lambda self, x: self.fc(function(self, x).flatten(1)), fc=nn.Linear(width, 3), **parts)


def convs(channels: int = 2) -> dict[str, nn.Module]:
    return {"one": nn.Conv2d(3, channels, 3), "other": nn.Conv2d(3, channels, 3)}


WORKING = {
    "num_flat_features": (IMAGE, Tutorial),
    "shortcut A": (IMAGE, OptionA),
    "padding of EfficientNet": (
        IMAGE, lambda: nn.Sequential(SamePadding(3, 4, 3, 2), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                                     nn.Linear(4, 3))
    ),
    "spatial pyramid pooling": (IMAGE, PyramidPooling),
    "DropPath": (
        VECTOR, lambda: Calls(lambda self, x: self.fc(x + self.drop(self.mlp(x).relu())), mlp=nn.Linear(7, 7),
                              drop=DropPath(0.2), fc=nn.Linear(7, 3))
    ),
    "dense block in a ModuleDict": (IMAGE, DenseBlock),
    "Res2Net": (IMAGE, Res2Net),
    "feature pyramid": (IMAGE, FeaturePyramid),
    "additive model": (VECTOR, Additive),
    "Elman network": (SEQUENCE, Recurrent),
    "tabular ResNet": (VECTOR, TabularResNet),
    "features kept, types asked": (VECTOR, Cached),
    "PoolFormer": (
        IMAGE,
        lambda: Calls(lambda self, x: self.fc((x + self.scale * (self.pool(y := self.norm(x)) - y)).mean([-2, -1])),
                      norm=nn.GroupNorm(1, 3), pool=nn.AvgPool2d(3, 1, 1, count_include_pad=False),
                      scale=nn.Parameter(torch.full((3, 1, 1), 0.5)), fc=nn.Linear(3, 3)),
    ),
    "max feature map": (
        IMAGE, lambda: on_images(lambda self, x: torch.max(*torch.split(self.conv(x), 2, 1)), 72,
                                 conv=nn.Conv2d(3, 4, 3))
    ),
    "GroupSort": (
        VECTOR,
        lambda: Calls(lambda self, x: self.fc(_sorted_pairs(*x[:, :6].chunk(2, dim=1))), fc=nn.Linear(6, 3)),
    ),
    "maximum of branches": (IMAGE, lambda: on_images(lambda self, x: self.one(x).max(self.other(x)), 72, **convs())),
    "values, indices": (
        IMAGE, lambda: Calls(lambda self, x: self.fc(_values_of_a_maximum(self.one(x))), fc=nn.Linear(2, 3), **convs())
    ),
    "range of features": (
        SEQUENCE, lambda: Calls(lambda self, x: self.fc(x.amax(1) - x.amin(1) + x.min(dim=1)[0]), fc=nn.Linear(12, 3))
    ),
    "features by number": (
        VECTOR,
        lambda: Calls(
            lambda self, x: self.fc(torch.stack([x[:, 0] - x[:, 1], x[:, 2].tanh(), x[:, 3:].sum(1), x.mean(1)], 1)),
            fc=nn.Linear(4, 3),
        ),
    ),
    "brightness taken off": (IMAGE, lambda: on_images(lambda self, x: x - x.mean((1, 2, 3)).view(-1, 1, 1, 1), 192)),
    "channels in a range": (
        IMAGE,
        lambda: on_images(lambda self, x: torch.stack([x[:, c].amax((1, 2)) for c in range(x.shape[1])], -1), 3),
    ),
    "parts in a loop": (
        SEQUENCE, lambda: Calls(lambda self, x: self.fc(torch.cat([part.relu() for part in x.chunk(4, 1)], 2)[:, 0]),
                                fc=nn.Linear(48, 3))
    ),
    "pooled until it is small": (IMAGE, lambda: on_images(lambda self, x: _pooled_until_small(x), 12)),
    "len of a shape": (
        IMAGE, lambda: on_images(lambda self, x: x.reshape(*x.shape[:1], -1) if len(x.shape) > 2 else x, 192)
    ),
    "math.prod and int": (
        IMAGE, lambda: on_images(lambda self, x: x.view(-1, math.prod(x.shape[1:]))[:, :int(x.size(3) / 2)].relu(), 4)
    ),
    "numpy's words": (
        SEQUENCE,
        lambda: Calls(lambda self, x: self.fc(torch.cat([x.mean(axis=1, keepdims=True), x], axis=1).sum(axis=1)),
                      fc=nn.Linear(12, 3)),
    ),
    "torch's other names": (
        VECTOR,
        lambda: on_vectors(lambda self, x: self.last(torch.true_divide(torch.subtract(self.first(x), 1, alpha=2), 3)
                                                     .negative().multiply(2).tanh_())),
    ),
    "layers made in forward": (
        IMAGE,
        lambda: Calls(lambda self, x: nn.Softmax(dim=1)(self.fc(nn.Flatten()(nn.MaxPool2d(2)(nn.ReLU()(self.one(x)))))),
                      fc=nn.Linear(18, 3), **convs()),
    ),
    "thresholds": (
        VECTOR, lambda: on_vectors(lambda self, x: self.last(F.threshold(nn.Threshold(0, 0)(self.first(x)), 0.1, 0.1)))
    ),
    "SyncBatchNorm": (
        IMAGE, lambda: nn.SyncBatchNorm.convert_sync_batchnorm(
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)))
    ),
    "dropout of probability 0": (VECTOR, lambda: on_vectors(lambda self, x: self.last(F.dropout(self.first(x), 0.0)))),
    "expand_as and view_as": (
        VECTOR, lambda: on_vectors(lambda self, x: self.last((h := self.first(x)) - h[:, :1].expand_as(h).view_as(h)))
    ),
    "data and its own type": (
        VECTOR, lambda: on_vectors(lambda self, x: self.last(self.first(x.data.type_as(x).requires_grad_()).relu()))
    ),
    "a partial function and a dictionary of functions": (
        VECTOR,
        lambda: on_vectors(lambda self, x: self.last(self.acts["leaky"](self.first(x))),
                           acts={"leaky": functools.partial(F.leaky_relu, negative_slope=0.3)}),
    ),
    "one logit made two": (VECTOR, lambda: Calls(lambda self, x: torch.cat([-self.fc(x), self.fc(x)], 1),
                                                 fc=nn.Linear(7, 1))),
    "piecewise-linear encoding": (
        VECTOR,
        lambda: Calls(
            lambda self, x: self.fc(((x[..., None] - self.ends[:-1]) / self.ends.diff()).clamp(0, 1).flatten(1)),
            ends=torch.linspace(0, 1, 5), fc=nn.Linear(28, 3),
        ),
    ),
    "k members inside": (
        VECTOR,
        lambda: Calls(lambda self, x: self.fc(F.relu(x[:, None].expand(-1, 4, -1) * self.scales)).mean(1),
                      scales=nn.Parameter(torch.rand(4, 7)), fc=nn.Linear(7, 3)),
    ),
}  # fmt: skip


def _sorted_pairs(a, b):
    return torch.cat([torch.maximum(a, b), torch.min(a, b)], 1)


def _values_of_a_maximum(x):
    values, indices = x.flatten(2).max(-1)  # noqa: RUF059 - as people write it
    return values


def _pooled_until_small(x):
    while x.size(-1) > 2:
        x = F.avg_pool2d(x, 2)
    return x


class FirstBatch(nn.Module):
    """Centers by the first batch that it sees."""

    def __init__(self):
        super().__init__()
        self.fc, self.mean = nn.Linear(7, 3), None

    def forward(self, x):
        if self.mean is None:
            self.mean = x.mean(1, keepdim=True)
        return self.fc(x - self.mean)


class HalfInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(7, 3)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.fc(x).float()


class Swallowed(nn.Module):
    """Inputs beyond 1000 are scaled, but nothing says so while it is traced."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(7, 3)

    def forward(self, x):
        try:
            if float(x[0, 0]) > 1000:
                x = x / 1000
        except Exception:
            pass
        return self.fc(x)


class ByKeyword(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(7, 3)

    def forward(self, *, x):
        return self.fc(x)


def linear(function, **parts) -> nn.Module:
    return Calls(function, fc=nn.Linear(7, 3), **parts)


Output = namedtuple("Output", "logits")

REFUSED = {
    "another path in large batches": (
        VECTOR, lambda: linear(lambda self, x: self.fc(x / 2 if x.shape[0] > 32 else x)), "size of the batch.*line"
    ),
    "a factor that changes at 16": (
        VECTOR, lambda: linear(lambda self, x: self.fc(x) * (1 + x.shape[0] // 16)), "depends on the size of the batch"
    ),
    "divided by the batch": (VECTOR, lambda: linear(lambda self, x: self.fc(x) / x.size(0)), "size of the batch"),
    "len of the batch": (VECTOR, lambda: linear(lambda self, x: self.fc(x.view(len(x), -1))), r"x.size\(0\) for len"),
    "one input after the other": (
        VECTOR, lambda: linear(lambda self, x: torch.stack([self.fc(row) for row in x])), "for all of them at once"
    ),
    "autocast inside": (VECTOR, HalfInside, "autocast.*one precision.*line"),
    "a value asked in a try": (VECTOR, Swallowed, "asked of values.*line"),
    "statistics of the first batch": (VECTOR, FirstBatch, "mixes the examples"),
    "input by keyword": (VECTOR, ByKeyword, r"forward\(self, x\)"),
    "a number from a parameter": (
        VECTOR, lambda: linear(lambda self, x: F.leaky_relu(self.fc(x), self.slope.item()),
                               slope=nn.Parameter(torch.tensor(0.1))), "when the parameter changes"
    ),
    "a named tuple": (VECTOR, lambda: linear(lambda self, x: Output(self.fc(x))), r"returns a Output.*\.logits"),
    "nothing returned": (VECTOR, lambda: linear(lambda self, x: None), "returns nothing"),
    "indices of a maximum": (
        VECTOR, lambda: linear(lambda self, x: self.fc(x.max(1, keepdim=True)[1] + x)), "the values alone"
    ),
    "a parameter viewed in forward": (
        IMAGE, lambda: on_images(lambda self, x: self.one(x) + self.bias.view(1, -1, 1, 1), 72,
                                 bias=nn.Parameter(torch.rand(2)), **convs()), r"\(1, 2, 1, 1\), from __init__ on.*line"
    ),
    "a parameter among the buffers": (VECTOR, lambda: _with_buffer(), r"weight.detach\(\)"),
    "a token beside the others": (
        SEQUENCE, lambda: Calls(lambda self, x: torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1).flatten(1),
                                token=nn.Parameter(torch.rand(1, 1, 12))), r"F.pad\(x, \(0, 0, 1, 0\)\)"
    ),
    "zeros of the batch's size": (
        VECTOR, lambda: linear(lambda self, x: self.fc(torch.cat([x[:, :4], torch.zeros(x.size(0), 3)], 1))),
        r"F.pad\(x, \(0, n\)\)"
    ),
    "new zeros": (
        VECTOR, lambda: linear(lambda self, x: self.fc(torch.cat([x[:, :4], x.new_zeros(x.size(0), 3)], 1))),
        r"F.pad\(x, \(0, n\)\)"
    ),
    "numbers set to 0": (VECTOR, lambda: linear(lambda self, x: self.fc(_first_set(x))), r"x \* self.mask"),
    "a scripted part": (
        VECTOR, lambda: nn.Sequential(torch.jit.script(nn.Linear(7, 5)), nn.ReLU(), nn.Linear(5, 3)), "torch.jit.script"
    ),
    "compiled forward": (VECTOR, lambda: linear(torch.compile(lambda self, x: self.fc(x))), "Take @torch.compile off"),
    "dropout in forward": (
        VECTOR, lambda: linear(lambda self, x: self.fc(nn.Dropout(0.5)(x))), "eval.. does not reach.*line"
    ),
    "layers in a list": (
        VECTOR, lambda: Calls(lambda self, x: self.layers[0](x), layers=[nn.Linear(7, 3)]), "nn.ModuleList"
    ),
    "is_tensor": (
        VECTOR, lambda: linear(lambda self, x: self.fc(x if torch.is_tensor(x) else torch.tensor(x))), "leave the q"
    ),
    "isinstance": (
        VECTOR, lambda: linear(lambda self, x: self.fc(2 * x if isinstance(x, torch.Tensor) else x)), "isinstance"
    ),
    "np.prod": (IMAGE, lambda: on_images(lambda self, x: x.view(-1, _numpy_product(x.shape[1:])), 192), "math.prod"),
    "norm of single numbers": (
        IMAGE, lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.GroupNorm(3, 3), nn.Flatten()), "Take fewer groups"
    ),
    "a threshold that jumps": (
        VECTOR, lambda: nn.Sequential(nn.Linear(7, 3), nn.Threshold(0.1, 0.0)), r"x.clamp\(min=0.1\)"
    ),
    "a maximum with a parameter": (
        VECTOR, lambda: linear(lambda self, x: torch.max(self.fc(x), self.least), least=nn.Parameter(torch.rand(3))),
        r"x.clamp\(min=number\)"
    ),
    "sign": (VECTOR, lambda: linear(lambda self, x: self.fc(x).sign()), "it jumps"),
    "sort": (VECTOR, lambda: linear(lambda self, x: self.fc(x.sort(1)[0])), r"x.amax\(1\)"),
    "cumsum": (VECTOR, lambda: linear(lambda self, x: self.fc(x.cumsum(1))), r"torch.ones\(n, n\).triu\(\)"),
    "affine by addcmul": (
        VECTOR, lambda: linear(lambda self, x: self.fc(torch.addcmul(self.b, self.a, x)), a=torch.rand(7),
                               b=torch.rand(7)), r"self.scale \* x"
    ),
    "standardized by hand": (
        IMAGE, lambda: on_images(lambda self, x: x / x.std((1, 2, 3), keepdim=True), 192), "nn.LayerNorm"
    ),
    "GELU by hand": (
        VECTOR, lambda: linear(lambda self, x: (h := self.fc(x)) * 0.5 * (1 + torch.erf(h / math.sqrt(2)))),
        r"F.gelu\(x\)"
    ),
    "quantized": (
        VECTOR, lambda: torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(7, 3)), {nn.Linear}),
        "certify the float network"
    ),
    "spatial transformer": (
        IMAGE, lambda: on_images(lambda self, x: F.grid_sample(x, F.affine_grid(self.one(x).mean((2, 3)).view(-1, 2, 3),
                                                                                x.size())), 192, **convs(6)),
        "positions that depend on the input"
    ),
    "a cell of an LSTM": (
        VECTOR, lambda: Calls(lambda self, x: self.cell(x)[0], cell=nn.LSTMCell(7, 3)), "gates multiply"
    ),
}  # fmt: skip


def _with_buffer():
    net = linear(lambda self, x: self.fc(x * self.scale))
    net.register_buffer("scale", nn.Parameter(torch.rand(7), requires_grad=False))
    return net


def _first_set(x):
    x[:, 0] = 0.0
    return x


def _numpy_product(shape):
    import numpy as np

    return int(np.prod(shape))
