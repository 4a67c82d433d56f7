"""VNN-LIB: what is written is read as the same, what is read means what it says, and the rest is refused by line."""

import gzip
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from certibayes.errors import CorruptFile, InvalidInput
from certibayes.vnnlib import Case, Constraint, Specification, decimal, format_vnnlib, parse_vnnlib, read_vnnlib

from ..strategies import law

F = Fraction
DECLARED = "".join(f"(declare-const {letter}_{i} Real)\n" for letter, n in (("X", 2), ("Y", 3)) for i in range(n))
BOX = "(assert (>= X_0 0.1)) (assert (<= X_0 0.2)) (assert (>= X_1 -1)) (assert (<= X_1 1e0))"
ENDS = (F("0.1"), F(-1)), (F("0.2"), F(1))


def unsafe(text: str) -> tuple:
    """The unsafe conjunctions of outputs that an assertion says, in one box."""
    (case,) = parse_vnnlib(f"{DECLARED}{BOX}(assert {text})").cases
    assert (case.lower, case.upper) == ENDS
    return case.unsafe


def constraint(bound: object, **coefficients: object) -> Constraint:
    pairs = sorted((int(name[1:]), F(value)) for name, value in coefficients.items())
    return Constraint(tuple(pairs), F(bound))


def test_numbers_are_exact():
    (case,) = parse_vnnlib(f"{DECLARED}{BOX}").cases
    assert case == Case(*ENDS, ((),))
    assert case.lower[0] != F(0.1)


MEANINGS = {
    "(<= Y_0 Y_1)": [[constraint(0, y0=1, y1=-1)]],
    "(>= Y_0 Y_1)": [[constraint(0, y0=-1, y1=1)]],
    "(<= Y_2 3.5)": [[constraint("3.5", y2=1)]],
    "(<= 3.5 Y_2)": [[constraint("-3.5", y2=-1)]],
    "(>= Y_2 (- 0.5))": [[constraint("0.5", y2=-1)]],
    "(<= (+ Y_0 (* 2.0 Y_1) 1) (- Y_2 Y_0 4))": [[constraint(-5, y0=2, y1=2, y2=-1)]],
    "(<= (* Y_1 -3) (* (- 2) 5))": [[constraint(-10, y1=-3)]],
    "(or (<= Y_0 1) (and (<= Y_1 2) (>= Y_2 3)))": [
        [constraint(1, y0=1)], [constraint(2, y1=1), constraint(-3, y2=-1)],
    ],
    "(and (or (<= Y_0 1) (<= Y_0 2)) (or (<= Y_1 1) (<= Y_1 2)))": [
        [constraint(a, y0=1), constraint(b, y1=1)] for a in (1, 2) for b in (1, 2)
    ],
    "(or (and (<= Y_0 1) (<= 2 1)) (<= Y_1 1))": [[constraint(1, y1=1)]],
    "(and (<= Y_0 1) (<= 1 1))": [[constraint(1, y0=1)]],
    "(<= Y_0 (+ Y_0 1))": [[]],
}  # fmt: skip


@pytest.mark.parametrize("text", MEANINGS)
def test_outputs_mean_what_is_written(text):
    assert unsafe(text) == tuple(tuple(conjunction) for conjunction in MEANINGS[text])


def test_inputs_may_be_several_boxes():
    text = f"""{DECLARED}
    (assert (>= X_1 0)) (assert (<= X_1 1)) (assert (<= X_1 0.5)) ; the tighter one counts
    (assert (or (and (>= X_0 0) (<= X_0 1) (<= Y_0 Y_1))
                (and (>= X_0 2) (<= X_0 3) (<= Y_1 Y_0))
                (and (>= X_0 0) (<= X_0 1) (<= Y_2 Y_0))
                (and (>= X_0 5) (<= X_0 4))))
    """
    one, other = parse_vnnlib(text).cases
    assert one.lower == (0, 0) and one.upper == (1, F(1, 2))
    assert one.unsafe == ((constraint(0, y0=1, y1=-1),), (constraint(0, y2=1, y0=-1),))
    assert other.lower == (2, 0) and other.unsafe == ((constraint(0, y1=1, y0=-1),),)


def test_what_cannot_be_has_no_cases():
    assert parse_vnnlib(f"{DECLARED}{BOX}(assert (>= X_0 0.3))").cases == ()
    assert parse_vnnlib(f"{DECLARED}{BOX}(assert (<= 1 0))").cases == ()


def test_coefficients_divide_bounds_of_inputs():
    text = f"{DECLARED}(assert (<= (* 2 X_0) 1)) (assert (<= (* -4 X_0) 1)) (assert (>= X_1 0)) (assert (<= (- X_1) 0))"
    with pytest.raises(InvalidInput, match="X_1 has no upper bound"):
        parse_vnnlib(text)
    (case,) = parse_vnnlib(f"{text}(assert (<= X_1 7))").cases
    assert case.lower == (F(-1, 4), 0) and case.upper == (F(1, 2), 7)


# Round trip


numbers = st.builds(lambda n, e: F(n) / 2**e, st.integers(-1000, 1000), st.integers(0, 40)) | st.builds(
    lambda n, e: F(n) / 10**e, st.integers(-1000, 1000), st.integers(0, 12)
)
constraints = st.builds(
    lambda pairs, bound: Constraint(tuple(sorted(pairs.items())), bound),
    st.dictionaries(st.integers(0, 2), numbers.filter(bool), min_size=1),
    numbers,
)
conjunctions = st.lists(constraints, max_size=3).map(tuple)


