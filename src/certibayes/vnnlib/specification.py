"""What a VNN-LIB file asks of a network: is there an input in these boxes whose outputs are unsafe?

Numbers are exact fractions, as they are written in the file. Whoever computes with floats has to round them to the
safe side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Constraint:
    """A linear constraint on the outputs, a Y <= b.

    Attributes:
        coefficients: pairs of an output's index and its coefficient, which is not 0; in order of the index.
        bound: b.
    """

    coefficients: tuple[tuple[int, Fraction], ...]
    bound: Fraction

    def holds(self, outputs: Sequence[Fraction]) -> bool:
        """Tell whether outputs fulfill it, exactly."""
        return sum((a * outputs[index] for index, a in self.coefficients), Fraction(0)) <= self.bound


Conjunction = tuple[Constraint, ...]
"""Outputs are unsafe that fulfill all of them; all outputs are, if there are none."""


@dataclass(frozen=True)
class Case:
    """A box of inputs, and which outputs are unsafe there.

    Attributes:
        lower: smallest value of every input.
        upper: largest value of every input.
        unsafe: outputs are unsafe that fulfill any of these conjunctions.
    """

    lower: tuple[Fraction, ...]
    upper: tuple[Fraction, ...]
    unsafe: tuple[Conjunction, ...]

    def contains(self, inputs: Sequence[Fraction]) -> bool:
        """Tell whether an input lies in the box, exactly."""
        return all(low <= x <= high for low, x, high in zip(self.lower, inputs, self.upper, strict=True))

    def is_unsafe(self, outputs: Sequence[Fraction]) -> bool:
        """Tell whether outputs are unsafe, exactly."""
        return any(all(constraint.holds(outputs) for constraint in conjunction) for conjunction in self.unsafe)


@dataclass(frozen=True)
class Specification:
    """A specification: ``sat`` if any case has an input with unsafe outputs, else ``unsat``.

    Attributes:
        inputs: how many input values there are, X_0 to X_{n-1}.
        outputs: how many outputs, Y_0 to Y_{m-1}.
        cases: boxes of inputs, and what is unsafe in each.
    """

    inputs: int
    outputs: int
    cases: tuple[Case, ...]

    def __repr__(self) -> str:
        unsafe = sum(len(case.unsafe) for case in self.cases)
        return (
            f"Specification({self.inputs} inputs, {self.outputs} outputs, {len(self.cases)} boxes with {unsafe} unsafe "
            "conjunctions)"
        )
