"""Constants of linear bounds are added up on the safe side, whatever cancels."""

from fractions import Fraction

import torch
from hypothesis import given
from hypothesis import strategies as st

from certibayes.bounds import IDEAL, outward
from certibayes.bounds._offset import Offset

from ..strategies import law

terms = st.one_of(st.floats(-(2.0**60), 2.0**60), st.floats(-1.0, 1.0), st.sampled_from([2.0**60, -(2.0**60), 1.0]))


@law(200)
@given(values=st.lists(terms, min_size=1, max_size=12), last=terms)
def test_a_total_is_never_above_the_exact_sum(values, last):
    constant = Offset(torch.zeros(1, 1), outward(torch.float32))
    for value in values:
        constant.add(torch.tensor([[value]], dtype=torch.float64))
    exact = sum((Fraction(value) for value in (*values, last)), Fraction(0))
    found = Fraction(float(constant.total(torch.tensor([[last]], dtype=torch.float64))))
    magnitude = sum((abs(Fraction(value)) for value in (*values, last)), Fraction(0))
    assert found <= exact
    # Nor far below it.
    assert found >= exact - magnitude * Fraction(2.0**-39) - 2 * Fraction(outward(torch.float32).underflow)


def test_in_ideal_arithmetic_nothing_is_taken_off():
    constant = Offset(torch.zeros(1, 1), IDEAL)
    constant.add(torch.tensor([[1.5]]))
    assert float(constant.total(torch.tensor([[2.0]], dtype=torch.float64))) == 3.5
