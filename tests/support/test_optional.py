"""Optional packages: the module, or the command that installs it."""

import sys

import pytest

from certibayes.errors import MissingPackage
from certibayes.support.optional import require_package


def test_what_is_there_is_returned():
    import numpy.linalg

    assert require_package("numpy.linalg", "figures") is numpy.linalg


def test_what_is_missing_names_the_package_and_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingPackage, match=r'needs matplotlib, .*pip install "certibayes\[figures\]"') as caught:
        require_package("matplotlib.figure", "figures")
    assert isinstance(caught.value, ImportError)


def test_what_fails_when_it_is_imported_is_not_called_missing(monkeypatch, tmp_path):
    """As torchmetrics does where torchvision was made for another torch."""
    (tmp_path / "brittle.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        MissingPackage, match=r"brittle, which is there but cannot be imported .*torchvision::nms"
    ) as caught:
        require_package("brittle", "evaluation")
    assert "pip install" not in str(caught.value)
