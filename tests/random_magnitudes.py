"""Random networks whose numbers run from subnormal to 2^100, and whether anything proved about them is false.

``python -m tests.random_magnitudes 2000`` looks at so many networks (under ten minutes on one core) and says how many
were refused, answered and certified, how many outputs were compared with what was proved of them, and what was false.
"""

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

import certibayes as cb
from certibayes.bounds import outward_box
from certibayes.certification import logit_bounds, margin_bounds
from certibayes.errors import CertibayesError, UnsoundBounds
from certibayes.prediction import Predictor

from .strategies import Functional, into_ball

WIDTH, CLASSES, POINTS, TRIALS = 3, 3, 4, 24
COUNTED = ["networks", "answered", "refused", "certified", "evaluations", "at certified points", "violations"]
SUBNORMAL, LARGEST_WEIGHT, LARGEST_ACTIVATION = -149, 29, 96  # binary exponents

METHODS = [
    cb.Theorem1("ibp"),
    cb.Pairwise("crown"),
    cb.Elided("ibp"),
    cb.Elided("crown"),
    cb.Elided("crown", "crown"),
    cb.Elided("alpha-crown"),
    cb.Joint("crown"),
    cb.Best("hull"),
    cb.Auto(),
]


class Recipe:
    """Draws layers one after the other and keeps account of how large activations may be by now."""

    def __init__(self, draw: random.Random):
        self.draw = draw
        # Inputs are mostly ordinary, so that what follows is reached at all.
        self.level = draw.choice([0, 0, 0, draw.randint(SUBNORMAL, 28)])
        self.input_level = self.level

    def numbers(self, shape: tuple[int, ...], exponent: int) -> Tensor:
        """Random numbers of about a magnitude, some of them far smaller."""
        exponent = max(SUBNORMAL, exponent)

        def one() -> float:
            power = exponent if self.draw.random() < 0.85 else self.draw.randint(SUBNORMAL, exponent)
            return self.draw.choice([-1, 1]) * math.ldexp(1 + self.draw.random(), max(SUBNORMAL, power))

        return torch.tensor([one() for _ in range(math.prod(shape))]).view(shape)

    def factor_level(self, largest: int, goal: int | None = None) -> int:
        """The exponent of a factor that brings activations to ``goal``, or anywhere, as far as it may be that large."""
        if goal is not None:
            return max(SUBNORMAL, min(largest, goal - self.level))
        wanted = self.draw.choice([self.draw.randint(SUBNORMAL, largest), self.draw.randint(-70, 95) - self.level])
        return max(SUBNORMAL, min(wanted, largest, LARGEST_ACTIVATION - self.level))

    def linear(self, goal: int | None = None) -> nn.Module:
        level = self.factor_level(LARGEST_WEIGHT, goal)
        layer = nn.Linear(WIDTH, WIDTH, bias=self.draw.random() < 0.5)
        self.level += level + 2
        layer.weight.data = self.numbers((WIDTH, WIDTH), level)
        if layer.bias is not None:
            layer.bias.data = self.numbers((WIDTH,), min(LARGEST_WEIGHT, self.level - self.draw.randint(0, 12)))
        return layer

    def batch_norm(self, goal: int | None = None) -> nn.Module:
        norm = nn.BatchNorm1d(WIDTH, eps=self.draw.choice([0.0, 1e-5]))
        # What is divided by the deviation must not overflow.
        variance = self.draw.randint(min(29, max(-66, 2 * (self.level - LARGEST_ACTIVATION))), 29)
        level = self.factor_level(LARGEST_WEIGHT, goal)
        norm.running_var = self.numbers((WIDTH,), variance).abs()
        norm.running_mean = self.numbers((WIDTH,), min(LARGEST_WEIGHT, self.level - self.draw.randint(0, 4)))
        norm.weight.data = self.numbers((WIDTH,), level)
        self.level += level + 2 - (variance if norm.eps == 0 else max(variance, -17)) // 2
        norm.bias.data = self.numbers((WIDTH,), min(LARGEST_WEIGHT, self.level - self.draw.randint(0, 12)))
        return norm

    def multiply(self, goal: int | None = None) -> Callable[[Tensor], Tensor]:
        level = self.factor_level(100, goal)
        self.level += level + 1
        constant = self.draw.choice([-1, 1]) * (1 + self.draw.random()) * 2.0**level
        return lambda x: x * constant

    def divide(self, goal: int | None = None) -> Callable[[Tensor], Tensor]:
        level = self.factor_level(100, goal)
        self.level += level + 1
        constant = (1 + self.draw.random()) * 2.0 ** min(127, -level)
        return lambda x: x / constant

    def shift(self) -> Callable[[Tensor], Tensor]:
        level = min(100, self.level + self.draw.randint(-10, 1))
        self.level += 1
        constant = self.draw.choice([-1, 1]) * (1 + self.draw.random()) * 2.0 ** max(SUBNORMAL, level)
        return lambda x: constant - x

    def leaky_relu(self) -> nn.Module:
        return nn.LeakyReLU((1 + self.draw.random()) * 2.0 ** self.draw.randint(SUBNORMAL, 1))

    def residual(self) -> nn.Module:
        before, first = self.level, self.linear()
        self.level = max(before, self.level) + 1
        return Functional(lambda self, x: x + functional.relu(self.first(x)), first=first)

    def detour(self) -> list[Callable]:
        """Up to activations that are huge, and down by a factor that is subnormal in float32."""
        height, steps = self.draw.randint(60, LARGEST_ACTIVATION - 4), []
        while self.level < height and len(steps) < 8:
            steps.append(self.draw.choice([self.linear, self.multiply])(height))
        down = self.draw.choice([self.linear, self.batch_norm, self.multiply, self.divide])
        return [*steps, down(self.level + self.draw.randint(SUBNORMAL, -127))]

    def network(self) -> nn.Module:
        kinds = [self.linear, self.batch_norm, self.multiply, self.divide, self.shift, self.leaky_relu, self.residual]
        # Factors that are lost by underflow matter behind huge activations, where chance alone seldom leads.
        steps: list[Callable] = self.detour() if self.draw.random() < 0.5 else []
        for _ in range(self.draw.randint(1 if steps else 2, 2 if steps else 6)):
            steps.append(self.draw.choice([nn.ReLU, nn.ReLU, *kinds, *kinds])())
        # Back to where the last layer can make ordinary logits of them, or else nothing would depend on what came
        # before.
        while self.level < -LARGEST_WEIGHT and len(steps) < 16:
            steps.append(self.draw.choice([self.linear, self.multiply])(0))
        last = nn.Linear(WIDTH, CLASSES)
        level = max(SUBNORMAL, min(LARGEST_WEIGHT, self.draw.randint(0, 4) - self.level))
        last.weight.data = self.numbers((CLASSES, WIDTH), level)
        last.bias.data = self.numbers((CLASSES,), self.draw.randint(-8, 1))

        modules = {f"step{index}": step for index, step in enumerate(steps) if isinstance(step, nn.Module)}

        def forward(self: Functional, x: Tensor) -> Tensor:
            for index, step in enumerate(steps):
                # A module is looked up by name: tracing works on a copy.
                x = getattr(self, f"step{index}", step)(x)
            return self.last(x)

        return Functional(forward, **modules, last=last).eval()


