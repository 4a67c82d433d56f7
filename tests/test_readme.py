"""The README must stay true: its quickstart runs in both of its forms, its table matches the registry."""

import re
import shlex
from pathlib import Path

import pytest

import certibayes as cb

from .cli.cases import invoke

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
HOME = (ROOT / "docs" / "index.md").read_text()

SMALLER = {"epochs=20": "epochs=4", "[512]": "[16]", "samples=35": "samples=3", "x[:500], y[:500]": "x[:20], y[:20]"}
"""The same code with less work."""


def quickstart(text):
    """The first block of Python, and the first of shell commands that follows it."""
    start = text.index("## Quickstart")
    code = re.search(r"```python\n(.*?)```", text[start:], re.DOTALL).group(1)
    shell = re.search(r"```console\n(.*?)```", text[start:], re.DOTALL).group(1)
    return code, [line.removeprefix("$ ") for line in shell.strip().splitlines()]


def test_the_table_of_layers_is_the_registry():
    assert cb.bounds.support_table() in README


def test_there_is_one_quickstart():
    start, end = "## Quickstart", "`certify` and `attack` take"
    sections = [text[text.index(start) : text.index(end)] for text in (README, HOME)]
    assert sections[0] == sections[1]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The quickstart's names after it ran, smaller, and the folder it ran in."""
    code, _ = quickstart(README)
    assert len(code.strip().splitlines()) <= 20
    for large, small in SMALLER.items():
        assert large in code
        code = code.replace(large, small)
    folder = tmp_path_factory.mktemp("quickstart")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        space: dict = {}
        exec(code, space)
    return space, folder


def test_the_quickstart_is_short_and_runs(ran):
    space, folder = ran
    assert "l-infinity distance 0.1" in space["certificate"].statement
    assert "values in [0, 1]" in space["certificate"].statement
    assert cb.load(folder / "runs" / "quickstart").predictor(3).digest == space["predictor"].digest


def test_the_shell_makes_the_same_posterior(ran, tmp_path, monkeypatch):
    space, _ = ran
    _, commands = quickstart(README)
    train, certify, *others = [shlex.split(command) for command in commands]
    monkeypatch.chdir(tmp_path)
    result = invoke(*(word if word != "20" else "4" for word in train[1:]), "--hidden", 16)
    assert result.exit_code == 0, result.output
    result = invoke(*certify[1:], "--samples", 3, "--limit", 20)
    assert result.exit_code == 0, result.output
    assert space["predictor"].digest[:16] in result.output
    assert cb.load(tmp_path / "runs" / "a").predictor(3).digest == space["predictor"].digest
    for command in others:
        assert invoke(command[1], "--help").exit_code == 0


def test_the_package_declares_its_public_names():
    for name in cb.__all__:
        assert hasattr(cb, name)
