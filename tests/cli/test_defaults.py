"""What a command gives that says no more than it must."""

import json

import pytest
from typer.testing import CliRunner

from certibayes.cli import app

CHEAP = ("noisy-adam", "ivon", "sghmc", "laplace")
"""A few, for time; benchmarks/defaults.py has all ten."""


def command(*arguments):
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", CHEAP)
def test_an_algorithm_works_as_it_comes(algorithm, tmp_path):
    """The network alone is smaller than by default, for time."""
    train = ("train", "--dataset", "digits", "--algorithm", algorithm, "--likelihood", "ibp", "--eps", 0.1)
    command(*train, "--hidden", 64, "--out", tmp_path)
    found = command("certify", tmp_path, "--eps", 0.1, "--method", "theorem1", "--bounds", "ibp")
    assert found["accuracy"] >= 0.85
    assert found["certified"] >= 0.1