@st.composite
def specifications(draw):
    inputs = draw(st.integers(1, 4))
    cases, seen = [], set()
    for _ in range(draw(st.integers(0, 3))):
        ends = [sorted(draw(st.tuples(numbers, numbers))) for _ in range(inputs)]
        lower, upper = (tuple(end[side] for end in ends) for side in (0, 1))
        if (lower, upper) not in seen:
            seen.add((lower, upper))
            cases.append(Case(lower, upper, tuple(draw(st.lists(conjunctions, min_size=1, max_size=3)))))
    return Specification(inputs, 3, tuple(cases))


@law(60)
@given(specification=specifications())
def test_what_is_written_is_read_as_the_same(specification):
    assert parse_vnnlib(format_vnnlib(specification, "a comment (with parentheses\nand lines")) == specification


@law(60)
@given(number=numbers)
def test_decimals_are_exact(number):
    assert F(decimal(number)) == number


def test_what_is_no_decimal_cannot_be_written():
    with pytest.raises(InvalidInput, match="1/3"):
        decimal(F(1, 3))


@law(40)
@given(specification=specifications(), x=st.lists(numbers, min_size=4, max_size=4), y=st.tuples(*[numbers] * 3))
def test_unsafe_is_what_some_conjunction_says(specification, x, y):
    """Against the definition, written out."""
    for case in specification.cases:
        inside = all(a <= v and v <= b for a, v, b in zip(case.lower, x, case.upper, strict=False))
        assert case.contains(x[: specification.inputs]) == inside
        expected = False
        for conjunction in case.unsafe:
            expected |= all(sum(a * y[i] for i, a in one.coefficients) - one.bound <= 0 for one in conjunction)
        assert case.is_unsafe(y) == expected


# What is refused


REFUSED = {
    "(assert (< X_0 1))": "inequality <= or >=",
    "(assert (= X_0 1))": "inequality <= or >=",
    "(assert (<= X_0 1 2))": "inequality <= or >=",
    "(assert (not (<= X_0 1)))": "inequality <= or >=",
    "(assert (and))": "inequality <= or >=",
    "(assert true)": "inequality <= or >=",
    "(assert (<= X_9 1))": "X_9 is not declared",
    "(assert (<= height 1))": "neither a number nor a variable",
    "(assert (<= Y_0 1/3))": "neither a number nor a variable",
    "(assert (<= Y_0 1e9999))": "neither a number nor a variable",
    "(assert (<= (* Y_0 Y_1) 1))": "not linear",
    "(assert (<= (/ Y_0 2) 1))": "the term / is not known",
    "(assert (<= (+ X_0 X_1) 1))": "inputs must be boxes",
    "(assert (<= X_0 X_1))": "inputs must be boxes",
    "(assert (<= X_0 Y_1))": "inputs must be boxes",
    "(assert (or (<= Y_0 1) (<= (- X_0 X_1) 1)))": "inputs must be boxes",
    "(set-logic LRA)": "set-logic is not known",
    "(check-sat)": "check-sat is not known",
    "(declare-const Z_0 Real)": "X_i or Y_i",
    "(declare-const X_00 Real)": "X_i or Y_i",
    "(declare-const X_7 Int)": "X_i or Y_i",
    "(declare-const X_0 Real)": "declared twice",
    "()": "this is not known",
}


@pytest.mark.parametrize("text", REFUSED)
def test_the_rest_is_refused_with_its_line_and_what_is_supported(text):
    line = f"{DECLARED}{BOX}".count("\n") + 3
    with pytest.raises(InvalidInput, match=rf"spec\.vnnlib, line {line}: .*{REFUSED[text]}") as caught:
        parse_vnnlib(f"{DECLARED}{BOX}\n; a comment\n{text}", "spec.vnnlib")
    assert "Supported are" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("(assert (<= X_0 1)", "line 2: an opening parenthesis"),
        (")", "line 2: a closing parenthesis"),
        ("word", "line 2: a file is made of expressions"),
        ("(" * 1000, "nested more than"),
    ],
)
def test_broken_expressions_are_refused(text, words):
    with pytest.raises(InvalidInput, match=words):
        parse_vnnlib(f"(declare-const X_0 Real)\n{text}")


def test_variables_are_numbered_without_gaps():
    with pytest.raises(InvalidInput, match="declares no Y_0"):
        parse_vnnlib("(declare-const X_0 Real)")
    with pytest.raises(InvalidInput, match="but not X_1"):
        parse_vnnlib("(declare-const X_0 Real) (declare-const X_2 Real) (declare-const Y_0 Real)")


def test_inputs_without_bounds_are_named():
    with pytest.raises(InvalidInput, match=r"inputs must be boxes, but X_1 has no lower bound"):
        parse_vnnlib(f"{DECLARED}(assert (>= X_0 0)) (assert (<= X_0 1)) (assert (<= X_1 1))")


def test_too_many_disjuncts_are_refused():
    many = "(and " + "(or (<= Y_0 1) (<= Y_1 1))" * 20 + ")"
    with pytest.raises(InvalidInput, match="1048576 disjuncts"):
        unsafe(many)


def test_files_are_read_plain_and_compressed(tmp_path):
    text = f"{DECLARED}{BOX}(assert (<= Y_0 Y_1))".replace("(declare-const X_0 Real)", "(declare-fun X_0 () Real)")
    plain, packed = tmp_path / "a.vnnlib", tmp_path / "a.vnnlib.gz"
    plain.write_text(text)
    packed.write_bytes(gzip.compress(text.encode()))
    assert read_vnnlib(plain) == read_vnnlib(packed) == parse_vnnlib(text)
    with pytest.raises(InvalidInput, match="there is no file"):
        read_vnnlib(tmp_path / "b.vnnlib")
    plain.write_bytes(b"\xff\xfe")
    with pytest.raises(CorruptFile, match="not a text file"):
        read_vnnlib(plain)
