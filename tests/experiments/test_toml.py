"""What is written as TOML, Python reads back unchanged."""

import math
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from certibayes.errors import InvalidInput
from certibayes.experiments._toml import to_toml

scalars = st.text() | st.floats(allow_nan=False) | st.integers(-(2**63), 2**63 - 1) | st.booleans()
values = scalars | st.lists(st.floats(allow_nan=False)) | st.lists(st.text())


@given(st.dictionaries(st.text(), values), st.dictionaries(st.text(), values))
def test_values_and_a_table_survive(plain, table):
    plain.pop("settings", None)
    assert tomllib.loads(to_toml({**plain, "settings": table})) == {**plain, "settings": table}


def test_types_are_kept():
    read = tomllib.loads(to_toml({"a": 1, "b": 1.0, "c": True, "d": 1e-5, "e": 1e22, "f": (1, 2)}))
    assert read == {"a": 1, "b": 1.0, "c": True, "d": 1e-5, "e": 1e22, "f": [1, 2]}
    assert [type(value) for value in read.values()] == [int, float, bool, float, float, list]
    assert math.isnan(tomllib.loads(to_toml({"a": math.nan}))["a"])


def test_what_toml_cannot_hold_is_refused():
    with pytest.raises(InvalidInput, match="None"):
        to_toml({"a": None})
