"""Architectures by name: the paper's networks and three of the robustness literature.

Each returns an ordinary ``nn.Sequential`` with torch's own initialization, drawn from ``seed`` alone, and carries
``input_shape``. Inputs are images in [0, 1]; put ``Normalize`` in front if you want them standardized.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from certibayes.errors import InvalidInput

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Let torch's initializers draw from ``seed`` and leave the global generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _network(input_shape: tuple[int, ...], layers: Sequence[nn.Module]) -> nn.Sequential:
    network = nn.Sequential(*layers)
    # A plain attribute, read by infer_input_shape; nn.Module's stub only knows tensors and modules.
    network.input_shape = input_shape  # type: ignore[assignment]
    return network


def mlp(
    inputs: int, hidden: Sequence[int] = (512,), outputs: int = 10, activation: str = "relu", seed: int = 0
) -> nn.Sequential:
    """Build a fully connected network; ``mlp(784, [512], 10)`` is the paper's for MNIST and FashionMNIST."""
    if activation not in ACTIVATIONS:
        raise InvalidInput(f"activation {activation!r} is not one of {', '.join(ACTIVATIONS)}.")
    units = [inputs, *hidden, outputs]
    layers: list[nn.Module] = [nn.Flatten()]
    with _seeded(seed):
        for i in range(len(units) - 1):
            layers.append(nn.Linear(units[i], units[i + 1]))
            if i < len(units) - 2:
                layers.append(ACTIVATIONS[activation]())
    return _network((inputs,), layers)


def _paper_cnn(
    channels: tuple[int, int], dense: int, input_shape: tuple[int, int, int], outputs: int, seed: int
) -> nn.Sequential:
    channels_in, height, width = input_shape
    flat = channels[1] * ((height - 6) // 2) * ((width - 6) // 2)
    with _seeded(seed):
        layers = [
            nn.Conv2d(channels_in, channels[0], 4),
            nn.ReLU(),
            nn.Conv2d(channels[0], channels[1], 4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(flat, dense),
            nn.ReLU(),
            nn.Linear(dense, outputs),
        ]
    return _network(input_shape, layers)


def paper_cifar(input_shape: tuple[int, int, int] = (3, 32, 32), outputs: int = 10, seed: int = 0) -> nn.Sequential:
    """Build the CIFAR-10 network of the paper's main text: conv 32, conv 32 (4 x 4), max pool, dense 512."""
    return _paper_cnn((32, 32), 512, input_shape, outputs, seed)


def paper_cifar_supplement(
    input_shape: tuple[int, int, int] = (3, 32, 32), outputs: int = 10, seed: int = 0
) -> nn.Sequential:
    """Build the CIFAR-10 network of the supplement: conv 16, conv 32 (4 x 4), max pool, dense 100."""
    return _paper_cnn((16, 32), 100, input_shape, outputs, seed)


def _gowal_cnn(
    convolutions: Sequence[tuple[int, int, int]],
    dense: Sequence[int],
    input_shape: tuple[int, int, int],
    outputs: int,
    seed: int,
) -> nn.Sequential:
    channels_in, height, width = input_shape
    layers: list[nn.Module] = []
    with _seeded(seed):
        for filters, kernel, stride in convolutions:
            layers += [nn.Conv2d(channels_in, filters, kernel, stride), nn.ReLU()]
            channels_in = filters
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        layers.append(nn.Flatten())
        features = channels_in * height * width
        for units in dense:
            layers += [nn.Linear(features, units), nn.ReLU()]
            features = units
        layers.append(nn.Linear(features, outputs))
    return _network(input_shape, layers)


def cnn_small(input_shape: tuple[int, int, int] = (1, 28, 28), outputs: int = 10, seed: int = 0) -> nn.Sequential:
    """Build the small CNN of Gowal et al. (2018), "On the effectiveness of interval bound propagation"."""
    return _gowal_cnn([(16, 4, 2), (32, 4, 1)], [100], input_shape, outputs, seed)


def cnn_medium(input_shape: tuple[int, int, int] = (1, 28, 28), outputs: int = 10, seed: int = 0) -> nn.Sequential:
    """Build the medium CNN of Gowal et al. (2018)."""
    convolutions = [(32, 3, 1), (32, 4, 2), (64, 3, 1), (64, 4, 2)]
    return _gowal_cnn(convolutions, [512, 512], input_shape, outputs, seed)


def cnn7(
    input_shape: tuple[int, int, int] = (3, 32, 32), outputs: int = 10, seed: int = 0, channels: int = 64
) -> nn.Sequential:
    """Build the seven-layer CNN on which certified training is compared (Shi et al., 2021, "Fast certified training").

    Five convolutions of 3 x 3 with padding, of c, c, 2c (stride 2), 2c and 2c channels, a dense layer of 512 units and
    the outputs; batch norm and ReLU after all but the last.

    Args:
        input_shape: (channels, height, width).
        outputs: number of classes.
        seed: of the initialization.
        channels: c, 64 in the literature.
    """
    channels_in, height, width = input_shape
    layers: list[nn.Module] = []
    with _seeded(seed):
        for filters, stride in ((channels, 1), (channels, 1), (2 * channels, 2), (2 * channels, 1), (2 * channels, 1)):
            layers += [nn.Conv2d(channels_in, filters, 3, stride, padding=1), nn.BatchNorm2d(filters), nn.ReLU()]
            channels_in = filters
        features = channels_in * ((height + 1) // 2) * ((width + 1) // 2)
        layers += [nn.Flatten(), nn.Linear(features, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, outputs)]
    return _network(input_shape, layers)


def _mlp_for(
    input_shape: tuple[int, ...], outputs: int = 10, seed: int = 0, hidden: Sequence[int] = (512,)
) -> nn.Sequential:
    return mlp(int(torch.Size(input_shape).numel()), hidden, outputs, seed=seed)


BY_NAME: dict[str, Callable[..., nn.Sequential]] = {
    "mlp": _mlp_for,
    "paper-cifar": paper_cifar,
    "paper-cifar-supplement": paper_cifar_supplement,
    "cnn-small": cnn_small,
    "cnn-medium": cnn_medium,
    "cnn7": cnn7,
}


def build(name: str, input_shape: tuple[int, ...], outputs: int, seed: int = 0, **settings: object) -> nn.Sequential:
    """Build an architecture by its name on the command line.

    Args:
        name: a key of ``BY_NAME``.
        input_shape: shape of one example.
        outputs: number of classes or regression outputs.
        seed: of the initialization.
        **settings: what the architecture takes beyond these, such as ``hidden`` for ``mlp``.
    """
    if name not in BY_NAME:
        raise InvalidInput(f"there is no architecture {name!r}; known are {', '.join(BY_NAME)}.")
    if name != "mlp" and len(input_shape) != 3:
        raise InvalidInput(f"{name} takes images (channels, height, width), the data have {input_shape}. Use mlp.")
    return BY_NAME[name](input_shape, outputs=outputs, seed=seed, **settings)
