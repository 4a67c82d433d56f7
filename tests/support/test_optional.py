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
