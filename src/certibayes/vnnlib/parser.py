"""Read VNN-LIB 1.0, as far as the classification benchmarks of VNN-COMP use it: boxes of inputs, linear outputs.

    (declare-const X_0 Real)  ...  (declare-const Y_0 Real)  ...
    (assert (<= X_0 0.6))  (assert (>= X_0 0.4))  ...
    (assert (or (and (<= Y_0 Y_1)) (and (>= Y_2 0.5) (<= (+ Y_0 (* 2.0 Y_1)) 1.0))))

Assertions are brought into disjunctive form. In each disjunct what is said of single inputs makes a box, and what is
said of outputs a conjunction of linear constraints. Anything else is refused, with its line.
"""

from __future__ import annotations

import gzip
import itertools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from certibayes.errors import CorruptFile, InvalidInput
from certibayes.vnnlib._expressions import Form, Word, read_forms, refused
from certibayes.vnnlib.specification import Case, Conjunction, Constraint, Specification

SUPPORTED = (
    "Supported are (declare-const X_i Real), the same for Y_i, and (assert ...) with and, or, <= and >= of numbers, "
    "variables, sums, differences and products with a number, where each input is bounded by itself and outputs "
    "linearly"
)

MOST = 100_000
"""Disjuncts of a specification."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?")
_VARIABLE = re.compile(r"([XY])_(0|[1-9]\d*)")

Linear = dict[str, Fraction]
"""Coefficients by variable; the constant has the name ``""``."""


@dataclass(frozen=True)
class Atom:
    """A linear inequality, terms <= 0, and where it stands."""

    terms: Linear
    where: Form


Disjuncts = list[list[Atom]]
"""A formula in disjunctive form."""


class Bound(NamedTuple):
    """A bound on one input, from above or from below."""

    variable: int
    above: bool
    limit: Fraction


class Conjoined(NamedTuple):
    """What a conjunction of atoms says of inputs and of outputs, and whether it is possible at all."""

    bounds: list[Bound]
    constraints: list[Constraint]
    possible: bool = True


class Ends(NamedTuple):
    """Lower and upper ends of a box; infinite where nothing is said."""

    lower: tuple[Fraction | float, ...]
    upper: tuple[Fraction | float, ...]

    def narrowed(self, bounds: list[Bound]) -> Ends:
        """Return the box with more bounds on single inputs."""
        if not bounds:
            return self
        lower, upper = list(self.lower), list(self.upper)
        for index, above, limit in bounds:
            if above:
                upper[index] = min(upper[index], limit)
            else:
                lower[index] = max(lower[index], limit)
        return Ends(tuple(lower), tuple(upper))


def read_vnnlib(path: str | Path) -> Specification:
    """Read a specification from a file.

    Args:
        path: of a ``.vnnlib`` file, which may be compressed (``.vnnlib.gz``).

    Raises:
        InvalidInput: there is no such file, or it asks for something else than boxes of inputs and linear outputs; the
            message says where and what.
        CorruptFile: the file is not text.
    """
    path = Path(path)
    if not path.is_file():
        raise InvalidInput(f"there is no file {path}.")
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise CorruptFile(f"{path} is not a text file: {error}") from error
    return parse_vnnlib(text, path.name)


def parse_vnnlib(text: str, source: str = "the specification") -> Specification:
    """Read a specification from its text.

    Args:
        text: VNN-LIB 1.0.
        source: what errors call it.
    """
    return _Parser(source).parse(read_forms(text, source))


class _Parser:
    def __init__(self, source: str):
        self.source = source
        self.variables: dict[str, Form] = {}

    def parse(self, forms: list[Form]) -> Specification:
        assertions: list[Disjuncts] = []
        for form in forms:
            if form.head in ("declare-const", "declare-fun"):
                self._declare(form)
            elif form.head == "assert" and len(form.rest) == 1:
                assertions.append(self._formula(form.rest[0]))
            else:
                raise self._refused(form, f"{form.head or 'this'} is not known here")
        counts = [self._count(letter) for letter in "XY"]
        return Specification(counts[0], counts[1], self._cases(assertions, counts[0]))

    # Expressions

    def _declare(self, form: Form) -> None:
        expected = 2 if form.head == "declare-const" else 3
        name, kind = (str(part) for part in (form.rest[0], form.rest[-1])) if len(form.rest) == expected else ("", "")
        if not _VARIABLE.fullmatch(name) or kind != "Real" or (expected == 3 and str(form.rest[1]) != "()"):
            raise self._refused(form, "variables are called X_i or Y_i and are of the sort Real")
        if name in self.variables:
            raise self._refused(form, f"{name} is declared twice")
        self.variables[name] = form

    def _count(self, letter: str) -> int:
        """Return how many variables of a letter there are; they must be numbered from 0 without gaps."""
        count = sum(name[0] == letter for name in self.variables)
        if count == 0:
            raise InvalidInput(f"{self.source} declares no {letter}_0: it needs inputs X_i and outputs Y_i.")
        missing = next((i for i in range(count) if f"{letter}_{i}" not in self.variables), None)
        if missing is not None:
            raise InvalidInput(f"{self.source} declares {count} variables {letter}_i, but not {letter}_{missing}.")
        return count

    def _formula(self, part: Word | Form) -> Disjuncts:
        if isinstance(part, Form) and part.head in ("and", "or") and part.rest:
            parts = [self._formula(inner) for inner in part.rest]
            if part.head == "or":
                return [disjunct for inner in parts for disjunct in inner]
            self._require_few(parts, part)
            return [[atom for inner in chosen for atom in inner] for chosen in itertools.product(*parts)]
        if isinstance(part, Form) and part.head in ("<=", ">=") and len(part.rest) == 2:
            left, right = (self._term(inner) for inner in part.rest)
            less, more = (left, right) if part.head == "<=" else (right, left)
            return [[Atom(_sum([less, _scaled(more, Fraction(-1))]), part)]]
        raise self._refused(part, "a formula is an inequality <= or >=, or and/or of formulas")

    def _term(self, part: Word | Form) -> Linear:
        if isinstance(part, Word):
            if _NUMBER.fullmatch(part.text):
                return {"": Fraction(part.text)}
            if part.text in self.variables:
                return {part.text: Fraction(1)}
            known = "is not declared" if _VARIABLE.fullmatch(part.text) else "is neither a number nor a variable"
            raise self._refused(part, f"{part.text} {known}")
        terms = [self._term(inner) for inner in part.rest]
        if part.head == "+" and terms:
            return _sum(terms)
        if part.head == "-" and terms:
            first, others = terms[0], [_scaled(term, Fraction(-1)) for term in terms[1:]]
            return _sum([first, *others]) if others else _scaled(first, Fraction(-1))
        if part.head == "*" and len(terms) == 2:
            for number, other in (terms, terms[::-1]):
                if set(number) <= {""}:
                    return _scaled(other, number.get("", Fraction(0)))
            raise self._refused(part, "a product of variables is not linear")
        raise self._refused(part, f"the term {part.head or part} is not known here")

    # Cases

    def _cases(self, assertions: list[Disjuncts], inputs: int) -> tuple[Case, ...]:
        """Return the boxes, each with what is unsafe there."""
        self._require_few(assertions, None)
        # What is asserted without a choice holds in every disjunct; it is most of a file and is read once.
        common = self._read(atom for assertion in assertions if len(assertion) == 1 for atom in assertion[0])
        choices = [assertion for assertion in assertions if len(assertion) != 1]
        whole = Ends((-math.inf,) * inputs, (math.inf,) * inputs).narrowed(common.bounds)
        # Fractions are slow to hash, and most disjuncts say nothing of inputs: the box of these has a list of its own.
        everywhere: list[Conjunction] = []
        found: dict[Ends, list[Conjunction]] = {}
        for chosen in itertools.product(*choices):
            own = self._read(atom for part in chosen for atom in part)
            box = whole.narrowed(own.bounds)
            if common.possible and own.possible and all(low <= high for low, high in zip(*box, strict=True)):
                conjunctions = found.setdefault(box, []) if own.bounds else everywhere
                conjunctions.append((*common.constraints, *own.constraints))
        boxes = [(whole, everywhere), *found.items()] if everywhere else list(found.items())
        return tuple(self._case(box, conjunctions) for box, conjunctions in boxes)

    def _read(self, atoms: Iterable[Atom]) -> Conjoined:
        """Tell bounds on single inputs from constraints on outputs."""
        read = Conjoined([], [])
        for atom in atoms:
            terms = {name: value for name, value in atom.terms.items() if value}
            limit = -terms.pop("", Fraction(0))
            letters = {name[0] for name in terms}
            if not terms:
                read = read._replace(possible=read.possible and limit >= 0)
            elif letters == {"Y"}:
                pairs = sorted((int(name[2:]), value) for name, value in terms.items())
                read.constraints.append(Constraint(tuple(pairs), limit))
            elif len(terms) == 1:
                ((name, value),) = terms.items()
                read.bounds.append(Bound(int(name[2:]), value > 0, limit / value))
            else:
                raise self._refused(atom.where, "inputs must be boxes: each input is bounded by numbers alone")
        return read

    def _case(self, box: Ends, conjunctions: list[Conjunction]) -> Case:
        exact = []
        for side, ends in zip(("lower", "upper"), box, strict=True):
            known = tuple(end for end in ends if isinstance(end, Fraction))
            if len(known) < len(ends):
                missing = next(at for at, end in enumerate(ends) if not isinstance(end, Fraction))
                raise InvalidInput(f"{self.source}: inputs must be boxes, but X_{missing} has no {side} bound.")
            exact.append(known)
        return Case(exact[0], exact[1], tuple(conjunctions))

    def _require_few(self, parts: list[Disjuncts], where: Form | None) -> None:
        count = math.prod(len(part) for part in parts)
        if count > MOST:
            line = f", line {where.line}" if where else ""
            raise InvalidInput(
                f"{self.source}{line}: the specification has {count} disjuncts; at most {MOST} are read."
            )

    def _refused(self, where: Word | Form, why: str) -> InvalidInput:
        return InvalidInput(f"{refused(where, why, self.source)} {SUPPORTED}.")


def _sum(terms: list[Linear]) -> Linear:
    total: Linear = {}
    for term in terms:
        for name, value in term.items():
            total[name] = total.get(name, Fraction(0)) + value
    return total


def _scaled(term: Linear, factor: Fraction) -> Linear:
    return {name: factor * value for name, value in term.items()}
