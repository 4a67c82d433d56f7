"""Look for counterexamples: inputs of a box whose outputs are unsafe, as the float program computes them.

Attacks descend how far outputs are from being unsafe, by signed gradients in steps that become smaller. What they find
is decided exactly: the outputs that the program gives for the input alone, and those of the reference if there is one,
are put into the constraints as fractions.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import torch
from torch import Tensor

from certibayes.attacks.pgd import ascend
from certibayes.certification import UnsafeOutputs
from certibayes.networks import direct_sums
from certibayes.prediction import Predictor
from certibayes.support.stacks import pick
from certibayes.verification._inputs import FloatInputs

Reference = Callable[[Tensor], Tensor]
"""Inputs (B, *shape) -> outputs (B, C), computed by another program."""

STEP_SIZES = (0.25, 0.05, 0.01, 0.002)
"""Of the descent, as fractions of the width of the box, one after the other."""

STEPS = 15
"""With each of them."""

LOOKS = 4
"""Inputs of a batch that are decided exactly: those that come closest."""

NEARLY = 1e-6
"""How far from unsafe floats may say that outputs are, for the exact decision to be asked."""


class Counterexamples:
    """A search for one input with unsafe outputs.

    Args:
        predictor: of one network.
        inputs: where to look.
        unsafe: what to look for.
        reference: another program that has to agree, if there is one.

    Attributes:
        found: the input, (1, *shape), once there is one.
        outputs: what the program gives for it, (C,).
    """

    def __init__(
        self, predictor: Predictor, inputs: FloatInputs, unsafe: UnsafeOutputs, reference: Reference | None = None
    ):
        self.predictor, self.inputs, self.unsafe, self.reference = predictor, inputs, unsafe, reference
        self._params = pick(predictor.samples, 0)
        self.found: Tensor | None = None
        self.outputs: Tensor | None = None

    def evaluate(self, x: Tensor) -> Tensor:
        """Return the outputs of the float program, (B, C)."""
        with direct_sums():
            return self.predictor.graph.evaluate(self._params, x).flatten(1)

    @torch.no_grad()
    def look(self, x: Tensor) -> bool:
        """Look at inputs (B, *shape), brought into the box; tell whether a counterexample is known by now."""
        if self.found is not None:
            return True
        inside = self.inputs.project(x)
        margins = self.unsafe.margins(self.evaluate(inside).double()).amin(-1)
        closest = margins.argsort()[:LOOKS]
        near = closest[margins[closest] <= NEARLY].tolist()
        return any(self._decide(inside[index : index + 1]) for index in near)

    def _decide(self, x: Tensor) -> bool:
        outputs = self.evaluate(x)[0]
        if not (self._is_unsafe(outputs) and self.inputs.case.contains(self.inputs.numbers(x))):
            return False
        if self.reference is not None and not self._is_unsafe(self.reference(x)[0]):
            return False
        self.found, self.outputs = x, outputs
        return True

    def _is_unsafe(self, outputs: Tensor) -> bool:
        finite = bool(torch.isfinite(outputs).all())
        return finite and self.inputs.case.is_unsafe([Fraction(y) for y in outputs.double().tolist()])

    def attack(self, open_: Tensor, starts: int, generator: torch.Generator) -> bool:
        """Descend towards every open conjunction from several inputs; tell whether a counterexample is known by now.

        Args:
            open_: which conjunctions to look for, bool (K,).
            starts: inputs to begin at: the middle of the box, then corners and random points in turn.
            generator: of the random ones, on the device of the predictor.
        """
        targets = open_.nonzero().squeeze(-1)
        if self.found is not None or len(targets) == 0:
            return self.found is not None
        lower, upper = self.inputs.limits
        for number in range(starts):
            x = self._start(number, len(targets), generator)

            def loss(x: Tensor) -> Tensor:
                margins = self.unsafe.margins(self.evaluate(x))
                return -margins.gather(1, targets[:, None]).squeeze(1)

            for size in STEP_SIZES:
                x = ascend(loss, x, lower, upper, STEPS, size * (upper - lower))
                if self.look(x):
                    return True
        return False

    def _start(self, number: int, count: int, generator: torch.Generator) -> Tensor:
        lower, upper = self.inputs.limits
        noise = torch.rand((count, *lower.shape[1:]), generator=generator, dtype=lower.dtype, device=lower.device)
        if number == 0:
            noise = torch.full_like(noise, 0.5)
        elif number % 2:
            noise = noise.round()
        return self.inputs.project(torch.lerp(lower.expand_as(noise), upper.expand_as(noise), noise))
