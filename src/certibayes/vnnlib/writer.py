"""Write specifications as VNN-LIB 1.0, every number exactly."""

from __future__ import annotations

from fractions import Fraction

from certibayes.errors import InvalidInput
from certibayes.vnnlib.specification import Case, Conjunction, Constraint, Specification


def format_vnnlib(specification: Specification, comment: str = "") -> str:
    """Return the text of a specification, which ``parse_vnnlib`` reads as the same.

    Args:
        specification: its numbers are finite decimals, as all floats are.
        comment: lines to begin with.
    """
    lines = [f"; {line}" for line in comment.splitlines()]
    for letter, count in (("X", specification.inputs), ("Y", specification.outputs)):
        lines += ["", *(f"(declare-const {letter}_{index} Real)" for index in range(count))]
    lines.append("")
    if len(specification.cases) == 1:
        (case,) = specification.cases
        lines += [f"(assert {bound})" for bound in _box(case)]
        lines.append("")
        # A conjunction without constraints makes every output unsafe, which is what a file without assertions says.
        if () not in case.unsafe or len(case.unsafe) > 1:
            lines += ["(assert (or", *(f"    {_conjunction((), unsafe)}" for unsafe in case.unsafe), "))"]
    elif specification.cases:
        disjuncts = [_conjunction(_box(case), unsafe) for case in specification.cases for unsafe in case.unsafe]
        lines += ["(assert (or", *(f"    {disjunct}" for disjunct in disjuncts), "))"]
    else:
        lines.append("(assert (<= 1.0 0.0))")
    return "\n".join(lines) + "\n"


def decimal(number: Fraction) -> str:
    """Write a number exactly, with a point.

    Raises:
        InvalidInput: it is no finite decimal.
    """
    twos, fives = (_power(number.denominator, prime) for prime in (2, 5))
    if 2**twos * 5**fives != number.denominator:
        raise InvalidInput(f"{number} is no finite decimal, so it cannot be written exactly.")
    places = max(twos, fives, 1)
    digits = f"{abs(number.numerator) * 10**places // number.denominator:0{places + 1}d}"
    return f"{'-' if number < 0 else ''}{digits[:-places]}.{digits[-places:]}"


def _power(number: int, prime: int) -> int:
    """How often a prime divides a number."""
    count = 0
    while number % prime == 0:
        number, count = number // prime, count + 1
    return count


def _box(case: Case) -> list[str]:
    return [
        bound
        for index, (low, high) in enumerate(zip(case.lower, case.upper, strict=True))
        for bound in (f"(>= X_{index} {decimal(low)})", f"(<= X_{index} {decimal(high)})")
    ]


def _conjunction(box: tuple[str, ...] | list[str], unsafe: Conjunction) -> str:
    parts = [*box, *(_constraint(constraint) for constraint in unsafe)] or ["(<= 0.0 0.0)"]
    return f"(and {' '.join(parts)})"


def _constraint(constraint: Constraint) -> str:
    """Write a Y <= b, in the simplest form that every tool reads where there is one."""
    pairs, bound = constraint.coefficients, constraint.bound
    if len(pairs) == 1 and abs(pairs[0][1]) == 1:
        ((index, sign),) = pairs
        return f"(<= Y_{index} {decimal(bound)})" if sign > 0 else f"(>= Y_{index} {decimal(-bound)})"
    if bound == 0 and sorted(value for _, value in pairs) == [-1, 1]:
        (less,), (more,) = ([index for index, value in pairs if value == sign] for sign in (1, -1))
        return f"(<= Y_{less} Y_{more})"
    terms = [f"(* {decimal(value)} Y_{index})" for index, value in pairs] or ["0.0"]
    total = terms[0] if len(terms) == 1 else f"(+ {' '.join(terms)})"
    return f"(<= {total} {decimal(bound)})"
