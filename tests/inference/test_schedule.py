import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import certibayes as cb

kinds = st.sampled_from(["constant", "cosine", "exponential"])


@settings(deadline=None)
@given(progress=st.floats(0.0, 1.0))
def test_constant_is_constant(progress):
    assert cb.Schedule()(progress) == 1.0


@settings(deadline=None)
@given(kind=st.sampled_from(["cosine", "exponential"]), floor=st.floats(0.001, 0.9))
def test_it_runs_from_one_to_its_floor(kind, floor):
    schedule = cb.Schedule(kind, floor)
    assert schedule(0.0) == pytest.approx(1.0)
    assert schedule(1.0) == pytest.approx(floor)


@settings(deadline=None)
@given(kind=kinds, floor=st.floats(0.001, 0.9), one=st.floats(0.0, 1.0), other=st.floats(0.0, 1.0))
def test_it_never_rises(kind, floor, one, other):
    early, late = sorted((one, other))
    schedule = cb.Schedule(kind, floor)
    assert schedule(late) <= schedule(early) + 1e-12


@settings(deadline=None)
@given(kind=kinds, warmup=st.floats(0.01, 1.0), progress=st.floats(0.0, 1.0))
def test_warmup_rises_linearly_from_zero_and_the_factor_stays_a_fraction(kind, warmup, progress):
    factor = cb.Schedule(kind, warmup=warmup)(progress)
    assert 0.0 <= factor <= 1.0
    if progress < warmup:
        assert factor == pytest.approx(progress / warmup)


def test_cosine_is_half_way_down_in_the_middle():
    assert cb.Schedule("cosine", floor=0.0)(0.5) == pytest.approx(0.5)
    assert cb.Schedule("exponential", floor=0.01)(0.5) == pytest.approx(math.sqrt(0.01))


def test_unknown_schedules():
    with pytest.raises(ValueError, match="schedule"):
        cb.Schedule("staircase")


@settings(deadline=None)
@given(kind=kinds, floor=st.floats(0.001, 0.9), end=st.floats(0.1, 1.0), progress=st.floats(0.0, 1.0))
def test_after_its_end_the_factor_stays(kind, floor, end, progress):
    schedule = cb.Schedule(kind, floor, end=end)
    if progress >= end:
        assert schedule(progress) == pytest.approx(1.0 if kind == "constant" else floor)
    else:
        assert schedule(progress) == pytest.approx(cb.Schedule(kind, floor)(progress / end))


@pytest.mark.parametrize("end", [-0.1, 0.1, 1.5])
def test_an_end_before_the_warmup_or_after_training_is_refused(end):
    with pytest.raises(cb.errors.InvalidInput, match="ends between its warmup and 1"):
        cb.Schedule("cosine", warmup=0.2, end=end)
