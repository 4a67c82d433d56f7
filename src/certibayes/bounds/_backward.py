"""What a layer's linear rule takes and returns.

The backward pass of CROWN (Zhang et al., 2018): a quantity m of the outputs is bounded from below by a linear function
of some layer's values z, m >= A z + d, and the layer's rule turns that into a linear function of its inputs: exactly
for a linear layer, by a linear relaxation for an activation, from below or above by the sign of A.

A rule computes as if arithmetic were exact, and says how far rounding may take that; ``bounds._offset`` says what it
costs, and subtracts it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from certibayes.bounds.rounding import Rounding
from certibayes.regions import Box


@dataclass(frozen=True)
class Step:
    """One layer of the backward pass.

    Attributes:
        coefficients: A on the layer's output, (B, S, *output_shape), for S quantities of each example.
        inputs: boxes that hold the layer's inputs, in the program that runs.
        output: box that holds its output.
        rounding: of the program that runs, or ideal.
        slope: lower slopes of unstable activations, in [0, 1], broadcasting against the coefficients; or ``"zero"`` or
            ``"adaptive"``, CROWN's choice of 1 where the interval is more positive than negative.
        owned: whether nobody else needs the coefficients, so that they may be overwritten.
    """

    coefficients: Tensor
    inputs: tuple[Box, ...]
    output: Box
    rounding: Rounding
    slope: Tensor | str = "zero"
    owned: bool = False

    def magnitude(self, index: int = 0) -> Tensor:
        """Largest magnitude of an input, |c| + r."""
        return self.inputs[index].magnitude()

    def ends(self, index: int = 0) -> tuple[Tensor, Tensor]:
        """Return lower and upper ends of an input, moved outwards by what the subtraction can lose."""
        box = self.inputs[index]
        radius = self.rounding.widened_by(box, 4 * self.rounding.unit)
        return box.center - radius, box.center + radius


class Backward(NamedTuple):
    """A linear function of a layer's inputs, and its rounding errors.

    Errors are functions, since they cost time and are asked for in outward rounding alone. A rule that gives none at
    all, such as that of an activation that is exact in floats, may leave its coefficients up to four units off.

    Attributes:
        coefficients: on each input, (B, S, *input_shape).
        constant: what is added to the offset, (B, S).
        output_error: how far the float program may take the layer's output, (B, *output_shape), >= 0; with as much
            again for every sum of the rule whose error is relative to the same magnitudes.
        bound_error: how far other rounding in the rule may take its bound, (B, S), >= 0.
        owned: whether the coefficients are in memory of their own.
    """

    coefficients: tuple[Tensor, ...]
    constant: Tensor
    output_error: Callable[[], Tensor] | None = None
    bound_error: Callable[[], Tensor] | None = None
    owned: bool = False

    @property
    def carries_error(self) -> bool:
        """Whether the rounding error of incoming coefficients is passed on, and not covered yet."""
        return self.output_error is None and self.bound_error is None
