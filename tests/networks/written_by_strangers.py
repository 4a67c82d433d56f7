"""More small modules as strangers write them: other ways of saying the same, sizes and types asked in forward."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional as F

from .written_by_people import IMAGE, SEQUENCE, VECTOR, Calls, on_vectors


class Scaler(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.rand(1, 7))
        self.register_buffer("std", torch.rand(1, 7) + 0.5)

    def forward(self, x):
        return x.sub(self.mean).div(self.std)


class OwnLinear(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(outputs, inputs) * 0.4), nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return x.matmul(self.weight.t()) + self.bias


class Careful(nn.Module):
    """Asks for shapes and types before it computes."""

    def __init__(self):
        super().__init__()
        self.first, self.fc = nn.Linear(7, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor, *args, **kwargs) -> torch.Tensor:
        if x.dim() > 2:
            x = x.flatten(1)
        assert x.shape[1] == 7, f"expected 7 features, got {x.shape[1]}"
        x = F.relu(self.first(x.float().to(self.first.weight.device)))
        return self.fc(x if x.ndim == 2 and x.size(-1) == self.fc.in_features else x[None])


class TrainingAndEval(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.head, self.aux = nn.Linear(7, 5), nn.Linear(5, 3), nn.Linear(5, 2)

    def forward(self, x):
        h = F.relu(self.fc(x))
        if self.training:
            return self.head(h), self.aux(h)
        return self.head(F.dropout(h, p=0.3, training=self.training))


class UNetBySize(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up, self.fc = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 6, 3, padding=1), nn.Linear(10, 3)

    def forward(self, x):
        a = F.relu(self.down(x))
        b = F.relu(self.up(F.avg_pool2d(a, 2)))
        b = F.interpolate(b, size=a.shape[-2:], mode="nearest")
        return self.fc(torch.cat((b, a), dim=1).mean(dim=(2, 3)))


class PooledBySize(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 2, 3), nn.Linear(2, 3)

    def forward(self, x):
        batch, _, _, _ = x.shape
        x = F.relu(self.conv(x))
        x = F.max_pool2d(x, kernel_size=x.size()[2:])
        return self.fc(x.view(batch, -1))


class ConvNeXtBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.dwconv, self.norm = nn.Conv2d(3, 3, 3, padding=1, groups=3), nn.LayerNorm(3, eps=1e-6)
        self.pw1, self.pw2 = nn.Linear(3, 6), nn.Linear(6, 3)
        self.gamma, self.head = nn.Parameter(torch.full((3,), 0.5)), nn.Linear(3, 3)

    def forward(self, x):
        shortcut = x
        x = self.dwconv(x).permute(0, 2, 3, 1)
        x = self.gamma * self.pw2(F.gelu(self.pw1(self.norm(x))))
        x = shortcut + x.permute(0, 3, 1, 2)
        return self.head(x.mean([-2, -1]))


class BlurPool(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)
        row = torch.tensor([1.0, 2.0, 1.0])
        self.register_buffer("kernel", (row[:, None] * row / 16).repeat(4, 1, 1, 1))

    def forward(self, x):
        x = F.pad(self.conv(x).relu(), (1, 1, 1, 1), mode="reflect")
        return self.fc(F.conv2d(x, self.kernel, stride=2, groups=x.shape[1]).mean((-2, -1)))


def flipped(net: nn.Module) -> nn.Module:
    """The mean over an image and its mirror image."""
    return Calls(lambda self, x: (self.net(x) + self.net(torch.flip(x, dims=[3]))) / 2, net=net)


def small_cnn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))


def on_features(pick, width: int, **parts) -> nn.Module:
    return Calls(lambda self, x: self.fc(pick(self, x).relu()), fc=nn.Linear(width, 3), **parts)


WORKING = {
    "einsum of features": (
        VECTOR, lambda: on_vectors(lambda self, x: self.last(torch.einsum("bi,ij->bj", x, self.w).relu()),
                                   w=torch.randn(7, 5) * 0.4)
    ),
    "einsum of tokens": (
        SEQUENCE,
        lambda: Calls(lambda self, x: self.fc(torch.einsum("b n d, k d -> b n k", x, self.w).relu().mean(1)),
                      w=torch.randn(5, 12) * 0.4, fc=nn.Linear(5, 3)),
    ),
    "einsum that mixes tokens": (
        SEQUENCE,
        lambda: Calls(lambda self, x: self.fc(torch.einsum("mn,bnd->bmd", self.w, x).tanh().flatten(1)),
                      w=torch.randn(2, 4) * 0.4, fc=nn.Linear(24, 3)),
    ),
    "einsum that reorders": (
        SEQUENCE,
        lambda: Calls(lambda self, x: self.fc(torch.einsum("bnd,dk->bkn", x, self.w).relu().sum(2)),
                      w=torch.randn(12, 5) * 0.4, fc=nn.Linear(5, 3)),
    ),
    "einsum with an ellipsis": (
        SEQUENCE,
        lambda: Calls(lambda self, x: self.fc(torch.einsum("...d,kd->...k", x, self.w).relu().mean(1)),
                      w=torch.randn(5, 12) * 0.4, fc=nn.Linear(5, 3)),
    ),
    "own layers in an OrderedDict": (
        VECTOR,
        lambda: nn.Sequential(OrderedDict(
            [("scale", Scaler()), ("fc1", OwnLinear(7, 5)), ("act", nn.ReLU()), ("fc2", OwnLinear(5, 3))]
        )),
    ),
    "questions about shapes": (VECTOR, Careful),
    "another path in training": (VECTOR, TrainingAndEval),
    "interpolate to the size of a skip": (IMAGE, UNetBySize),
    "pooled by its own size": (IMAGE, PooledBySize),
    "ConvNeXt block": (IMAGE, ConvNeXtBlock),
    "blur pooling": (IMAGE, BlurPool),
    "autoencoder of tied weights": (
        VECTOR, lambda: on_vectors(lambda self, x: F.linear(self.first(x).sigmoid(), self.first.weight.t()))
    ),
    "None in an index": (
        VECTOR, lambda: Calls(lambda self, x: self.fc(self.conv(x[:, None]).relu().flatten(1)), conv=nn.Conv1d(1, 2, 3),
                              fc=nn.Linear(10, 3))
    ),
    "maxout": (VECTOR, lambda: on_vectors(lambda self, x: self.last(self.first(x).view(-1, 5, 2).max(dim=2)[0]), 10)),
    "sum of heads": (
        VECTOR,
        lambda: Calls(lambda self, x: sum(head(x) for head in self.heads) / len(self.heads),
                      heads=nn.ModuleList([nn.Linear(7, 3) for _ in range(3)])),
    ),
    "features by a list": (VECTOR, lambda: on_features(lambda self, x: x[:, [5, 0, 2, 4, 4]], 5)),
    "features by a buffer": (
        VECTOR, lambda: on_features(lambda self, x: x[:, self.columns], 3, columns=torch.tensor([6, 1, -4]))
    ),
    "features by a mask": (
        VECTOR, lambda: on_features(lambda self, x: x[:, self.kept], 4,
                                    kept=torch.tensor([True, False, True, True, False, False, True]))
    ),
    "index_select": (
        VECTOR, lambda: on_features(lambda self, x: torch.index_select(x, 1, self.at), 2, at=torch.tensor([3, 1]))
    ),
    "flip": (VECTOR, lambda: on_features(lambda self, x: x + x.flip(1), 7)),
    "image and its mirror image": (IMAGE, lambda: flipped(small_cnn())),
    "roll": (SEQUENCE, lambda: Calls(lambda self, x: self.fc((x + torch.roll(x, 2, dims=2)).relu().flatten(1)),
                                     fc=nn.Linear(48, 3))),
    "repeat": (VECTOR, lambda: on_features(lambda self, x: x.repeat(1, 2), 14)),
    "repeat_interleave": (VECTOR, lambda: on_features(lambda self, x: x.repeat_interleave(2, dim=1), 14)),
    "expand": (
        SEQUENCE,
        lambda: Calls(
            lambda self, x: self.fc((x - x.mean(1, keepdim=True).expand(-1, 4, -1)).flatten(1)), fc=nn.Linear(48, 3)
        ),
    ),
    "pixel shuffle": (
        IMAGE,
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.PixelShuffle(2), nn.ReLU(), nn.PixelUnshuffle(3), nn.Flatten(),
                              nn.Linear(288, 3)),
    ),
    "channel shuffle": (
        IMAGE, lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.ChannelShuffle(2), nn.Conv2d(6, 3, 6), nn.Flatten())
    ),
}  # fmt: skip


class Dictionary(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(7, 3)

    def forward(self, x):
        return {"features": x, "logits": self.fc(x)}


class ChangedInPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.head = nn.Linear(7, 5), nn.Linear(7, 5), nn.Linear(5, 3)

    def forward(self, x):
        h = self.fc1(x)
        h += self.fc2(x)
        F.relu_(h)
        return self.head(h)


class LearnedTemperature(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.log_t = nn.Linear(7, 3), nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return self.fc(x) * self.log_t.exp()


class BranchesOnValues(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(7, 3)

    def forward(self, x):
        if x.max() > 1:
            x = x / 255
        return self.fc(x)


REFUSED = {
    "dictionary": (VECTOR, Dictionary, r"returns a dictionary.*forward picks the logits.*\['features'\]"),
    "one output without its dimension": (
        VECTOR, lambda: Calls(lambda self, x: self.fc(x).squeeze(-1), fc=nn.Linear(7, 1)),
        r"\(batch,\).*Leave off the sq"
    ),
    "changed in place and not named": (VECTOR, ChangedInPlace, r"x = F.relu_\(x\)\. .*line \d+"),
    "a branch on values": (VECTOR, BranchesOnValues, r"written_by_strangers.py, line \d+: if x.max\(\) > 1:"),
    "einsum of two activations": (
        VECTOR, lambda: on_vectors(lambda self, x: torch.einsum("bi,bi->b", x, x + 1)[:, None]),
        "one index of it is sum"
    ),
    "einsum that sums two indices": (
        SEQUENCE, lambda: Calls(lambda self, x: torch.einsum("bnd,nd->b", x, self.w)[:, None], w=torch.randn(4, 12)),
        "one index of it is summed over",
    ),
    "temperature by its logarithm": (
        VECTOR, LearnedTemperature, r"compute them once.*nn.Parameter\(self.log_scale.exp\(\)\).*line \d+"
    ),
    "weight standardization": (
        VECTOR, lambda: on_vectors(lambda self, x: F.linear(x, self.first.weight / self.first.weight.norm())),
        "compute them once",
    ),
    "swish by hand": (
        VECTOR, lambda: on_vectors(lambda self, x: self.last(self.first(x) * torch.sigmoid(self.first(x)))),
        r"F.silu\(x\)"
    ),
    "where": (
        VECTOR,
        lambda: on_vectors(lambda self, x: self.last(torch.where(self.first(x) > 0, self.first(x), self.first(x) / 9))),
        r"F.leaky_relu\(x, slope\)",
    ),
    "maximum of two": (
        VECTOR, lambda: on_vectors(lambda self, x: torch.maximum(self.first(x), x[:, :1])), "activations of one shape"
    ),
    "absolute value": (VECTOR, lambda: on_vectors(lambda self, x: self.last(self.first(x).abs())), r"F.relu\(-x\)"),
    "addmm": (
        VECTOR, lambda: on_vectors(lambda self, x: torch.addmm(self.b, x, self.w), b=torch.ones(3), w=torch.ones(7, 3)),
        r"x @ weight \+ bias",
    ),
    "GRU": (
        SEQUENCE, lambda: Calls(lambda self, x: self.fc(self.gru(x)[0][:, -1]), gru=nn.GRU(12, 4, batch_first=True),
                                fc=nn.Linear(4, 3)), "gates multiply activations.*Conv1d"
    ),
    "attention by torch": (
        SEQUENCE, lambda: Calls(lambda self, x: F.scaled_dot_product_attention(x, x, x).flatten(1)),
        "MLP over the tokens"
    ),
    "mean over members": (
        VECTOR,
        lambda: Calls(lambda self, x: torch.stack([head(x) for head in self.heads]).mean(0),
                      heads=nn.ModuleList([nn.Linear(7, 3) for _ in range(3)])),
        r"dim=1\).mean\(1\)",
    ),
    "mean of softmaxes": (
        VECTOR,
        lambda: Calls(lambda self, x: torch.stack([head(x).softmax(-1) for head in self.heads], 1).mean(1),
                      heads=nn.ModuleList([nn.Linear(7, 3) for _ in range(3)])),
        r"Samples.from_modules\(\[...\]\)",
    ),
    "flip along the batch": (VECTOR, lambda: on_vectors(lambda self, x: self.last(self.first(x.flip(0)))), "the batch"),
    "flip of two dimensions": (IMAGE, lambda: Calls(lambda self, x: x.flip(2, 3).flatten(1)), "one call for each"),
    "repeat of two dimensions": (SEQUENCE, lambda: Calls(lambda self, x: x.repeat(1, 2, 2).flatten(1)), "one dimens"),
    "an index from values": (
        VECTOR, lambda: on_vectors(lambda self, x: self.last(self.first(x))[:, x.argmax(1)]),
        "argmax|depends on the input"
    ),
    "numpy in forward": (
        VECTOR, lambda: Calls(lambda self, x: self.fc(torch.from_numpy(x.numpy())), fc=nn.Linear(7, 3)), "numpy arrays"
    ),
}  # fmt: skip