def programs(predictor: Predictor, x: Tensor) -> Iterator[Tensor]:
    """Logits (B, C) as several programs compute them: in a batch, one by one, and with subnormals flushed to 0."""
    yield predictor.sample_outputs(x)[0]
    yield torch.cat([predictor.sample_outputs(one)[0] for one in x.split(1)])
    if torch.set_flush_denormal(True):
        try:
            yield predictor.sample_outputs(x)[0]
        finally:
            torch.set_flush_denormal(False)


def trials(x: Tensor, eps: float, norm: str, seed: int) -> Tensor:
    """Corners, inner points and the points themselves, (TRIALS * B, ...), inside the ball also in floats."""
    noise = 2 * torch.rand(TRIALS, *x.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1
    noise[::2] = noise[::2].sign()
    noise[0] = 0.0
    moved = (x.double() + eps * noise).to(x.dtype)
    near = torch.full((len(x), 1), eps, dtype=torch.float64)
    return torch.cat([into_ball(some, x, near, norm) for some in moved])


def look(seed: int) -> Counter[str]:
    """Certify a random network and fail if anything proved is false.

    Returns what there was to count: the network is ``"refused"`` or ``"answered"``, and ``"certified"`` if one of its
    points is; ``"evaluations"`` are outputs that were compared with their bounds, ``"at certified points"`` those that
    had to be of a certified class. Refused are networks, and batches of which no point was answered.
    """
    draw = random.Random(seed)
    recipe = Recipe(draw)
    dtype = draw.choice([torch.float32] * 9 + [torch.float64])
    net = recipe.network().to(dtype)
    x = recipe.numbers((POINTS, WIDTH), recipe.input_level).to(dtype)
    eps = 2.0 ** (recipe.input_level - draw.choice([0, 2, 4, 8, 12, 16, 20, 24, 24]))
    norm, method = draw.choice(["linf", "linf", "l2", "l1"]), METHODS[seed % len(METHODS)]
    found: Counter[str] = Counter()
    try:
        predictor = cb.Point(net, input_shape=(WIDTH,)).predictor()
        result = cb.certify(predictor, x, eps=eps, norm=norm, method=method)
    except UnsoundBounds:
        raise
    except CertibayesError:
        return Counter(refused=1)
    inside = trials(x, eps, norm, seed)
    labels, certified = result.labels.repeat(TRIALS), result.certified.repeat(TRIALS)
    for logits in programs(predictor, inside):
        assert not bool((certified & (logits.argmax(-1) != labels)).any()), "a certified point is broken"
        _require_inside(predictor, x, eps, norm, logits)
        found.update({"evaluations": len(logits), "at certified points": int(certified.sum())})
    answered = len(result.reasons) < POINTS
    found.update({"answered" if answered else "refused": 1, "certified": int(bool(result.certified.any()))})
    return found


def _require_inside(predictor: Predictor, x: Tensor, eps: float, norm: str, logits: Tensor) -> None:
    """Fail if logits leave their bounds, or margins theirs."""
    box = outward_box(x, eps, None, predictor.dtype, norm)
    found = logits.double().view(TRIALS, len(x), CLASSES)
    labels, every = torch.zeros(len(x), dtype=torch.int64), torch.arange(CLASSES).expand(len(x), -1)
    for bounds in ("ibp", "crown"):
        lower, upper = (ends[0] for ends in logit_bounds(predictor, box, bounds=bounds))
        margins = margin_bounds(predictor, box, labels, every, bounds=bounds)[0]
        # Where nothing is known, outputs may overflow, too.
        inside = ((lower <= found) & (found <= upper)) | ~torch.isfinite(lower)
        assert bool(inside.all()), f"a logit leaves its {bounds} bounds"
        exact = found[..., :1] - found
        above = (margins <= exact + exact.abs() * 2.0**-50) | ~torch.isfinite(margins)
        assert bool(above.all()), f"a margin is below its {bounds} bound"


def look_at_many(seeds: Iterable[int]) -> Counter[str]:
    """The counts of many networks, with ``"networks"`` and ``"violations"``, which are printed and do not stop it."""
    found: Counter[str] = Counter(violations=0)
    for seed in seeds:
        found["networks"] += 1
        try:
            found += look(seed)
        except (AssertionError, UnsoundBounds) as violation:
            print(f"seed {seed}: {violation}", flush=True)
            found["violations"] += 1
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    counts = look_at_many(range(first, first + int(sys.argv[1])))
    print(*(f"{counts[word]:,} {word}" for word in COUNTED), sep=", ")
    sys.exit(1 if counts["violations"] else 0)
