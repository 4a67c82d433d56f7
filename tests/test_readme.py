"""The README must stay true: its quickstart runs, its table matches the registry."""

import re
from pathlib import Path

import certibayes as cb

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_table_of_layers_is_the_registry():
    assert cb.bounds.support_table() in README


def test_the_quickstart_is_short_and_runs(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(code.strip().splitlines()) <= 20
    monkeypatch.chdir(tmp_path)
    # The same code with less work: one epoch, a small network, few samples.
    quick = code.replace("epochs=20", "epochs=1").replace("[512]", "[32]").replace("samples=35", "samples=3")
    assert quick != code
    exec(quick, {})
    assert "l-infinity" in capsys.readouterr().out


def test_the_package_declares_its_public_names():
    for name in cb.__all__:
        assert hasattr(cb, name)
