"""Small modules in the styles in which people write networks: some that work, some that are refused with advice."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

IMAGE, VECTOR, SEQUENCE = (3, 8, 8), (7,), (4, 12)


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 8, 3)
        self.fc1, self.fc2 = nn.Linear(8, 10), nn.Linear(10, 3)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.relu(self.conv2(x))
        x = x.view(x.size(0), -1)
        return self.fc2(F.relu(self.fc1(x)))


class NumFlatFeatures(nn.Module):
    """As in an old tutorial: the size is computed in a loop."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3, stride=2), nn.Linear(36, 3)

    def forward(self, x):
        x = torch.relu(self.conv(x))
        return self.fc(x.view(-1, 4 * 3 * 3))


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride=1, act=nn.ReLU):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.act = act(inplace=True) if act is not nn.GELU else act()
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.act(self.bn1(self.conv1(x)))))
        out += identity
        return self.act(out)


class ResNet(nn.Module):
    def __init__(self, act=nn.ReLU):
        super().__init__()
        self.layers = nn.Sequential(BasicBlock(3, 4, act=act), BasicBlock(4, 6, 2, act=act))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(6, 3)

    def forward(self, x):
        return self.fc(torch.flatten(self.avgpool(self.layers(x)), 1))


class DenseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(3 + 2 * i, 2, 3, padding=1) for i in range(3)])
        self.fc = nn.Linear(9, 3)

    def forward(self, x):
        features = [x]
        for conv in self.convs:
            features.append(F.relu(conv(torch.cat(features, 1))))
        return self.fc(torch.cat(features, 1).mean((2, 3)))


class Inception(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 2, 1), nn.Conv2d(3, 2, 3, padding="same")
        self.pool, self.c = nn.MaxPool2d(3, 1, 1), nn.Conv2d(3, 2, 1)
        self.head = nn.Sequential(nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(24, 3))

    def forward(self, x):
        return self.head(torch.cat((self.a(x), self.b(x), self.c(self.pool(x))), dim=1).relu())


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.mid = nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(4, 3, 2, 2), nn.Conv2d(6, 3, 1)

    def forward(self, x):
        y = F.relu(self.up(F.relu(self.mid(F.relu(self.down(x))))))
        return self.out(torch.cat([x, y], 1)).mean(dim=[2, 3])


class MobileBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv2d(3, 6, 1, bias=False), nn.BatchNorm2d(6), nn.ReLU6(inplace=True),
            nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=False), nn.BatchNorm2d(6), nn.Hardswish(),
            nn.Conv2d(6, 3, 1, bias=False), nn.BatchNorm2d(3),
        )  # fmt: skip
        self.fc = nn.Linear(3, 3)

    def forward(self, x):
        return self.fc(F.adaptive_avg_pool2d(x + self.block(x), 1).squeeze(-1).squeeze(-1))


class ShuffleNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 1), nn.Linear(4, 3)

    def forward(self, x):
        x = F.relu(self.conv(x))
        b, c, h, w = x.size()
        x = x.view(b, 2, c // 2, h, w).transpose(1, 2).contiguous().view(b, -1, h, w)
        left, right = x.chunk(2, dim=1)
        return self.fc(torch.cat([F.relu(left), right], dim=1).mean([2, 3]))


class TextCNN(nn.Module):
    """Convolutions of several widths, the maximum over time of each, and all of them side by side."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv1d(4, 3, width) for width in (2, 3)])
        self.fc = nn.Linear(6, 3)

    def forward(self, x):
        pooled = [F.relu(conv(x)).max(dim=2)[0] for conv in self.convs]
        return self.fc(F.dropout(torch.cat(pooled, 1), 0.5, self.training))


class WaveNetBlock(nn.Module):
    """Causal: padded on the left."""

    def __init__(self):
        super().__init__()
        self.conv, self.skip, self.fc = nn.Conv1d(4, 4, 2, dilation=2), nn.Conv1d(4, 4, 1), nn.Linear(4, 3)

    def forward(self, x):
        y = torch.tanh(self.conv(F.pad(x, (2, 0))))
        return self.fc((self.skip(x) + y)[:, :, -1])


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Sequential(nn.Linear(12, 8), nn.GELU(), nn.Linear(8, 12))
        self.channels = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        x = x + self.tokens(x)
        x = x.permute(0, 2, 1)
        x = x + self.channels(x)
        return self.fc(x.mean(1))


class PatchEmbedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Conv2d(3, 5, kernel_size=4, stride=4)
        self.position = nn.Parameter(torch.randn(1, 4, 5)[0] * 0.1)
        self.fc = nn.Linear(20, 3)

    def forward(self, x):
        tokens = self.proj(x).flatten(2).transpose(1, 2) + self.position
        return self.fc(F.gelu(tokens).flatten(1))


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(7, 3), nn.ELU())
        self.decoder = nn.Sequential(nn.Linear(3, 7), nn.Sigmoid())

    def forward(self, x):
        return self.decoder(self.encoder(x)) - x


class Raw(nn.Module):
    """Without any nn layer."""

    def __init__(self):
        super().__init__()
        self.W1, self.b1 = nn.Parameter(torch.randn(7, 5) * 0.4), nn.Parameter(torch.zeros(5))
        self.W2, self.b2 = nn.Parameter(torch.randn(3, 5) * 0.4), nn.Parameter(torch.randn(3))

    def forward(self, x):
        h = torch.matmul(x, self.W1) + self.b1
        return h.clamp(min=0) @ self.W2.t() + self.b2


class Flags(nn.Module):
    def __init__(self):
        super().__init__()
        self.use_norm, self.norm = True, nn.BatchNorm1d(5)
        self.fc1, self.fc2 = nn.Linear(7, 5), nn.Linear(5, 3)

    def forward(self, x, return_features=False, scale=2.0):
        h = self.fc1(x)
        if self.use_norm:
            h = self.norm(h)
        h = F.leaky_relu(h, 0.2)
        return h if return_features else self.fc2(h) * scale


class TwoBranches(nn.Module):
    """Features are handled apart, by where they stand."""

    def __init__(self):
        super().__init__()
        self.numbers, self.others, self.fc = nn.Linear(4, 5), nn.Linear(3, 5), nn.Linear(10, 3)

    def forward(self, x):
        numbers, others = x[:, :4], x[:, 4:]
        both = torch.cat([F.softplus(self.numbers(numbers)), torch.sigmoid(self.others(others))], dim=-1)
        return self.fc(both)


class Highway(nn.Module):
    """Skips, averages and a running sum."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(7, 7), nn.SiLU()) for _ in range(3)])
        self.fc = nn.Linear(7, 3)

    def forward(self, x):
        total = x
        for block in self.blocks:
            total = total + 0.5 * block(total)
        return self.fc(total / 2)


def sequential(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers)


class Calls(nn.Module):
    """A network whose forward is given, as a short way to write many."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, x):
        return self.function(self, x)


def on_vectors(function, width: int = 5, **parts) -> nn.Module:
    return Calls(function, first=nn.Linear(7, width), last=nn.Linear(5, 3), **parts)


WORKING = {
    "LeNet": (IMAGE, LeNet),
    "view of fixed size": (IMAGE, NumFlatFeatures),
    "ResNet": (IMAGE, ResNet),
    "ResNet with GELU": (IMAGE, lambda: ResNet(nn.GELU)),
    "ResNet with SiLU": (IMAGE, lambda: ResNet(nn.SiLU)),
    "DenseNet": (IMAGE, DenseNet),
    "Inception": (IMAGE, Inception),
    "U-Net": (IMAGE, UNet),
    "MobileNet block": (IMAGE, MobileBlock),
    "ShuffleNet": (IMAGE, ShuffleNet),
    "TextCNN": (SEQUENCE, TextCNN),
    "WaveNet block": (SEQUENCE, WaveNetBlock),
    "MLP-Mixer": (SEQUENCE, Mixer),
    "patch embedding": (IMAGE, PatchEmbedding),
    "autoencoder": (VECTOR, Autoencoder),
    "raw parameters": (VECTOR, Raw),
    "flags": (VECTOR, Flags),
    "LayerNorm": (VECTOR, lambda: sequential(nn.Linear(7, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 3))),
    "GroupNorm": (IMAGE, lambda: sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten())),
    "InstanceNorm": (IMAGE, lambda: sequential(nn.InstanceNorm2d(3, affine=True), nn.Flatten())),
    "InstanceNorm with statistics": (
        IMAGE, lambda: sequential(nn.InstanceNorm2d(3, affine=True, track_running_stats=True), nn.Flatten())
    ),
    "RMSNorm": (VECTOR, lambda: sequential(nn.Linear(7, 6), nn.RMSNorm(6), nn.Linear(6, 3))),
    "pre-norm residual of tokens": (
        SEQUENCE,
        lambda: Calls(
            lambda self, x: self.fc((x + self.mlp(self.norm(x))).mean(1)), norm=nn.LayerNorm(12),
            mlp=nn.Sequential(nn.Linear(12, 8), nn.GELU(), nn.Linear(8, 12)), fc=nn.Linear(12, 3),
        ),
    ),
    "functional norms": (
        IMAGE,
        lambda: Calls(
            lambda self, x: self.fc(F.layer_norm(F.group_norm(self.conv(x), 2), (4, *self.side)).flatten(1)),
            conv=nn.Conv2d(3, 4, 3), side=(6, 6), fc=nn.Linear(144, 3),
        ),
    ),
    "two branches": (VECTOR, TwoBranches),
    "highway": (VECTOR, Highway),
    "all convolutional": (
        IMAGE,
        lambda: sequential(
            nn.ZeroPad2d(1), nn.Conv2d(3, 4, 3), nn.PReLU(4), nn.Conv2d(4, 3, 1), nn.AvgPool2d(8), nn.Flatten()
        ),
    ),
    "reflection padding": (
        IMAGE,
        lambda: sequential(nn.ReflectionPad2d(1), nn.Conv2d(3, 2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(32, 3)),
    ),
    "padding mode": (
        IMAGE,
        lambda: sequential(
            nn.Conv2d(3, 2, 3, padding=1, padding_mode="replicate"), nn.ELU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(),
            nn.Linear(2, 3),
        ),
    ),
    "generator": (
        VECTOR,
        lambda: sequential(
            nn.Linear(7, 8), nn.Unflatten(1, (2, 2, 2)), nn.Upsample(scale_factor=2), nn.Conv2d(2, 1, 3), nn.ReLU(),
            nn.Flatten(), nn.Linear(4, 3),
        ),
    ),
    "interpolate to a size": (
        IMAGE,
        lambda: Calls(
            lambda self, x: self.fc(F.interpolate(self.conv(x), size=(6, 6), mode="nearest").amax(dim=(2, 3))),
            conv=nn.Conv2d(3, 4, 3, 3), fc=nn.Linear(4, 3),
        ),
    ),
    "sequence of Conv1d": (
        SEQUENCE,
        lambda: sequential(
            nn.Conv1d(4, 6, 3, padding="same"), nn.BatchNorm1d(6), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(6, 4, 3),
            nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, 3),
        ),
    ),
    "AvgPool1d": (SEQUENCE, lambda: sequential(nn.AvgPool1d(3), nn.Flatten(), nn.Linear(16, 3))),
    "self-normalizing": (VECTOR, lambda: sequential(nn.Linear(7, 6), nn.SELU(), nn.AlphaDropout(), nn.Linear(6, 3))),
    "CELU and Hardtanh": (VECTOR, lambda: sequential(nn.Linear(7, 6), nn.CELU(), nn.Hardtanh(), nn.Linear(6, 3))),
    "Hardsigmoid": (VECTOR, lambda: sequential(nn.Linear(7, 6), nn.Hardsigmoid(), nn.Linear(6, 3))),
    "LogSigmoid": (VECTOR, lambda: sequential(nn.Linear(7, 6), nn.LogSigmoid(), nn.Linear(6, 3))),
    "RReLU": (VECTOR, lambda: sequential(nn.Linear(7, 6), nn.RReLU(), nn.Linear(6, 3))),
    "batch norm first": (VECTOR, lambda: sequential(nn.BatchNorm1d(7), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 3))),
    "ends in softmax": (VECTOR, lambda: sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3), nn.Softmax(dim=1))),
    "ends in log_softmax": (
        VECTOR, lambda: on_vectors(lambda self, x: F.log_softmax(self.last(F.relu(self.first(x))), dim=-1))
    ),
    "preprocessing by buffers": (
        VECTOR,
        lambda: on_vectors(
            lambda self, x: self.last(F.relu(self.first((x - self.mean) / self.std))), mean=torch.rand(7),
            std=torch.rand(7) + 0.5,
        ),
    ),
    "clamped inputs": (VECTOR, lambda: on_vectors(lambda self, x: self.last(self.first(x.clamp(0, 1)).relu()))),
    "every second feature": (VECTOR, lambda: on_vectors(lambda self, x: self.last(F.relu(self.first(x)) + x[:, 1:6]))),
    "unsqueeze and conv": (
        VECTOR,
        lambda: Calls(
            lambda self, x: self.fc(self.conv(x.unsqueeze(1)).relu().squeeze(1)), conv=nn.Conv1d(1, 1, 3),
            fc=nn.Linear(5, 3),
        ),
    ),
    "sum of features": (
        VECTOR, lambda: on_vectors(lambda self, x: self.last(self.first(x).relu()) + x.sum(1, keepdim=True))
    ),
    "stack and mean": (
        VECTOR,
        lambda: on_vectors(
            lambda self, x: self.last(torch.stack([self.first(x).relu(), self.other(x).tanh()], dim=0 + 1).mean(1)),
            other=nn.Linear(7, 5),
        ),
    ),
    "split": (
        VECTOR,
        lambda: Calls(
            lambda self, x: self.a(torch.split(x, [3, 4], dim=1)[0]) - self.b(x.split([3, 4], 1)[1]).relu(),
            a=nn.Linear(3, 3), b=nn.Linear(4, 3),
        ),
    ),
    "fixed rotation": (
        VECTOR,
        lambda: on_vectors(
            lambda self, x: self.last((x @ self.rotation)[..., :5]), rotation=torch.linalg.qr(torch.randn(7, 7))[0]
        ),
    ),
    "ordered by a mask": (
        VECTOR, lambda: on_vectors(lambda self, x: self.last(self.first(x * self.mask).relu()), mask=torch.ones(7) > 0)
    ),
    "weights shared by two layers": (
        VECTOR,
        lambda: Calls(
            lambda self, x: self.last(self.same(self.same(x).relu()).relu()), same=nn.Linear(7, 7), last=nn.Linear(7, 3)
        ),
    ),
    "method calls in place": (
        VECTOR, lambda: on_vectors(lambda self, x: self.last(self.first(x).relu_().mul_(2.0).add_(0.5)))
    ),
    "ModuleDict": (
        VECTOR,
        lambda: Calls(
            lambda self, x: self.parts["head"](self.parts["act"](self.parts["body"](x))),
            parts=nn.ModuleDict({"body": nn.Linear(7, 5), "act": nn.Softplus(), "head": nn.Linear(5, 3)}),
        ),
    ),
    "channels last": (
        IMAGE,
        lambda: Calls(
            lambda self, x: self.head(self.mlp(x.permute(0, 2, 3, 1)).relu().permute(0, 3, 1, 2).flatten(1)),
            mlp=nn.Linear(3, 2), head=nn.Linear(128, 3),
        ),
    ),
    "pixel mean taken off": (
        IMAGE,
        lambda: Calls(
            lambda self, x: self.head((x - x.mean((2, 3), keepdim=True)).flatten(1)), head=nn.Linear(192, 3)
        ),
    ),
}  # fmt: skip


class SqueezeExcite(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc1, self.fc2, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 2), nn.Linear(2, 4), nn.Linear(4, 3)

    def forward(self, x):
        x = F.relu(self.conv(x))
        gate = torch.sigmoid(self.fc2(F.relu(self.fc1(x.mean((2, 3))))))
        return self.head((x * gate[:, :, None, None]).mean((2, 3)))


class EarlyExit(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(7, 3), nn.Linear(7, 3)

    def forward(self, x):
        y = self.first(x)
        return y if y.max() > 0 else self.second(x)


REFUSED = {
    "norm without eps": (VECTOR, lambda: sequential(nn.LayerNorm(7, eps=0.0), nn.Linear(7, 3)), "eps=1e-5"),
    "RMSNorm that knows no precision": (
        VECTOR, lambda: sequential(nn.RMSNorm(7, elementwise_affine=False), nn.Linear(7, 3)), "say which: eps=1e-6"
    ),
    "rms_norm without eps": (
        VECTOR, lambda: on_vectors(lambda self, x: self.last(F.rms_norm(self.first(x), (5,)))), "say which: eps=1e-6"
    ),
    "instance_norm": (
        IMAGE, lambda: Calls(lambda self, x: self.fc(F.instance_norm(x).flatten(1)), fc=nn.LazyLinear(3)),
        "nn.InstanceNorm2d|Lazy",
    ),
    "squeeze and excite": (IMAGE, SqueezeExcite, "product of two activations"),
    "gated linear unit": (VECTOR, lambda: sequential(nn.Linear(7, 6), nn.GLU(), nn.Linear(3, 3)), "GLU"),
    "attention": (
        SEQUENCE,
        lambda: Calls(lambda self, x: self.fc((x @ x.mT @ x).flatten(1)), fc=nn.Linear(48, 3)),
        "as in attention",
    ),
    "MultiheadAttention": (
        SEQUENCE,
        lambda: Calls(
            lambda self, x: self.fc(self.attention(x, x, x)[0].flatten(1)),
            attention=nn.MultiheadAttention(12, 2, batch_first=True), fc=nn.Linear(48, 3),
        ),
        "MultiheadAttention",
    ),
    "LSTM": (
        SEQUENCE,
        lambda: Calls(lambda self, x: self.fc(self.lstm(x)[0][:, -1]), lstm=nn.LSTM(12, 4, batch_first=True),
                      fc=nn.Linear(4, 3)),
        "LSTM",
    ),
    "Mish": (VECTOR, lambda: sequential(nn.Linear(7, 6), nn.Mish(), nn.Linear(6, 3)), "Mish"),
    "early exit": (VECTOR, EarlyExit, "must not branch"),
    "noise in forward": (
        VECTOR, lambda: on_vectors(lambda self, x: self.last(self.first(x + torch.randn_like(x)))), "randn_like"
    ),
    "dropout that stays on": (
        VECTOR, lambda: on_vectors(lambda self, x: self.last(F.dropout(self.first(x)))), "random"
    ),
    "square": (VECTOR, lambda: on_vectors(lambda self, x: self.last(self.first(x) ** 2)), "pow"),
    "distance to prototypes": (
        VECTOR,
        lambda: on_vectors(lambda self, x: -torch.cdist(self.first(x), self.points), points=torch.randn(3, 5)),
        "cdist",
    ),
    "normalized features": (
        VECTOR, lambda: on_vectors(lambda self, x: self.last(F.normalize(self.first(x)))), "normalize|cannot be traced"
    ),
    "embedding": (VECTOR, lambda: Calls(lambda self, x: self.e(x.long()).mean(1), e=nn.Embedding(9, 3)), "Embedding"),
    "several outputs": (VECTOR, lambda: on_vectors(lambda self, x: (self.last(self.first(x)), x)), "one tensor"),
    "dictionary of outputs": (
        VECTOR, lambda: on_vectors(lambda self, x: {"logits": self.last(self.first(x))}), "one tensor"
    ),
    "image as output": (IMAGE, lambda: sequential(nn.Conv2d(3, 3, 3)), r"\(batch, outputs\)"),
    "bilinear upsampling": (
        IMAGE, lambda: sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Flatten()), "nearest"
    ),
    "batch statistics in eval": (
        VECTOR, lambda: sequential(nn.BatchNorm1d(7, track_running_stats=False), nn.Linear(7, 3)), "running statistics"
    ),
    "standardized by the batch": (
        VECTOR, lambda: on_vectors(lambda self, x: self.last(self.first(x - x.mean(0)))), "first dimension|batch"
    ),
    "weight norm": (
        VECTOR,
        lambda: sequential(nn.utils.parametrizations.weight_norm(nn.Linear(7, 5)), nn.ReLU(), nn.Linear(5, 3)),
        "remove_parametrizations",
    ),
}  # fmt: skip
