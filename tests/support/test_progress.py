"""Progress is a bar on standard error, nothing, or the caller's function."""

import pytest

from certibayes.errors import InvalidInput
from certibayes.support.progress import reporting


def test_true_shows_a_bar_on_standard_error_only(capsys):
    with reporting(True, "certifying") as report:
        report(3, 7)
    shown = capsys.readouterr()
    assert "certifying" in shown.err and "3/7" in shown.err
    assert shown.out == ""


def test_false_shows_nothing(capsys):
    with reporting(False, "certifying") as report:
        report(3, 7)
    shown = capsys.readouterr()
    assert shown.out == shown.err == ""


def test_a_function_is_called_with_what_is_reported(capsys):
    calls = []
    with reporting(lambda done, total: calls.append((done, total)), "certifying") as report:
        report(1, 2)
        report(2, 2)
    assert calls == [(1, 2), (2, 2)]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("progress", [None, 1, 0, "yes"])
def test_anything_else_is_refused_with_what_is_allowed(progress):
    allowed = r"True for a bar, False for none, or a function of \(done, total\)"
    with pytest.raises(InvalidInput, match=allowed), reporting(progress, "certifying"):
        pass


def test_an_error_inside_passes_through():
    with pytest.raises(ZeroDivisionError), reporting(True, "certifying"):
        raise ZeroDivisionError
