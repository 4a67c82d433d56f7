"""Architectures by name: the paper's networks and those of the robustness literature.

Each returns an ordinary ``nn.Sequential``, initialized from ``seed`` alone, that carries ``input_shape``. Inputs are
images in [0, 1]. Networks with batch norm (``cnn5``, ``cnn7``, ``resnet_small``) are those of certified training: their
weights are initialized for interval bounds, and ``normalize`` puts a ``Normalize`` in front. All others have the
initialization of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from certibayes.errors import InvalidInput
from certibayes.networks.initialization import init_interval_aware
from certibayes.networks.normalize import Normalize

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


Statistics = tuple[Sequence[float], Sequence[float]]
"""Mean and standard deviation of every channel, as ``Normalize`` takes them."""

INITIALIZATIONS = ("interval", "torch")
"""Names of initializations: ``init_interval_aware``, or what torch's layers do."""


class _Residual(nn.Module):
    """relu(f(x) + shortcut(x)): two convolutions of 3 x 3, each with batch norm, beside one of 1 x 1."""

    def __init__(self, channels_in: int, channels: int, stride: int):
        super().__init__()
        self.body = nn.Sequential(
            *_normed(nn.Conv2d(channels_in, channels, 3, stride, padding=1)),
            *_normed(nn.Conv2d(channels, channels, 3, padding=1))[:-1],
        )
        self.shortcut = nn.Sequential(*_normed(nn.Conv2d(channels_in, channels, 1, stride))[:-1])
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Add the two branches."""
        result: Tensor = self.activation(self.body(x) + self.shortcut(x))
        return result


def _normed(layer: nn.Conv2d | nn.Linear) -> list[nn.Module]:
    """Return a layer with batch norm and ReLU after it."""
    if isinstance(layer, nn.Conv2d):
        return [layer, nn.BatchNorm2d(layer.out_channels), nn.ReLU()]
    return [layer, nn.BatchNorm1d(layer.out_features), nn.ReLU()]


def _normed_cnn(
    convolutions: Callable[[int], list[nn.Module]],
    input_shape: tuple[int, int, int],
    outputs: int,
    seed: int,
    channels: int,
    normalize: Statistics | None,
    init: str,
) -> nn.Sequential:
    """Build ``convolutions(channels of the input)``, a dense layer of 8 c units, and the outputs."""
    if init not in INITIALIZATIONS:
        raise InvalidInput(f"init is one of {', '.join(INITIALIZATIONS)}, got {init!r}.")
    if channels < 1:
        raise InvalidInput(f"a convolutional network has at least 1 channel, got {channels}.")
    with _seeded(seed):
        layers: list[nn.Module] = [] if normalize is None else [Normalize(*normalize)]
        layers += convolutions(input_shape[0])
        # Sizes after strides are left to torch: small images make some of them odd.
        with torch.no_grad():
            features = nn.Sequential(*layers).eval()(torch.zeros(1, *input_shape)).numel()
        layers += [nn.Flatten(), *_normed(nn.Linear(features, 8 * channels)), nn.Linear(8 * channels, outputs)]
        network = _network(input_shape, layers).train()
        return init_interval_aware(network) if init == "interval" else network


def cnn7(
    input_shape: tuple[int, int, int] = (3, 32, 32),
    outputs: int = 10,
    seed: int = 0,
    channels: int = 64,
    normalize: Statistics | None = None,
    init: str = "interval",
) -> nn.Sequential:
    """Build the seven-layer CNN on which certified training is compared (Shi et al., 2021, "Fast certified training").

    Five convolutions of 3 x 3 with padding, of c, c, 2c (stride 2), 2c and 2c channels, a dense layer of 8c units and
    the outputs; batch norm and ReLU after all but the last.

    Args:
        input_shape: (channels, height, width).
        outputs: number of classes.
        seed: of the initialization.
        channels: c, 64 in the literature; 8 or 16 for a CPU.
        normalize: mean and standard deviation of every channel, for a ``Normalize`` in front.
        init: ``"interval"`` (``init_interval_aware``), or ``"torch"`` for what torch's layers do.
    """

    def convolutions(channels_in: int) -> list[nn.Module]:
        layers: list[nn.Module] = []
        for filters, stride in ((channels, 1), (channels, 1), (2 * channels, 2), (2 * channels, 1), (2 * channels, 1)):
            layers += _normed(nn.Conv2d(channels_in, filters, 3, stride, padding=1))
            channels_in = filters
        return layers

    return _normed_cnn(convolutions, input_shape, outputs, seed, channels, normalize, init)


def cnn5(
    input_shape: tuple[int, int, int] = (3, 32, 32),
    outputs: int = 10,
    seed: int = 0,
    channels: int = 64,
    normalize: Statistics | None = None,
    init: str = "interval",
) -> nn.Sequential:
    """Build a five-layer CNN (Mao et al., 2023, "Connecting certified and adversarial training").

    Convolutions of 3 x 3 with c channels, and of 4 x 4 with stride 2 and c and 2c channels, all with padding, a dense
    layer of 8c units and the outputs; batch norm and ReLU after all but the last.

    Args:
        input_shape: (channels, height, width).
        outputs: number of classes.
        seed: of the initialization.
        channels: c, as in ``cnn7``.
        normalize: as in ``cnn7``.
        init: as in ``cnn7``.
    """

    def convolutions(channels_in: int) -> list[nn.Module]:
        return [
            *_normed(nn.Conv2d(channels_in, channels, 3, padding=1)),
            *_normed(nn.Conv2d(channels, channels, 4, 2, padding=1)),
            *_normed(nn.Conv2d(channels, 2 * channels, 4, 2, padding=1)),
        ]

    return _normed_cnn(convolutions, input_shape, outputs, seed, channels, normalize, init)


def resnet_small(
    input_shape: tuple[int, int, int] = (3, 32, 32),
    outputs: int = 10,
    seed: int = 0,
    channels: int = 16,
    normalize: Statistics | None = None,
    init: str = "interval",
) -> nn.Sequential:
    """Build a small residual network.

    A convolution of 3 x 3 with c channels, two residual blocks of two convolutions each with stride 2 and c and 2c
    channels, whose shortcuts are convolutions of 1 x 1, a dense layer of 8c units and the outputs; batch norm and ReLU
    after all but the last.

    Args:
        input_shape: (channels, height, width).
        outputs: number of classes.
        seed: of the initialization.
        channels: c.
        normalize: as in ``cnn7``.
        init: as in ``cnn7``.
    """

    def convolutions(channels_in: int) -> list[nn.Module]:
        return [
            *_normed(nn.Conv2d(channels_in, channels, 3, padding=1)),
            _Residual(channels, channels, 2),
            _Residual(channels, 2 * channels, 2),
        ]

    return _normed_cnn(convolutions, input_shape, outputs, seed, channels, normalize, init)


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
    "cnn5": cnn5,
    "cnn7": cnn7,
    "resnet-small": resnet_small,
}

NORMED = ("cnn5", "cnn7", "resnet-small")
"""Those with batch norm, which take ``channels``, ``normalize`` and ``init``."""


def build(
    name: str,
    input_shape: tuple[int, ...],
    outputs: int,
    seed: int = 0,
    *,
    normalize: Statistics | None = None,
    init: str | None = None,
    **settings: object,
) -> nn.Sequential:
    """Build an architecture by its name on the command line.

    Args:
        name: a key of ``BY_NAME``.
        input_shape: shape of one example.
        outputs: number of classes or regression outputs.
        seed: of the initialization.
        normalize: mean and standard deviation of every channel, for a ``Normalize`` in front.
        init: ``"interval"`` or ``"torch"``; by default the architecture's own.
        **settings: what the architecture takes beyond these, such as ``hidden`` for ``mlp`` or ``channels`` for
            ``cnn7``.
    """
    if name not in BY_NAME:
        raise InvalidInput(f"there is no architecture {name!r}; known are {', '.join(BY_NAME)}.")
    if name != "mlp" and len(input_shape) != 3:
        raise InvalidInput(f"{name} takes images (channels, height, width), the data have {input_shape}. Use mlp.")
    if name in NORMED:
        settings |= {"normalize": normalize, **({} if init is None else {"init": init})}
        return BY_NAME[name](input_shape, outputs=outputs, seed=seed, **settings)
    network = BY_NAME[name](input_shape, outputs=outputs, seed=seed, **settings)
    if normalize is not None:
        network = _network(input_shape, [Normalize(*normalize), *network])
    if init == "interval":
        return init_interval_aware(network, torch.Generator().manual_seed(seed))
    return network
