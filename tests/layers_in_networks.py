"""Small networks with layers that move numbers, of sequences, and with smooth activations: a part of the zoo.

Each comes with the shape of one input; see ``tests/strategies.py``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

VECTOR = (5,)
IMAGE = (2, 6, 6)
CLASSES = 3


class Functional(nn.Module):
    """A network whose forward pass is a function of itself and x, with the given submodules and parameters."""

    def __init__(self, forward: Callable, **parts: object):
        super().__init__()
        self.function = forward
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(part) if isinstance(part, Tensor) else part)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def _head(features: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(features, CLASSES))


# Moves


def _channels_last() -> nn.Module:
    """Dimensions reordered there and back, with an activation between that treats them apart."""

    def forward(self: Functional, x: Tensor) -> Tensor:
        x = self.mix(x.permute(0, 2, 3, 1))  # (B, 6, 6, 3)
        x = functional.relu(x).movedim(-1, 1).transpose(-2, -1)
        return self.last(x)

    return Functional(forward, mix=nn.Linear(2, 3), last=_head(108))


def _slices() -> nn.Module:
    """What is picked overlaps, so that coefficients meet."""

    def forward(self: Functional, x: Tensor) -> Tensor:
        hidden = functional.relu(self.first(x))
        left, right = hidden.chunk(2, 1)
        every = hidden[:, ::2] - left
        return self.last(every + right * 2.0) + hidden[:, 1:4] + hidden[..., 7, None]

    return Functional(forward, first=nn.Linear(5, 8), last=nn.Linear(4, CLASSES))


def _picked() -> nn.Module:
    """Features in another order, some of them twice, and an image beside its mirror image."""

    def forward(self: Functional, x: Tensor) -> Tensor:
        hidden = functional.relu(self.first(x[:, [4, 0, 2, 2]]))
        turned = hidden.flip(1) - hidden.repeat(1, 2)[:, 3:9]
        shuffled = functional.pixel_shuffle(turned[:, :4, None, None], 2).flatten(1)
        return self.last(torch.cat([turned, shuffled], 1)) + self.last(hidden[:, :5].repeat_interleave(2, dim=1))

    return Functional(forward, first=nn.Linear(4, 6), last=nn.Linear(10, CLASSES))


def _dense() -> nn.Module:
    """A dense block: each layer reads all that came before."""

    def forward(self: Functional, x: Tensor) -> Tensor:
        first = torch.cat([x, functional.relu(self.first(x))], 1)
        second = torch.cat([first, functional.relu(self.second(first)), first[:, :1]], dim=1)
        return self.last(second.flatten(1))

    return Functional(
        forward, first=nn.Conv2d(2, 2, 3, padding=1), second=nn.Conv2d(4, 2, 3, padding=1), last=nn.Linear(252, CLASSES)
    )


def _stacked() -> nn.Module:
    def forward(self: Functional, x: Tensor) -> Tensor:
        parts = [torch.tanh(self.first(x)), x, self.first(x)]
        return self.last((torch.stack(parts, 1) - torch.stack(parts, dim=-1).mT).flatten(1)) + self.last(
            torch.stack(parts, -1).flatten(1)
        )

    return Functional(forward, first=nn.Linear(5, 5), last=nn.Linear(15, CLASSES))


def _paddings() -> nn.Module:
    def forward(self: Functional, x: Tensor) -> Tensor:
        x = self.reflect(functional.pad(x, (1, -1, 0, 2), value=0.7))
        x = functional.relu(self.conv(x))
        return self.last(self.zeros(self.replicate(x)))

    return Functional(
        forward,
        reflect=nn.ReflectionPad2d((2, 1, 1, 0)),
        conv=nn.Conv2d(2, 2, 3, stride=2),
        replicate=nn.ReplicationPad2d(1),
        zeros=nn.ZeroPad2d((0, 1, 0, 1)),
        last=_head(98),
    )


# Sequences, reductions, products


def _sequence() -> nn.Module:
    norm = nn.BatchNorm1d(4)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.3, 2.0)
    return nn.Sequential(
        nn.Conv1d(2, 4, 3, stride=2, padding=2, dilation=2, groups=2), norm, nn.ReLU(), nn.MaxPool1d(3, 2, 1),
        nn.Conv1d(4, 3, 2, bias=False), nn.AvgPool1d(2, 1, 1, ceil_mode=True), nn.Tanh(), _head(9),
    )  # fmt: skip


def _reductions() -> nn.Module:
    def forward(self: Functional, x: Tensor) -> Tensor:
        x = functional.relu(self.conv(x))
        by_row, by_channel = x.sum(-1), x.mean((2, 3), keepdim=True)
        return self.last((x - by_channel).mean(dim=(1, 3))) + self.other(by_row.flatten(1)) + x.amax((2, 3))

    return Functional(forward, conv=nn.Conv2d(2, 3, 3), last=nn.Linear(4, CLASSES), other=nn.Linear(12, CLASSES))


def _products() -> nn.Module:
    def forward(self: Functional, x: Tensor) -> Tensor:
        x = functional.relu(x @ self.first + self.offset)
        x = (x.unflatten(1, (3, 2)) @ self.second.T).relu()  # (B, 3, 4)
        return (self.left @ x + self.tilt).max(1).values @ self.last

    return Functional(
        forward,
        first=torch.randn(5, 6),
        offset=torch.randn(6),
        second=torch.randn(4, 2),
        left=torch.randn(2, 3),
        tilt=torch.randn(2, 1),  # or else the maximum of what is dead would be a tie
        last=torch.randn(4, CLASSES),
    )


def _transposed() -> nn.Module:
    layer = nn.ConvTranspose2d(4, 4, (3, 2), 2, 1, output_padding=(1, 0), groups=2)
    with torch.no_grad():
        layer.bias.mul_(30.0)  # its rounding is more than that of small products
    return nn.Sequential(layer, nn.ReLU(), _head(96))


# Activations


def _mlp(*activations: nn.Module, gain: float = 1.0) -> nn.Module:
    first, second = activations if len(activations) == 2 else activations * 2
    net = nn.Sequential(nn.Linear(5, 8), first, nn.Linear(8, 6), second, nn.Linear(6, CLASSES))
    with torch.no_grad():
        net[0].weight.mul_(gain)
    return net


def _prelu() -> nn.Module:
    slopes = nn.PReLU(3)
    with torch.no_grad():
        slopes.weight.copy_(torch.tensor([-0.4, 0.3, 1.7]))
    return nn.Sequential(nn.Conv2d(2, 3, 3), slopes, nn.Flatten(), nn.Linear(48, 4), nn.PReLU(), nn.Linear(4, CLASSES))


# Norms of each example by itself


def _norms(*layers: nn.Module) -> nn.Module:
    """Weights and biases that matter: torch's own are 1 and 0."""
    net = nn.Sequential(*layers)
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, (nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm2d, nn.RMSNorm)):
                for parameter in module.parameters():
                    parameter.add_(torch.randn_like(parameter))
    return net


