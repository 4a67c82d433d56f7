"""The documentation reads well without a network: formulas, scripts, and code that fits its column."""

import importlib.util
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.rglob("*.md")])
WIDTH = 100
"""Characters of code that fit beside the navigation on a screen of 1280 pixels, as `extra.css` sets them."""
FORMULAS = re.compile(r"\$\$(.+?)\$\$|(?<![\\$`\w])\$(?!\s)([^$`\n]+?)(?<!\s)\$(?![\w$])", re.DOTALL)
CODE = re.compile(r"^( *)```.*?^\1```|`[^`\n]+`", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def mathml():
    """What converts a formula, which needs a package of the extra ``docs``."""
    pytest.importorskip("latex2mathml", reason="the documentation's own packages: make docs")
    spec = importlib.util.spec_from_file_location("math_markup", DOCS / "math_markup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.mathml


def test_nothing_is_loaded_from_elsewhere():
    assert "https://" not in (ROOT / "mkdocs.yml").read_text()
    assert "//" not in re.sub(r"/\*.*?\*/", "", (DOCS / "stylesheets" / "extra.css").read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_fits_its_column(page):
    blocks = re.findall(r"^ *```(\w+)[^\n]*\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE)
    # What a command answers may be one long line, which the terminal breaks; what a reader copies may not.
    wide = [
        line
        for language, block in blocks
        for line in block.splitlines()
        if len(line) > WIDTH and (language != "console" or line.startswith("$"))
    ]
    assert wide == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_formula_is_converted(page, mathml):
    for found in FORMULAS.finditer(CODE.sub("", page.read_text())):
        tree = ElementTree.fromstring(mathml((found[1] or found[2]).strip(), block=found[1] is not None))
        assert tree.tag in ("div", "{http://www.w3.org/1998/Math/MathML}math")


def test_what_cannot_be_converted_ends_the_build(mathml):
    with pytest.raises(ValueError, match="does not know"):
        mathml(r"\unheardof x", block=False)


def test_limits_stand_below_and_numbers_at_the_side(mathml):
    found = mathml(r"\max_{c \ne y} \log p \tag{3}", block=True)
    assert "<munder>" in found and '<span class="number">(3)</span>' in found
    assert "<munder>" not in mathml(r"\max_c p", block=False)
