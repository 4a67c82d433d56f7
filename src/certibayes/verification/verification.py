"""``Verification``: the answer to a specification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

ANSWERS = ("unsat", "sat", "unknown")


@dataclass(frozen=True, eq=False)
class Verification:
    """The answer to the question whether any input of a specification has unsafe outputs.

    Attributes:
        answer: ``"unsat"``, there is none; ``"sat"``, there is one; or ``"unknown"``.
        excluded: unsafe conjunctions that were excluded, over all boxes.
        conjunctions: how many there are.
        seconds: that it took.
        reason: why the answer is unknown, or empty.
        inputs: of the counterexample, in the network's shape and precision.
        outputs: that the network gives for it, (C,).
        counterexample: the same in VNN-COMP's format, ``((X_0 0.5) ... (Y_0 1.25))``; empty without one.
    """

    answer: str
    excluded: int
    conjunctions: int
    seconds: float
    reason: str = ""
    inputs: Tensor | None = None
    outputs: Tensor | None = None
    counterexample: str = ""

    def __repr__(self) -> str:
        return f"Verification({self.answer}: {self.statement})"

    def __str__(self) -> str:
        """Return the answer as VNN-COMP has it: a word, and below it the counterexample."""
        return f"{self.answer}\n{self.counterexample}" if self.counterexample else self.answer

    @property
    def statement(self) -> str:
        """What was found, in words."""
        if self.answer == "unsat":
            return (
                "No input of the specification has unsafe outputs. This is proved for the program that runs, with the "
                "rounding of floats accounted for: for every float that a number of the boxes may be read as."
            )
        if self.answer == "sat":
            return "The input of the counterexample lies in the specification's box, and its outputs are unsafe."
        return f"{self.excluded} of {self.conjunctions} unsafe conjunctions were excluded; {self.reason}."

    def to_json(self) -> dict[str, Any]:
        """Return the answer as plain numbers, lists and strings."""
        return {
            "answer": self.answer,
            "excluded": self.excluded,
            "conjunctions": self.conjunctions,
            "seconds": self.seconds,
            "reason": self.reason,
            "inputs": None if self.inputs is None else self.inputs.flatten().tolist(),
            "outputs": None if self.outputs is None else self.outputs.tolist(),
            "counterexample": self.counterexample,
            "statement": self.statement,
        }


def counterexample_text(inputs: list[str], outputs: list[float]) -> str:
    """Write a counterexample in VNN-COMP's format."""
    pairs = [f"(X_{index} {value})" for index, value in enumerate(inputs)]
    pairs += [f"(Y_{index} {value!r})" for index, value in enumerate(outputs)]
    return "(" + "\n ".join(pairs) + ")"
