"""The name that was probably meant."""

import pytest

from certibayes.support.names import nearest, shortened, unknown_name

KNOWN = ("map", "vogn", "noisy-adam", "swag")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("vong", "vogn"), ("VOGN", "vogn"), ("noisy_adam", "noisy-adam"), ("NoisyAdam", "noisy-adam"), ("swagg", "swag")],
)
def test_a_close_name_is_offered(typed, meant):
    assert nearest(typed, KNOWN) == f"; perhaps you mean {meant}"


def test_nothing_is_offered_where_nothing_is_close():
    assert nearest("hamiltonian", KNOWN) == ""


def test_the_sentence_lists_what_there_is():
    assert unknown_name("algorithm", "vong", KNOWN) == (
        "there is no algorithm 'vong'; perhaps you mean vogn. Known are map, vogn, noisy-adam, swag."
    )


def test_of_many_names_the_first_are_shown():
    names = [f"n{k}" for k in range(33)]
    assert shortened(names) == f"{', '.join(names[:30])} and 3 more"
    assert shortened(names[:30]) == ", ".join(names[:30])
