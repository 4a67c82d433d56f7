"""Settings: dataclass fields as a person writes them."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from certibayes.errors import InvalidInput
from certibayes.experiments.settings import Setting, as_number, as_text, metavar, settings_of
from certibayes.experiments.spec import ALGORITHMS, TrainSpec, hyperparameters


@dataclass(frozen=True)
class Base:
    """A base.

    Attributes:
        rate: of something, described
            over two lines.
    """

    rate: float = 1.0


@dataclass(frozen=True)
class Example(Base):
    """An example.

    Attributes:
        pair: two ``numbers``.
        table: cannot be written as a plain value.

    A paragraph after it: is not an attribute.
    """

    pair: tuple[float, float] = (0.1, 0.2)
    table: dict[str, Any] = field(default_factory=dict)


def test_fields_become_settings_with_the_help_of_the_docstring():
    settings = settings_of(Example)
    assert list(settings) == ["rate", "pair"]
    assert settings["rate"].help == "of something, described over two lines."
    assert settings["pair"].help == "two numbers."
    assert settings["pair"].default == (0.1, 0.2)


@pytest.mark.parametrize("declaring", [TrainSpec, *ALGORITHMS.values()], ids=lambda cls: cls.__name__)
def test_every_setting_has_help(declaring):
    for setting in settings_of(declaring).values():
        assert setting.help, f"{declaring.__name__}.{setting.name} is not in the Attributes of its docstring"


def test_no_hyperparameter_hides_behind_a_field_of_the_spec():
    for algorithm in ALGORITHMS:
        assert not set(hyperparameters(algorithm)) & set(settings_of(TrainSpec))


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (float, "1e-3", 0.001),
        (int, "3", 3),
        (bool, "true", True),
        (str, "adam", "adam"),
        (int | None, "none", None),
        (int | None, "4", 4),
        (str | None, "none", None),
        (float | str, "prior", "prior"),
        (float | str, "2", 2.0),
        (int | float, "2", 2),
        (int | float, "0.5", 0.5),
        (tuple[float, float], "0.9, 0.99", (0.9, 0.99)),
        (tuple[int, ...], "256,128", (256, 128)),
        (tuple[int, ...], "512", (512,)),
    ],
)
def test_a_flag_is_read_by_its_type_and_written_back(kind, text, value):
    setting = Setting("it", kind, None, "")
    read = setting.read(text)
    assert read == value and type(read) is type(value)
    assert setting.check(read) == value
    assert setting.read(as_text(value)) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [(float, "fast"), (int, "0.5"), (bool, "maybe"), (int, "none"), (tuple[float, float], "0.9"), (int | None, "x")],
)
def test_a_flag_of_the_wrong_type_is_refused(kind, text):
    with pytest.raises(ValueError, match="it must be"):
        Setting("it", kind, None, "").read(text)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (float, 1, 1.0),
        (tuple[float, float], [1, 0.5], (1.0, 0.5)),
        (int | None, None, None),
        (int | None, "none", None),
        (float | str, "validate", "validate"),
        (float | str, 1, 1.0),
    ],
)
def test_values_take_the_type_of_their_field(kind, value, expected):
    found = Setting("it", kind, None, "").check(value)
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (float, "1"),
        (float, True),
        (int, 1.0),
        (int, True),
        (bool, 1),
        (str, 3),
        (int, None),
        (tuple[float, float], [1.0]),
        (tuple[float, float], ["a", "b"]),
        (tuple[int, ...], 3),
    ],
)
def test_values_of_the_wrong_type_are_refused(kind, value):
    with pytest.raises(InvalidInput, match="it here must be"):
        Setting("it", kind, None, "").check(value, " here")


def test_types_have_short_names():
    assert metavar(tuple[float, float]) == "float,float"
    assert metavar(tuple[int, ...]) == "int,..."
    assert metavar(int | None) == "int|none"


@pytest.mark.parametrize(("text", "number"), [("8/255", 8 / 255), (" 1 / 4 ", 0.25), ("1e-3", 1e-3), ("0.1", 0.1)])
def test_numbers_may_be_quotients(text, number):
    assert as_number(text) == number
    assert settings_of(TrainSpec)["eps"].read(text) == number


@pytest.mark.parametrize("text", ["", "/", "1/", "/2", "1/0", "1/2/3", "eight/255"])
def test_what_is_no_quotient_is_refused(text):
    with pytest.raises(ValueError):
        as_number(text)


def test_a_file_writes_quotients_as_text():
    assert TrainSpec(eps="8/255").eps == 8 / 255
    for wrong in ("8:255", "8/0", "0.1"):
        with pytest.raises(InvalidInput, match="eps must be a number"):
            TrainSpec(eps=wrong)