LAYERS: dict[str, tuple[tuple[int, ...], Callable[[], nn.Module]]] = {
    "channels last": (IMAGE, _channels_last),
    "slices": (VECTOR, _slices),
    "picked and repeated": (VECTOR, _picked),
    "dense block": (IMAGE, _dense),
    "stacked": (VECTOR, _stacked),
    "paddings": (IMAGE, _paddings),
    "ends in padding": (VECTOR, lambda: nn.Sequential(nn.Linear(5, 2), nn.ConstantPad1d((0, 1), 0.7))),
    "same padding, even kernel": (
        IMAGE,
        lambda: nn.Sequential(nn.Conv2d(2, 2, (2, 4), padding="same", dilation=(3, 1)), nn.ReLU(), _head(72)),
    ),
    "circular padding": (
        IMAGE,
        lambda: nn.Sequential(nn.Conv2d(2, 2, 3, padding=2, padding_mode="circular"), nn.ReLU(), _head(128)),
    ),
    "upsample": (
        IMAGE,
        lambda: nn.Sequential(nn.Upsample(scale_factor=(2, 3)), nn.Conv2d(2, 2, 5, 3), nn.ReLU(), _head(30)),
    ),
    "sequence": ((2, 9), _sequence),
    "reductions": (IMAGE, _reductions),
    "products with matrices": (VECTOR, _products),
    "transposed convolution": ((4, 3, 3), _transposed),
    "transposed convolution, dilated": (
        (4, 3, 3),
        lambda: nn.Sequential(
            nn.ConvTranspose2d(4, 2, 3, dilation=2, bias=False), nn.ReLU(), nn.AdaptiveMaxPool2d((1, None)), _head(14)
        ),
    ),
    "clamped": (VECTOR, lambda: _mlp(nn.Hardtanh(-0.4, 0.3), nn.ReLU6(), gain=4.0)),
    "clamped, one end": (
        VECTOR,
        lambda: Functional(
            lambda self, x: self.last(self.first(x).clamp(max=0.3).clip(-0.25)),
            first=nn.Linear(5, 6),
            last=nn.Linear(6, CLASSES),
        ),
    ),
    "prelu": (IMAGE, _prelu),
    "elu": (VECTOR, lambda: _mlp(nn.ELU(0.7), nn.ELU(1.5), gain=3.0)),
    "selu and celu": (VECTOR, lambda: _mlp(nn.SELU(), nn.CELU(0.5))),
    "softplus": (VECTOR, lambda: _mlp(nn.Softplus(), nn.Softplus(3.0, 18.0), gain=12.0)),
    "gelu": (VECTOR, lambda: _mlp(nn.GELU())),
    "gelu by tanh, wide": (VECTOR, lambda: _mlp(nn.GELU("tanh"), gain=6.0)),
    "silu": (VECTOR, lambda: _mlp(nn.SiLU())),
    "silu, wide": (VECTOR, lambda: _mlp(nn.SiLU(), gain=20.0)),
    "hard sigmoid and swish": (VECTOR, lambda: _mlp(nn.Hardsigmoid(), nn.Hardswish(), gain=5.0)),
    "ends in gelu": (VECTOR, lambda: nn.Sequential(nn.Linear(5, CLASSES), nn.GELU())),
    "ends in silu": (VECTOR, lambda: nn.Sequential(nn.Linear(5, CLASSES), nn.SiLU())),
    "ends in elu": (VECTOR, lambda: nn.Sequential(nn.Linear(5, CLASSES), nn.ELU())),
    "layer norm": (
        VECTOR,
        lambda: _norms(nn.Linear(5, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 6), nn.LayerNorm(6), _head(6)),
    ),
    "layer norm of sequences": (
        (3, 5),
        lambda: _norms(
            nn.Linear(5, 4), nn.LayerNorm(4, eps=0.1), nn.Tanh(), nn.LayerNorm((3, 4), bias=False), _head(12)
        ),
    ),
    "group norm": (IMAGE, lambda: _norms(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), _head(64))),
    "instance norm": (
        IMAGE,
        lambda: _norms(
            nn.InstanceNorm2d(2),
            nn.Conv2d(2, 3, 3, 2),
            nn.ReLU(),
            nn.InstanceNorm2d(3, affine=True, eps=1e-2),
            _head(12),
        ),
    ),
    "ends in rms norm": (VECTOR, lambda: _norms(nn.Linear(5, CLASSES), nn.RMSNorm(CLASSES, eps=1e-3))),
    "ends in layer norm": (VECTOR, lambda: _norms(nn.Linear(5, CLASSES), nn.LayerNorm(CLASSES))),
    "log sigmoid": (VECTOR, lambda: nn.Sequential(nn.Linear(5, CLASSES), nn.LogSigmoid())),
}
